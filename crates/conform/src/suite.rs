//! Running the cases, in order, each within its time.

use crate::case::{Case, Note, Stop, Verdict, mismatch};
use crate::cases;
use crate::report::{Outcome, Report, Row};
use crate::trial::{Shared, Trial, text};
use crate::wire::{Sent, Wire, shown};
use futures_util::future::FutureExt;
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tinkrs::auth::Secret;
use tinkrs_types::protocol::ClientConfig;
use tinkrs_wire::{SDK_VERSION, endpoint};
use tokio::sync::OnceCell;

/// What to run, and against what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server's URL, without the path of the API.
    pub base_url: String,
    /// The key to call it with.
    pub key: Secret,
    /// The base model to train and sample. Without one, the first that the server offers.
    pub model: Option<String>,
    /// How long the whole suite may take.
    pub timeout: Duration,
    /// How long a case may take. Some have a multiple of it.
    pub case_timeout: Duration,
    /// Leaves out the cases that take much of a server.
    pub quick: bool,
    /// Runs only cases whose names begin with one of these. Without any, all of them.
    pub only: Vec<String>,
}

impl Options {
    /// Runs everything against a server.
    pub fn new(base_url: impl Into<String>, key: Secret) -> Self {
        Self {
            base_url: base_url.into(),
            key,
            model: None,
            timeout: Duration::from_secs(900),
            case_timeout: Duration::from_secs(60),
            quick: false,
            only: Vec::new(),
        }
    }

    fn selects(&self, case: &Case) -> bool {
        let is_named = |prefix: &String| case.name.starts_with(prefix.as_str());
        (self.only.is_empty() || self.only.iter().any(is_named)) && !(self.quick && case.heavy)
    }
}

/// Returns every case, in the order in which they run.
pub fn all_cases() -> impl Iterator<Item = &'static Case> {
    cases::GROUPS.iter().copied().flatten()
}

/// A run of the cases against a server.
#[derive(Debug)]
pub struct Suite {
    options: Options,
    /// What cases have made and not yet cleaned up.
    open: Mutex<Vec<Arc<Trial>>>,
}

impl Suite {
    /// Prepares a run. Nothing is sent yet.
    pub fn new(options: Options) -> Self {
        let open = Mutex::default();
        Self { options, open }
    }

    /// Runs the cases. `on_row` is told how each ended; `on_start` that one begins.
    pub async fn run(&self, on_start: impl Fn(&Case), mut on_row: impl FnMut(&Row)) -> Report {
        let started = Instant::now();
        let end = started + self.options.timeout;
        let shared = self.prepare().await;
        let selected: Vec<_> = all_cases()
            .filter(|case| self.options.selects(case))
            .collect();
        let limits = (self.options.case_timeout, end);
        let mut rows: Vec<Row> = Vec::new();
        let mut beside = Vec::new();
        let row = |case: &Case, outcome: Outcome, took: Duration| {
            Row::new(case, outcome.without(self.options.key.expose()), took)
        };
        for case in selected {
            on_start(case);
            let missing = case.after.iter().find(|name| is_missing(&rows, name));
            let (outcome, took) = match missing {
                Some(name) => {
                    let reason = format!("needs {name}, which did not pass");
                    (Outcome::Skipped(reason), Duration::ZERO)
                }
                None if Instant::now() >= end => {
                    let reason = "the time of the whole suite was over".to_owned();
                    (Outcome::Skipped(reason), Duration::ZERO)
                }
                None if case.beside => {
                    // Its row has a place already, and is filled in at the end.
                    let task = tokio::spawn(attempt(case, self.trial(&shared), limits));
                    beside.push((rows.len(), case, task));
                    (
                        Outcome::Skipped("still under way".to_owned()),
                        Duration::ZERO,
                    )
                }
                None => judged(attempt(case, self.trial(&shared), limits).await),
            };
            rows.push(row(case, outcome, took));
            if missing.is_some() || !case.beside {
                on_row(&rows[rows.len() - 1]);
            }
            self.clean_up(|trial| Arc::strong_count(trial) == 1).await;
        }
        for (place, case, task) in beside {
            on_start(case);
            let (outcome, took) = judged(task.await.unwrap_or_else(|_| panicked()));
            rows[place] = row(case, outcome, took);
            on_row(&rows[place]);
        }
        self.clean_up(|_| true).await;
        Report {
            base_url: self.options.base_url.clone(),
            model: shared.model.clone(),
            busy: shared.wire.busy.load(Ordering::Relaxed),
            seconds: started.elapsed().as_secs_f64(),
            rows,
        }
    }

    /// Deletes what the cases left behind that were under way. For a run that is stopped.
    pub async fn stop(&self) {
        self.clean_up(|_| true).await;
    }

    fn trial(&self, shared: &Arc<Shared>) -> Arc<Trial> {
        let trial = Arc::new(Trial::new(Arc::clone(shared)));
        self.open().push(Arc::clone(&trial));
        trial
    }

    /// Cleans up after the trials that are over.
    async fn clean_up(&self, is_over: impl Fn(&Arc<Trial>) -> bool) {
        let over: Vec<_> = self.open().extract_if(.., |trial| is_over(trial)).collect();
        for trial in over {
            trial.clean_up().await;
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Trial>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for what all cases need. What is wrong with the answers is found by the cases about them.
    async fn prepare(&self) -> Arc<Shared> {
        let Options { base_url, key, .. } = &self.options;
        let wire = Wire::new(base_url, key.clone());
        let ask = async {
            let body = json!({"sdk_version": SDK_VERSION});
            let sent = Sent::to(&endpoint::CLIENT_CONFIG).json(&body);
            let config = wire.send(&sent).await.ok().and_then(|reply| reply.json());
            let config: ClientConfig = config
                .and_then(|config| serde_json::from_value(config).ok())
                .unwrap_or_default();
            if config.pjwt_auth_enabled
                && let Ok(token) = exchange(&wire).await
            {
                wire.set_credential(token);
            }
            let offered = wire
                .send(&Sent::to(&endpoint::GET_SERVER_CAPABILITIES))
                .await;
            (config, offered.ok().and_then(|reply| reply.json()))
        };
        let asked = tokio::time::timeout(self.options.case_timeout, ask).await;
        let (config, offered) = asked.unwrap_or_default();
        let offered = offered.unwrap_or_default();
        let models = offered.get("supported_models").and_then(Value::as_array);
        let models = models.map(Vec::as_slice).unwrap_or_default();
        let name = |model: &Value| model.get("model_name")?.as_str().map(str::to_owned);
        let usable = |model: &&Value| {
            let allowed = |what: &str| model.get(what) != Some(&Value::Bool(false));
            name(model).is_some() && allowed("trainable") && allowed("sampleable")
        };
        let wanted = self.options.model.clone();
        let first = models.iter().find(usable).and_then(name);
        let model = wanted.or(first).unwrap_or_default();
        let found = models
            .iter()
            .find(|offer| name(offer).as_deref() == Some(&model));
        let max_context = found.and_then(|offer| offer.get("max_context_length")?.as_u64());
        Arc::new(Shared {
            wire,
            model,
            max_context,
            config,
            json_passes: AtomicBool::new(false),
            older_models: AtomicBool::new(false),
            older_samples: AtomicBool::new(false),
            step: OnceCell::new(),
        })
    }
}

/// Exchanges the key for a token.
pub(crate) async fn exchange(wire: &Wire) -> Result<Secret, Stop> {
    let reply = wire
        .send(&Sent::to(&endpoint::AUTH_TOKEN).json(&json!({})))
        .await?;
    let token = text(&reply.object()?, "jwt")?;
    match token.split('.').count() {
        3 => Ok(token.into()),
        parts => Err(mismatch("a token of three parts", parts)),
    }
}

fn is_missing(rows: &[Row], name: &str) -> bool {
    let row = rows.iter().find(|row| row.name == name);
    // A case that was not selected says nothing about the server.
    row.is_some_and(|row| {
        row.outcome != Outcome::Passed && !matches!(row.outcome, Outcome::Measured(_))
    })
}

/// Runs a case within its time, and within that of the whole suite.
async fn attempt(
    case: &'static Case,
    trial: Arc<Trial>,
    (usual, end): (Duration, Instant),
) -> (Verdict, Duration) {
    let started = Instant::now();
    let limit = case
        .limit(usual)
        .min(end.saturating_duration_since(started));
    // A mistake of ours must not end the run: it is reported as the case's.
    let checking = AssertUnwindSafe((case.check)(&trial)).catch_unwind();
    let verdict = match tokio::time::timeout(limit, checking).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => panicked().0,
        Err(_) => Err(mismatch(
            format_args!("an end within {} s", limit.as_secs()),
            "a server that keeps the client waiting",
        )),
    };
    (verdict, started.elapsed())
}

fn panicked() -> (Verdict, Duration) {
    let reason = "the case itself failed: that is a bug of the suite";
    (Err(Stop::failed(reason)), Duration::ZERO)
}

fn judged((verdict, took): (Verdict, Duration)) -> (Outcome, Duration) {
    let outcome = match verdict {
        Ok(Note(None)) => Outcome::Passed,
        Ok(Note(Some(text))) => Outcome::Measured(shown(&text)),
        Err(Stop::Failed(reason)) => Outcome::Failed(reason),
        Err(Stop::NotSupported(reason)) => Outcome::NotSupported(reason),
    };
    (outcome, took)
}
