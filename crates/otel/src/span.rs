//! Spans: something that took its time, with a few facts about it.

use std::time::SystemTime;

use crate::context::{TraceContext, current};
use crate::exporter;

/// What a span is to the one on the other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work within the process.
    Internal,
    /// The answer to a request from outside.
    Server,
    /// A request to the outside.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Integer(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

/// A span as it is exported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) context: TraceContext,
    pub(crate) parent: Option<u64>,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
}

/// A span that is under way. It ends when it is dropped.
///
/// It is empty where nothing is exported or the trace is not recorded; the context is passed on all the same.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    context: Option<TraceContext>,
    record: Option<Box<Record>>,
}

/// A span of known times, for what is told about afterwards.
#[derive(Debug)]
pub struct Timed {
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
}

impl Span {
    /// Starts a span below the one that the task is in.
    pub fn start(name: impl Into<String>, kind: Kind) -> Self {
        Self::start_below(current(), name, kind)
    }

    /// Starts a span below another one, or a new trace.
    pub fn start_below(parent: Option<TraceContext>, name: impl Into<String>, kind: Kind) -> Self {
        if !exporter::records_spans() {
            return Self {
                context: parent,
                record: None,
            };
        }
        let context = TraceContext::below(parent);
        let now = SystemTime::now();
        let record = context.sampled.then(|| {
            Box::new(Record {
                context,
                parent: parent.map(|parent| parent.span),
                name: name.into(),
                kind,
                start: now,
                end: now,
                attributes: Vec::new(),
                failure: None,
            })
        });
        Self {
            context: Some(context),
            record,
        }
    }

    /// Adds a fact. It must be one of few values, or an id; never what a user wrote.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(record) = &mut self.record {
            record.attributes.push((name, value.into()));
        }
    }

    /// Says that it failed, and why in a few words.
    pub fn fail(&mut self, reason: impl Into<String>) {
        if let Some(record) = &mut self.record {
            record.failure = Some(reason.into());
        }
    }

    /// Says that it began earlier than it was made.
    pub fn began(&mut self, start: SystemTime) {
        if let Some(record) = &mut self.record {
            record.start = start;
        }
    }

    /// Calls it something else, once that is known.
    pub fn rename(&mut self, name: &str) {
        if let Some(record) = &mut self.record {
            name.clone_into(&mut record.name);
        }
    }

    /// Drops it without recording it.
    pub fn forget(mut self) {
        self.record = None;
    }

    /// Records a part of it whose times are known.
    pub fn part(&self, name: &'static str, times: Timed) {
        if let Some(context) = self.context.filter(|_| self.record.is_some()) {
            exporter::send(Record {
                context: TraceContext::below(Some(context)),
                parent: Some(context.span),
                name: name.to_owned(),
                kind: Kind::Internal,
                start: times.start,
                end: times.end.max(times.start),
                attributes: Vec::new(),
                failure: None,
            });
        }
    }

    /// Returns its place, for headers and for what is below it.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            record.end = SystemTime::now().max(record.start);
            exporter::send(*record);
        }
    }
}
