//! Renderers against `apply_chat_template`.

use super::data;
use crate::format::{ChatMl, ChatTemplate, Llama3, Qwen3};
use crate::testing::{renderer, tokenizer};
use crate::{Conversation, Json, Message, Renderer, Role};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Deserialize)]
pub(super) struct Golden {
    conversations: BTreeMap<String, Conversation>,
    pub(super) injected: Option<Injected>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(super) struct Injected {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    conversation: String,
    variables: BTreeMap<String, Json>,
    prompt: bool,
    #[serde(default)]
    text: String,
    #[serde(default)]
    tokens: Vec<u32>,
    /// Why the template does not write this conversation.
    #[serde(default)]
    refused: Option<String>,
}

pub(super) fn golden() -> Golden {
    serde_json::from_str(&std::fs::read_to_string(data("golden.json")).unwrap()).unwrap()
}

/// Compares a renderer with every case of a template that it is meant for, and returns how many
/// there were.
fn compare(
    template: &str,
    renderer: &Renderer,
    meant: impl Fn(&Case, &Conversation) -> bool,
) -> usize {
    let golden = golden();
    let mut compared = 0;
    for case in golden.cases.iter().filter(|case| case.template == template) {
        let conversation = &golden.conversations[&case.conversation];
        if !meant(case, conversation) {
            continue;
        }
        let label = format!("{template}, {}, prompt {}", case.conversation, case.prompt);
        let rendered = renderer.render(conversation, case.prompt).unwrap();
        let text = renderer.vocabulary().decode(&rendered.tokens).unwrap();
        assert_eq!(text, case.text, "{label}");
        // An answer that begins with white space joins the prompt's last token there, not here.
        let joins = |message: &Message| {
            message.role == Role::Assistant && message.content.starts_with(char::is_whitespace)
        };
        if !conversation.messages.iter().any(joins) {
            assert_eq!(rendered.tokens, case.tokens, "{label}");
        }
        compared += 1;
    }
    compared
}

#[test]
fn qwen3_writes_what_its_own_template_writes() {
    for thinking in [true, false] {
        let renderer = renderer(Qwen3 { thinking });
        let compared = compare("qwen3", &renderer, |case, _| {
            case.variables.is_empty() == thinking
        });
        assert_eq!(compared, 18);
    }
}

#[test]
fn chatml_writes_what_two_models_templates_write() {
    let chatml = renderer(ChatMl);
    let starts_with_system = |chat: &Conversation| chat.messages[0].role == Role::System;
    // Without a system message, both templates make one up.
    let compared = compare("minimind", &chatml, |_, chat| {
        let thinks = chat
            .messages
            .iter()
            .any(|message| message.thinking.is_some());
        (starts_with_system(chat) || !chat.tools.is_empty()) && !thinks
    });
    assert_eq!(compared, 10);
    let compared = compare("smollm2", &chatml, |_, chat| {
        starts_with_system(chat) && chat.tools.is_empty()
    });
    assert_eq!(compared, 6);
}

#[test]
fn llama3_writes_the_documented_format() {
    let llama = renderer(Llama3);
    // Tags in the words of an answer are words here.
    let compared = compare("llama3", &llama, |case, chat| {
        chat.tools.is_empty() && case.conversation != "thinking in the content"
    });
    assert_eq!(compared, 12);
}

/// The template of Llama 3.1 puts dates into the system message, and makes one up to have them
/// somewhere. Apart from that it is the native format, tools included.
#[test]
fn llama3_writes_what_its_own_template_writes_without_the_dates() {
    const DATES: &str = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    let llama = renderer(Llama3);
    let (golden, mut compared) = (golden(), 0);
    for case in golden
        .cases
        .iter()
        .filter(|case| case.template == "llama3.1")
    {
        let chat = &golden.conversations[&case.conversation];
        let made_up = format!("<|start_header_id|>system<|end_header_id|>\n\n{DATES}<|eot_id|>");
        let expected = case.text.replace(&made_up, "").replace(DATES, "");
        let tokens = llama.render(chat, case.prompt).unwrap().tokens;
        let text = llama.vocabulary().decode(&tokens).unwrap();
        assert_eq!(
            text, expected,
            "{}, prompt {}",
            case.conversation, case.prompt
        );
        compared += 1;
    }
    assert_eq!(compared, 16);
}

#[test]
fn llama3_refuses_what_its_template_refuses() {
    let llama = renderer(Llama3);
    let several = &golden().conversations["many calls"];
    let error = llama.prompt(several).unwrap_err().to_string();
    assert!(error.starts_with("message 2:"), "{error}");
}

#[test]
fn templates_write_what_transformers_writes() {
    for (name, file) in [
        ("llama3", "llama3.jinja"),
        ("kitchen sink", "kitchen_sink.jinja"),
    ] {
        let source = std::fs::read_to_string(data("templates").join(file)).unwrap();
        let template = ChatTemplate::new(source).unwrap();
        let template = template
            .begin_token("<|begin_of_text|>")
            .end_token("<|im_end|>");
        let renderer = renderer(template);
        assert!(compare(name, &renderer, |_, _| true) >= 16, "{name}");
    }
}

/// The templates of real models are not part of the repository; see `tests/reference/golden.py`.
#[test]
fn real_templates_write_what_transformers_writes() {
    let Some(models) = tinkrs_testkit::skip::models("chat templates of real models") else {
        return;
    };
    let folders = [
        ("qwen3", "qwen3-tokenizer"),
        ("minimind", "MiniMind2-Small"),
        ("smollm2", "SmolLM2-135M-Instruct"),
    ];
    for (name, folder) in folders {
        if !models.join(folder).exists() {
            tinkrs_testkit::skip::say(&format!(
                "the template of {folder}: it is not in TINKRS_MODELS"
            ));
            continue;
        }
        // Our small tokenizer, as in the reference.
        let template = || ChatTemplate::from_path(models.join(folder)).unwrap();
        let own = renderer(template());
        assert!(compare(name, &own, |case, _| case.variables.is_empty()) >= 18);
        let quiet = template().variable("enable_thinking", Json::Bool(false));
        let quiet = renderer(quiet);
        compare(name, &quiet, |case, _| !case.variables.is_empty());
        // The model's tokenizer: the template marks the same answers as the native format does.
        let theirs = Renderer::from_path(models.join(folder)).unwrap();
        let tokenizer = Arc::clone(theirs.vocabulary().tokenizer());
        let native = match name {
            "qwen3" => Renderer::new(tokenizer, Qwen3 { thinking: true }).unwrap(),
            _ => Renderer::new(tokenizer, ChatMl).unwrap(),
        };
        let chat = &golden().conversations["two turns"];
        assert_eq!(
            theirs.render(chat, false).unwrap(),
            native.render(chat, false).unwrap()
        );
    }
}

/// A larger collection of other people's templates; see `tests/reference/golden.py`.
#[test]
#[expect(clippy::print_stdout, reason = "says why nothing was compared")]
fn collected_templates_write_what_transformers_writes() {
    let Some(folder) = std::env::var_os("TINKRS_TEMPLATES").map(PathBuf::from) else {
        println!("skipped: TINKRS_TEMPLATES does not name a folder of templates");
        return;
    };
    let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: Golden = serde_json::from_str(&golden).unwrap();
    let mut failures = Vec::new();
    for case in &golden.cases {
        let source = std::fs::read_to_string(folder.join(&case.template)).unwrap();
        // What only Python stumbles over, such as a loop over `None`, may be written here.
        let own_words = |why: &String| source.contains(why.as_str());
        let must_refuse = case.refused.as_ref().is_some_and(own_words);
        let rendered = ChatTemplate::new(source.clone()).and_then(|template| {
            let template = template
                .begin_token("<|begin_of_text|>")
                .end_token("<|im_end|>");
            let template = template.today("26 Jul 2024");
            let renderer = Renderer::new(tokenizer(), template)?;
            let rendered =
                renderer.render(&golden.conversations[&case.conversation], case.prompt)?;
            renderer.vocabulary().decode(&rendered.tokens)
        });
        let problem = match (rendered, &case.refused) {
            (Ok(text), None) if text == case.text => continue,
            (Err(_), Some(_)) => continue,
            (Ok(text), None) => format!("{text:?}\n     not {:?}", case.text),
            (Ok(_), Some(_)) if !must_refuse => continue,
            (Ok(_), Some(why)) => format!("written, but should be refused: {why}"),
            (Err(error), None) => format!("{error:?}"),
        };
        failures.push(format!(
            "{}, {}, {}: {problem}",
            case.template, case.conversation, case.prompt
        ));
    }
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        golden.cases.len(),
        failures.join("\n")
    );
}
