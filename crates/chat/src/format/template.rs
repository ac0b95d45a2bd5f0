//! Any model's own chat template.
//!
//! A template is a Jinja program that turns a conversation into one string, the way
//! `apply_chat_template` of `transformers` runs it. Two things get lost in that string and are
//! recovered here:
//!
//! - **Which control tokens are meant.** Before the template runs, every control token that a
//!   message spells gets a guard character inside, so whatever is still spelled out afterwards
//!   was written by the template itself. The guards are taken out before the text is encoded.
//! - **Which text the model writes.** The template is run again on the beginning of the
//!   conversation: an answer starts where the prompt for it ends. Where a template rewrites
//!   history, that prompt is no longer there, and the answer stays unmarked.

use super::{Format, RenderOptions};
use crate::json;
use crate::tokenizer::{Embedded, is_gguf};
use crate::{
    BoxError, Control, Conversation, Error, Json, Message, Response, Role, Script, Vocabulary,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Most instructions of a template for one conversation. Those of models take some hundred for a message, and some that
/// compare each message with all before it a hundred times that; what takes more does not end in this life.
const MOST_INSTRUCTIONS: u64 = 20_000_000;

/// A character that no text contains: Unicode reserves it for uses such as this one.
const GUARD: char = '\u{FDD0}';

/// A chat template with the values that it may ask for.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: Option<String>,
    end: Option<String>,
    variables: BTreeMap<String, Json>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// If it is not one.
    pub fn new(source: impl Into<String>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(failed)?);
        environment.set_fuel(Some(MOST_INSTRUCTIONS));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| {
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        // Marks what the assistant writes, for tools that read it. We find that out by ourselves.
        let source = without_generation_marks(&source.into());
        environment
            .add_template_owned(NAME, source)
            .map_err(failed)?;
        Ok(Self {
            environment,
            begin: None,
            end: None,
            variables: BTreeMap::new(),
        })
    }

    /// Reads the template of a model: the one inside a GGUF file; in a folder `chat_template.jinja`,
    /// else the one in `tokenizer_config.json`, where the begin and end tokens are too.
    ///
    /// # Errors
    /// If there is none, or it cannot be used.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = path.as_ref();
        if is_gguf(folder) {
            return Self::from_gguf(folder);
        }
        let (source, config) = in_folder(folder)?;
        let mut template = Self::new(source)?;
        template.begin = token(config.get("bos_token"));
        template.end = token(config.get("eos_token"));
        Ok(template)
    }

    /// Reads a template from a file of its own. The begin and end tokens are those that the
    /// `tokenizer_config.json` beside the tokenizer names, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read, or is no template.
    pub fn from_file(file: impl AsRef<Path>, tokenizer: impl AsRef<Path>) -> Result<Self, Error> {
        let file = file.as_ref();
        let source = std::fs::read_to_string(file).map_err(Error::file(file))?;
        let mut template = Self::new(source)?;
        let tokenizer = tokenizer.as_ref();
        let folder = if tokenizer.is_dir() {
            Some(tokenizer)
        } else {
            tokenizer.parent()
        };
        let config = folder.map(|folder| folder.join("tokenizer_config.json"));
        let config = config.and_then(|path| std::fs::read_to_string(path).ok());
        if let Some(config) = config.and_then(|text| Json::parse(&text).ok()) {
            template.begin = token(config.get("bos_token"));
            template.end = token(config.get("eos_token"));
        }
        Ok(template)
    }

    fn from_gguf(path: &Path) -> Result<Self, Error> {
        let file = Embedded::open(path)?;
        let mut template = Self::new(Self::source_of(path)?)?;
        template.begin = file.named("bos").map(|(_, spelling)| spelling);
        template.end = file.named("eos").map(|(_, spelling)| spelling);
        Ok(template)
    }

    /// Sets the text of `bos_token`.
    #[must_use]
    pub fn begin_token(mut self, spelling: impl Into<String>) -> Self {
        self.begin = Some(spelling.into());
        self
    }

    /// Sets the text of `eos_token`.
    #[must_use]
    pub fn end_token(mut self, spelling: impl Into<String>) -> Self {
        self.end = Some(spelling.into());
        self
    }

    /// Sets a variable that the template knows, such as `enable_thinking`.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: Json) -> Self {
        self.variables.insert(name.into(), value);
        self
    }

    /// Sets the day that a template gets when it asks for today's date, whatever format it asks
    /// for. Without it such templates fail: what a run trains on must not depend on the day.
    #[must_use]
    pub fn today(mut self, date: impl Into<String>) -> Self {
        let date = date.into();
        self.environment
            .add_function("strftime_now", move |_: String| date.clone());
        self
    }

    /// Returns the text of a conversation, up to where the assistant is to speak.
    ///
    /// This is for those who write formats down: as tokens, a conversation is safe from what users say.
    ///
    /// # Errors
    /// If the template fails.
    pub fn prompt_text(&self, conversation: &Conversation) -> Result<String, Error> {
        let options = RenderOptions {
            open: true,
            ..RenderOptions::default()
        };
        self.render(conversation, conversation.messages.len(), &options)
    }

    /// Returns the template's own text, as [`from_path`](Self::from_path) finds it.
    ///
    /// # Errors
    /// As [`from_path`](Self::from_path), but whether it is a template is not looked at.
    pub fn source_of(path: impl AsRef<Path>) -> Result<String, Error> {
        let path = path.as_ref();
        if is_gguf(path) {
            let file = Embedded::open(path)?;
            let source = file.chat_template().map(str::to_owned);
            return source
                .ok_or_else(|| failed(format!("{} has no chat template", path.display())));
        }
        Ok(in_folder(path)?.0)
    }

    /// Finds the parts of `text` that the assistant writes, where the template lets it.
    fn answers(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
        text: &str,
        script: &Script<'_>,
    ) -> Vec<(usize, Range<usize>)> {
        let vocabulary = script.vocabulary();
        let stops: Vec<&str> = script
            .stop_tokens()
            .iter()
            .filter_map(|token| vocabulary.by_token(*token))
            .map(|control| control.spelling.as_str())
            .collect();
        let count = conversation.messages.len();
        let open = RenderOptions {
            open: true,
            ..options.clone()
        };
        let find = |index: usize| {
            let prompt = self.render(conversation, index, &open).ok()?;
            let said = text.strip_prefix(&prompt)?;
            // Messages cannot spell a stop, so the first one is the template's end of this one.
            let ends = stops
                .iter()
                .filter_map(|stop| Some(said.find(stop)? + stop.len()));
            let last = (index + 1 == count).then_some(said.len());
            Some((index, prompt.len()..prompt.len() + ends.min().or(last)?))
        };
        let messages = conversation.messages.iter().enumerate();
        messages
            .filter(|(_, message)| message.role == Role::Assistant)
            .filter_map(|(index, _)| find(index))
            .collect()
    }

    /// Returns whether the template has the name of a variable in it.
    fn mentions(&self, variable: &str) -> bool {
        let template = self.environment.get_template(NAME);
        template.is_ok_and(|template| template.source().contains(variable))
    }

    /// Runs the template on the first `count` messages.
    fn render(
        &self,
        chat: &Conversation,
        count: usize,
        options: &RenderOptions,
    ) -> Result<String, Error> {
        let messages: Vec<Shown<'_>> = chat.messages[..count].iter().map(Shown::new).collect();
        let mut context: BTreeMap<&str, Value> = BTreeMap::from([
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(options.open)),
            (
                "bos_token",
                Value::from(self.begin.clone().unwrap_or_default()),
            ),
            (
                "eos_token",
                Value::from(self.end.clone().unwrap_or_default()),
            ),
        ]);
        // Templates ask whether there are tools by asking whether the list is there at all.
        let tools = (!chat.tools.is_empty()).then_some(&chat.tools);
        context.insert("tools", Value::from(Serde(tools)));
        for (name, value) in &self.variables {
            context.insert(name, Value::from(Serde(value)));
        }
        if let Some(thinking) = options.thinking {
            context.insert("enable_thinking", Value::from(thinking));
        }
        if let Some(effort) = options.reasoning_effort {
            context.insert("reasoning_effort", Value::from(effort.name()));
        }
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(context).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => failed(format!(
                "it does not end: {MOST_INSTRUCTIONS} instructions are enough for any conversation"
            )),
            _ => failed(error),
        })
    }
}

/// Returns the template of a folder, and its `tokenizer_config.json`.
fn in_folder(folder: &Path) -> Result<(String, Json), Error> {
    let path = folder.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
    let config = Json::parse(&text).map_err(failed)?;
    let own_file = folder.join("chat_template.jinja");
    let source = match std::fs::read_to_string(&own_file) {
        Ok(source) => source,
        Err(_) => from_config(config.get("chat_template"))
            .ok_or_else(|| failed(format!("{} has no `chat_template`", path.display())))?,
    };
    Ok((source, config))
}

impl Format for ChatTemplate {
    fn name(&self) -> &'static str {
        "the chat template"
    }

    /// Finds the tokens that end an answer: the end token, and what the template writes behind an
    /// assistant's words.
    fn stop_tokens(&self, vocabulary: &Vocabulary) -> Result<Vec<u32>, Error> {
        let probe = "what the assistant says";
        let chat = Conversation::from([Message::user("a question"), Message::assistant(probe)]);
        let rendered = self.render(&chat, 2, &RenderOptions::default());
        let rendered = rendered.unwrap_or_default();
        let behind = rendered.rsplit_once(probe).map_or("", |(_, behind)| behind);
        let behind = vocabulary.next_control(behind).map(|(_, _, token)| token);
        let end = self.end.as_deref().and_then(|end| vocabulary.control(end));
        let mut stops: Vec<u32> = behind.into_iter().chain(end).collect();
        stops.dedup();
        if stops.is_empty() {
            return Err(Error::MissingToken {
                token: "eos_token".to_owned(),
                format: self.name(),
            });
        }
        Ok(stops)
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<(), Error> {
        // A variable that the template never looks at would be ignored.
        if !self.mentions("enable_thinking") {
            options.refuse_switch(self.name())?;
        }
        if !self.mentions("reasoning_effort") {
            options.refuse_effort(self.name())?;
        }
        let guarded = guard(conversation, script.vocabulary())?;
        let text = self.render(&guarded, guarded.messages.len(), options)?;
        let mut written = 0;
        for (message, answer) in self.answers(&guarded, options, &text, script) {
            if answer.start < written {
                continue;
            }
            write_guarded(script, &text[written..answer.start]);
            script.answer(Some(message));
            write_guarded(script, &text[answer.clone()]);
            script.answer(None);
            written = answer.end;
        }
        write_guarded(script, &text[written..]);
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response::from_tagged_text(text, finished)
    }

    fn leaves_out(&self, conversation: &Conversation) -> Option<(Option<usize>, &'static str)> {
        let mut messages = conversation.messages.iter();
        let calls = messages.position(|message| !message.tool_calls.is_empty());
        match calls {
            Some(index) if !self.mentions("tool_calls") => Some((Some(index), "tool calls")),
            _ if !conversation.tools.is_empty() && !self.mentions("tools") => Some((None, "tools")),
            _ => None,
        }
    }
}

const NAME: &str = "chat_template";

/// A message as templates see it: thinking has two names, of which each template knows one.
#[derive(Serialize)]
struct Shown<'m> {
    #[serde(flatten)]
    message: &'m Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'m str>,
}

impl<'m> Shown<'m> {
    fn new(message: &'m Message) -> Self {
        Self {
            message,
            thinking: message.thinking.as_deref(),
        }
    }
}

fn failed(error: impl Into<BoxError>) -> Error {
    Error::Template(error.into())
}

/// Returns the text of `json.dumps`, which is what `transformers` makes of this filter.
fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    let text = match indent {
        None => json::to_python_text(&value),
        Some(width) => json::to_indented_text(&value, width),
    };
    text.map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))
}

fn without_generation_marks(source: &str) -> String {
    let mut source = source.to_owned();
    for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
        for word in ["generation", "endgeneration"] {
            let same = format!("{open} if true {close}{open} endif {close}");
            source = source.replace(&format!("{open} {word} {close}"), &same);
        }
    }
    source
}

/// Reads the `chat_template` member: one template, or several of which one is the default.
fn from_config(member: Option<&Json>) -> Option<String> {
    match member? {
        Json::Text(source) => Some(source.clone()),
        Json::List(named) => {
            let name = |json: &&Json| json.get("name").and_then(Json::as_str) == Some("default");
            Some(
                named
                    .iter()
                    .find(name)?
                    .get("template")?
                    .as_str()?
                    .to_owned(),
            )
        }
        _ => None,
    }
}

/// Returns the token that ends a document, as a model's folder or GGUF file spells it.
pub(super) fn end_token_of(path: &Path) -> Option<String> {
    if is_gguf(path) {
        return Embedded::open(path).ok()?.named("eos").map(|(_, end)| end);
    }
    let config = std::fs::read_to_string(path.join("tokenizer_config.json")).ok()?;
    token(Json::parse(&config).ok()?.get("eos_token"))
}

/// Reads a special token of the configuration: its text, or an object that has it.
fn token(member: Option<&Json>) -> Option<String> {
    let member = member?;
    member
        .as_str()
        .or_else(|| member.get("content")?.as_str())
        .map(str::to_owned)
}

fn write_guarded(script: &mut Script<'_>, text: &str) {
    let mut rest = text;
    while let Some((start, end, token)) = script.vocabulary().next_control(rest) {
        script.text(&rest[..start].replace(GUARD, "")).token(token);
        rest = &rest[end..];
    }
    script.text(&rest.replace(GUARD, ""));
}

/// Breaks the spelling of every control token in what the messages say.
///
/// An assistant may write tags that are not special, such as `<think>`: templates look for them.
fn guard(conversation: &Conversation, vocabulary: &Vocabulary) -> Result<Conversation, Error> {
    let all = |text: &str| break_spellings(text, vocabulary, |_| true);
    let mut guarded = conversation.clone();
    for (index, message) in guarded.messages.iter_mut().enumerate() {
        if message.content.contains(GUARD) {
            let problem = format!(
                "it contains U+{:04X}, which is not a character",
                GUARD as u32
            );
            return Err(Error::Message { index, problem });
        }
        message.content = match message.role {
            Role::Assistant => {
                break_spellings(&message.content, vocabulary, |control| control.special)
            }
            _ => all(&message.content),
        };
        message.thinking = message.thinking.as_deref().map(all);
        message.name = message.name.as_deref().map(all);
        message.tool_call_id = message.tool_call_id.as_deref().map(all);
        for call in &mut message.tool_calls {
            call.id = call.id.as_deref().map(all);
            call.name = all(&call.name);
            each_text(&mut call.arguments, &all);
        }
    }
    for tool in &mut guarded.tools {
        each_text(tool, &all);
    }
    Ok(guarded)
}

fn break_spellings(
    text: &str,
    vocabulary: &Vocabulary,
    which: impl Fn(&Control) -> bool,
) -> String {
    let mut guarded = String::with_capacity(text.len());
    for (position, character) in text.char_indices() {
        guarded.push(character);
        if vocabulary
            .spelled_at(character, &text[position..], &which)
            .is_some()
        {
            guarded.push(GUARD);
        }
    }
    guarded
}

fn each_text(json: &mut Json, change: &impl Fn(&str) -> String) {
    match json {
        Json::Text(text) => *text = change(text),
        Json::List(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Json::Object(members) => {
            for (name, value) in members {
                *name = change(name);
                each_text(value, change);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
