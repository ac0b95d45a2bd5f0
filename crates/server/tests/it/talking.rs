//! A model with words for the endpoints of other APIs, and how their answers are read.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use tinkrs_chat::format::RoleColon;
use tinkrs_chat::{
    Conversation, Format, Message, RenderOptions, Renderer, Response, Script, Tokenizer,
};
use tinkrs_server::BaseModel;

use crate::caller::{Answer, TestServer, fake};

pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A tokenizer with a token for each of 93 characters: with three others, as many as the fake model knows.
pub(crate) fn letters() -> Arc<Tokenizer> {
    let mut vocabulary = json!({"<unk>": 0, "<s>": 1, "<end>": 2, "\n": 3});
    let letters = (b' '..=b'}').filter(|byte| !b"^`".contains(byte));
    for (index, byte) in letters.enumerate() {
        vocabulary[char::from(byte).to_string()] = json!(index + 4);
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "<end>")],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": []},
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    Arc::new(Tokenizer::from_path(&path).unwrap())
}

/// Gives a model a tokenizer and a chat format.
pub(crate) fn with_words(base: BaseModel) -> BaseModel {
    let tokenizer = letters();
    BaseModel {
        renderer: Some(Renderer::new(Arc::clone(&tokenizer), RoleColon).unwrap()),
        tokenizer: Some(tokenizer),
        ..base
    }
}

/// The fake model, with words.
pub(crate) fn talking() -> BaseModel {
    with_words(fake())
}

pub(crate) async fn start(base: BaseModel) -> TestServer {
    let data = Arc::new(tempfile::tempdir().unwrap());
    TestServer::of(base, data, |_| {}).await
}

/// Returns the objects in a stream, without its end, which has to be there.
pub(crate) fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let text = std::str::from_utf8(&answer.body).unwrap();
    let events = text.strip_suffix("data: [DONE]\n\n");
    let events = events.unwrap_or_else(|| panic!("no end: {text}"));
    let events = events.split_terminator("\n\n");
    let json = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    events.map(json).collect()
}

/// Joins a member of the choices with an index.
pub(crate) fn joined(events: &[Value], index: u64, read: fn(&Value) -> &Value) -> String {
    let choices = events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap());
    let choices = choices.filter(|choice| choice["index"] == index);
    choices.filter_map(|choice| read(choice).as_str()).collect()
}

/// Waits until no sample of anybody waits or runs.
pub(crate) async fn idle(server: &TestServer) {
    loop {
        let health = server
            .try_send(Method::GET, "/metrics", &[], "")
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&health.body).into_owned();
        let waiting = text.lines().find(|line| line.contains("kind=\"waiting\""));
        if waiting.is_some_and(|line| line.ends_with(" 0")) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// A chat format that says nothing of tools, which those of models would fill the fake one's context with.
#[derive(Debug)]
struct Bare;

impl Format for Bare {
    fn name(&self) -> &'static str {
        "bare"
    }

    fn write(
        &self,
        script: &mut Script<'_>,
        conversation: &Conversation,
        _: &RenderOptions,
    ) -> Result<(), tinkrs_chat::Error> {
        for message in &conversation.messages {
            script.text(&message.content);
        }
        Ok(())
    }

    fn parse(&self, text: &str, finished: bool) -> Response {
        Response {
            message: Message::assistant(text),
            finished,
            malformed_calls: 0,
        }
    }
}

/// The fake model with a format that has no words for tools.
pub(crate) fn calling() -> BaseModel {
    BaseModel {
        renderer: Some(Renderer::new(letters(), Bare).unwrap()),
        ..talking()
    }
}
