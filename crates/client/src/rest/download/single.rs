//! Downloading one file that is known by its digest.

use super::digest::Digest;
use super::file::{Expected, Source, fetch};
use super::place::Place;
use super::{DownloadError, DownloadOptions};
use crate::auth::Secret;
use crate::external::HttpClient;
use std::path::Path;

/// A file that is known by its size and its digest.
#[derive(Clone, Debug)]
pub struct FileDownload {
    /// The name that it gets. It may not contain a slash.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// A token for the host of the URL. It is not sent to hosts that the host redirects to.
    pub token: Option<Secret>,
    /// Its size.
    pub size_bytes: u64,
    /// Its digest.
    pub digest: Digest,
}

impl FileDownload {
    /// Downloads the file into a folder that exists.
    ///
    /// What has arrived is in `.NAME.DIGEST.part` in the folder until the file is complete and has its
    /// digest, so that another call, or another process, continues where this one ended.
    ///
    /// # Errors
    /// If the name is not safe, if another download of the same file is under way, or if the file cannot
    /// be downloaded or written, or has another digest.
    pub async fn fetch(
        &self,
        http: &HttpClient,
        folder: &Path,
        options: &DownloadOptions,
    ) -> Result<(), DownloadError> {
        self.fetch_as(http, folder, &self.name, options).await
    }

    /// As [`fetch`](Self::fetch), with another name in the folder.
    pub(crate) async fn fetch_as(
        &self,
        http: &HttpClient,
        folder: &Path,
        stored: &str,
        options: &DownloadOptions,
    ) -> Result<(), DownloadError> {
        if !self.digest.is_valid() {
            return Err(DownloadError::UnsafeName {
                name: self.name.clone(),
                reason: "its digest is not valid",
            });
        }
        let place = Place::prepare_with_digest(folder, stored, self.digest.as_str())?;
        let source = Source::Plain {
            url: &self.url,
            token: self.token.as_ref(),
        };
        let expected = Expected {
            size_bytes: self.size_bytes,
            digest: &self.digest,
        };
        let file = fetch(http, source, &self.name, place, options, Some(expected));
        file.await.map(drop)
    }
}
