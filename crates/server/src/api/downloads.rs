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

use super::checkpoints::Address;
use super::{Plain, json as json_reply};
use crate::Server;
use crate::auth::Owner;
use crate::error::{ApiError, chain};
use crate::extract::{Caller, InPath};
use crate::registry::records::SavedCheckpoint;
use crate::store::files::remove;
use crate::store::manifest::{Damage, Manifest};

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
    let path = server.read_address(owner, address)?;
    path.require(CheckpointKind::External)?;
    let saved = server.read_checkpoint(owner, &path)?;
    let expires = expiry()?;
    let mut urls = BTreeMap::new();
    let folder = server.shared().checkpoints.folder(&saved.folder);
    for name in describe(&folder)?.names() {
        let url = server.link(&headers, &saved, name, expires)?;
        urls.insert(name.to_owned(), url);
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
    let path = server.read_address(owner, address)?;
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
        let origin = self.public_origin(headers)?;
        let query = self.auth().sign(path, expires);
        Ok(format!("{origin}{path}?{query}"))
    }

    /// Returns the address under which clients reach this server.
    pub(crate) fn public_origin(&self, headers: &HeaderMap) -> Result<String, ApiError> {
        Ok(match &self.shared().settings.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => {
                let host = headers.get(header::HOST);
                let host = host.and_then(|host| host.to_str().ok());
                let host = host.ok_or_else(|| ApiError::bad_request("`Host` is missing"))?;
                format!("http://{host}")
            }
        })
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
            let manifest = describe(&found)?;
            let made = tokio::task::spawn_blocking(move || {
                manifest.verify(&found, |_| true).map_err(damaged)?;
                make_archive(&found, &manifest, &archive).map_err(|error| {
                    ApiError::unavailable(format!("could not make the archive: {error}"))
                })?;
                Ok(archive)
            });
            return made
                .await
                .map_err(|error| ApiError::unavailable(error.to_string()))?;
        }
        // Looked up before it is joined: a name cannot lead elsewhere.
        let manifest = describe(&found)?;
        if !manifest.names().any(|known| known == name) {
            return Err(missing());
        }
        let verified = tokio::task::spawn_blocking(move || {
            let is_it = |known: &str| known == name;
            manifest.verify(&found, is_it).map(|()| found.join(&name))
        });
        let verified = verified.await;
        verified
            .map_err(|error| ApiError::unavailable(error.to_string()))?
            .map_err(damaged)
    }
}

fn expiry() -> Result<Timestamp, ApiError> {
    let expires = Timestamp::now().checked_add(LINK_TIME);
    expires.map_err(|error| ApiError::unavailable(error.to_string()))
}

fn describe(folder: &FilePath) -> Result<Manifest, ApiError> {
    Manifest::in_folder(folder).map_err(damaged)
}

/// Says that a checkpoint is not what was saved. Nothing of it is handed out.
fn damaged(damage: Damage) -> ApiError {
    tracing::error!(damage = %chain(&damage), "a checkpoint that is downloaded is damaged");
    ApiError::gone(chain(&damage))
}

/// Puts the files of a folder into an archive. The same files make the same archive, so a broken
/// download can go on with another one.
fn make_archive(folder: &FilePath, manifest: &Manifest, archive: &FilePath) -> io::Result<()> {
    let made = fill_archive(folder, manifest, archive);
    if made.is_err() {
        remove(archive);
    }
    made
}

fn fill_archive(folder: &FilePath, manifest: &Manifest, archive: &FilePath) -> io::Result<()> {
    let mut builder = tar::Builder::new(File::create(archive)?);
    builder.mode(tar::HeaderMode::Deterministic);
    for name in manifest.names() {
        builder.append_path_with_name(folder.join(name), name)?;
    }
    let archive = builder.into_inner()?;
    // Clients compare this time to see whether they may go on.
    if let Some(first) = manifest.names().next() {
        archive.set_modified(fs::metadata(folder.join(first))?.modified()?)?;
    }
    Ok(())
}
