//! The download of one file: ask, write what arrives, ask for the rest.
//!
//! What arrived is in a partial file beside the file's place, and a note beside that says which
//! version it is of. A download that is taken up later, even by another process, asks for the
//! rest of that version; if the server has another one by then, it starts from the beginning.
//!
//! Invariant: the file is in its place only if it is complete.

use super::error::{DownloadError, Trouble, file_error};
use super::links::{Link, Links};
use super::place::Place;
use super::reply::{Next, judge, version};
use super::{DownloadOptions, DownloadProgress};
use crate::retry::Backoff;
use reqwest::header::{
    ACCEPT_ENCODING, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use reqwest::{RequestBuilder, Response, StatusCode};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncWriteExt, BufWriter};

/// How many attempts in a row may bring nothing new.
const MAX_FAILURES: u32 = 10;
const MAX_DELAY: Duration = Duration::from_secs(10);
/// Longer than any download. Stalls are noticed chunk by chunk, not by the time it takes.
const NO_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3_600);
const BUFFER_BYTES: usize = 256 * 1024;

/// Downloads one file to its place, and returns its size.
pub(super) async fn fetch(
    http: &reqwest::Client,
    links: &Links,
    folder: &Path,
    name: &str,
    options: &DownloadOptions,
) -> Result<u64, DownloadError> {
    let place = Place::prepare(folder, name)?;
    let found = Found::look(&place).await?;
    let mut transfer = Transfer {
        http,
        links,
        name,
        options,
        place,
        found,
        total: None,
    };
    transfer.run().await
}

/// What is on disk of a file.
#[derive(Debug, Default)]
struct Found {
    /// How much of it is in the partial file.
    partial_bytes: u64,
    /// Whether the file itself is there, from an earlier download that did not end well.
    finished: bool,
    /// Which version it is, if the server said so.
    version: Option<HeaderValue>,
}

impl Found {
    async fn look(place: &Place) -> Result<Self, DownloadError> {
        let version = match fs::read(&place.version).await {
            Ok(text) => HeaderValue::from_bytes(&text).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(file_error("read", &place.version)(source)),
        };
        // Without a version there is no telling whether the rest would fit.
        let Some(version) = version.filter(|version| !version.is_empty()) else {
            return Ok(Self::default());
        };
        let length = async |path| fs::metadata(path).await.map(|metadata| metadata.len()).ok();
        let partial_bytes = length(&place.partial).await;
        Ok(Self {
            partial_bytes: partial_bytes.unwrap_or(0),
            finished: partial_bytes.is_none() && length(&place.path).await.is_some(),
            version: Some(version),
        })
    }
}

struct Transfer<'a> {
    http: &'a reqwest::Client,
    links: &'a Links,
    name: &'a str,
    options: &'a DownloadOptions,
    place: Place,
    found: Found,
    /// The file's size, if an answer told it.
    total: Option<u64>,
}

/// How an attempt ended, unless it ended the download.
enum Attempt {
    Complete(u64),
    /// Worth another attempt, after a while.
    Broken(Trouble, Option<Duration>),
    /// Worth another attempt with a new link, but only one.
    LinkRefused(Trouble),
    /// Not worth another attempt.
    Refused(Trouble),
}

impl Transfer<'_> {
    async fn run(&mut self) -> Result<u64, DownloadError> {
        let mut most_bytes = self.found.partial_bytes;
        let mut failures = 0;
        let mut links_refused = 0;
        loop {
            let attempt = self.attempt().await?;
            // A server that always breaks at the same place makes no progress, even if it sends
            // the same bytes again and again.
            if self.found.partial_bytes > most_bytes {
                most_bytes = self.found.partial_bytes;
                failures = 0;
                links_refused = 0;
            }
            failures += 1;
            let (trouble, after) = match attempt {
                Attempt::Complete(size) => return Ok(size),
                Attempt::Broken(trouble, after) if failures < MAX_FAILURES => (trouble, after),
                Attempt::LinkRefused(trouble) if links_refused == 0 => {
                    links_refused = 1;
                    (trouble, Some(Duration::ZERO))
                }
                Attempt::Broken(source, _)
                | Attempt::LinkRefused(source)
                | Attempt::Refused(source) => {
                    return Err(DownloadError::GaveUp {
                        name: self.name.to_owned(),
                        attempts: failures,
                        source,
                    });
                }
            };
            tracing::debug!(file = self.name, %trouble, "the download goes on after a break");
            let backoff = Backoff::new(self.options.retry_delay, MAX_DELAY);
            let delay = after.unwrap_or_else(|| backoff.delay(failures - 1, fastrand::f64()));
            tokio::time::sleep(delay).await;
        }
    }

    async fn attempt(&mut self) -> Result<Attempt, DownloadError> {
        let link = self.links.of(self.name).await?;
        let answer = self.in_time(self.request(&link).send()).await;
        let response = match answer {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_builder() => {
                return Ok(Attempt::Refused(Trouble::connection(error)));
            }
            Ok(Err(error)) => return Ok(Attempt::Broken(Trouble::connection(error), None)),
            Err(stalled) => return Ok(Attempt::Broken(stalled, None)),
        };
        if self.found.finished && response.status() == StatusCode::NOT_MODIFIED {
            return self.keep_finished().await;
        }

        let have = self.found.partial_bytes;
        let mut next = judge(response.status(), response.headers(), have, self.total);
        let told = version(response.headers()).and_then(|text| text.parse().ok());
        if matches!(next, Next::Append { .. }) && told.is_some() && told != self.found.version {
            next = Next::StartOver("the file changed");
        }
        match next {
            Next::Append { total } => {
                self.total = total;
                let partial = self.open_partial().await?;
                self.receive(response, partial).await
            }
            Next::Restart { total } => {
                let partial = self.begin(told).await?;
                self.total = total;
                self.receive(response, partial).await
            }
            Next::Complete => self.finish().await,
            Next::StartOver(reason) => {
                self.begin(None).await?;
                Ok(Attempt::Broken(Trouble::Answer(reason), None))
            }
            Next::RenewLink(status) => {
                self.links.renew(&link).await?;
                Ok(Attempt::LinkRefused(Trouble::Status(status.as_u16())))
            }
            Next::Retry { status, after } => {
                Ok(Attempt::Broken(Trouble::Status(status.as_u16()), after))
            }
            Next::Refuse(status) => Ok(Attempt::Refused(Trouble::Status(status.as_u16()))),
        }
    }

    /// Asks for what is missing. The link is signed: no credential goes with it.
    fn request(&self, link: &Link) -> RequestBuilder {
        let request = self.http.get(&link.url).timeout(NO_TIMEOUT);
        // A range of a compressed form would be of no use.
        let request = request.header(ACCEPT_ENCODING, "identity");
        match (&self.found.version, self.found.partial_bytes) {
            (Some(version), 0) if self.found.finished => {
                let is_tag = version.as_bytes().starts_with(b"\"");
                let condition = if is_tag {
                    IF_NONE_MATCH
                } else {
                    IF_MODIFIED_SINCE
                };
                request.header(condition, version)
            }
            (_, 0) => request,
            (version, have) => {
                let request = request.header(RANGE, format!("bytes={have}-"));
                match version {
                    Some(version) => request.header(IF_RANGE, version),
                    None => request,
                }
            }
        }
    }

    /// Writes the body behind what is there. What arrived before a break is kept.
    async fn receive(
        &mut self,
        mut response: Response,
        partial: File,
    ) -> Result<Attempt, DownloadError> {
        self.check_size(self.total.unwrap_or(0))?;
        let mut partial = BufWriter::with_capacity(BUFFER_BYTES, partial);
        let trouble = loop {
            self.report();
            let chunk = match self.in_time(response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => break None,
                Ok(Err(error)) => break Some(Trouble::connection(error)),
                Err(stalled) => break Some(stalled),
            };
            let have = self.found.partial_bytes + chunk.len() as u64;
            self.check_size(have)?;
            if self.total.is_some_and(|total| have > total) {
                drop(partial);
                self.begin(None).await?;
                let trouble = Trouble::Answer("the file is longer than announced");
                return Ok(Attempt::Broken(trouble, None));
            }
            let written = partial.write_all(&chunk).await;
            written.map_err(file_error("write", &self.place.partial))?;
            self.found.partial_bytes = have;
        };
        let written = partial.flush().await;
        written.map_err(file_error("write", &self.place.partial))?;
        let missing = self
            .total
            .is_some_and(|total| self.found.partial_bytes < total);
        match trouble {
            Some(trouble) => Ok(Attempt::Broken(trouble, None)),
            None if missing => {
                let trouble = Trouble::Answer("the file is shorter than announced");
                Ok(Attempt::Broken(trouble, None))
            }
            None => self.finish().await,
        }
    }

    /// Empties the partial file, and notes which version goes into it.
    async fn begin(&mut self, version: Option<HeaderValue>) -> Result<File, DownloadError> {
        let created = File::create(&self.place.partial).await;
        let partial = created.map_err(file_error("create", &self.place.partial))?;
        let text = version.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
        let noted = fs::write(&self.place.version, text).await;
        noted.map_err(file_error("write", &self.place.version))?;
        self.total = None;
        self.found = Found {
            version,
            ..Found::default()
        };
        Ok(partial)
    }

    async fn open_partial(&self) -> Result<File, DownloadError> {
        let mut options = OpenOptions::new();
        let opened = options
            .create(true)
            .append(true)
            .open(&self.place.partial)
            .await;
        opened.map_err(file_error("open", &self.place.partial))
    }

    /// Moves the complete file to its place, once it is safely on disk.
    async fn finish(&mut self) -> Result<Attempt, DownloadError> {
        let synced = self.open_partial().await?.sync_all().await;
        synced.map_err(file_error("write", &self.place.partial))?;
        let moved = fs::rename(&self.place.partial, &self.place.path).await;
        moved.map_err(file_error("create", &self.place.path))?;
        self.total = Some(self.found.partial_bytes);
        self.report();
        Ok(Attempt::Complete(self.found.partial_bytes))
    }

    /// Keeps the file that an earlier download put in its place.
    async fn keep_finished(&mut self) -> Result<Attempt, DownloadError> {
        let metadata = fs::metadata(&self.place.path).await;
        let size = metadata
            .map_err(file_error("read", &self.place.path))?
            .len();
        self.found.partial_bytes = size;
        self.total = Some(size);
        self.report();
        Ok(Attempt::Complete(size))
    }

    fn report(&self) {
        if let Some(on_progress) = &self.options.on_progress {
            on_progress(DownloadProgress {
                name: self.name,
                received_bytes: self.found.partial_bytes,
                total_bytes: self.total,
            });
        }
    }

    fn check_size(&self, bytes: u64) -> Result<(), DownloadError> {
        if bytes <= self.options.max_file_bytes {
            return Ok(());
        }
        Err(DownloadError::TooLarge {
            name: self.name.to_owned(),
            limit_bytes: self.options.max_file_bytes,
        })
    }

    async fn in_time<F: Future>(&self, work: F) -> Result<F::Output, Trouble> {
        let limit = self.options.stall_timeout;
        let in_time = tokio::time::timeout(limit, work).await;
        in_time.map_err(|_| Trouble::Stalled(limit.as_secs()))
    }
}
