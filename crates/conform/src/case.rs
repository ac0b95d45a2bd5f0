//! What a case is, and how it can end.

use crate::trial::Trial;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Whether a server has to have what a case checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The official client relies on it: a server without it loses the point.
    Required,
    /// The client uses it only if the server says that it has it, or for accounts with special rights: a server that
    /// says clearly that it has no such thing is not scored on it.
    Optional,
}

/// One check of a server.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its group and name, such as `sessions/finish`.
    pub name: &'static str,
    /// What it checks, in a sentence.
    pub checks: &'static str,
    /// Where the protocol says so.
    pub spec: &'static str,
    /// Whether a server has to have it.
    pub need: Need,
    /// Cases that have to pass before this one makes sense.
    pub after: &'static [&'static str],
    /// How many times the usual time limit it has.
    pub time: u32,
    /// Runs beside the other cases, because most of its time is waiting.
    pub beside: bool,
    /// Takes much of the server, and is left out of a quick run.
    pub heavy: bool,
    pub(crate) check: Check,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

pub(crate) type Check = for<'a> fn(&'a Trial) -> Checking<'a>;
pub(crate) type Checking<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// A case that passed has an optional measurement to tell.
pub(crate) type Verdict = Result<Note, Stop>;

/// What a case that passed measured, if anything.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Note(pub(crate) Option<String>);

/// Ends a case well.
pub(crate) const OK: Verdict = Ok(Note(None));

/// Ends a case well, with a measurement.
pub(crate) fn measured(text: impl Display) -> Verdict {
    Ok(Note(Some(text.to_string())))
}

/// Why a case did not pass.
#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
    /// The server did something else than the protocol says.
    Failed(String),
    /// The server said that it has no such thing.
    NotSupported(String),
}

impl Stop {
    pub(crate) fn failed(text: impl Display) -> Self {
        Self::Failed(text.to_string())
    }
}

/// Ends a case because something was seen that differs from what was expected.
pub(crate) fn mismatch(expected: impl Display, seen: impl Display) -> Stop {
    Stop::Failed(format!("expected {expected}; saw {seen}"))
}

/// Goes on only if something holds.
pub(crate) fn ensure(holds: bool, expected: impl Display, seen: impl Display) -> Result<(), Stop> {
    if holds {
        Ok(())
    } else {
        Err(mismatch(expected, seen))
    }
}

impl Case {
    pub(crate) const fn new(
        name: &'static str,
        checks: &'static str,
        spec: &'static str,
        check: Check,
    ) -> Self {
        Self {
            name,
            checks,
            spec,
            need: Need::Required,
            after: &[],
            time: 1,
            beside: false,
            heavy: false,
            check,
        }
    }

    pub(crate) const fn optional(mut self) -> Self {
        self.need = Need::Optional;
        self
    }

    pub(crate) const fn after(mut self, names: &'static [&'static str]) -> Self {
        self.after = names;
        self
    }

    pub(crate) const fn time(mut self, times: u32) -> Self {
        self.time = times;
        self
    }

    pub(crate) const fn beside(mut self) -> Self {
        self.beside = true;
        self
    }

    pub(crate) const fn heavy(mut self) -> Self {
        self.heavy = true;
        self
    }

    /// Returns the group that the case belongs to.
    pub fn group(&self) -> &'static str {
        self.name.split('/').next().unwrap_or(self.name)
    }

    pub(crate) fn limit(&self, usual: Duration) -> Duration {
        usual * self.time
    }
}

/// Declares a case: its name, what it checks, where the protocol says so, and the function that checks it.
macro_rules! case {
    ($name:literal, $checks:literal, $spec:literal, $check:path) => {
        $crate::case::Case::new($name, $checks, $spec, |trial| Box::pin($check(trial)))
    };
}
pub(crate) use case;
