//! A Modelfile for Ollama: where the weights are, how conversations are written, and what ends an answer.
//!
//! Ollama's templates are Go's, models' own are Jinja programs. What a program writes around messages is found by
//! running it on conversations of which only the contents are known, and checked on longer ones. A program
//! that does more than put text around messages is left to Ollama, which knows some by heart.

use tinkrs_chat::format::ChatTemplate;
use tinkrs_chat::{Conversation, Message, Renderer, Role};
use tinkrs_types::sampling::Stop;

use crate::Base;

/// Returns the text of the Modelfile, and what it could not say.
pub(crate) fn modelfile(base: &Base, weights: &str) -> (String, Option<String>) {
    let mut text = format!("FROM ./{weights}\n");
    let mut note = None;
    if base.template.is_none() {
        text.push_str("TEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n");
    } else {
        let begin = base.tokenizer.as_ref().and_then(|tokenizer| {
            let tokens = tokenizer.encode("").ok()?;
            tokenizer.decode(&tokens).ok()
        });
        let template = ChatTemplate::from_path(&base.path).ok();
        let found =
            template.and_then(|template| go_template(&template, &begin.unwrap_or_default()));
        match found {
            Some(template) => text.push_str(&format!("TEMPLATE \"\"\"{template}\"\"\"\n")),
            None => {
                note = Some(
                    "the chat template does more than put text around messages: the Modelfile has none, and Ollama \
                     looks at the one in the GGUF file"
                        .to_owned(),
                );
            }
        }
    }
    for stop in stops(base) {
        text.push_str(&format!("PARAMETER stop {}\n", quoted(&stop)));
    }
    (text, note)
}

/// Returns the spelling of what ends an answer.
fn stops(base: &Base) -> Vec<String> {
    let Some(tokenizer) = &base.tokenizer else {
        return Vec::new();
    };
    let spelled = |ids: &[u32]| -> Vec<String> {
        let texts = ids.iter().filter_map(|id| tokenizer.decode(&[*id]).ok());
        texts.filter(|text| !text.is_empty()).collect()
    };
    match Renderer::from_path(&base.path).map(|renderer| renderer.stop()) {
        Ok(Stop::AnyToken(ids)) => spelled(&ids),
        Ok(Stop::Text(text)) => vec![text],
        _ => spelled(&base.weights.config().eos),
    }
}

/// Writes a parameter as Ollama's parser reads it.
fn quoted(text: &str) -> String {
    format!(
        "\"{}\"",
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    )
}

/// What a template writes around the messages of a conversation.
#[derive(Debug, PartialEq)]
struct Around {
    /// In front of everything, where there is no system message.
    without_system: String,
    system: (String, String),
    /// What comes behind a user's text belongs to what follows, unless it is what ends the assistant's, too.
    user: (String, String),
    assistant: (String, String),
    /// Where the assistant is to speak.
    open: String,
}

/// Contents that appear in no template.
const SYSTEM: &str = "xSYSTEMx";
const USER: &str = "xUSERx";
const ANSWER: &str = "xANSWERx";
const AGAIN: &str = "xAGAINx";

/// Returns the template in Go's language, if it is that simple. `begin` is what the reader of the GGUF file puts in
/// front by itself.
fn go_template(template: &ChatTemplate, begin: &str) -> Option<String> {
    let text = |messages: &[Message]| -> Option<String> {
        let conversation = Conversation::from(messages.to_vec());
        let text = template.prompt_text(&conversation).ok()?;
        Some(text.strip_prefix(begin).unwrap_or(&text).to_owned())
    };
    let around = Around::find(&text)?;
    let (system, user) = (Message::system(SYSTEM), Message::user(USER));
    let (answer, again) = (Message::assistant(ANSWER), Message::user(AGAIN));
    let longer = [user, answer, again.clone(), Message::assistant("b"), again];
    let with_system: Vec<_> = std::iter::once(system).chain(longer.clone()).collect();
    let is_right = [
        &longer[..1],
        &longer[..3],
        &longer,
        &with_system[..2],
        &with_system,
    ]
    .into_iter()
    .all(|messages| text(messages).is_some_and(|text| text == around.write(messages)));
    is_right.then(|| around.in_go()).flatten()
}

impl Around {
    /// Finds what a template writes.
    fn find(text: &impl Fn(&[Message]) -> Option<String>) -> Option<Self> {
        let user = Message::user(USER);
        let alone = text(std::slice::from_ref(&user))?;
        let (front, open) = alone.split_once(USER)?;
        let with_system = text(&[Message::system(SYSTEM), user.clone()])?;
        let (system_front, rest) = with_system.split_once(SYSTEM)?;
        let (system_to_user, _) = rest.split_once(USER)?;
        let longer = text(&[user, Message::assistant(ANSWER), Message::user(AGAIN)])?;
        let (_, rest) = longer.split_once(USER)?;
        let (answer_front, rest) = rest.split_once(ANSWER)?;
        let (answer_to_user, _) = rest.split_once(AGAIN)?;
        // What is in front of a user's text wherever one comes is the user's own.
        let own = common_end(common_end(front, system_to_user), answer_to_user);
        let without = |text: &str| text.strip_suffix(own).map(str::to_owned);
        let answer_back = without(answer_to_user)?;
        let end = common_start(common_start(open, answer_front), &answer_back);
        Some(Self {
            without_system: without(front)?,
            system: (system_front.to_owned(), without(system_to_user)?),
            user: (own.to_owned(), end.to_owned()),
            open: open.strip_prefix(end)?.to_owned(),
            assistant: (answer_front.strip_prefix(end)?.to_owned(), answer_back),
        })
    }

    /// Writes a conversation.
    fn write(&self, messages: &[Message]) -> String {
        let mut text = String::new();
        let has_system = messages.first().is_some_and(|m| m.role == Role::System);
        if !has_system {
            text.push_str(&self.without_system);
        }
        for message in messages {
            let (front, back) = match message.role {
                Role::System => (&self.system.0, self.system.1.as_str()),
                Role::Assistant => (&self.assistant.0, self.assistant.1.as_str()),
                _ => (&self.user.0, self.user.1.as_str()),
            };
            text.push_str(&format!("{front}{}{back}", message.content));
        }
        text + &self.open
    }

    /// Writes the same as a template of Go, unless the texts would be read as a part of it.
    fn in_go(&self) -> Option<String> {
        let (system, user, answer) = (&self.system, &self.user, &self.assistant);
        let texts = [
            &self.without_system,
            &system.0,
            &system.1,
            &user.0,
            &user.1,
            &answer.0,
            &answer.1,
        ];
        let mut texts = texts.into_iter().chain([&self.open]);
        if texts.any(|text| {
            ["{{", "}}", "\"\"\""]
                .iter()
                .any(|mark| text.contains(mark))
        }) {
            return None;
        }
        let mut go = String::new();
        if !self.without_system.is_empty() {
            let text = &self.without_system;
            go.push_str(&format!(
                "{{{{ if ne (index .Messages 0).Role \"system\" }}}}{text}{{{{ end }}}}"
            ));
        }
        go.push_str("{{ range .Messages }}");
        let roles = [
            ("if", "system", &system.0, system.1.as_str()),
            ("else if", "user", &user.0, user.1.as_str()),
            ("else if", "assistant", &answer.0, answer.1.as_str()),
        ];
        for (word, role, front, back) in roles {
            go.push_str(&format!(
                "{{{{ {word} eq .Role \"{role}\" }}}}{front}{{{{ .Content }}}}{back}"
            ));
        }
        go.push_str("{{ end }}{{ end }}");
        Some(go + &self.open)
    }
}

/// Returns the longest text that both begin with.
fn common_start<'a>(left: &'a str, right: &str) -> &'a str {
    let same = left.chars().zip(right.chars());
    let length: usize = same
        .take_while(|(left, right)| left == right)
        .map(|(character, _)| character.len_utf8())
        .sum();
    &left[..length]
}

/// Returns the longest text that both end with.
fn common_end<'a>(left: &'a str, right: &str) -> &'a str {
    let same = left.chars().rev().zip(right.chars().rev());
    let length: usize = same
        .take_while(|(left, right)| left == right)
        .map(|(character, _)| character.len_utf8())
        .sum();
    &left[left.len() - length..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
        message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}\
        {{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn a_simple_template_becomes_one_of_go() {
        let go = go_template(&ChatTemplate::new(CHATML).unwrap(), "").unwrap();
        assert_eq!(
            go,
            "{{ range .Messages }}{{ if eq .Role \"system\" }}<|im_start|>system\n{{ .Content }}<|im_end|>\n\
             {{ else if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n\
             {{ else if eq .Role \"assistant\" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n\
             {{ end }}{{ end }}<|im_start|>assistant\n"
        );
        let with_default = format!(
            "{{% if messages[0]['role'] != 'system' %}}{{{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}}}{{% endif %}}{CHATML}"
        );
        let go = go_template(&ChatTemplate::new(with_default).unwrap(), "").unwrap();
        assert!(
            go.starts_with(
                "{{ if ne (index .Messages 0).Role \"system\" }}<|im_start|>system\nBe kind."
            ),
            "{go}"
        );
        let begun = format!("{{{{ '<s>' }}}}{CHATML}");
        let go = go_template(&ChatTemplate::new(begun).unwrap(), "<s>").unwrap();
        assert!(!go.contains("<s>"), "the reader puts it there: {go}");
    }

    #[test]
    fn a_template_that_counts_is_left_alone() {
        let counting =
            "{% for message in messages %}{{ loop.index }}{{ message['content'] }}{% endfor %}";
        assert_eq!(go_template(&ChatTemplate::new(counting).unwrap(), ""), None);
    }
}
