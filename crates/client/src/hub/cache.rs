//! The cache of the Hub's own tools: `models--owner--name/snapshots/COMMIT/FILE`.
//!
//! As they do, a file's content is in `blobs/DIGEST`, and the file itself is a link to it, so that two commits share
//! what is the same. `refs/main` has the commit that was downloaded last.
//!
//! Invariants: a file is there only if it is whole and has its digest, and the files of a request appear in its
//! order, so one that needs the others comes last.

use super::{Hub, HubError, RemoteFile, Repository};
use crate::rest::download::{DownloadError, DownloadOptions, OnProgress};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// The largest file that is downloaded into the cache. Tokenizers have up to 30 MB.
const MAX_BYTES: u64 = 256 << 20;
/// How many attempts in a row may bring nothing.
const ATTEMPTS: u32 = 5;
/// How long the first pause between them is.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long another process may take for the same file, and how often it is looked at.
const OTHERS_TIME: Duration = Duration::from_secs(600);
const OTHERS_CHECK: Duration = Duration::from_millis(200);

/// Returns the folder of a repository in a cache.
pub(crate) fn repository_folder(cache: &Path, repo: &str) -> PathBuf {
    cache.join(format!("models--{}", repo.replace('/', "--")))
}

/// Returns the commit that was downloaded last.
pub(crate) fn newest_commit(cache: &Path, repo: &str) -> Option<String> {
    let commit = std::fs::read_to_string(repository_folder(cache, repo).join("refs/main")).ok()?;
    let commit = commit.trim();
    let is_plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
    is_plain.then(|| commit.to_owned())
}

impl Hub {
    /// Downloads files of a repository into the cache, and returns their folder. Without a revision it is the
    /// commit that is in the cache, or else the newest one.
    pub(crate) async fn fetch_into_cache(
        &self,
        cache: &Path,
        repo: &str,
        revision: Option<&str>,
        choose: fn(&Repository) -> Result<Vec<RemoteFile>, HubError>,
        on_progress: Option<OnProgress>,
    ) -> Result<PathBuf, HubError> {
        let cached = newest_commit(cache, repo).filter(|_| revision.is_none());
        let wanted = revision.or(cached.as_deref()).unwrap_or("main");
        let repository = match self.repository(repo, wanted).await {
            // What was in the cache need not be on the Hub any more.
            Err(HubError::Refused { status: 404, .. }) if cached.is_some() => {
                self.repository(repo, "main").await?
            }
            found => found?,
        };
        let files = choose(&repository)?;
        let folder = repository_folder(cache, repo);
        let snapshot = folder.join("snapshots").join(repository.commit());
        for folder in [&folder.join("blobs"), &snapshot, &folder.join("refs")] {
            std::fs::create_dir_all(folder).map_err(unwritable(folder))?;
        }
        let options = DownloadOptions {
            retry_delay: RETRY_DELAY,
            attempts: ATTEMPTS,
            on_progress,
            ..DownloadOptions::default()
        };
        for file in &files {
            let blob = folder.join("blobs").join(file.digest.as_str());
            fetch_blob(&repository, file, &blob, &options)
                .await
                .map_err(|source| HubError::Download {
                    repo: repo.to_owned(),
                    name: file.name.clone(),
                    source,
                })?;
            let path = snapshot.join(&file.name);
            link(&blob, &path).map_err(unwritable(&path))?;
        }
        if revision.is_none() && cached.as_deref() != Some(repository.commit()) {
            let path = folder.join("refs/main");
            replace(&path, |new| std::fs::write(new, repository.commit()))
                .map_err(unwritable(&path))?;
        }
        Ok(snapshot)
    }
}

/// Downloads a file's content, unless it is there or another process is at it: then that is waited for.
async fn fetch_blob(
    repository: &Repository,
    file: &RemoteFile,
    blob: &Path,
    options: &DownloadOptions,
) -> Result<(), DownloadError> {
    if file.size_bytes > MAX_BYTES {
        return Err(DownloadError::TooLarge {
            name: file.name.clone(),
            limit_bytes: MAX_BYTES,
        });
    }
    let folder = blob.parent().expect("a blob is in a folder");
    let give_up = Instant::now() + OTHERS_TIME;
    let mut is_second = false;
    loop {
        let is_here = file.digest.matches(blob, file.size_bytes);
        if is_here.unwrap_or(false) {
            return Ok(());
        }
        let stored = file.digest.as_str();
        match repository.download_as(file, folder, stored, options).await {
            // What an earlier download had left may have been wrong. It is gone now.
            Err(DownloadError::WrongDigest { .. }) if !is_second => is_second = true,
            Err(error) if error.is_under_way() && Instant::now() < give_up => {
                tokio::time::sleep(OTHERS_CHECK).await;
            }
            done => return done,
        }
    }
}

/// Makes a file of a snapshot of a blob: a link or, where there are none, a copy.
fn link(blob: &Path, path: &Path) -> io::Result<()> {
    replace(path, |new| {
        #[cfg(unix)]
        {
            let blob = blob.file_name().expect("a blob has a name");
            if std::os::unix::fs::symlink(Path::new("../../blobs").join(blob), new).is_ok() {
                return Ok(());
            }
        }
        std::fs::copy(blob, new).map(drop)
    })
}

/// Replaces a file by one that is written beside it, or leaves it as it was.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.{:016x}", fastrand::u64(..)));
    let replaced = write(&new).and_then(|()| std::fs::rename(&new, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    replaced
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Cache { path, source }
}
