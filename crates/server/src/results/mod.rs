//! Results of operations, from the promise until they are not kept any longer.
//!
//! The worker holds a [`Responder`] and finishes it once; any number of polls wait on the entry
//! behind it. A result is stored before it is shown, unless the disk refuses it: then it is shown from
//! memory, and stored when the disk takes it. An answer that is dropped unfinished leaves its request
//! in the journal, where the next start of the server finds it.
//!
//! The newest results are in memory, up to a size; the others are read from their files. One that
//! was fetched may be asked for again (the answer may have been lost on its way), so it is kept for
//! a while; later polls get [`Lookup::Expired`].

pub(crate) mod completion_feed;
mod operation_result;
mod responder;
mod sample_reply;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tinkrs_types::protocol::QueueStatus;
use tinkrs_types::service::QueueState;
use tinkrs_types::{RequestId, SamplingSessionId};
use tokio::sync::watch;

pub(crate) use operation_result::{OperationResult, ResultFormat};
pub(crate) use responder::Responder;
pub(crate) use sample_reply::{DirectReply, SampleReply};

use crate::auth::Owner;
use crate::lock::lock;
use crate::otel::AcceptedOperation;
use crate::store::{Change, Store};
use completion_feed::{CompletionFeed, CompletionFeeds};

/// How many results of an owner are kept at most. The oldest go first, fetched or not.
const KEPT_RESULTS: usize = 100_000;
/// How many bytes they have at most.
const KEPT_BYTES: u64 = 8 << 30;

/// Where a request is on its way.
#[derive(Clone, Debug)]
enum State {
    Pending,
    Done {
        kind: ResultFormat,
        size: u64,
        /// `None` if they are in the file only.
        bytes: Option<Bytes>,
    },
}

#[derive(Debug)]
struct Entry {
    owner: Owner,
    feed: Option<CompletionFeed>,
    state: watch::Sender<State>,
    /// Why the operation does not run yet, if there is something to say.
    reason: Mutex<Option<String>>,
    /// When the result was there, or was fetched.
    since: Mutex<(Instant, Fetched)>,
    accepted: AcceptedOperation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    No,
    Yes,
}

/// What a poll finds.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The operation has ended.
    Done(OperationResult),
    /// It has ended, and the caller wanted to know if the result is this large.
    Large(u64),
    /// It has not, and this is why.
    Pending(QueueStatus),
    /// Its result was fetched and then dropped.
    Expired,
    /// There was never such a request.
    Unknown,
    /// The result could not be read.
    Unreadable(std::io::Error),
}

/// All operations that were promised.
#[derive(Debug)]
pub(crate) struct Results {
    store: Arc<Store>,
    /// Sets the ids of this process apart from those of the one before it.
    epoch: u64,
    next: AtomicU64,
    /// How many bytes of results are in memory at most.
    resident_limit: u64,
    table: Mutex<Table>,
    pub(crate) feeds: CompletionFeeds,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<RequestId, Arc<Entry>>,
    /// The results in memory that are in their files too, the oldest first.
    resident: VecDeque<(RequestId, u64)>,
    resident_bytes: u64,
}

impl Results {
    pub(crate) fn new(store: Arc<Store>, epoch: u64, resident_limit: u64) -> Arc<Self> {
        Arc::new(Self {
            store,
            epoch,
            next: AtomicU64::new(0),
            resident_limit,
            table: Mutex::default(),
            feeds: CompletionFeeds::new(epoch),
        })
    }

    /// Makes room for a result.
    pub(crate) fn promise(
        self: &Arc<Self>,
        owner: Owner,
        feed: Option<CompletionFeed>,
    ) -> Responder {
        self.insert(self.new_id(owner), owner, feed, State::Pending)
    }

    /// Makes an id for a request that nobody else has.
    pub(crate) fn new_id(&self, owner: Owner) -> RequestId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // With its owner's mark, so that others are not even told that it was there.
        RequestId::new(format!("{}-{number}-{:x}", self.epoch, owner.number()))
    }

    /// Makes room for the result of a request that was accepted before this process began.
    pub(crate) fn resume(
        self: &Arc<Self>,
        id: RequestId,
        owner: Owner,
        feed: Option<CompletionFeed>,
    ) -> Responder {
        self.insert(id, owner, feed, State::Pending)
    }

    /// Knows a result that was stored before this process began.
    pub(crate) fn recall(
        self: &Arc<Self>,
        id: RequestId,
        owner: Owner,
        feed: Option<CompletionFeed>,
        (kind, size): (ResultFormat, u64),
    ) {
        if let Some(feed) = &feed {
            self.feeds.push(feed, id.clone(), kind, size);
        }
        let bytes = None;
        self.insert(id, owner, feed, State::Done { kind, size, bytes });
    }

    fn insert(
        self: &Arc<Self>,
        id: RequestId,
        owner: Owner,
        feed: Option<CompletionFeed>,
        state: State,
    ) -> Responder {
        let entry = Arc::new(Entry {
            owner,
            feed,
            state: watch::Sender::new(state),
            reason: Mutex::new(None),
            since: Mutex::new((Instant::now(), Fetched::No)),
            accepted: AcceptedOperation::now(),
        });
        let mut table = lock(&self.table);
        table.entries.insert(id.clone(), Arc::clone(&entry));
        let results = Arc::clone(self);
        Responder {
            id,
            entry,
            results,
            pending: None,
        }
    }

    /// Returns whether an owner still waits for this result.
    pub(crate) fn is_pending(&self, owner: Owner, id: &RequestId) -> bool {
        let table = lock(&self.table);
        let entry = table.entries.get(id).filter(|entry| entry.owner == owner);
        entry.is_some_and(|entry| matches!(*entry.state.borrow(), State::Pending))
    }

    /// Takes back a promise that was never given.
    pub(crate) fn withdraw(&self, id: &RequestId) {
        lock(&self.table).entries.remove(id);
    }

    fn show(&self, id: &RequestId, entry: &Entry, outcome: OperationResult) {
        let (kind, size) = (outcome.kind, outcome.bytes.len() as u64);
        *lock(&entry.since) = (Instant::now(), Fetched::No);
        // Whoever has seen the result finds it announced.
        if let Some(feed) = &entry.feed {
            self.feeds.push(feed, id.clone(), kind, size);
        }
        entry.state.send_replace(State::Done {
            kind,
            size,
            bytes: Some(outcome.bytes),
        });
    }

    /// Counts a result that is stored among those in memory, and lets go of the oldest ones.
    fn settle(&self, id: &RequestId, entry: &Entry) {
        let State::Done { size, .. } = *entry.state.borrow() else {
            return;
        };
        let mut table = lock(&self.table);
        if !table.entries.contains_key(id) {
            return;
        }
        table.resident.push_back((id.clone(), size));
        table.resident_bytes += size;
        while table.resident_bytes > self.resident_limit && table.resident.len() > 1 {
            let Some((oldest, size)) = table.resident.pop_front() else {
                return;
            };
            table.resident_bytes -= size;
            if let Some(entry) = table.entries.get(&oldest) {
                entry.state.send_modify(|state| {
                    if let State::Done { bytes, .. } = state {
                        *bytes = None;
                    }
                });
            }
        }
    }

    /// Waits for a result, but not longer than `timeout`. One of more than `inline` bytes is only
    /// announced.
    pub(crate) async fn wait(
        &self,
        owner: Owner,
        id: &RequestId,
        timeout: Duration,
        inline: u64,
    ) -> Lookup {
        let entry = {
            let table = lock(&self.table);
            match table.entries.get(id) {
                Some(entry) if entry.owner == owner => Arc::clone(entry),
                None if self.was_given(owner, id) => return Lookup::Expired,
                Some(_) | None => return Lookup::Unknown,
            }
        };
        let mut news = entry.state.subscribe();
        let is_done = |state: &State| matches!(state, State::Done { .. });
        let state = match tokio::time::timeout(timeout, news.wait_for(is_done)).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) | Err(_) => State::Pending,
        };
        let (kind, size, bytes) = match state {
            State::Done { size, .. } if size > inline => return Lookup::Large(size),
            State::Done { kind, size, bytes } => (kind, size, bytes),
            State::Pending => {
                return Lookup::Pending(QueueStatus {
                    state: QueueState::Active,
                    reason: lock(&entry.reason).clone(),
                });
            }
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => match self.read(id).await {
                Ok(bytes) if bytes.len() as u64 == size => Bytes::from(bytes),
                Ok(_) => return Lookup::Unreadable(std::io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Lookup::Unreadable(error),
            },
        };
        let mut since = lock(&entry.since);
        if since.1 == Fetched::No {
            *since = (Instant::now(), Fetched::Yes);
        }
        Lookup::Done(OperationResult { kind, bytes })
    }

    async fn read(&self, id: &RequestId) -> std::io::Result<Vec<u8>> {
        let (store, id) = (Arc::clone(&self.store), id.clone());
        let read = tokio::task::spawn_blocking(move || store.result(&id));
        read.await.unwrap_or_else(|error| Err(error.into()))
    }

    /// Whether a request of this id was accepted from this owner by a server on this folder.
    fn was_given(&self, owner: Owner, id: &RequestId) -> bool {
        let mut parts = id.as_str().splitn(3, '-');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (Some(epoch), Some(number)) = (number(), number()) else {
            return false;
        };
        if parts.next() != Some(format!("{:x}", owner.number()).as_str()) {
            return false;
        }
        match epoch.cmp(&self.epoch) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => number < self.next.load(Ordering::Relaxed),
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Drops results that the owner has downloaded.
    pub(crate) fn release(&self, owner: Owner, ids: &[RequestId]) {
        let mut table = lock(&self.table);
        let is_over = |id: &&RequestId| {
            let entry = table.entries.get(*id).filter(|entry| entry.owner == owner);
            entry.is_some_and(|entry| matches!(*entry.state.borrow(), State::Done { .. }))
        };
        let over = ids.iter().filter(is_over).cloned().collect();
        self.drop_all(&mut table, over);
    }

    /// Drops results that were fetched a while ago, and those that were never fetched.
    pub(crate) fn expire(&self, fetched: Duration, unfetched: Duration) {
        self.drop_where(|_, entry| {
            let (since, was_fetched) = *lock(&entry.since);
            let kept = match was_fetched {
                Fetched::Yes => fetched,
                Fetched::No => unfetched,
            };
            since.elapsed() >= kept && matches!(*entry.state.borrow(), State::Done { .. })
        });
        self.drop_beyond(KEPT_RESULTS, KEPT_BYTES);
    }

    /// Drops the oldest results of owners who have too many of them.
    fn drop_beyond(&self, most: usize, most_bytes: u64) {
        let mut table = lock(&self.table);
        let mut by_owner = HashMap::<Owner, (usize, u64)>::new();
        let size_of = |entry: &Entry| match *entry.state.borrow() {
            State::Done { size, .. } => Some(size),
            State::Pending => None,
        };
        for entry in table.entries.values() {
            if let Some(size) = size_of(entry) {
                let (count, bytes) = by_owner.entry(entry.owner).or_default();
                (*count, *bytes) = (*count + 1, *bytes + size);
            }
        }
        by_owner.retain(|_, (count, bytes)| *count > most || *bytes > most_bytes);
        let mut over = Vec::new();
        for (owner, (mut count, mut bytes)) in by_owner {
            let own = table
                .entries
                .iter()
                .filter(|(_, entry)| entry.owner == owner);
            let done = own.filter_map(|(id, entry)| {
                let since = lock(&entry.since).0;
                Some((since, id.clone(), size_of(entry)?))
            });
            let mut done: Vec<_> = done.collect();
            done.sort();
            for (_, id, size) in done {
                if count <= most && bytes <= most_bytes {
                    break;
                }
                (count, bytes) = (count - 1, bytes - size);
                over.push(id);
            }
        }
        self.drop_all(&mut table, over);
    }

    fn drop_where(&self, is_over: impl Fn(&RequestId, &Entry) -> bool) {
        let mut table = lock(&self.table);
        let over: Vec<RequestId> = table
            .entries
            .iter()
            .filter(|(id, entry)| is_over(id, entry))
            .map(|(id, _)| id.clone())
            .collect();
        self.drop_all(&mut table, over);
    }

    fn drop_all(&self, table: &mut Table, over: Vec<RequestId>) {
        if over.is_empty() {
            return;
        }
        for id in &over {
            table.entries.remove(id);
        }
        table.resident.retain(|(id, size)| {
            let kept = table.entries.contains_key(id);
            if !kept {
                table.resident_bytes -= size;
            }
            kept
        });
        self.store.note(Change::ResultsGone(over));
    }

    /// Lists the sampling sessions that have requests under way.
    pub(crate) fn samplers_at_work(&self) -> HashSet<SamplingSessionId> {
        let table = lock(&self.table);
        let entries = table.entries.values();
        let pending = entries.filter(|entry| matches!(*entry.state.borrow(), State::Pending));
        let feeds = pending.filter_map(|entry| entry.feed.as_ref());
        feeds.map(|feed| feed.sampler.clone()).collect()
    }

    /// Counts the operations that have not ended.
    pub(crate) fn pending(&self) -> usize {
        let table = lock(&self.table);
        let entries = table.entries.values();
        entries
            .filter(|entry| matches!(*entry.state.borrow(), State::Pending))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_with_too_many_results_loses_the_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let results = Results::new(Arc::new(store), 1, 1 << 20);
        let (flood, other) = (Owner::of_key(b"flood"), Owner::of_key(b"other"));
        let done = |owner| {
            let responder = results.promise(owner, None);
            let id = responder.id().clone();
            responder.show_stored(OperationResult::user_error("ten bytes"));
            id
        };
        let kept = done(other);
        let ids: Vec<_> = (0..5).map(|_| done(flood)).collect();
        let pending = results.promise(flood, None);
        let is_there = |id: &RequestId| lock(&results.table).entries.contains_key(id);
        results.drop_beyond(5, u64::MAX);
        assert!(ids.iter().all(is_there));
        results.drop_beyond(3, u64::MAX);
        let left: Vec<_> = ids.iter().map(is_there).collect();
        assert_eq!(left, [false, false, true, true, true]);
        results.drop_beyond(usize::MAX, 0);
        assert!(!ids.iter().any(is_there) && !is_there(&kept));
        assert!(is_there(pending.id()), "what has not ended stays");
    }
}
