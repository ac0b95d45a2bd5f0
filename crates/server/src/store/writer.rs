//! The thread that makes all changes, in the order in which they are sent.
//!
//! What is sent while it writes is committed together. A change that somebody waits for fails at once
//! if the disk refuses it. One that nobody could repeat is kept and tried again until the disk takes
//! it; until then nothing overtakes it, and whoever waits for a later change is refused. So the
//! folder is at every moment what it was after some change, whatever is lost with the process.
//!
//! What is kept is bounded by what is in memory: requests that were accepted before, for none is while
//! anything is kept, and sessions, results and checkpoints that end.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::Connection;

use super::WriteError;
use super::change::{self, ApplyError, Change};
use super::files::{self, Files};
use crate::error::chain;

/// How many changes are committed together at most.
const BATCH: usize = 256;
/// How soon a change that is kept is tried again.
const RETRY: Duration = Duration::from_millis(250);

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

/// Makes changes until nobody can send any more.
pub(super) fn write_all(connection: &mut Connection, files: &Files, inbox: &Receiver<Message>) {
    let mut queue = VecDeque::new();
    loop {
        let first = match queue.is_empty() {
            true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => inbox.recv_timeout(RETRY),
        };
        let is_last = matches!(first, Err(RecvTimeoutError::Disconnected));
        queue.extend(first);
        queue.extend(inbox.try_iter().take(BATCH - 1));
        write(connection, files, &mut queue);
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
fn write(connection: &mut Connection, files: &Files, queue: &mut VecDeque<Message>) {
    while !queue.is_empty() {
        let count = queue.len().min(BATCH);
        if count > 1 && commit(connection, files, queue.range(..count)).is_ok() {
            queue.drain(..count).for_each(Message::succeed);
            continue;
        }
        // One by one, so that a change that cannot be made is the only one that fails.
        for _ in 0..count {
            let written = commit(connection, files, queue.range(..1));
            let Some(message) = queue.pop_front() else {
                return;
            };
            match written {
                Ok(()) => message.succeed(),
                Err(error) if message.told.is_kept() && error.may_pass() => {
                    queue.push_front(message);
                    hold(queue, &describe(files, &error));
                    return;
                }
                Err(error) => message.fail(&describe(files, &error)),
            }
        }
    }
}

/// Keeps what has to be kept, and refuses the rest.
fn hold(queue: &mut VecDeque<Message>, error: &WriteError) {
    for mut message in std::mem::take(queue) {
        match message.told.is_kept() {
            true => {
                message.told.first_failure(error);
                queue.push_back(message);
            }
            false => message.fail(error),
        }
    }
}

fn commit<'m>(
    connection: &mut Connection,
    files: &Files,
    batch: impl Iterator<Item = &'m Message>,
) -> Result<(), ApplyError> {
    let mut unneeded = Vec::new();
    let transaction = connection.transaction()?;
    for message in batch {
        change::apply(&message.change, &transaction, files, &mut unneeded)?;
    }
    transaction.commit()?;
    for path in unneeded {
        files::remove(&path);
    }
    Ok(())
}

fn describe(files: &Files, error: &ApplyError) -> WriteError {
    WriteError(match error {
        // It does not know its own name.
        ApplyError::Database(cause) => {
            let path = files.database();
            format!("could not write {}: {}", path.display(), chain(cause)).into()
        }
        ApplyError::File(..) => chain(error).into(),
    })
}
