//! Downloading checkpoints, through links that need no key and last a while.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde_json::json;
use tinkrs_types::rest::ExternalWeightsUrls;
use tinkrs_types::{CheckpointKind, TinkerPath};
use tower_http::services::ServeFile;

use super::checkpoints::{Address, read_address};
use super::{Plain, json as json_reply};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, InPath};
use crate::registry::records::SavedCheckpoint;
use crate::store::files::remove;

/// How long a link lasts.
const LINK_TIME: Duration = Duration::from_secs(15 * 60);
/// The name of the archive among the files of a checkpoint.
const ARCHIVE: &str = "checkpoint.tar";

/// Links to the files of a checkpoint that was saved to be downloaded.
pub(crate) async fn external_urls(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
    headers: HeaderMap,
) -> Result<Plain<ExternalWeightsUrls>, ApiError> {
    let path = read_address(address)?;
    path.require(CheckpointKind::External)?;
    let saved = server.read_checkpoint(owner, &path)?;
    let expires = expiry()?;
    let mut urls = BTreeMap::new();
    for name in file_names(&server.shared().checkpoints.folder(&saved.folder))? {
        let url = server.link(&headers, &saved, &name, expires)?;
        urls.insert(name, url);
    }
    Ok(Plain(ExternalWeightsUrls::new(urls, expires)))
}

/// A link to all files of a checkpoint in one archive, as clients to 0.25 ask for it.
pub(crate) async fn archive(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let path = read_address(address)?;
    let saved = server.read_checkpoint(owner, &path)?;
    let expires = expiry()?;
    let url = server.link(&headers, &saved, ARCHIVE, expires)?;
    let date = rfc2822::DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&expires)
        .map_err(|error| ApiError::unavailable(error.to_string()))?;
    let headers = [(header::LOCATION, url.clone()), (header::EXPIRES, date)];
    let body = json!({"url": url, "expires": expires.to_string()});
    Ok((StatusCode::FOUND, headers, json_reply(body.to_string())).into_response())
}

/// Sends a file, or a part of it.
pub(crate) async fn file(
    State(server): State<Server>,
    InPath((folder, name)): InPath<(String, String)>,
    uri: Uri,
    request: Request,
) -> Result<Response, ApiError> {
    let query = uri.query().unwrap_or_default();
    let checked = server.auth().check(uri.path(), query, Timestamp::now());
    checked.map_err(|bad| ApiError::forbidden(bad.to_string()))?;
    let is_archive = name == ARCHIVE;
    let file = server.file_of(&folder, name).await?;
    let sent = ServeFile::new(&file).try_call(request).await;
    if is_archive {
        // It is open now, and that is enough: its bytes are free again when the download ends.
        remove(&file);
    }
    sent.map(IntoResponse::into_response)
        .map_err(|error| ApiError::unavailable(error.to_string()))
}

impl Server {
    /// Finds a checkpoint that is about to be downloaded.
    fn read_checkpoint(
        &self,
        owner: Owner,
        path: &TinkerPath,
    ) -> Result<SavedCheckpoint, ApiError> {
        let saved = self.checkpoint(owner, path)?;
        self.remember(owner, "checkpoint_read", path);
        Ok(saved)
    }

    /// Makes a link to a path, on the address under which clients reach this server.
    pub(super) fn signed_link(
        &self,
        headers: &HeaderMap,
        path: &str,
        expires: Timestamp,
    ) -> Result<String, ApiError> {
        let origin = match &self.shared().settings.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => {
                let host = headers.get(header::HOST);
                let host = host.and_then(|host| host.to_str().ok());
                let host = host.ok_or_else(|| ApiError::bad_request("`Host` is missing"))?;
                format!("http://{host}")
            }
        };
        let query = self.auth().sign(path, expires);
        Ok(format!("{origin}{path}?{query}"))
    }

    /// Makes a link to a file of a checkpoint.
    fn link(
        &self,
        headers: &HeaderMap,
        saved: &SavedCheckpoint,
        name: &str,
        expires: Timestamp,
    ) -> Result<String, ApiError> {
        // A folder's own name is drawn by chance, and so leads to one checkpoint only.
        let folder = saved
            .folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        self.signed_link(headers, &format!("/downloads/{folder}/{name}"), expires)
    }

    /// Finds a file of a checkpoint by the name of its folder.
    async fn file_of(&self, folder: &str, name: String) -> Result<PathBuf, ApiError> {
        let missing = || ApiError::not_found("the checkpoint was deleted");
        let found = self
            .shared()
            .checkpoints
            .find_folder(folder)
            .ok_or_else(missing)?;
        if name == ARCHIVE {
            let root = self.shared().store.files().root();
            let archive = format!("{folder}.{:016x}.tar", fastrand::u64(..));
            let archive = root.join("partial").join(archive);
            let made = tokio::task::spawn_blocking(move || {
                make_archive(&found, &archive).map(|()| archive)
            });
            let made = made
                .await
                .map_err(|error| ApiError::unavailable(error.to_string()))?;
            return made.map_err(|error| {
                ApiError::unavailable(format!("could not make the archive: {error}"))
            });
        }
        // Looked up, never joined: a name cannot lead elsewhere.
        let names = file_names(&found)?;
        let name = names.into_iter().find(|known| *known == name);
        name.map(|name| found.join(name)).ok_or_else(missing)
    }
}

fn expiry() -> Result<Timestamp, ApiError> {
    let expires = Timestamp::now().checked_add(LINK_TIME);
    expires.map_err(|error| ApiError::unavailable(error.to_string()))
}

fn file_names(folder: &FilePath) -> Result<Vec<String>, ApiError> {
    let names = || {
        let mut names = Vec::new();
        for file in fs::read_dir(folder)? {
            names.extend(file?.file_name().into_string().ok());
        }
        names.sort();
        Ok::<_, io::Error>(names)
    };
    names().map_err(|error| ApiError::unavailable(format!("could not list the files: {error}")))
}

/// Puts the files of a folder into an archive. The same files make the same archive, so a broken
/// download can go on with another one.
fn make_archive(folder: &FilePath, archive: &FilePath) -> io::Result<()> {
    let made = fill_archive(folder, archive);
    if made.is_err() {
        remove(archive);
    }
    made
}

fn fill_archive(folder: &FilePath, archive: &FilePath) -> io::Result<()> {
    let mut builder = tar::Builder::new(File::create(archive)?);
    builder.mode(tar::HeaderMode::Deterministic);
    let mut files: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        builder.append_path_with_name(file.path(), file.file_name())?;
    }
    // Clients compare this time to see whether they may go on.
    let time = fs::metadata(folder)?.modified()?;
    builder.into_inner()?.set_modified(time)
}
