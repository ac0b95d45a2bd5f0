//! Changes to runs as they happen, as server-sent events.
//!
//! Whatever happens to a run is a word to those who watch it ([`feed`](super::feed)), and nothing at all when nobody
//! does. [`follow`] collects such words for a moment and then reads once what is new, for all who watch the same; an
//! event is sent when a connection has room for it. A client that does not read is dropped by the limits of its
//! connection, and goes on where it was when it comes back: the id of an event says how far it has come. Whoever
//! comes back, or has missed something, reads it for itself up to where the others are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_wire::op::run_view::EventsQuery;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::feed::{Changes, Feed, News, Topic};
use super::news::Cursor;
use crate::Server;
use crate::auth::{Owner, Pass};
use crate::endpoints::server_sent::{self, Events};
use crate::error::ApiError;
use crate::extract::Parameters;
use crate::lock::lock;
use crate::store::studio::Reading;

/// How many streams may be open: of all owners together, of one, and of all who have a link to a run of one.
const STREAMS: usize = 256;
const STREAMS_OF_OWNER: usize = 64;
const STREAMS_OF_LINKS: usize = 32;
/// How long changes are collected before they are read: of one run, and of all, where nobody looks at every step.
const COLLECT: Duration = Duration::from_millis(250);
const COLLECT_ALL: Duration = Duration::from_secs(1);
/// How many times as long as a reading took nothing is read after it, so that watching leaves the machine to what is
/// watched; and the longest such pause.
const REST: u32 = 100;
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How long nothing is sent before a comment says that the connection is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(crate) async fn stream(
    State(server): State<Server>,
    Extension(pass): Extension<Pass>,
    Parameters(query): Parameters<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let owner = pass.owner;
    let run = query
        .run
        .map(|run| server.own_run(owner, &run))
        .transpose()?;
    // A link to one run hears of that run.
    if let Some(shared) = &pass.run
        && run.as_ref() != Some(shared)
    {
        return Err(ApiError::forbidden(format!(
            "this link reads the run {shared} and nothing else: `?run={shared}`"
        )));
    }
    let place = server.shared().event_streams.enter(&pass)?;
    let topic = run.map_or(Topic::Owner(owner), Topic::Run);
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let resumed = last.and_then(Cursor::parse);
    Ok(server_sent::respond(
        Watcher::new(server, pass, topic, (resumed, place)).await?,
    ))
}

/// One who watches.
struct Watcher {
    server: Server,
    pass: Pass,
    topic: Topic,
    news: broadcast::Receiver<News>,
    cursor: Cursor,
    /// Where the others are, if there is something to read before it can go on with them.
    behind: Option<Cursor>,
    is_first: bool,
    _place: StreamPlace,
    // The last: the feed is left when the receiver is gone.
    _leaving: Leaving,
}

/// Leaves a feed when it is dropped.
struct Leaving {
    server: Server,
    topic: Topic,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.server.shared().activity.feeds().leave(&self.topic);
    }
}

impl Watcher {
    async fn new(
        server: Server,
        pass: Pass,
        topic: Topic,
        (resumed, place): (Option<Cursor>, StreamPlace),
    ) -> Result<Self, ApiError> {
        let feeds = server.shared().activity.feeds();
        let start = match feeds.cursor(&topic) {
            Some(cursor) => cursor,
            None => {
                let topic = topic.clone();
                let read = move |_: &Server, reading: &Reading<'_>| Cursor::now(reading, &topic);
                server.read(read).await?
            }
        };
        let subscription = feeds.subscribe(&topic, start);
        if let Some(feed) = subscription.to_run {
            tokio::spawn(follow(server.clone(), topic.clone(), feed));
        }
        // Whoever claims to have seen what has not happened has seen everything.
        let others = subscription.cursor;
        Ok(Self {
            cursor: resumed.map_or(others, |resumed| resumed.min(others)),
            behind: resumed.map(|_| others),
            news: subscription.news,
            is_first: true,
            _place: place,
            _leaving: Leaving {
                server: server.clone(),
                topic: topic.clone(),
            },
            server,
            pass,
            topic,
        })
    }

    /// Whether a new request would still be admitted. Nothing is sent to whoever has logged out, or whose link has ended.
    fn is_admitted(&self) -> bool {
        let admitted = self.server.auth().check_pass(&self.pass, Timestamp::now());
        admitted.is_ok()
    }

    /// Reads what the others have been told since the cursor, or a part of it.
    async fn catch_up(&mut self, others: Cursor) -> Result<Vec<u8>, ApiError> {
        let (topic, from) = (self.topic.clone(), self.cursor);
        let read = move |server: &Server, reading: &Reading<'_>| {
            server.news(reading, &topic, Changes::default(), (from, Some(others)))
        };
        let found = self.server.read(read).await?;
        self.cursor = if found.has_more { found.cursor } else { others };
        self.behind = found.has_more.then_some(others);
        Ok(found.events)
    }
}

impl Events for Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_first) {
            // A browser that comes back asks for what it has missed since this.
            let hello = format!("retry: 2000\n{}: watching\n\n", self.cursor.id());
            return Some(hello.into());
        }
        loop {
            if let Some(others) = self.behind {
                // One that fails ends here. It comes back, and is told then.
                let events = self.catch_up(others).await.ok()?;
                if !events.is_empty() {
                    return Some(events.into());
                }
                continue;
            }
            let news = tokio::select! {
                () = self.server.closing() => return None,
                () = tokio::time::sleep(HEARTBEAT) => None,
                news = self.news.recv() => Some(news),
            };
            if !self.is_admitted() {
                return None;
            }
            let Some(news) = news else {
                return Some(Bytes::from_static(b": still here\n\n"));
            };
            match news {
                Ok(news) if news.from == self.cursor => {
                    self.cursor = news.to;
                    return Some(news.events);
                }
                Ok(news) => self.behind = Some(news.to),
                // What was missed is read with the next news, which do not begin where the last ones ended.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

/// Reads what is new of a topic, for all who watch it, for as long as somebody does.
async fn follow(server: Server, topic: Topic, feed: Arc<Feed>) {
    let feeds = server.shared().activity.feeds();
    let collect = match topic {
        Topic::Run(_) => COLLECT,
        Topic::Owner(_) => COLLECT_ALL,
    };
    let mut rest = collect;
    let following = async {
        loop {
            feed.changed().await;
            if !feeds.has(&topic, &feed) {
                return;
            }
            tokio::time::sleep(rest).await;
            let (changed, from) = feed.take();
            let began = Instant::now();
            let of = topic.clone();
            let read = move |server: &Server, reading: &Reading<'_>| {
                server.news(reading, &of, changed, (from, None))
            };
            let Ok(found) = server.read(read).await else {
                return;
            };
            rest = (began.elapsed() * REST).clamp(collect, LONGEST_REST);
            if !found.events.is_empty() {
                feed.publish(News {
                    from,
                    to: found.cursor,
                    events: found.events.into(),
                });
            }
            if found.has_more {
                feed.wake();
            }
        }
    };
    tokio::select! {
        () = server.closing() => {}
        () = following => {}
    }
    feeds.end(&topic, &feed);
}

/// How many streams are open, by who has them.
#[derive(Debug, Default)]
pub(crate) struct EventStreams {
    open: Arc<Mutex<HashMap<Holder, usize>>>,
}

/// An owner, or all who have links to runs of that owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holder {
    owner: Owner,
    is_link: bool,
}

/// A place among the open streams, given back when it is dropped.
#[derive(Debug)]
struct StreamPlace {
    open: Arc<Mutex<HashMap<Holder, usize>>>,
    holder: Holder,
}

impl EventStreams {
    /// Counts all that are open.
    pub(crate) fn count(&self) -> usize {
        lock(&self.open).values().sum()
    }

    fn enter(&self, pass: &Pass) -> Result<StreamPlace, ApiError> {
        let holder = Holder {
            owner: pass.owner,
            is_link: pass.run.is_some(),
        };
        let most = if holder.is_link {
            STREAMS_OF_LINKS
        } else {
            STREAMS_OF_OWNER
        };
        let mut open = lock(&self.open);
        let own = open.get(&holder).copied().unwrap_or_default();
        if own >= most {
            return Err(ApiError::busy(format!(
                "{own} pages of this owner are open, which is the most: close one"
            )));
        }
        if open.values().sum::<usize>() >= STREAMS {
            return Err(ApiError::busy("too many pages are open"));
        }
        open.insert(holder, own + 1);
        drop(open);
        Ok(StreamPlace {
            open: Arc::clone(&self.open),
            holder,
        })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tinkrs_types::ModelId;

    use super::*;

    #[test]
    fn nobody_takes_the_streams_of_others() {
        let streams = EventStreams::default();
        let pass = |key: &[u8], run: Option<ModelId>| Pass {
            run,
            ..Pass::of_key(Owner::of_key(key))
        };
        let fill =
            |pass: &Pass| -> Vec<_> { std::iter::from_fn(|| streams.enter(pass).ok()).collect() };
        let mine = fill(&pass(b"me", None));
        assert_eq!(mine.len(), STREAMS_OF_OWNER);
        let guests = fill(&pass(b"me", Some(ModelId::new("r"))));
        assert_eq!(guests.len(), STREAMS_OF_LINKS);
        assert!(streams.enter(&pass(b"me", None)).is_err());
        let others = [b"a", b"b", b"c"].map(|key| fill(&pass(key, None)));
        assert_eq!(streams.count(), STREAMS);
        assert!(streams.enter(&pass(b"d", None)).is_err(), "of all together");
        drop((mine, guests, others));
        assert_eq!(streams.count(), 0);
        assert!(lock(&streams.open).is_empty(), "nothing stays behind");
    }
}
