//! Tokens as they are drawn, for programs that run the server in their own process.
//!
//! The API has no stream of tokens: a client polls until its result is complete. A program that
//! contains the server, such as a chat on this machine or an endpoint that streams, watches a request
//! here instead, beside the request that it sends as every client does.
//!
//! Every request for samples keeps the tokens that it has drawn so far, up to [`KEPT`]. A watcher is a
//! place in that list: any number of them can join at any time and each sees all tokens from the first
//! one on. The thread that computes only appends, so a slow watcher never holds it up; one that falls
//! behind by more than [`KEPT`] tokens gets [`Watched::Lagged`] and goes on with the oldest that is left.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tinkrs_types::{RequestId, SamplingSessionId};
use tokio::sync::{Notify, broadcast};

use crate::Server;
use crate::lock::lock;

/// How many tokens of a request are kept for watchers: more than a whole context of any model here.
const KEPT: usize = 65_536;

/// How many requests a watcher of a session may be behind.
const REQUESTS: usize = 256;

/// A token of a sample that is not complete yet.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DrawnToken {
    /// Index of the sample in the request.
    pub sample: usize,
    /// Its place in the sample, from 0.
    pub index: usize,
    /// The token.
    pub token: u32,
    /// Its log-probability, as in the result.
    pub logprob: f32,
    /// The likeliest tokens at its place and their log-probabilities, likeliest first, if the request asks for
    /// them; at most [`MAX_ALTERNATIVES`](tinkrs_backend::MAX_ALTERNATIVES).
    pub alternatives: Vec<(u32, f32)>,
}

/// What a watcher sees.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Watched {
    /// The next token.
    Token(DrawnToken),
    /// The watcher was too slow, or joined too late: this many tokens are gone.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// The tokens of a request, from the first one on. See [`Server::watch_request`].
///
/// Dropping it ends the watch and nothing else.
#[derive(Debug)]
pub struct TokenWatch {
    stream: Arc<Stream>,
    /// How many tokens have been seen or missed.
    seen: u64,
}

impl TokenWatch {
    fn new(stream: Arc<Stream>) -> Self {
        Self { stream, seen: 0 }
    }

    /// Returns the request that is watched.
    pub fn request_id(&self) -> &RequestId {
        &self.stream.id
    }

    /// Waits for the next token; `None` once the request has ended, whether its result is a sample or a
    /// failure. Nothing is lost if the returned future is dropped.
    pub async fn next(&mut self) -> Option<Watched> {
        // A copy, so that what is seen can be counted while the stream waits.
        let stream = Arc::clone(&self.stream);
        loop {
            let mut news = std::pin::pin!(stream.news.notified());
            // Registered before the list is read, so that no token is missed in between.
            news.as_mut().enable();
            {
                let log = lock(&stream.log);
                if let Some(watched) = log.after(&mut self.seen) {
                    return Some(watched);
                }
                if log.ended {
                    return None;
                }
            }
            news.await;
        }
    }
}

/// The requests that come for a sampling session. See [`Server::watch_session`].
#[derive(Debug)]
pub struct SessionWatch(broadcast::Receiver<Arc<Stream>>);

impl SessionWatch {
    /// Waits for the next request, and returns its tokens from the first one on; `None` once the server
    /// is gone. Nothing is lost if the returned future is dropped.
    pub async fn next(&mut self) -> Option<TokenWatch> {
        loop {
            match self.0.recv().await {
                Ok(stream) => return Some(TokenWatch::new(stream)),
                // The oldest requests are no longer announced; those that are left follow.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

#[derive(Debug)]
struct Stream {
    id: RequestId,
    log: Mutex<Log>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Log {
    tokens: VecDeque<DrawnToken>,
    /// How many tokens were dropped from the front.
    dropped: u64,
    /// How many tokens each sample has.
    drawn: Vec<usize>,
    ended: bool,
}

impl Log {
    fn push(&mut self, sample: usize, token: u32, logprob: f32, alternatives: Vec<(u32, f32)>) {
        if self.drawn.len() <= sample {
            self.drawn.resize(sample + 1, 0);
        }
        let index = self.drawn[sample];
        self.drawn[sample] += 1;
        if self.tokens.len() == KEPT {
            self.tokens.pop_front();
            self.dropped += 1;
        }
        self.tokens.push_back(DrawnToken {
            sample,
            index,
            token,
            logprob,
            alternatives,
        });
    }

    /// Returns what follows the tokens that were seen, and counts it as seen.
    fn after(&self, seen: &mut u64) -> Option<Watched> {
        if *seen < self.dropped {
            let missed = self.dropped - *seen;
            *seen = self.dropped;
            return Some(Watched::Lagged { missed });
        }
        let next = usize::try_from(*seen - self.dropped).ok()?;
        let token = self.tokens.get(next)?;
        *seen += 1;
        Some(Watched::Token(token.clone()))
    }
}

/// The streams of all requests for samples that have not ended, and who waits for new ones.
#[derive(Debug, Default)]
pub(crate) struct TokenStreams(Arc<Mutex<Streams>>);

#[derive(Debug, Default)]
struct Streams {
    by_request: HashMap<RequestId, Arc<Stream>>,
    watched_sessions: HashMap<SamplingSessionId, broadcast::Sender<Arc<Stream>>>,
}

impl TokenStreams {
    /// Begins the stream of a request, which ends when the returned value is dropped.
    pub(crate) fn open(&self, id: &RequestId, sampler: Option<&SamplingSessionId>) -> TokenSender {
        let stream = Arc::new(Stream {
            id: id.clone(),
            log: Mutex::default(),
            news: Notify::new(),
        });
        let mut streams = lock(&self.0);
        streams.by_request.insert(id.clone(), Arc::clone(&stream));
        if let Some(watched) = sampler.and_then(|sampler| streams.watched_sessions.get(sampler)) {
            // An error says that the last watcher is gone.
            let _ = watched.send(Arc::clone(&stream));
        }
        TokenSender {
            stream,
            streams: Arc::clone(&self.0),
        }
    }

    pub(crate) fn watch_request(&self, id: &RequestId) -> Option<TokenWatch> {
        let stream = lock(&self.0).by_request.get(id).cloned();
        stream.map(TokenWatch::new)
    }

    fn watch_session(&self, sampler: SamplingSessionId) -> SessionWatch {
        let mut streams = lock(&self.0);
        let watched = &mut streams.watched_sessions;
        watched.retain(|_, sender| sender.receiver_count() > 0);
        let sender = watched
            .entry(sampler)
            .or_insert_with(|| broadcast::channel(REQUESTS).0);
        SessionWatch(sender.subscribe())
    }
}

/// Appends to the stream of a request, and ends it when dropped.
#[derive(Debug)]
pub(crate) struct TokenSender {
    stream: Arc<Stream>,
    streams: Arc<Mutex<Streams>>,
}

impl TokenSender {
    pub(crate) fn push(
        &self,
        sample: usize,
        token: u32,
        logprob: f32,
        alternatives: Vec<(u32, f32)>,
    ) {
        lock(&self.stream.log).push(sample, token, logprob, alternatives);
        self.stream.news.notify_waiters();
    }
}

impl Drop for TokenSender {
    fn drop(&mut self) {
        let mut streams = lock(&self.streams);
        // A request that was sent again has a stream of its own by now.
        let current = streams.by_request.get(&self.stream.id);
        if current.is_some_and(|current| Arc::ptr_eq(current, &self.stream)) {
            streams.by_request.remove(&self.stream.id);
        }
        drop(streams);
        lock(&self.stream.log).ended = true;
        self.stream.news.notify_waiters();
    }
}

impl Server {
    /// Watches a request for samples: all of its tokens as they are drawn, from the first one on, also
    /// if it began before. Any number of watchers can do so at once.
    ///
    /// Returns `None` if there is no such request or it has ended; its result then has all tokens.
    pub fn watch_request(&self, id: &RequestId) -> Option<TokenWatch> {
        self.shared().token_streams.watch_request(id)
    }

    /// Watches for the requests that come for a sampling session from now on, each of which can then be
    /// watched from its first token on. A session can have any number of watchers.
    #[must_use]
    pub fn watch_session(&self, sampler: SamplingSessionId) -> SessionWatch {
        self.shared().token_streams.watch_session(sampler)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(watched: Option<Watched>) -> u32 {
        match watched {
            Some(Watched::Token(drawn)) => drawn.token,
            other => panic!("expected a token, got {other:?}"),
        }
    }

    #[tokio::test]
    async fn every_watcher_sees_every_token_whenever_it_joins() {
        let streams = TokenStreams::default();
        let id = RequestId::from("a");
        assert!(streams.watch_request(&id).is_none(), "not yet");
        let sender = streams.open(&id, None);
        let mut early = streams.watch_request(&id).unwrap();
        sender.push(0, 7, -0.5, Vec::new());
        sender.push(1, 8, -0.5, Vec::new());
        assert_eq!(token(early.next().await), 7);
        let mut late = streams.watch_request(&id).unwrap();
        sender.push(0, 9, -0.5, Vec::new());
        drop(sender);
        for expected in [7, 8, 9] {
            assert_eq!(token(late.next().await), expected);
        }
        assert_eq!(late.next().await, None);
        assert_eq!(token(early.next().await), 8);
        let last = DrawnToken {
            sample: 0,
            index: 1,
            token: 9,
            logprob: -0.5,
            alternatives: Vec::new(),
        };
        assert_eq!(early.next().await, Some(Watched::Token(last)));
        assert_eq!(early.next().await, None);
        assert!(streams.watch_request(&id).is_none(), "it has ended");
    }

    #[tokio::test]
    async fn a_waiting_watcher_is_woken_by_a_token_and_by_the_end() {
        let streams = TokenStreams::default();
        let id = RequestId::from("a");
        let sender = streams.open(&id, None);
        let mut watch = streams.watch_request(&id).unwrap();
        let (seen, ()) = tokio::join!(watch.next(), async {
            tokio::task::yield_now().await;
            sender.push(0, 5, -0.5, Vec::new());
        });
        assert_eq!(token(seen), 5);
        let (seen, ()) = tokio::join!(watch.next(), async {
            tokio::task::yield_now().await;
            drop(sender);
        });
        assert_eq!(seen, None);
    }

    #[tokio::test]
    async fn a_watcher_that_is_too_slow_hears_how_much_it_missed() {
        let streams = TokenStreams::default();
        let id = RequestId::from("a");
        let sender = streams.open(&id, None);
        let mut slow = streams.watch_request(&id).unwrap();
        let count = KEPT + 10;
        for place in 0..count {
            sender.push(0, u32::try_from(place).unwrap(), -0.5, Vec::new());
        }
        assert_eq!(slow.next().await, Some(Watched::Lagged { missed: 10 }));
        let next = DrawnToken {
            sample: 0,
            index: 10,
            token: 10,
            logprob: -0.5,
            alternatives: Vec::new(),
        };
        assert_eq!(slow.next().await, Some(Watched::Token(next)));
        drop(sender);
        let mut left = 0;
        while slow.next().await.is_some() {
            left += 1;
        }
        assert_eq!(left, KEPT - 1);
    }

    #[tokio::test]
    async fn watchers_of_a_session_get_each_of_its_requests() {
        let streams = TokenStreams::default();
        let (watched, other) = ("s:sample:0".into(), "s:sample:1".into());
        drop(streams.open(&"before".into(), Some(&watched)));
        let mut first = streams.watch_session(watched.clone());
        let mut second = streams.watch_session(watched.clone());
        drop(streams.open(&"elsewhere".into(), Some(&other)));
        let sender = streams.open(&"a".into(), Some(&watched));
        sender.push(0, 1, -0.5, Vec::new());
        drop(sender);
        drop(streams.open(&"b".into(), Some(&watched)));
        for watch in [&mut first, &mut second] {
            let mut tokens = watch.next().await.unwrap();
            assert_eq!(tokens.request_id(), &RequestId::from("a"));
            assert_eq!(token(tokens.next().await), 1);
            assert_eq!(tokens.next().await, None);
            let next = watch.next().await.unwrap();
            assert_eq!(next.request_id(), &RequestId::from("b"));
        }
        drop((first, second));
        drop(streams.watch_session(other.clone()));
        drop(streams.watch_session(other));
        let watched = lock(&streams.0).watched_sessions.len();
        assert_eq!(
            watched, 1,
            "sessions that are no longer watched are forgotten"
        );
    }

    #[tokio::test]
    async fn a_request_that_is_sent_again_keeps_its_new_stream() {
        let streams = TokenStreams::default();
        let id = RequestId::from("a");
        let old = streams.open(&id, None);
        let new = streams.open(&id, None);
        drop(old);
        let mut watch = streams.watch_request(&id).unwrap();
        new.push(0, 3, -0.5, Vec::new());
        assert_eq!(token(watch.next().await), 3);
    }
}
