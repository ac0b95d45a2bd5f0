//! What a case works with: the server, a session of its own, and a list of what it made there.

use crate::case::{Stop, ensure, mismatch};
use crate::numbers::TEXT;
use crate::run::Run;
use crate::sampler::Sampler;
use crate::wire::{Reply, Sent, Wire, shown};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tinkrs_types::protocol::{ClientConfig, RequestType};
use tinkrs_wire::endpoint::{self, PREFIX};
use tinkrs_wire::{SDK_VERSION, header};
use tokio::sync::OnceCell;

/// How long cleaning up after one case may take.
const CLEAN_UP: Duration = Duration::from_secs(15);
/// How often a server may answer a poll by an error of its own.
const POLL_FAULTS: u32 = 5;

/// What all cases of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) wire: Wire,
    /// The base model to train and sample.
    pub(crate) model: String,
    pub(crate) max_context: Option<u64>,
    pub(crate) config: ClientConfig,
    /// The server takes passes as JSON alone, as clients to 0.24 sent them.
    pub(crate) json_passes: AtomicBool,
    /// The server refuses members of requests that clients of earlier levels did not send: see `models/official` and
    /// `sampling/official`.
    pub(crate) older_models: AtomicBool,
    pub(crate) older_samples: AtomicBool,
    /// What scales a step so that it can be seen: see `optimizer/eps`.
    pub(crate) step: OnceCell<f64>,
}

/// One case's own part of the server.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) shared: Arc<Shared>,
    session: OnceCell<String>,
    made: Mutex<Made>,
    numbers: AtomicU64,
}

#[derive(Debug, Default)]
struct Made {
    sessions: Vec<String>,
    models: Vec<String>,
    checkpoints: Vec<String>,
}

/// The result of an operation, or why it failed.
#[derive(Debug)]
pub(crate) enum Answer {
    Message(Bytes),
    Json(Value),
    Failed { error: String, category: String },
}

impl Trial {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            session: OnceCell::new(),
            made: Mutex::default(),
            numbers: AtomicU64::new(0),
        }
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.shared.wire
    }

    /// Returns a number that this case has not used: for models and samplers of its session.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a name for a checkpoint that nobody else has.
    pub(crate) fn name(&self) -> String {
        format!("conform-{:08x}", fastrand::u32(..))
    }

    /// Returns the session of this case, and creates it first if it has none.
    pub(crate) async fn session(&self) -> Result<&str, Stop> {
        let session = self.session.get_or_try_init(|| self.new_session(json!({})));
        Ok(session.await?)
    }

    /// Creates a session with more members than the usual ones.
    pub(crate) async fn new_session(&self, more: Value) -> Result<String, Stop> {
        let mut body = json!({"tags": ["conform"], "user_metadata": {}, "sdk_version": SDK_VERSION,
            "type": "create_session"});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let made = self.wire().post(&endpoint::CREATE_SESSION, &body).await?;
        let id = text(&made, "session_id")?;
        self.made().sessions.push(id.clone());
        Ok(id)
    }

    /// Creates a model with an adapter of rank 8 and a fixed seed.
    pub(crate) async fn model(&self) -> Result<Run<'_>, Stop> {
        self.model_with(json!({"rank": 8, "seed": 7})).await
    }

    /// Creates a model with these settings of its adapter.
    pub(crate) async fn model_with(&self, lora: Value) -> Result<Run<'_>, Stop> {
        let body = self.model_body(self.number(), lora).await?;
        let id = self.created(&body).await?;
        Ok(Run::new(self, id))
    }

    /// The request for a model. What is not given has the client's default.
    pub(crate) async fn model_body(&self, number: u64, lora: Value) -> Result<Value, Stop> {
        let mut lora_config = json!({"train_unembed": true, "train_mlp": true, "train_attn": true});
        for (name, value) in lora.as_object().into_iter().flatten() {
            lora_config[name] = value.clone();
        }
        let mut body = json!({"session_id": self.session().await?, "model_seq_id": number,
            "base_model": self.shared.model, "lora_config": lora_config, "type": "create_model"});
        if !self.shared.older_models.load(Ordering::Relaxed) {
            body["optimizer_config"] = json!({"type": "adamw"});
        }
        Ok(body)
    }

    /// Sends the request for a model and returns its id.
    pub(crate) async fn created(&self, body: &Value) -> Result<String, Stop> {
        let promise = self.wire().post(&endpoint::CREATE_MODEL, body).await?;
        let made = self.json_result(&promise, RequestType::CreateModel).await?;
        let id = text(&made, "model_id")?;
        self.made().models.push(id.clone());
        Ok(id)
    }

    /// Opens a sampler of the base model.
    pub(crate) async fn base_sampler(&self) -> Result<Sampler<'_>, Stop> {
        self.sampler_of(json!({"base_model": self.shared.model}))
            .await
    }

    /// Opens a sampler of a base model or a checkpoint.
    pub(crate) async fn sampler_of(&self, what: Value) -> Result<Sampler<'_>, Stop> {
        let mut body = json!({"session_id": self.session().await?,
            "sampling_session_seq_id": self.number(), "type": "create_sampling_session"});
        for (name, value) in what.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let endpoint = &endpoint::CREATE_SAMPLING_SESSION;
        let made = self.wire().post(endpoint, &body).await?;
        Ok(Sampler::new(self, text(&made, "sampling_session_id")?))
    }

    /// Waits for a result, as the official client does.
    pub(crate) async fn result(&self, promise: &Value, kind: RequestType) -> Result<Answer, Stop> {
        let mut allow_metadata_only = true;
        let mut faults = 0;
        for iteration in 0_u64.. {
            let body = json!({"request_id": text(promise, "request_id")?,
                "allow_metadata_only": allow_metadata_only});
            let accept = match kind {
                RequestType::Sample | RequestType::Forward | RequestType::ForwardBackward => {
                    header::PROTOBUF
                }
                _ => header::JSON,
            };
            let sent = Sent::to(&endpoint::RETRIEVE_FUTURE)
                .json(&body)
                .header("accept", accept)
                .header(header::REQUEST_TYPE, kind.name())
                .header(header::REQUEST_ITERATION, iteration.to_string());
            let reply = self.wire().send(&sent).await?;
            match reply.status {
                200 if reply.content_type.contains(header::PROTOBUF) => {
                    return Ok(Answer::Message(reply.body));
                }
                408 => {}
                400 | 403 | 404 | 409 | 422 => {
                    return Ok(Answer::Failed {
                        error: reply.text(),
                        category: format!("status {}", reply.status),
                    });
                }
                429 => tokio::time::sleep(Duration::from_secs(1)).await,
                500.. if faults < POLL_FAULTS => {
                    faults += 1;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                _ => match read_answer(reply)? {
                    Polled::Done(answer) => return Ok(answer),
                    Polled::TryAgain => {}
                    Polled::Large if allow_metadata_only => allow_metadata_only = false,
                    Polled::Large => {
                        return Err(mismatch(
                            "the result itself where `allow_metadata_only` is false",
                            "its size alone",
                        ));
                    }
                },
            }
            // A server that answers "not yet" at once is asked no faster than this.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        unreachable!("the loop has no end but those inside")
    }

    /// Waits for a result that is JSON.
    pub(crate) async fn json_result(
        &self,
        promise: &Value,
        kind: RequestType,
    ) -> Result<Value, Stop> {
        match self.result(promise, kind).await? {
            Answer::Json(value) => Ok(value),
            Answer::Failed { error, category } => Err(failed(kind, &error, &category)),
            Answer::Message(_) => Err(mismatch(
                format_args!("JSON as the result of {}", kind.name()),
                "a protobuf message",
            )),
        }
    }

    /// Expects that something is refused, by a status or as the failure of the operation. Returns the status or the
    /// category of the failure.
    pub(crate) async fn refused(&self, sent: &Sent, kind: RequestType) -> Result<String, Stop> {
        let reply = self.wire().accepted(sent).await?;
        if reply.is_refusal() {
            // A client takes a 400 without a body for a broken connection, and repeats it.
            ensure(
                !reply.body.is_empty(),
                "a refusal that gives a reason",
                &reply,
            )?;
            return Ok(format!("status {}", reply.status));
        }
        let promise = reply.object()?;
        match self.result(&promise, kind).await? {
            Answer::Failed { category, .. } => Ok(category),
            Answer::Json(result) => Err(mismatch("a refusal", shown(&result.to_string()))),
            Answer::Message(_) => Err(mismatch("a refusal", "a result")),
        }
    }

    /// The prompt that most cases use.
    pub(crate) fn prompt(&self) -> Vec<u32> {
        TEXT[..6].to_vec()
    }

    /// Remembers a checkpoint, to delete it when the case ends.
    pub(crate) fn remember(&self, path: &str) {
        self.made().checkpoints.push(path.to_owned());
    }

    pub(crate) fn remember_model(&self, id: &str) {
        self.made().models.push(id.to_owned());
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes the checkpoints of the case and finishes its sessions, as far as the server lets it.
    pub(crate) async fn clean_up(&self) {
        let made = std::mem::take(&mut *self.made());
        let clean = async {
            for path in made.checkpoints {
                if let Some(path) = checkpoint_path(&path) {
                    let _ = self.wire().send(&Sent::new(Method::DELETE, path)).await;
                }
            }
            let mut finished = true;
            for id in made.sessions {
                let body = json!({"reason": {"type": "success"}, "detail": null});
                let path = format!("{PREFIX}/sessions/{id}/finish");
                let reply = self
                    .wire()
                    .send(&Sent::new(Method::POST, path).json(&body))
                    .await;
                finished &= reply.is_ok_and(|reply| !reply.is_missing_endpoint());
            }
            // Servers that cannot finish a session may at least let its models go.
            for id in made.models.into_iter().filter(|_| !finished) {
                let body = json!({"model_id": id, "type": "unload_model"});
                let sent = Sent::to(&endpoint::UNLOAD_MODEL).json(&body);
                let _ = self.wire().send(&sent).await;
            }
        };
        let _ = tokio::time::timeout(CLEAN_UP, clean).await;
    }
}

enum Polled {
    Done(Answer),
    TryAgain,
    Large,
}

fn read_answer(reply: Reply) -> Result<Polled, Stop> {
    let value = reply.object()?;
    let is = |name: &str, expected: &str| value.get(name).and_then(Value::as_str) == Some(expected);
    if is("type", "try_again") {
        return Ok(Polled::TryAgain);
    }
    if is("status", "complete_metadata") {
        return Ok(Polled::Large);
    }
    let Some(error) = value.get("error") else {
        return Ok(Polled::Done(Answer::Json(value)));
    };
    let category = value.get("category").and_then(Value::as_str);
    Ok(Polled::Done(Answer::Failed {
        error: error
            .as_str()
            .map_or_else(|| error.to_string(), str::to_owned),
        category: category.unwrap_or("(none)").to_owned(),
    }))
}

pub(crate) fn failed(kind: RequestType, error: &str, category: &str) -> Stop {
    let text = format!(
        "{} failed ({}): {}",
        kind.name(),
        shown(category),
        shown(error)
    );
    let low = error.to_lowercase();
    if low.contains("not supported")
        || low.contains("not implemented")
        || low.contains("unsupported")
    {
        Stop::NotSupported(text)
    } else {
        Stop::Failed(text)
    }
}

/// Returns a member that has to be a text that is not empty.
pub(crate) fn text(object: &Value, name: &str) -> Result<String, Stop> {
    match object.get(name).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(mismatch(
            format_args!("`{name}` to be a text"),
            shown(&object.to_string()),
        )),
    }
}

/// Returns where the API has a checkpoint, by its `tinker://` path.
pub(crate) fn checkpoint_path(path: &str) -> Option<String> {
    let mut parts = path.strip_prefix("tinker://")?.split('/');
    let (run, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
    };
    let is_plain = [run, kind, name].into_iter().all(plain) && parts.next().is_none();
    is_plain.then(|| format!("{PREFIX}/training_runs/{run}/checkpoints/{kind}/{name}"))
}

/// Whether a text is a point in time, with a zone or, as the client also takes it, without.
pub(crate) fn is_time(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok() || text.parse::<jiff::civil::DateTime>().is_ok()
}
