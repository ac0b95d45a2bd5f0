//! A repository at one commit, and its files.

use super::{Hub, HubError};
use crate::auth::Secret;
use crate::external::{HttpClient, HttpResponse};
use crate::rest::download::{Digest, DownloadError, DownloadOptions, FileDownload};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tinkrs_wire::text::percent_encode;

/// How long the Hub may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// How much of the Hub's reason is shown.
const MAX_REASON: usize = 300;

/// A repository of models at one commit.
#[derive(Debug)]
pub struct Repository {
    http: HttpClient,
    endpoint: String,
    token: Option<Secret>,
    name: String,
    commit: String,
    files: BTreeMap<String, Sibling>,
}

/// A file of a repository, and what its content is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteFile {
    /// Its path in the repository.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its digest.
    pub digest: Digest,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Hub {
    /// Asks what a repository has at a branch, a tag or a commit.
    ///
    /// # Errors
    /// If the Hub cannot be reached, or does not show the repository.
    pub async fn repository(&self, name: &str, revision: &str) -> Result<Repository, HubError> {
        let (endpoint, http) = (self.endpoint(), HttpClient::new(SILENCE));
        let revision = percent_encode(revision);
        let url = format!("{endpoint}/api/models/{name}/revision/{revision}?blobs=true");
        let mut request = http.get(&url);
        if let Some(token) = self.token() {
            request = request.bearer_token(token);
        }
        let response = request.send().await;
        let response = response.map_err(|source| HubError::Unreachable {
            endpoint: endpoint.to_owned(),
            source,
        })?;
        if !response.is_success() {
            return Err(refused(name, response).await);
        }
        let info: Info = response
            .json()
            .await
            .map_err(|source| HubError::NotTheHub {
                repo: name.to_owned(),
                endpoint: endpoint.to_owned(),
                source,
            })?;
        // It becomes a part of addresses and the name of a folder.
        let is_commit = |c: char| c.is_ascii_alphanumeric();
        if info.sha.is_empty() || info.sha.len() > 64 || !info.sha.chars().all(is_commit) {
            return Err(malformed(name, "no commit".to_owned()));
        }
        let files = info.siblings.into_iter();
        Ok(Repository {
            http,
            endpoint: endpoint.to_owned(),
            token: self.token().cloned(),
            name: name.to_owned(),
            commit: info.sha,
            files: files.map(|file| (file.rfilename.clone(), file)).collect(),
        })
    }
}

impl Repository {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the commit.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// Lists the paths of its files.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Describes a file, if it is there.
    ///
    /// # Errors
    /// If the Hub did not say how large it is, or what its content is known by.
    pub fn file(&self, name: &str) -> Result<Option<RemoteFile>, HubError> {
        self.files
            .get(name)
            .map(|file| self.describe(file))
            .transpose()
    }

    fn describe(&self, file: &Sibling) -> Result<RemoteFile, HubError> {
        let name = file.rfilename.clone();
        let unknown = || malformed(&self.name, format!("no digest of {name}"));
        let (size_bytes, digest) = match &file.lfs {
            Some(lfs) => (lfs.size, Digest::Sha256(lfs.sha256.clone())),
            None => {
                let blob = file.blob_id.clone().ok_or_else(unknown)?;
                (file.size.ok_or_else(unknown)?, Digest::GitBlob(blob))
            }
        };
        if !digest.is_valid() {
            return Err(unknown());
        }
        Ok(RemoteFile {
            name,
            size_bytes,
            digest,
        })
    }

    /// Downloads a file into a folder that exists, or goes on with a download that broke off there.
    ///
    /// # Errors
    /// As [`FileDownload::fetch`].
    pub async fn download(
        &self,
        file: &RemoteFile,
        folder: &Path,
        options: &DownloadOptions,
    ) -> Result<(), DownloadError> {
        let download = self.describe_download(file);
        download.fetch(&self.http, folder, options).await
    }

    /// As [`download`](Self::download), with another name in the folder.
    pub(super) async fn download_as(
        &self,
        file: &RemoteFile,
        folder: &Path,
        stored: &str,
        options: &DownloadOptions,
    ) -> Result<(), DownloadError> {
        let download = self.describe_download(file);
        download.fetch_as(&self.http, folder, stored, options).await
    }

    fn describe_download(&self, file: &RemoteFile) -> FileDownload {
        let (endpoint, repo, commit) = (&self.endpoint, &self.name, &self.commit);
        let name = percent_encode(&file.name);
        FileDownload {
            name: file.name.clone(),
            url: format!("{endpoint}/{repo}/resolve/{commit}/{name}"),
            token: self.token.clone(),
            size_bytes: file.size_bytes,
            digest: file.digest.clone(),
        }
    }
}

/// Turns a response with an error status into an error with the Hub's reason.
async fn refused(repo: &str, response: HttpResponse) -> HubError {
    #[derive(Default, Deserialize)]
    struct Body {
        error: Option<String>,
    }
    let (status, usual) = (response.status(), response.reason());
    let body: Body = response.json().await.unwrap_or_default();
    let reason = body.error.as_deref().or(usual).unwrap_or("no reason given");
    let reason = reason.chars().filter(|c| !c.is_control());
    HubError::Refused {
        repo: repo.to_owned(),
        status,
        reason: reason.take(MAX_REASON).collect(),
    }
}

fn malformed(repo: &str, problem: String) -> HubError {
    HubError::Malformed {
        repo: repo.to_owned(),
        problem,
    }
}
