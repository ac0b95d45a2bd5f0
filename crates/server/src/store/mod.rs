//! The data folder: what survives the end of the process.
//!
//! Metadata and the journal of requests are in SQLite; bodies, results, snapshots and checkpoints
//! are files beside it. One thread makes all changes, in the order in which they are sent (`writer`).
//! The sender of a change is told when it is durable.
//!
//! Invariants, which recovery builds upon:
//! - a request is in the journal before anything works on it, and before its sender has an answer;
//! - a result is in the journal before a client sees it, unless the disk refuses it; then it is kept in
//!   memory until the disk takes it, and a restart before that computes it again;
//! - an operation and its results are in the journal before a snapshot that has seen them;
//! - a file is whole and synced, with its name, before the database speaks of it, and goes only after
//!   the database forgot it;
//! - a commit is synced before a client is told of it, so all of this holds also when the power fails;
//! - weights have a manifest with their digests, and are compared with it before they are used.
//!
//! The database may be lost, the weights may not: a folder whose database is damaged, or knows nothing of the
//! weights beside it, is not opened, and weights that it does not know are moved away (`orphans`).

pub(crate) mod change;
pub(crate) mod files;
mod legacy;
pub(crate) mod load;
pub(crate) mod manifest;
mod names;
mod orphans;
mod query;
pub(crate) mod repair;
mod salvage;
mod schema;
pub(crate) mod studio;
pub(crate) mod survey;
pub(crate) mod tables;
mod writer;

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

pub(crate) use change::{AuditEntry, Change, Digest, Ending, NewRequest, Usage, UsageKind};
pub(crate) use files::Files;
pub(crate) use load::Loaded;
pub(crate) use tables::requests::LoadedRequest;
pub(crate) use tables::runs::{Fallback, LoadedRun};
pub(crate) use tables::usage::UsageRow;

use crate::error::chain;
use crate::lock::lock;
use crate::permissions::{self, Privacy};
use writer::{Message, OnWritten};

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("another server uses it")]
    Used,
    #[error(
        "it was written by a newer version of this program: its database has version {version}, and \
         this program reads versions up to {}",
        schema::VERSION
    )]
    Newer { version: i64 },
    #[error(
        "it was written by an older version of this program (its database has version {version}, and this \
         program's {}); start a server on it once, which migrates it",
        schema::VERSION
    )]
    Older { version: i64 },
    #[error(
        "{} is not a database of this program; if it was one, `tinkrs data repair {}` makes a new one of the \
         saved weights, and keeps this file",
        .0.display(), folder_of(.0).display()
    )]
    NotOurs(PathBuf),
    #[error(
        "its database is empty or missing, but there are saved weights, such as {}: nothing was changed; \
         `tinkrs data repair {}` makes a database of what they say of themselves",
        weights.display(), folder.display()
    )]
    Lost { folder: PathBuf, weights: PathBuf },
    #[error(
        "{} is damaged ({why}): nothing was changed; `tinkrs data repair {}` makes a new one of what can be \
         read and of the saved weights, and keeps this file",
        database.display(), folder_of(database).display()
    )]
    Damaged { database: PathBuf, why: String },
    #[error(
        "a repair of it was interrupted: `tinkrs data repair {}` finishes it",
        .0.display()
    )]
    UnfinishedRepair(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("could not read {}", .1.display())]
    Database(#[source] rusqlite::Error, PathBuf),
}

impl OpenError {
    /// Tells a database that is damaged from one that cannot be read now.
    fn of_database(error: rusqlite::Error, path: &Path) -> Self {
        let is_damaged = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => {
                failure.code == ErrorCode::DatabaseCorrupt
            }
            // Rows that are not what was written.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::QueryReturnedNoRows
            | rusqlite::Error::Utf8Error(..) => true,
            // Tables that are not what was made, though their pages are whole.
            rusqlite::Error::SqlInputError { msg, .. } => msg.starts_with("no such "),
            _ => false,
        };
        let path = path.to_owned();
        if is_damaged {
            let why = chain(&error);
            return Self::Damaged {
                database: path,
                why,
            };
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotOurs(path),
            _ => Self::Database(error, path),
        }
    }
}

fn folder_of(database: &Path) -> &Path {
    database.parent().unwrap_or(Path::new("."))
}

/// A change that is not durable. Nothing of it has happened.
#[derive(Clone, Debug, thiserror::Error)]
#[error("could not write to the data folder: {0}")]
pub(crate) struct WriteError(Arc<str>);

/// The way to the thread that writes. It finishes its work when this is dropped.
#[derive(Debug)]
pub(crate) struct Store {
    files: Files,
    messages: Mutex<Option<Sender<Message>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    reader: Mutex<Connection>,
    /// For the studio, once it has asked.
    studio_reader: Mutex<Option<Connection>>,
}

impl Store {
    /// Opens a data folder for this process alone.
    pub(crate) fn open(root: &Path) -> Result<(Self, Loaded), OpenError> {
        let privacy = files::make_root(root, permissions::make_private_folder)?;
        if privacy == Privacy::OpenToOthers {
            let fix = format!("chmod 700 {}", root.display());
            tracing::warn!(path = %root.display(), fix, "other users of this machine can enter the data folder");
        }
        files::check_kinds(root)?;
        let guard = lock_folder(root)?;
        let files = Files::open(root)?;
        if repair::unfinished(&files).is_some() {
            return Err(OpenError::UnfinishedRepair(root.to_owned()));
        }
        let database = |error| OpenError::of_database(error, &files.database());
        let mut connection = schema::open(&files)?;
        connection.set_prepared_statement_cache_capacity(64);
        let loaded = load::load(&connection).map_err(database)?;
        if loaded.is_empty()
            && let Some(weights) = files.weights().into_iter().next()
        {
            let folder = root.to_owned();
            return Err(OpenError::Lost { folder, weights });
        }
        orphans::clear(&files, &loaded)?;
        let reader = Connection::open(files.database()).map_err(database)?;
        schema::sync_commits(&reader).map_err(database)?;

        let (messages, inbox) = channel();
        let writer_files = files.clone();
        let thread = std::thread::Builder::new()
            .name("tinkrs-store".to_owned())
            .spawn(move || {
                writer::write_all(&mut connection, &writer_files, &inbox);
                drop(connection);
                drop(guard);
            })?;
        let store = Self {
            files,
            messages: Mutex::new(Some(messages)),
            thread: Mutex::new(Some(thread)),
            reader: Mutex::new(reader),
            studio_reader: Mutex::new(None),
        };
        Ok((store, loaded))
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Sends a change. `then` is called by the thread that writes, so it must be quick.
    pub(crate) fn send(
        &self,
        change: Change,
        then: impl FnOnce(Result<(), WriteError>) + Send + 'static,
    ) {
        self.post(change, OnWritten::Waiting(Box::new(then)));
    }

    /// Sends a change that is tried until it succeeds. `tell` is called by the thread that writes:
    /// for the first failure, if there is one, and for the success.
    pub(crate) fn keep(
        &self,
        change: Change,
        tell: impl FnMut(Result<(), WriteError>) + Send + 'static,
    ) {
        let (tell, has_failed) = (Box::new(tell), false);
        self.post(change, OnWritten::Kept { tell, has_failed });
    }

    /// Sends a change without waiting for it.
    pub(crate) fn note(&self, change: Change) {
        self.keep(change, |result| {
            if let Err(error) = result {
                tracing::error!(%error, "could not store a change at once");
            }
        });
    }

    fn post(&self, change: Change, told: OnWritten) {
        let message = Message { change, told };
        let unsent = match &*lock(&self.messages) {
            Some(messages) => messages.send(message).err().map(|error| error.0),
            None => Some(message),
        };
        if let Some(message) = unsent {
            message.fail(&stopped());
        }
    }

    /// Makes a change, and completes when it is durable. It is sent by the call itself, so calls under a lock
    /// keep their order.
    pub(crate) fn write(
        &self,
        change: Change,
    ) -> impl Future<Output = Result<(), WriteError>> + use<> {
        let (done, written) = oneshot::channel();
        self.send(change, |result| {
            let _ = done.send(result);
        });
        async move { written.await.unwrap_or_else(|_| Err(stopped())) }
    }

    /// Makes a change, and returns when it is durable.
    pub(crate) fn write_blocking(&self, change: Change) -> Result<(), WriteError> {
        let (done, written) = channel();
        self.send(change, move |result| {
            let _ = done.send(result);
        });
        written.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Writes what was sent, and releases the folder.
    pub(crate) fn close(&self) {
        lock(&self.messages).take();
        let thread = lock(&self.thread).take();
        // What the thread calls after a commit may hold the last handle; it cannot wait for itself.
        let own = std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}

/// Takes a data folder for this process alone, until the file is closed.
fn lock_folder(root: &Path) -> Result<File, OpenError> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    lock_file(&root.join("lock"), &options)
}

/// Takes a data folder that is only read, and may be on a disk that cannot be written. One without a lock was never used by
/// a server.
fn lock_folder_to_read(root: &Path) -> Result<Option<File>, OpenError> {
    let path = root.join("lock");
    let lock = || lock_file(&path, File::options().read(true));
    path.exists().then(lock).transpose()
}

fn lock_file(path: &Path, options: &OpenOptions) -> Result<File, OpenError> {
    let named = |error: io::Error| {
        let text = format!("could not open {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    };
    let guard = options.open(path).map_err(named)?;
    match guard.try_lock() {
        Ok(()) => Ok(guard),
        Err(TryLockError::WouldBlock) => Err(OpenError::Used),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

fn stopped() -> WriteError {
    WriteError("the server is stopping".into())
}

#[cfg(test)]
mod tests;
