//! The thread that makes all changes, in the order in which they are sent.
//!
//! What is sent while it writes is committed together. A change whose sender waits for it fails at once
//! if the disk refuses it. One that could not be repeated by its sender is kept and tried again until the disk takes
//! it; until then nothing overtakes it, and later changes whose senders wait are refused. So the
//! folder is at every moment what it was after some change, whatever is lost with the process.
//!
//! A commit is synced if a client is told of something in it that a restart would not bring about again;
//! that makes durable what was committed before it, too. The other commits, which are most of the results, are
//! synced by the next one or when there is nothing else to do. A file is removed only after the commit that
//! forgets it is durable.
//!
//! What is kept is bounded by what is in memory: requests that were accepted before, for none is while
//! anything is kept, and sessions, results and checkpoints that end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::{Connection, Transaction};

use super::WriteError;
use super::change::{self, ApplyError, Change};
use super::files::{self, Files};
use super::tables::{removals, starts};
use crate::error::chain;

/// How many changes are committed together at most.
const BATCH: usize = 256;
/// How soon a change that is kept is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// How long there is nothing to do before what was committed without a sync is synced.
const IDLE: Duration = Duration::from_millis(100);

pub(super) struct Message {
    pub(super) change: Change,
    pub(super) told: OnWritten,
}

/// Who is told what became of a change. They are called by the thread, so they must be quick.
pub(super) enum OnWritten {
    /// Waits for it, and takes back what depends on it if it fails.
    Waiting(Box<dyn FnOnce(Result<(), WriteError>) + Send>),
    /// Goes on without it: it is tried until it succeeds. Called for the first failure, if there is
    /// one, and for the success.
    Kept {
        tell: Box<dyn FnMut(Result<(), WriteError>) + Send>,
        has_failed: bool,
    },
}

impl Message {
    /// Whether a client may rely on it once it is committed.
    fn is_told_of(&self) -> bool {
        !self.told.is_kept() || !self.change.can_wait()
    }

    pub(super) fn succeed(self) {
        match self.told {
            OnWritten::Waiting(tell) => tell(Ok(())),
            OnWritten::Kept { mut tell, .. } => tell(Ok(())),
        }
    }

    pub(super) fn fail(mut self, error: &WriteError) {
        self.told.first_failure(error);
        if let OnWritten::Waiting(tell) = self.told {
            tell(Err(error.clone()));
        }
    }
}

impl OnWritten {
    fn is_kept(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }

    fn first_failure(&mut self, error: &WriteError) {
        if let Self::Kept { tell, has_failed } = self
            && !std::mem::replace(has_failed, true)
        {
            tell(Err(error.clone()));
        }
    }
}

/// Makes changes until no more can be sent.
pub(super) fn write_all(connection: &mut Connection, files: &Files, inbox: &Receiver<Message>) {
    let mut queue = VecDeque::new();
    let mut journal = Journal {
        connection,
        files,
        is_synced: true,
        unneeded: Vec::new(),
    };
    loop {
        let first = match (queue.is_empty(), journal.is_synced) {
            (true, true) => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => inbox.recv_timeout(IDLE),
            (false, _) => inbox.recv_timeout(RETRY),
        };
        let has_nothing_to_do = queue.is_empty() && first.is_err();
        let is_last = matches!(first, Err(RecvTimeoutError::Disconnected));
        queue.extend(first);
        queue.extend(inbox.try_iter().take(BATCH - 1));
        write(&mut journal, &mut queue);
        if has_nothing_to_do && !journal.is_synced {
            journal.sync();
        }
        if is_last {
            break;
        }
    }
    if !queue.is_empty() {
        let changes = queue.len();
        tracing::error!(
            changes,
            "what could not be stored is lost, or done again at the next start"
        );
    }
}

/// Makes the changes of a queue. Those that are left are kept for another time.
fn write(journal: &mut Journal<'_>, queue: &mut VecDeque<Message>) {
    while !queue.is_empty() {
        let count = queue.len().min(BATCH);
        if count > 1 && journal.commit(queue.range(..count)).is_ok() {
            queue.drain(..count).for_each(Message::succeed);
            continue;
        }
        // One by one, so that a change that cannot be made is the only one that fails.
        for _ in 0..count {
            let written = journal.commit(queue.range(..1));
            let Some(message) = queue.pop_front() else {
                return;
            };
            match written {
                Ok(()) => message.succeed(),
                Err(error) if message.told.is_kept() && error.may_pass() => {
                    queue.push_front(message);
                    hold(queue, &journal.describe(&error));
                    return;
                }
                Err(error) => message.fail(&journal.describe(&error)),
            }
        }
    }
}

/// Keeps what has to be kept, and refuses the rest.
fn hold(queue: &mut VecDeque<Message>, error: &WriteError) {
    for mut message in std::mem::take(queue) {
        if message.told.is_kept() {
            message.told.first_failure(error);
            queue.push_back(message);
        } else {
            message.fail(error);
        }
    }
}

/// The database, and what it has not made durable yet.
struct Journal<'a> {
    connection: &'a mut Connection,
    files: &'a Files,
    /// Whether all commits are durable.
    is_synced: bool,
    /// What can be removed when they are.
    unneeded: Vec<PathBuf>,
}

impl Journal<'_> {
    fn commit<'m>(
        &mut self,
        batch: impl Iterator<Item = &'m Message> + Clone,
    ) -> Result<(), ApplyError> {
        let syncs = batch.clone().any(Message::is_told_of);
        let mut unneeded = Vec::new();
        let transaction = begin(self.connection, syncs)?;
        if self.unneeded.is_empty() {
            // All that were noted have been removed.
            removals::clear(&transaction)?;
        }
        for message in batch {
            change::apply(&message.change, &transaction, self.files, &mut unneeded)?;
        }
        let weights = unneeded
            .iter()
            .filter_map(|path| self.files.as_weights(path));
        for path in weights {
            removals::insert(&transaction, path)?;
        }
        transaction.commit()?;
        self.unneeded.append(&mut unneeded);
        self.committed(syncs);
        Ok(())
    }

    /// Makes all commits durable.
    fn sync(&mut self) {
        let synced = begin(self.connection, true).and_then(|transaction| {
            starts::touch(&transaction)?;
            transaction.commit()
        });
        match synced {
            Ok(()) => self.committed(true),
            Err(error) => tracing::error!(error = %chain(&error), "could not sync the database"),
        }
    }

    fn committed(&mut self, is_synced: bool) {
        self.is_synced = is_synced;
        if is_synced {
            for path in self.unneeded.drain(..) {
                files::remove(&path);
            }
        }
    }

    fn describe(&self, error: &ApplyError) -> WriteError {
        WriteError(match error {
            // The database's errors do not name its file.
            ApplyError::Database(cause) => {
                let path = self.files.database();
                format!("could not write {}: {}", path.display(), chain(cause)).into()
            }
            ApplyError::File(..) => chain(error).into(),
        })
    }
}

/// Begins a transaction whose commit syncs the write-ahead log, or leaves that to a later one.
fn begin(connection: &mut Connection, syncs: bool) -> rusqlite::Result<Transaction<'_>> {
    let synchronous = if syncs { "full" } else { "normal" };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.transaction()
}
