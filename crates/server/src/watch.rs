//! Tokens as they are drawn, for whoever runs the server in its own process.
//!
//! The API has no stream of tokens: a client polls until its result is complete. A program that
//! contains the server, such as a chat on this machine, watches a sampling session here instead,
//! beside the request that it sends as every client does.

use std::collections::HashMap;
use std::sync::Mutex;

use tinkrs_types::{RequestId, SamplingSessionId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Server;
use crate::lock::lock;

/// A token of a sample that is not complete yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrawnToken {
    /// The request that it is a part of.
    pub request_id: RequestId,
    /// Index of the sample in the request.
    pub sample: usize,
    /// Its place in the sample, from 0.
    pub index: usize,
    /// The token.
    pub token: u32,
}

/// Who watches which sampling session.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<SamplingSessionId, UnboundedSender<DrawnToken>>>);

impl Watchers {
    fn add(&self, sampler: SamplingSessionId) -> UnboundedReceiver<DrawnToken> {
        // No bound: a request draws `max_tokens` at most, and the thread that computes must not
        // wait for a slow reader.
        let (sender, receiver) = unbounded_channel();
        let mut watchers = lock(&self.0);
        watchers.retain(|_, watcher| !watcher.is_closed());
        watchers.insert(sampler, sender);
        receiver
    }

    pub(crate) fn of(&self, sampler: &SamplingSessionId) -> Option<UnboundedSender<DrawnToken>> {
        lock(&self.0).get(sampler).cloned()
    }
}

impl Server {
    /// Returns the tokens of all requests that come for a sampling session from now on, as they
    /// are drawn. The results come to the client as ever, and hold the same tokens.
    ///
    /// A session has one watcher: the next one takes over. Dropping the receiver ends the watch.
    #[must_use]
    pub fn watch_tokens(&self, sampler: SamplingSessionId) -> UnboundedReceiver<DrawnToken> {
        self.shared().watchers.add(sampler)
    }
}
