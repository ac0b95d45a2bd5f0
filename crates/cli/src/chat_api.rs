//! A server of the OpenAI API, which `chat` and `sample` can ask as well: ours, or anybody else's.
//!
//! It writes the prompt itself, so neither a tokenizer nor a chat format is needed here.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde_json::{Map, Value, json};
use tinkrs::auth::{CredentialPolicy, Secret, resolve_from_env};
use tinkrs::external::{HttpClient, HttpRequest, HttpResponse};
use tinkrs::server_url;
use tinkrs_chat::{Conversation, Message, Role};
use tinkrs_wire::endpoint;

use crate::backend::BackendArgs;
use crate::command::sample::SamplingArgs;
use crate::output::{self, Hint};
use crate::server_args::LOCAL_KEY;

/// How long a server may be silent: large models think for long before the first token.
const SILENCE: Duration = Duration::from_secs(600);
/// How long a server may take to say what it is.
const LOOK: Duration = Duration::from_secs(20);
/// The longest event of a stream.
const LONGEST_EVENT: usize = 4 << 20;
/// How much of a server's text a message repeats.
const SHOWN_CHARS: usize = 300;
/// How many models are named where one has to be chosen.
const SHOWN_MODELS: usize = 12;

/// A server of the OpenAI API, and which model of it is asked.
#[derive(Debug)]
pub(crate) struct ChatApi {
    http: HttpClient,
    /// Up to and with `/v1`.
    url: String,
    key: Option<Secret>,
    model: String,
}

/// An answer as a whole.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ApiAnswer {
    pub(crate) content: String,
    pub(crate) thinking: String,
    /// How many tokens it has, as the server says, or else how many pieces it came in.
    pub(crate) tokens: usize,
    /// Whether it was cut off.
    pub(crate) is_cut_off: bool,
}

/// What a URL leads to.
#[derive(Debug, PartialEq)]
enum Kind {
    Tinker,
    /// The OpenAI API, whose URL this is.
    OpenAi(String),
}

impl ChatApi {
    /// Finds out whether the server that was named has the OpenAI API and not the Tinker API. If so, says on stderr which model it is
    /// asked for.
    pub(crate) async fn find(
        args: &BackendArgs,
        sampling: &SamplingArgs,
    ) -> anyhow::Result<Option<Self>> {
        let Some(url) = args.base_url() else {
            return Ok(None);
        };
        let Kind::OpenAi(url) = kind(url).await else {
            return Ok(None);
        };
        ensure!(
            args.template().is_none(),
            "`--template`: a server of the OpenAI API writes prompts itself"
        );
        let mut api = Self {
            http: HttpClient::new(SILENCE),
            key: key_for(&url).await,
            url,
            model: String::new(),
        };
        let checkpoint = sampling.checkpoint.as_ref().map(ToString::to_string);
        api.model = match checkpoint.or_else(|| args.named_model().map(ToOwned::to_owned)) {
            Some(model) => model,
            None => api.only_model().await?,
        };
        output::note(format_args!(
            "server: {} (OpenAI API), model: {}",
            api.url, api.model
        ));
        Ok(Some(api))
    }

    /// Returns the model of a server that has one.
    async fn only_model(&self) -> anyhow::Result<String> {
        let url = format!("{}/models", self.url);
        let response = self.send(self.http.get(&url)).await?;
        let list: Value = response
            .json()
            .await
            .context("could not parse the list of models")?;
        let models = list["data"].as_array().into_iter().flatten();
        let models: Vec<&str> = models.filter_map(|model| model["id"].as_str()).collect();
        match models.as_slice() {
            [] => bail!("no model: name one with `--model`"),
            [model] => Ok((*model).to_owned()),
            several => {
                let more = if several.len() > SHOWN_MODELS {
                    ", …"
                } else {
                    ""
                };
                let names = several
                    .iter()
                    .take(SHOWN_MODELS)
                    .copied()
                    .collect::<Vec<_>>();
                bail!(
                    "which model? Name one with `--model`: {}{more}",
                    names.join(", ")
                )
            }
        }
    }

    async fn send(&self, request: HttpRequest) -> anyhow::Result<HttpResponse> {
        let request = match &self.key {
            Some(key) => request.bearer_token(key),
            None => request,
        };
        let response = request.send().await;
        let response = response.with_context(|| format!("could not reach {}", self.url))?;
        if response.is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let error = anyhow!("{} answered {status}: {}", self.url, reason(&text));
        Err(match status {
            401 | 403 => error.context(Hint("set the server's key in OPENAI_API_KEY")),
            404 => error.context(Hint(
                "check `--base-url`, which usually ends in /v1, and `--model`",
            )),
            _ => error,
        })
    }

    /// Has the model answer a conversation. `show` gets each new piece of what is said.
    pub(crate) async fn answer(
        &self,
        conversation: &Conversation,
        sampling: &SamplingArgs,
        mut show: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<ApiAnswer> {
        let mut body = self.body(sampling);
        let messages = conversation.messages.iter().map(message);
        body.insert(
            "messages".to_owned(),
            messages.collect::<anyhow::Result<Vec<_>>>()?.into(),
        );
        body.insert("stream".to_owned(), true.into());
        let url = format!("{}/chat/completions", self.url);
        let mut response = match self.send(self.http.post(&url).json(&body)).await {
            Ok(response) => response,
            // Some models of OpenAI know the limit by its newer name only.
            Err(error) if format!("{error:#}").contains("max_completion_tokens") => {
                if let Some(limit) = body.remove("max_tokens") {
                    body.insert("max_completion_tokens".to_owned(), limit);
                }
                self.send(self.http.post(&url).json(&body)).await?
            }
            Err(error) => return Err(error),
        };
        let mut events = Events::default();
        let mut answer = ApiAnswer::default();
        while let Some(chunk) = response.chunk().await.context("the answer broke off")? {
            events.push(chunk.as_ref())?;
            while let Some(event) = events.next()? {
                if answer.add(&event, &mut show)? {
                    return Ok(answer);
                }
            }
        }
        bail!("the answer broke off: the stream has no end")
    }

    /// Has the model go on from a text, as often as is asked for.
    pub(crate) async fn continuations(
        &self,
        prompt: &str,
        count: u32,
        sampling: &SamplingArgs,
    ) -> anyhow::Result<Vec<ApiAnswer>> {
        let mut body = self.body(sampling);
        body.insert("prompt".to_owned(), prompt.into());
        body.insert("n".to_owned(), count.into());
        let url = format!("{}/completions", self.url);
        let response = self.send(self.http.post(&url).json(&body)).await?;
        let done: Value = response
            .json()
            .await
            .context("could not parse the server's response")?;
        let choices = done["choices"].as_array().into_iter().flatten();
        let answers = choices.map(|choice| ApiAnswer {
            content: choice["text"].as_str().unwrap_or_default().to_owned(),
            is_cut_off: choice["finish_reason"] == "length",
            tokens: count_of(&done["usage"]["completion_tokens"]) / count.max(1) as usize,
            ..ApiAnswer::default()
        });
        Ok(answers.collect())
    }

    /// What every request has. Settings that mean what servers do anyway are left out: not all of them know all.
    fn body(&self, sampling: &SamplingArgs) -> Map<String, Value> {
        let params = sampling.apply(tinkrs::SamplingParams::default());
        let mut body = json!({
            "model": self.model, "max_tokens": sampling.max_tokens, "temperature": params.temperature,
        });
        if params.top_p < 1.0 {
            body["top_p"] = params.top_p.into();
        }
        if params.top_k > 0 {
            body["top_k"] = params.top_k.into();
        }
        if let Some(seed) = params.seed {
            body["seed"] = seed.into();
        }
        match body {
            Value::Object(members) => members,
            _ => Map::new(),
        }
    }
}

impl ApiAnswer {
    /// Adds an event of a stream. Returns whether it was the last one.
    fn add(
        &mut self,
        event: &str,
        show: &mut impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        if event == "[DONE]" {
            return Ok(true);
        }
        let event: Value =
            serde_json::from_str(event).context("could not parse the server's response")?;
        if event.get("error").is_some_and(|error| !error.is_null()) {
            bail!("the server could not go on: {}", reason(&event.to_string()));
        }
        let used = count_of(&event["usage"]["completion_tokens"]);
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        if let Some(words) = delta["reasoning_content"].as_str() {
            self.thinking.push_str(words);
            self.tokens += 1;
        }
        if let Some(words) = delta["content"].as_str().filter(|words| !words.is_empty()) {
            self.content.push_str(words);
            self.tokens += 1;
            show(words)?;
        }
        if used > 0 {
            self.tokens = used;
        }
        self.is_cut_off |= choice["finish_reason"] == "length";
        Ok(false)
    }
}

fn count_of(number: &Value) -> usize {
    let number = number.as_u64().unwrap_or_default();
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The events of a stream, put together from pieces.
#[derive(Debug, Default)]
struct Events(Vec<u8>);

impl Events {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        ensure!(
            self.0.len() + bytes.len() <= LONGEST_EVENT,
            "the server's response has no end"
        );
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the data of the next line that has some.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            let line = String::from_utf8(line).context("the server's response is not UTF-8")?;
            if let Some(data) = line.trim().strip_prefix("data:") {
                return Ok(Some(data.trim().to_owned()));
            }
        }
        Ok(None)
    }
}

/// Finds out what a URL leads to: the path `/v1` is that of the OpenAI API; else the server is asked.
async fn kind(url: &str) -> Kind {
    let url = url.trim_end_matches('/');
    if url.ends_with("/v1") {
        return Kind::OpenAi(url.to_owned());
    }
    let http = HttpClient::new(LOOK);
    let status = async |path: &str| {
        let response = http.get(&format!("{url}{path}")).send().await;
        response.ok().map(|response| response.status())
    };
    match status(endpoint::HEALTHZ.path).await {
        Some(404 | 405) => {}
        // What else is wrong, the client of the Tinker API says.
        _ => return Kind::Tinker,
    }
    match status("/v1/models").await {
        Some(200..300 | 401 | 403) => Kind::OpenAi(format!("{url}/v1")),
        _ => Kind::Tinker,
    }
}

/// Finds the key for a server. That of the Tinker API is sent to this machine and to the hosted service only.
async fn key_for(url: &str) -> Option<Secret> {
    let key = std::env::var("OPENAI_API_KEY").ok();
    if let Some(key) = key.filter(|key| !key.trim().is_empty()) {
        return Some(key.trim().to_owned().into());
    }
    if !server_url::is_loopback(url) && !server_url::is_hosted(url) {
        return None;
    }
    match resolve_from_env(None, CredentialPolicy::Any) {
        Ok(source) => source.credential().await.ok(),
        Err(_) => Some(LOCAL_KEY.into()),
    }
}

fn message(message: &Message) -> anyhow::Result<Value> {
    let is_plain = message.tool_calls.is_empty() && message.role != Role::Tool;
    ensure!(
        is_plain,
        "calls of tools are not sent to a server of the OpenAI API"
    );
    Ok(json!({"role": message.role.name(), "content": message.content}))
}

/// Says why a server refused something, from the body of its response.
fn reason(body: &str) -> String {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let error = &json["error"];
    let said = error["message"].as_str().or(error.as_str());
    let said = said.or(json["detail"].as_str()).unwrap_or(body).trim();
    let mut shown: String = said.chars().take(SHOWN_CHARS).collect();
    if shown.len() < said.len() {
        shown.push('…');
    }
    if shown.is_empty() {
        shown.push_str("without a reason");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_wherever_its_pieces_end() {
        let stream = "event: x\ndata: {\"choices\": [{\"delta\": {\"content\": \"H\u{e9}\"}}]}\r\n\n: comment\n\n\
            data:{\"choices\": [{\"delta\": {\"content\": \"y\", \"reasoning_content\": \"hm\"}, \"finish_reason\": \"length\"}]}\n\n\
            data: {\"choices\": [], \"usage\": {\"completion_tokens\": 9}}\n\ndata: [DONE]\n\n";
        for size in [1, 3, 1000] {
            let (mut events, mut answer, mut shown) =
                (Events::default(), ApiAnswer::default(), String::new());
            let mut has_ended = false;
            for piece in stream.as_bytes().chunks(size) {
                events.push(piece).unwrap();
                while let Some(event) = events.next().unwrap() {
                    has_ended |= answer
                        .add(&event, &mut |words| {
                            shown.push_str(words);
                            Ok(())
                        })
                        .unwrap();
                }
            }
            assert!(has_ended);
            assert_eq!(
                (answer.content.as_str(), shown.as_str()),
                ("H\u{e9}y", "H\u{e9}y")
            );
            assert_eq!((answer.tokens, answer.is_cut_off), (9, true));
            assert_eq!(answer.thinking, "hm");
        }
    }

    #[test]
    fn a_stream_without_an_end_or_with_an_error_is_an_error() {
        let mut events = Events::default();
        assert!(events.push(&vec![b'x'; LONGEST_EVENT + 1]).is_err());
        let mut answer = ApiAnswer::default();
        let error = answer.add(r#"{"error": {"message": "too long"}}"#, &mut |_| Ok(()));
        assert!(error.unwrap_err().to_string().contains("too long"));
        assert!(answer.add("{oops", &mut |_| Ok(())).is_err());
    }

    #[test]
    fn a_refusal_is_repeated_in_few_words() {
        assert_eq!(reason(r#"{"error": {"message": "no"}}"#), "no");
        assert_eq!(reason(r#"{"error": "no"}"#), "no");
        assert_eq!(reason(r#"{"detail": "no"}"#), "no");
        assert_eq!(reason(""), "without a reason");
        assert!(reason(&"x".repeat(10_000)).chars().count() <= SHOWN_CHARS + 1);
    }
}
