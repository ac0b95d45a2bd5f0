//! Adapters that were made elsewhere: a PEFT folder becomes a run of its own with two checkpoints,
//! one to train on and one to sample from.
//!
//! The official API has nothing like it. The body is an archive (tar) of the two files of the
//! folder. It is written to the disk as it comes, read by the engine, and kept in the layout of every
//! other checkpoint; nothing of it is seen before all of it is stored.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use http_body_util::BodyExt;
use serde::Deserialize;
use tinkrs_engine::{Error, Model, TrainingRun, peft};
use tinkrs_types::{
    CheckpointKind, ImportedWeights, ModelId, OptimizerConfig, SessionId, TinkerPath, WeightsInfo,
};
use tinkrs_wire::header as names;
use tokio::io::AsyncWriteExt;

use super::copies::session_of_key;
use super::models::RANK;
use super::{Plain, sessions::uuid};
use crate::Server;
use crate::auth::Owner;
use crate::checkpoints::{NewCheckpoint, SaveError, check_name};
use crate::error::{Refusal, chain};
use crate::extract::{Caller, Parameters};
use crate::record::{RunRecord, SavedCheckpoint, SessionRecord};
use crate::registry::{Run, Session};
use crate::store::Change;
use crate::store::files::remove;
use crate::worker::{STATE_FILE, save_adapter};

/// The largest archive.
const ARCHIVE_BYTES: u64 = 4 << 30;
/// How long an upload may say nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// The files of an adapter.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
/// What a checkpoint is called that was given no name.
const NAME: &str = "imported";

/// What an adapter belongs to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Import {
    base_model: String,
    name: Option<String>,
}

pub(crate) async fn import(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(import): Parameters<Import>,
    headers: HeaderMap,
    body: Body,
) -> Result<Plain<ImportedWeights>, Refusal> {
    let session = match headers.get(names::IDEMPOTENCY_KEY) {
        Some(key) => session_of_key(owner, &[b"import ", key.as_bytes()].concat()),
        None => SessionId::new(uuid()),
    };
    let imported = server.import_weights(owner, session, import, body);
    imported.await.map(Plain)
}

/// A folder under `partial/` that is removed with everything in it.
struct Upload(PathBuf);

impl Drop for Upload {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

impl Server {
    async fn import_weights(
        &self,
        owner: Owner,
        session: SessionId,
        import: Import,
        body: Body,
    ) -> Result<ImportedWeights, Refusal> {
        let base = self.base(&import.base_model)?;
        let name = import.name.unwrap_or_else(|| NAME.to_owned());
        check_name(&name)?;
        let run = ModelId::in_session(&session, 0);
        let imported = ImportedWeights {
            tinker_path: TinkerPath::new(run.clone(), CheckpointKind::Training, &*name)?,
            sampler_path: TinkerPath::new(run, CheckpointKind::Sampler, &*name)?,
        };
        let store = &self.shared().store;
        if self.was_imported(owner, &imported) {
            store.write(Change::Nothing).await?;
            return Ok(imported);
        }
        let permit = self.shared().imports.try_acquire();
        let _permit = permit.map_err(|_| Refusal::busy("too many adapters are being imported"))?;

        let upload = format!("import.{:016x}", fastrand::u64(..));
        let upload = Upload(store.files().root().join("partial").join(upload));
        receive(body, &upload.0).await?;
        let (server, path) = (self.clone(), imported.tinker_path.clone());
        let (model, base_model) = (Arc::clone(&base.model), base.name.clone());
        let saved = tokio::task::spawn_blocking(move || {
            let (run, info) = read(&upload.0, model, &base_model)?;
            let new = NewCheckpoint {
                owner,
                path,
                info,
                overwrite: Some(false),
                ttl: None,
                user_metadata: None,
            };
            let saved = server.shared().checkpoints.fill(new, |folder| {
                run.state().write(&folder.join(STATE_FILE))?;
                save_adapter(&run, &base_model, folder)
            });
            saved.map_err(|error| match error {
                SaveError::Exists(..) => Refusal::conflict(error.to_string()),
                SaveError::Io(_) | SaveError::Engine(_) => Refusal::unavailable(chain(&error)),
            })
        });
        let saved = saved
            .await
            .map_err(|_| Refusal::unavailable("the adapter could not be read"))??;
        self.keep_imported(session, saved, &imported).await?;
        Ok(imported)
    }

    fn was_imported(&self, owner: Owner, imported: &ImportedWeights) -> bool {
        let found = self
            .shared()
            .checkpoints
            .find_own(owner, &imported.tinker_path);
        found.is_some()
    }

    /// Lists the checkpoint twice, to be trained and to be sampled, in a session of its own.
    async fn keep_imported(
        &self,
        session: SessionId,
        saved: SavedCheckpoint,
        imported: &ImportedWeights,
    ) -> Result<(), Refusal> {
        let (checkpoints, store) = (&self.shared().checkpoints, &self.shared().store);
        let owner = saved.owner;
        let title = format!("imported adapter {}", imported.tinker_path.name());
        let session = SessionRecord::holding(session, owner, title);
        let run = RunRecord::holding(&session, &saved.info, "it holds an imported adapter");
        let mut for_sampler = saved.clone();
        for_sampler.checkpoint.checkpoint_id = imported.sampler_path.checkpoint_id();
        for_sampler.checkpoint.checkpoint_type = CheckpointKind::Sampler;
        for_sampler.checkpoint.tinker_path = imported.sampler_path.clone();
        let written = {
            let mut registry = self.registry();
            if registry.has_session(&session.id)? {
                // The same request was repeated while this one was under way, and was quicker.
                remove(&checkpoints.folder(&saved.folder));
                store.write(Change::Nothing)
            } else {
                let (kept, record) = (session.clone(), run.clone());
                registry
                    .sessions
                    .insert(kept.id.clone(), Session::new(kept));
                registry.runs.insert(record.id.clone(), Run::new(record, 1));
                checkpoints.add(saved.clone());
                checkpoints.add(for_sampler.clone());
                let is_new = true;
                let mut changes = vec![
                    Change::Session(session.clone()),
                    Change::Run {
                        record: run.clone(),
                        is_new,
                    },
                ];
                let both = [saved.clone(), for_sampler];
                changes.extend(both.map(|saved| Change::Checkpoint {
                    saved,
                    replaced: None,
                }));
                store.write(Change::Together(changes))
            }
        };
        if let Err(error) = written.await {
            drop(checkpoints.take(|other| other.folder == saved.folder));
            remove(&checkpoints.folder(&saved.folder));
            let mut registry = self.registry();
            registry.runs.remove(&run.id);
            registry.sessions.remove(&session.id);
            return Err(error.into());
        }
        self.remember(owner, "checkpoint_import", &imported.tinker_path);
        Ok(())
    }
}

/// Writes a body to the disk as it comes, into a new folder.
async fn receive(mut body: Body, folder: &Path) -> Result<(), Refusal> {
    let path = folder.join("archive.tar");
    let failed = |error: io::Error| cannot_write(&path, &error);
    tokio::fs::create_dir(folder).await.map_err(failed)?;
    let mut file = tokio::fs::File::create(&path).await.map_err(failed)?;
    let mut received = 0;
    loop {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await;
        let frame = frame.map_err(|_| {
            Refusal::bad_request(format!("no more of the body came for {PATIENCE:?}"))
        })?;
        let Some(frame) = frame else {
            break;
        };
        let unread = |_| Refusal::bad_request("the body could not be read to its end");
        if let Ok(data) = frame.map_err(unread)?.into_data() {
            received += data.len() as u64;
            if received > ARCHIVE_BYTES {
                return Err(Refusal::too_large(format!(
                    "the body has more than {ARCHIVE_BYTES} bytes"
                )));
            }
            file.write_all(&data).await.map_err(failed)?;
        }
    }
    file.flush().await.map_err(failed)
}

/// Takes an adapter out of its archive, and checks everything about it.
fn read(
    folder: &Path,
    model: Arc<Model>,
    base_model: &str,
) -> Result<(TrainingRun, WeightsInfo), Refusal> {
    unpack(folder)?;
    let bad = |error: Error| {
        // Where it lies on this machine is nothing that the sender knows of.
        let text = chain(&error).replace(&format!("{}/", folder.display()), "");
        match error {
            Error::Io { ref source, .. } if !is_bad_data(source) => Refusal::unavailable(text),
            _ => Refusal::bad_request(format!("the adapter cannot be imported: {text}")),
        }
    };
    let adapter = peft::load(folder, model.config()).map_err(bad)?;
    if adapter.layers.is_empty() {
        return Err(Refusal::bad_request(
            "`adapter_model.safetensors`: found no lora_A and lora_B of any layer",
        ));
    }
    if adapter.rank > RANK as usize {
        return Err(Refusal::bad_request(format!(
            "`adapter_config.json`: found r = {}, expected at most {RANK}",
            adapter.rank
        )));
    }
    let adapts = |part: &str| Some(adapter.layers.keys().any(|layer| layer.contains(part)));
    let info = WeightsInfo {
        base_model: base_model.to_owned(),
        is_lora: true,
        optimizer_config: OptimizerConfig::AdamW,
        lora_rank: u32::try_from(adapter.rank).ok(),
        train_unembed: adapts("lm_head"),
        train_mlp: adapts(".mlp."),
        train_attn: adapts(".self_attn."),
    };
    let run = TrainingRun::from_peft(model, &adapter).map_err(bad)?;
    Ok((run, info))
}

/// Unpacks the two files of an adapter next to their archive. No other file is taken.
fn unpack(folder: &Path) -> Result<(), Refusal> {
    let malformed = |error: io::Error| {
        Refusal::bad_request(format!("the body is not an archive (tar): {error}"))
    };
    let path = folder.join("archive.tar");
    let mut archive = File::open(&path).map_err(|error| cannot_write(&path, &error))?;
    let mut start = [0; 2];
    if archive.read(&mut start).is_ok_and(|count| count == 2) && start == [0x1f, 0x8b] {
        return Err(Refusal::bad_request(
            "the archive is compressed (gzip); send a plain tar",
        ));
    }
    let archive = File::open(&path).map_err(|error| cannot_write(&path, &error))?;
    for entry in tar::Archive::new(archive).entries().map_err(malformed)? {
        let mut entry = entry.map_err(malformed)?;
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let inside = entry.path().map_err(malformed)?.into_owned();
        let Some(name) = file_of(&inside).filter(|_| entry.header().entry_type().is_file()) else {
            return Err(Refusal::bad_request(format!(
                "found `{}` in the archive, expected only the files {}",
                inside.display(),
                FILES.join(" and ")
            )));
        };
        let target = folder.join(name);
        let file = File::create_new(&target);
        let mut file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Refusal::bad_request(format!("found `{name}` twice in the archive"))
            }
            _ => cannot_write(&target, &error),
        })?;
        // The archive is as large as it is: there is nothing in it that could become larger.
        let copied = io::copy(&mut entry, &mut file);
        let copied = copied.map_err(|error| cannot_write(&target, &error))?;
        if copied != entry.size() {
            return Err(Refusal::bad_request(format!("`{name}` is cut off")));
        }
    }
    for name in FILES {
        if !fs::exists(folder.join(name)).unwrap_or(false) {
            return Err(Refusal::bad_request(format!(
                "`{name}` is missing in the archive"
            )));
        }
    }
    Ok(())
}

/// Returns which of the two files this is, at the top of the archive or in a folder.
fn file_of(path: &Path) -> Option<&'static str> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !path.components().all(is_plain) {
        return None;
    }
    let name = path.file_name()?;
    FILES.into_iter().find(|known| name == *known)
}

/// Whether it is the contents of a file that are wrong: not UTF-8, or nothing at all.
fn is_bad_data(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
    )
}

fn cannot_write(path: &Path, error: &io::Error) -> Refusal {
    Refusal::unavailable(format!("could not write {}: {error}", path.display()))
}
