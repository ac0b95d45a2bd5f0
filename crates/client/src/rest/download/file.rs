//! The download of one file: ask, write what arrives, ask for the rest.
//!
//! What arrived is in a partial file beside the file's place. Which file it is a part of is known in one
//! of two ways: by the digest in its name, or by a note beside it with the version that the server named. A
//! download that is taken up later, even by another process, asks for the rest of that; if the server has
//! another version by then, it starts from the beginning.
//!
//! Invariant: the file is in its place only if it is complete, and has its digest if that is known.

use super::digest::{Digest, Hasher};
use super::error::{DownloadError, Trouble, file_error};
use super::links::{Link, Links};
use super::place::Place;
use super::reply::{Next, judge, version};
use super::{DownloadOptions, DownloadProgress};
use crate::auth::Secret;
use crate::external::{HttpClient, HttpError, HttpRequest, HttpResponse};
use crate::retry::Backoff;
use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use std::fs::TryLockError;
use std::io::{self, Seek, SeekFrom};
use std::time::Duration;
use tokio::fs::{self, File};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::time::Instant;

const MAX_DELAY: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 256 * 1024;

/// Where a file comes from.
pub(super) enum Source<'a> {
    /// Signed links, which take no credential and can be renewed.
    Signed(&'a Links),
    /// A URL that stays the same.
    Plain {
        url: &'a str,
        token: Option<&'a Secret>,
    },
}

impl Source<'_> {
    async fn link(&self, name: &str) -> Result<Link, DownloadError> {
        match self {
            Self::Signed(links) => links.of(name).await,
            Self::Plain { url, .. } => Ok(Link::fixed(url)),
        }
    }
}

/// What a file must be.
pub(super) struct Expected<'a> {
    pub(super) size_bytes: u64,
    pub(super) digest: &'a Digest,
}

/// Downloads one file to its place, and returns its size.
pub(super) async fn fetch(
    http: &HttpClient,
    source: Source<'_>,
    name: &str,
    place: Place,
    options: &DownloadOptions,
    expected: Option<Expected<'_>>,
) -> Result<u64, DownloadError> {
    let found = if expected.is_some() {
        Found::default()
    } else {
        Found::look(&place).await?
    };
    let mut transfer = Transfer {
        http,
        source,
        name,
        options,
        place,
        expected,
        found,
        total: None,
        partial: None,
        hasher: None,
    };
    transfer.take_up().await?;
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
    http: &'a HttpClient,
    source: Source<'a>,
    name: &'a str,
    options: &'a DownloadOptions,
    place: Place,
    expected: Option<Expected<'a>>,
    found: Found,
    /// The file's size, if a response gave it.
    total: Option<u64>,
    /// The partial file, locked, once it is used.
    partial: Option<std::fs::File>,
    /// The digest of what is in the partial file, if the file has to have one.
    hasher: Option<Hasher>,
}

/// Whether a connection brings enough: one that brings a byte a second is never silent, and never ends.
struct Pace {
    period: Duration,
    since: Instant,
    bytes: u64,
}

impl Pace {
    const MIN_BYTES_PER_SECOND: u64 = 1024;

    fn new(period: Duration) -> Self {
        Self {
            period,
            since: Instant::now(),
            bytes: 0,
        }
    }

    /// Takes note of what arrived. Each period has to bring enough.
    fn received(&mut self, bytes: usize) -> Result<(), Trouble> {
        self.bytes += bytes as u64;
        if self.since.elapsed() < self.period {
            return Ok(());
        }
        if self.bytes < Self::MIN_BYTES_PER_SECOND * self.period.as_secs() {
            let (bytes, seconds) = (self.bytes, self.period.as_secs());
            return Err(Trouble::TooSlow { bytes, seconds });
        }
        *self = Self::new(self.period);
        Ok(())
    }
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
        let backoff = Backoff::new(self.options.retry_delay, MAX_DELAY);
        loop {
            let attempt = self.attempt().await?;
            // A server that always breaks at the same place makes no progress, even if it sends
            // the same bytes again and again.
            let too_slow = matches!(attempt, Attempt::Broken(Trouble::TooSlow { .. }, _));
            if self.found.partial_bytes > most_bytes && !too_slow {
                most_bytes = self.found.partial_bytes;
                failures = 0;
                links_refused = 0;
            }
            failures += 1;
            let (trouble, after) = match attempt {
                Attempt::Complete(size) => return Ok(size),
                Attempt::Broken(trouble, after) if failures < self.options.attempts => {
                    (trouble, after)
                }
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
            tracing::debug!(file = self.name, %trouble, "resuming the download");
            let delay = after.unwrap_or_else(|| backoff.delay(failures - 1, fastrand::f64()));
            tokio::time::sleep(delay).await;
        }
    }

    /// Takes up what an earlier download of a file with a digest has left.
    async fn take_up(&mut self) -> Result<(), DownloadError> {
        let Some(expected) = &self.expected else {
            return Ok(());
        };
        let size_bytes = expected.size_bytes;
        let mut hasher = expected.digest.hasher(size_bytes);
        // It is locked from here on, even if nothing is in it.
        let mut file = self.open_partial()?;
        let left = file.metadata().map(|metadata| metadata.len());
        if left.map_err(file_error("read", &self.place.partial))? > size_bytes {
            return self.begin(None).await.map(drop);
        }
        let hashed = tokio::task::spawn_blocking(move || {
            file.seek(SeekFrom::Start(0))?;
            let size = hasher.update_from(&file)?;
            Ok::<_, io::Error>((hasher, size))
        });
        let hashed = match hashed.await {
            Ok(hashed) => hashed,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let (hasher, size) = hashed.map_err(file_error("read", &self.place.partial))?;
        self.hasher = Some(hasher);
        self.found.partial_bytes = size;
        Ok(())
    }

    async fn attempt(&mut self) -> Result<Attempt, DownloadError> {
        let have = self.found.partial_bytes;
        let is_all = |expected: &Expected<'_>| have > 0 && have == expected.size_bytes;
        if self.expected.as_ref().is_some_and(is_all) {
            return self.finish().await;
        }
        let link = self.source.link(self.name).await?;
        let response = match self.in_time(self.request(&link).send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(
                error @ (HttpError::InvalidUrl
                | HttpError::InvalidHeader { .. }
                | HttpError::TooManyRedirects),
            )) => {
                return Ok(Attempt::Refused(Trouble::Connection(error.into())));
            }
            Ok(Err(error)) => return Ok(Attempt::Broken(Trouble::Connection(error.into()), None)),
            Err(stalled) => return Ok(Attempt::Broken(stalled, None)),
        };
        let (status, headers) = (response.status_code(), response.headers());
        if self.found.finished && status == StatusCode::NOT_MODIFIED {
            return self.keep_finished().await;
        }
        let mut next = judge(status, headers, have, self.total);
        let told = version(headers).and_then(|text| text.parse().ok());
        let changed = told.is_some() && told != self.found.version;
        if matches!(next, Next::Append { .. }) && self.expected.is_none() && changed {
            next = Next::StartOver("the file changed");
        }
        match next {
            Next::Append { total } => {
                self.total = total;
                let partial = self.append()?;
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
                let trouble = Trouble::Status(status.as_u16());
                match self.source {
                    Source::Signed(links) => {
                        links.renew(&link).await?;
                        Ok(Attempt::LinkRefused(trouble))
                    }
                    Source::Plain { .. } => Ok(Attempt::Refused(trouble)),
                }
            }
            Next::Retry { status, after } => {
                Ok(Attempt::Broken(Trouble::Status(status.as_u16()), after))
            }
            Next::Refuse(status) => Ok(Attempt::Refused(Trouble::Status(status.as_u16()))),
        }
    }

    /// Asks for what is missing. Signed links take no credential.
    fn request(&self, link: &Link) -> HttpRequest {
        let mut request = self.http.get(&link.url);
        if let Source::Plain {
            token: Some(token), ..
        } = self.source
        {
            request = request.bearer_token(token);
        }
        // A range of a compressed form would be of no use.
        request = request.header(ACCEPT_ENCODING.as_str(), "identity");
        let version = self.found.version.as_ref();
        let version = version.and_then(|version| version.to_str().ok());
        match (version, self.found.partial_bytes) {
            (Some(version), 0) if self.found.finished => {
                let condition = if version.starts_with('"') {
                    IF_NONE_MATCH
                } else {
                    IF_MODIFIED_SINCE
                };
                request.header(condition.as_str(), version)
            }
            (_, 0) => request,
            (version, have) => {
                let request = request.header(RANGE.as_str(), &format!("bytes={have}-"));
                match version {
                    Some(version) => request.header(IF_RANGE.as_str(), version),
                    None => request,
                }
            }
        }
    }

    /// Writes the body behind what is there. What arrived before a break is kept.
    async fn receive(
        &mut self,
        mut response: HttpResponse,
        partial: File,
    ) -> Result<Attempt, DownloadError> {
        self.check_size(self.total.unwrap_or(0))?;
        let mut pace = Pace::new(self.options.stall_timeout);
        let mut partial = BufWriter::with_capacity(BUFFER_BYTES, partial);
        let trouble = loop {
            self.report();
            let chunk = match self.in_time(response.bytes_chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => break None,
                Ok(Err(error)) => break Some(Trouble::Connection(error.into())),
                Err(stalled) => break Some(stalled),
            };
            if let Err(too_slow) = pace.received(chunk.len()) {
                break Some(too_slow);
            }
            let have = self.found.partial_bytes + chunk.len() as u64;
            self.check_size(have)?;
            if self.total.is_some_and(|total| have > total) {
                // What is still being written must not land in the file that is begun.
                let _ = partial.flush().await;
                drop(partial);
                self.begin(None).await?;
                let trouble = Trouble::Answer("the file is longer than announced");
                return Ok(Attempt::Broken(trouble, None));
            }
            let written = partial.write_all(&chunk).await;
            written.map_err(file_error("write", &self.place.partial))?;
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&chunk);
            }
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
        let partial = self.open_partial()?;
        let emptied = partial.set_len(0);
        emptied.map_err(file_error("create", &self.place.partial))?;
        if let Some(expected) = &self.expected {
            self.hasher = Some(expected.digest.hasher(expected.size_bytes));
        } else {
            let text = version.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
            let noted = fs::write(&self.place.version, text).await;
            noted.map_err(file_error("write", &self.place.version))?;
        }
        self.total = None;
        self.found = Found {
            version,
            ..Found::default()
        };
        self.append()
    }

    /// Returns the partial file to write behind what is in it.
    fn append(&mut self) -> Result<File, DownloadError> {
        let mut file = self.open_partial()?;
        let end = file.seek(SeekFrom::End(0));
        end.map_err(file_error("open", &self.place.partial))?;
        Ok(File::from_std(file))
    }

    /// Opens the partial file and locks it: another process could start over while this one is in the
    /// middle of it.
    fn open_partial(&mut self) -> Result<std::fs::File, DownloadError> {
        let open = || {
            let file = std::fs::File::options()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&self.place.partial)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "another download of it is under way",
                )),
                // Without locks on this file system, only the digest guards against a second download.
                Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
            }
        };
        let file = match self.partial.take() {
            Some(file) => Ok(file),
            None => open(),
        };
        let shared = file.and_then(|file| Ok((file.try_clone()?, file)));
        let (shared, file) = shared.map_err(file_error("open", &self.place.partial))?;
        self.partial = Some(file);
        Ok(shared)
    }

    /// Moves the complete file to its place, once it is what it should be and safely on disk.
    async fn finish(&mut self) -> Result<Attempt, DownloadError> {
        self.check_digest()?;
        let file = self.append()?;
        let synced = file.sync_all().await;
        synced.map_err(file_error("write", &self.place.partial))?;
        let moved = fs::rename(&self.place.partial, &self.place.path).await;
        moved.map_err(file_error("create", &self.place.path))?;
        self.total = Some(self.found.partial_bytes);
        self.report();
        Ok(Attempt::Complete(self.found.partial_bytes))
    }

    /// Removes the partial file if it has not the digest that it must have: nothing of it can be trusted.
    fn check_digest(&mut self) -> Result<(), DownloadError> {
        let (Some(expected), Some(hasher)) = (&self.expected, self.hasher.take()) else {
            return Ok(());
        };
        let found = hasher.finish();
        if found == expected.digest.as_str().to_ascii_lowercase() {
            return Ok(());
        }
        let _ = std::fs::remove_file(&self.place.partial); // the digest is the error to report
        Err(DownloadError::WrongDigest {
            name: self.name.to_owned(),
            expected: expected.digest.as_str().to_owned(),
            found,
        })
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
        let limit_bytes = match &self.expected {
            Some(expected) => expected.size_bytes,
            None if self.total.is_some() => self.options.max_file_bytes,
            None => {
                let options = self.options;
                options.max_file_bytes.min(options.max_unannounced_bytes)
            }
        };
        if bytes <= limit_bytes {
            return Ok(());
        }
        Err(DownloadError::TooLarge {
            name: self.name.to_owned(),
            limit_bytes,
        })
    }

    async fn in_time<F: Future>(&self, work: F) -> Result<F::Output, Trouble> {
        let limit = self.options.stall_timeout;
        let in_time = tokio::time::timeout(limit, work).await;
        in_time.map_err(|_| Trouble::Stalled(limit.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_drips_is_given_up() {
        let minute = Duration::from_secs(60);
        let mut pace = Pace::new(minute);
        for _ in 0..59 {
            tokio::time::advance(Duration::from_secs(1)).await;
            pace.received(1).unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let drip = pace.received(1);
        let found = matches!(
            drip,
            Err(Trouble::TooSlow {
                bytes: 60,
                seconds: 60
            })
        );
        assert!(found, "{drip:?}");

        let mut pace = Pace::new(minute);
        for _ in 0..600 {
            tokio::time::advance(Duration::from_secs(1)).await;
            pace.received(2_000).unwrap();
        }
    }
}
