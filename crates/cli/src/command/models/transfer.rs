//! Getting one file whole, however often the connection breaks.
//!
//! What has come is in `.NAME.DIGEST.part` beside the file it will be, so that another try, or another
//! run of the program, asks only for the rest. The content is digested as it comes; a file gets its
//! name when it is complete and is what the Hub says it is.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use reqwest::StatusCode;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::remote::{Digest, RemoteFile, Repository};
use crate::report::Hint;
use crate::server;

/// How many tries in a row may bring nothing.
const TRIES: u32 = 5;
/// How long the first of the pauses between them is; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(200);

/// A file that is being downloaded.
struct Part {
    path: PathBuf,
    file: File,
    digest: ring::digest::Context,
    received: u64,
}

/// Returns whether the file is in the folder already.
pub(super) fn is_here(file: &RemoteFile, folder: &Path) -> anyhow::Result<bool> {
    let path = folder.join(&file.name);
    let Ok(found) = File::open(&path) else {
        return Ok(false);
    };
    let mut digest = begin(file);
    let size =
        feed(&found, &mut digest).with_context(|| format!("could not read {}", path.display()))?;
    Ok(size == file.size_bytes && hex(digest) == file.digest.text())
}

/// Downloads a file into a folder. `progress` hears how many bytes of it are here.
pub(super) async fn fetch(
    repository: &Repository,
    file: &RemoteFile,
    folder: &Path,
    progress: impl Fn(u64),
) -> anyhow::Result<()> {
    let digest = &file.digest.text()[..16];
    let path = folder.join(format!(".{}.{digest}.part", file.name));
    let mut part = Part::open(path, file)
        .with_context(|| format!("could not write {} to {}", file.name, folder.display()))?;
    let mut tries = 0;
    while part.received < file.size_bytes || tries == 0 && file.size_bytes == 0 {
        let before = part.received;
        match part.go_on(repository, file, &progress).await {
            Ok(()) => tries = if part.received > before { 1 } else { tries + 1 },
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(error)) => {
                tries = if part.received > before { 1 } else { tries + 1 };
                if tries >= TRIES {
                    return Err(error
                        .context(format!("could not download {}", file.name))
                        .context(Hint("the same command goes on from where this one ended")));
                }
            }
        }
        if part.received < file.size_bytes {
            tokio::time::sleep(PAUSE * 2_u32.pow(tries.saturating_sub(1))).await;
        }
        if tries >= TRIES {
            bail!("the Hub sends nothing of {}", file.name);
        }
    }
    part.finish(file, &folder.join(&file.name))
}

/// Why a try ended before the file did.
enum Failure {
    /// The next one may do better.
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl Part {
    /// Opens what an earlier try has left, if it is of use.
    fn open(path: PathBuf, file: &RemoteFile) -> std::io::Result<Self> {
        let opened = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)?;
        // Another one could start over while we are in the middle.
        if let Err(TryLockError::WouldBlock) = opened.try_lock() {
            return Err(std::io::Error::other("another download of it is under way"));
        }
        let mut digest = begin(file);
        let received = feed(&opened, &mut digest)?;
        let mut part = Self {
            path,
            file: opened,
            digest,
            received,
        };
        if received > file.size_bytes {
            part.start_over(file)?;
        }
        Ok(part)
    }

    fn start_over(&mut self, file: &RemoteFile) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.digest = begin(file);
        self.received = 0;
        Ok(())
    }

    async fn go_on(
        &mut self,
        repository: &Repository,
        file: &RemoteFile,
        progress: &impl Fn(u64),
    ) -> Result<(), Failure> {
        let write_failed = |error: std::io::Error| {
            let error = anyhow::Error::new(error).context("could not write what was downloaded");
            Failure::Final(error.context(Hint("is the disk full?")))
        };
        let answer = repository.request(file, self.received).send().await;
        let mut answer = answer.map_err(|error| passing(error, "could not reach the Hub"))?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&answer, self.received) => {}
            // The whole file comes, asked for or not; or the part is not of this file after all.
            StatusCode::OK => self.start_over(file).map_err(write_failed)?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                self.start_over(file).map_err(write_failed)?;
                let why = "the Hub did not send the rest that was asked for";
                return Err(Failure::Passing(anyhow!(why)));
            }
            status => {
                let is_passing = status.is_server_error()
                    || matches!(
                        status,
                        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
                    );
                let refused = server::refusal(answer).await.map(drop);
                let error = refused.expect_err("no status of success is left");
                let error = error.context(format!("the Hub does not send {}", file.name));
                return Err(match is_passing {
                    true => Failure::Passing(error),
                    false => Failure::Final(error),
                });
            }
        }
        loop {
            let piece = answer.chunk().await;
            let piece = piece.map_err(|error| passing(error, "the connection broke"))?;
            let Some(piece) = piece else { return Ok(()) };
            let room = file.size_bytes - self.received;
            if piece.len() as u64 > room {
                let error = anyhow!("the Hub sends more of {} than it said", file.name);
                self.start_over(file).map_err(write_failed)?;
                return Err(Failure::Final(error));
            }
            self.file.write_all(&piece).map_err(write_failed)?;
            self.digest.update(&piece);
            self.received += piece.len() as u64;
            progress(self.received);
        }
    }

    /// Gives a complete file its name.
    fn finish(self, file: &RemoteFile, path: &Path) -> anyhow::Result<()> {
        let got = hex(self.digest);
        if got != file.digest.text() {
            // Nothing of it can be trusted.
            let _ = std::fs::remove_file(&self.path);
            return Err(anyhow!(
                "{} is not what the Hub says it is: expected {}, got {got}",
                file.name,
                file.digest.text()
            )
            .context(Hint(
                "run the same command again; the file is downloaded anew",
            )));
        }
        let named = self
            .file
            .sync_all()
            .and_then(|()| std::fs::rename(&self.path, path));
        named.with_context(|| format!("could not write {}", path.display()))
    }
}

/// Makes an error of a connection, without the address, which may be signed.
fn passing(error: reqwest::Error, what: &'static str) -> Failure {
    Failure::Passing(anyhow::Error::new(error.without_url()).context(what))
}

/// Whether an answer begins where it was asked to.
fn starts_at(answer: &reqwest::Response, start: u64) -> bool {
    let range = answer.headers().get("content-range");
    let range = range.and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {start}-")))
}

fn begin(file: &RemoteFile) -> ring::digest::Context {
    match file.digest {
        Digest::Sha256(_) => ring::digest::Context::new(&SHA256),
        Digest::GitBlob(_) => {
            let mut digest = ring::digest::Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            digest.update(format!("blob {}\0", file.size_bytes).as_bytes());
            digest
        }
    }
}

/// Digests a file from its beginning, and returns its size.
fn feed(mut file: &File, digest: &mut ring::digest::Context) -> std::io::Result<u64> {
    let mut piece = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(size),
            count => {
                digest.update(&piece[..count]);
                size += count as u64;
            }
        }
    }
}

fn hex(digest: ring::digest::Context) -> String {
    let bytes = digest.finish();
    bytes
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
