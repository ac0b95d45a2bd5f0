//! Fault injection, so that users can test their loops and we our client.
//!
//! A document lists rules; a rule says which endpoint fails, how and how often:
//!
//! ```json
//! {"seed": 7, "rules": [
//!     {"endpoint": "asample", "fault": 429, "probability": 0.2, "retry_after": 0.5},
//!     {"endpoint": "retrieve_future", "fault": "cut", "every": 10},
//!     {"endpoint": "forward_backward", "fault": "reset", "first": 2, "after": true},
//!     {"endpoint": "training_runs/**", "method": "GET", "fault": "hang", "delay_ms": 100}
//! ]}
//! ```
//!
//! | member | meaning |
//! | --- | --- |
//! | `endpoint` | a path; `*` stands for anything but `/`, `**` for anything. Without a leading `/` it lies under `/api/v1/` |
//! | `method` | only requests with it; all by default |
//! | `fault` | a status from 400 to 599; `hang`: no answer until the client leaves or the rules change; `cut`: half of the answer, then the end of the connection; `reset`: the connection is reset; `delay`: nothing but the delay |
//! | `probability`, `every`, `first` | how often: by chance, each nth request, only the first n. At most one of them; always by default |
//! | `delay_ms` | how long to wait before |
//! | `retry_after` | seconds that a status asks its client to wait |
//! | `after` | true: the request is handled, and then its answer is lost. `cut` is always so |
//!
//! The rules are tried in their order, and the first that decides to strike does. A rule counts the
//! requests that it was tried on, and what it decides depends on the seed, its place in the list and
//! that count alone: the same requests in the same order meet the same faults.
//!
//! A connection is reset through its [`Peer`](crate::connections::Peer). Without one the connection is closed
//! without an answer instead.

mod admin;
mod inject;
mod rules;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use tinkrs_types::InvalidInput;
use tokio::sync::watch;

pub(crate) use admin::{clear, for_local_callers, replace, show};
pub(crate) use inject::inject;

use rules::{Fault, Rules};

/// The largest document that is read.
const DOCUMENT_BYTES: usize = 1 << 20;

/// Why a document of rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FaultsError {
    /// The file cannot be read.
    #[error("could not read the faults in {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The document is larger than any that is meant seriously.
    #[error("the faults have more than {DOCUMENT_BYTES} bytes")]
    TooLarge,
    /// The document is not JSON.
    #[error("the faults are not JSON")]
    Json(#[source] serde_json::Error),
    /// A member of it is missing, unknown or of another type.
    #[error("`{member}`: {reason}")]
    Member { member: String, reason: String },
    /// A member of it is out of range.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
}

impl FaultsError {
    fn member(member: impl Into<String>, reason: impl Into<String>) -> Self {
        let (member, mut reason) = (member.into(), reason.into());
        // It repeats what was found, which may be long.
        if let Some((end, _)) = reason.char_indices().nth(300) {
            reason.replace_range(end.., "…");
        }
        Self::Member { member, reason }
    }
}

/// The rules in force: a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    rules: Mutex<Rules>,
    /// Changes whenever the rules do; requests that hang wait for it.
    version: watch::Sender<u64>,
}

/// What is to happen to one request.
#[derive(Debug)]
struct Strike {
    fault: Fault,
    rule: usize,
    after: bool,
    delay: Duration,
    retry_after: Option<f64>,
    /// Tells when the rules that decided this are no longer in force.
    changed: watch::Receiver<u64>,
}

impl Default for Faults {
    /// No rules: nothing fails.
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Faults {
    fn new(rules: Rules) -> Self {
        let (rules, version) = (Mutex::new(rules), watch::Sender::new(0));
        Self {
            shared: Arc::new(Shared { rules, version }),
        }
    }

    /// Reads the rules in a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is not a document of rules; the message names the rule and
    /// its member.
    pub(crate) fn load(path: &Path) -> Result<Self, FaultsError> {
        let document = std::fs::read(path).map_err(|source| FaultsError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::new(Rules::parse(&document)?))
    }

    /// Puts other rules in force, whose counts start at zero. Requests that hang are released.
    ///
    /// # Errors
    ///
    /// When this is not a document of rules; the old ones then stay in force.
    pub(crate) fn replace(&self, document: &[u8]) -> Result<(), FaultsError> {
        self.set(Rules::parse(document)?);
        Ok(())
    }

    /// Ends all faults. Requests that hang are released, so this also belongs before a shutdown.
    pub(crate) fn clear(&self) {
        self.set(Rules::default());
    }

    /// Returns the rules in force, each with how many requests it was tried on (`seen`) and how many
    /// of them it struck (`injected`).
    pub(crate) fn document(&self) -> Value {
        let rules = self.rules();
        json!({"seed": rules.seed, "rules": rules.described()})
    }

    fn set(&self, rules: Rules) {
        *self.rules() = rules;
        self.shared.version.send_modify(|version| *version += 1);
    }

    fn decide(&self, method: &Method, path: &str) -> Option<Strike> {
        // Subscribed under the lock: a change after it is seen, one before it has other rules.
        let mut rules = self.rules();
        let changed = self.shared.version.subscribe();
        let (rule, found) = rules.decide(method, path)?;
        Some(Strike {
            fault: found.fault,
            rule,
            after: found.after,
            delay: found.delay,
            retry_after: found.retry_after,
            changed,
        })
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        // Rules are only ever replaced as a whole or counted up.
        self.shared
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
