//! Downloading the files of a checkpoint.
//!
//! The server gives a signed link for each file of an external checkpoint. `download_files`
//! fetches them side by side into a folder. Broken connections are taken up where they broke, and
//! so are whole downloads: begin one again in the same folder and it continues. Links that expire
//! on the way are renewed.
//!
//! Invariants: names from outside never lead out of the folder, and a file has its own name only
//! once it is complete.

mod digest;
mod error;
mod file;
mod links;
mod place;
mod reply;
mod single;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use error::{DownloadError, Trouble};
pub use single::FileDownload;

use crate::BoxError;
use crate::external::HttpClient;
use crate::lock::lock;
use error::file_error;
use file::Source;
use links::Links;
use place::{Place, check_name};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tinkrs_types::rest::ExternalWeightsUrls;
use tokio::task::JoinSet;

/// How to download.
#[derive(Clone)]
pub struct DownloadOptions {
    /// How many files to download at the same time.
    pub parallel: usize,
    /// The largest file to accept. The default is 1 TiB.
    pub max_file_bytes: u64,
    /// The largest file to accept if the server does not say how large it is. The default is 256 MiB.
    pub max_unannounced_bytes: u64,
    /// How long a connection may bring nothing before it counts as broken.
    pub stall_timeout: Duration,
    /// How long to wait after a break. Doubles with each attempt that brings nothing, up to 10 s.
    pub retry_delay: Duration,
    /// How many attempts in a row may bring nothing new. The default is 10.
    pub attempts: u32,
    /// Called whenever a part of a file has arrived. It should return quickly.
    pub on_progress: Option<OnProgress>,
}

/// A function that is told how far a download is.
pub type OnProgress = Arc<dyn Fn(DownloadProgress<'_>) + Send + Sync>;

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            parallel: 4,
            max_file_bytes: 1 << 40,
            max_unannounced_bytes: 256 << 20,
            stall_timeout: Duration::from_secs(60),
            retry_delay: Duration::from_millis(500),
            attempts: 10,
            on_progress: None,
        }
    }
}

impl fmt::Debug for DownloadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadOptions")
            .field("parallel", &self.parallel)
            .field("max_file_bytes", &self.max_file_bytes)
            .field("max_unannounced_bytes", &self.max_unannounced_bytes)
            .field("stall_timeout", &self.stall_timeout)
            .field("retry_delay", &self.retry_delay)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

/// How far the download of one file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DownloadProgress<'a> {
    /// The file's path inside the checkpoint.
    pub name: &'a str,
    /// How much of it is there. Falls back to 0 if the file has to be started over.
    pub received_bytes: u64,
    /// Its size, once the server told it. When both are equal, the file is complete.
    pub total_bytes: Option<u64>,
}

/// What was downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Downloaded {
    /// The size of each file in bytes, by its path inside the checkpoint.
    pub files: BTreeMap<String, u64>,
}

impl Downloaded {
    /// Returns the size of all files together.
    pub fn size_bytes(&self) -> u64 {
        self.files.values().sum()
    }
}

/// Downloads all files of a checkpoint into a folder, which is created if needed.
///
/// `links` is called for the first links, and again when they expire. `http` must not send
/// credentials of its own, because links lead to other hosts. Files that exist are replaced.
///
/// If this fails or is dropped, what has arrived stays in the folder, and a later call continues
/// from there; the partial files end in `.part` and `.part.tag`.
///
/// # Errors
/// If there are no files, if a name is not safe (then nothing is written at all), or if a file
/// cannot be had or written.
pub(crate) async fn download_files<L, F, E>(
    http: HttpClient,
    links: L,
    folder: &Path,
    options: &DownloadOptions,
) -> Result<Downloaded, DownloadError>
where
    L: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<ExternalWeightsUrls, E>> + Send + 'static,
    E: Into<BoxError>,
{
    let links = Links::request(links).await?;
    let names = links.names().await;
    if names.is_empty() {
        return Err(DownloadError::NoFiles);
    }
    names.iter().try_for_each(|name| check_name(name))?;
    let created = tokio::fs::create_dir_all(folder).await;
    created.map_err(file_error("create", folder))?;

    let workers = options.parallel.clamp(1, names.len());
    let shared = Arc::new(Shared {
        http,
        links,
        folder: folder.to_owned(),
        options: options.clone(),
        waiting: Mutex::new(names.iter().cloned().collect()),
    });
    // Dropping the set ends its tasks: after a failure, and when the future is dropped.
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        tasks.spawn(work(Arc::clone(&shared)));
    }
    let mut downloaded = Downloaded::default();
    while let Some(finished) = tasks.join_next().await {
        match finished {
            Ok(files) => downloaded.files.extend(files?),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
    // From now on there is nothing to continue, so the notes on versions have served.
    for place in names
        .iter()
        .filter_map(|name| Place::prepare(folder, name).ok())
    {
        let _ = tokio::fs::remove_file(place.version).await; // one that stays does no harm
    }
    Ok(downloaded)
}

/// What the workers of a download share.
struct Shared {
    http: HttpClient,
    links: Links,
    folder: PathBuf,
    options: DownloadOptions,
    /// Files that no worker has taken yet, in order.
    waiting: Mutex<VecDeque<String>>,
}

impl Shared {
    fn next(&self) -> Option<String> {
        lock(&self.waiting).pop_front()
    }
}

/// Downloads one file after another until none is left.
async fn work(shared: Arc<Shared>) -> Result<Vec<(String, u64)>, DownloadError> {
    let mut files = Vec::new();
    while let Some(name) = shared.next() {
        let Shared {
            http,
            links,
            folder,
            options,
            ..
        } = &*shared;
        let place = Place::prepare(folder, &name)?;
        let source = Source::Signed(links);
        let size = file::fetch(http, source, &name, place, options, None).await?;
        files.push((name, size));
    }
    Ok(files)
}
