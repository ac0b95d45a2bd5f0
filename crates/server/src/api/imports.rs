//! Adapters that were made elsewhere: a PEFT folder becomes a run of its own with two checkpoints,
//! one to train on and one to sample from.
//!
//! The official API has nothing like it. The body is an archive (tar) of the two files of the
//! folder. It is written to the disk as it comes; from its end on, the import does not depend on the
//! connection that brought it. The backend reads it, and it is kept in the layout of every other
//! checkpoint; nothing of it is seen before all of it is stored.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use http_body_util::BodyExt;
use tinkrs_backend::{Error, Need, TrainingRun};
use tinkrs_types::rest::{ImportedWeights, WeightsInfo};
use tinkrs_types::{CheckpointKind, LoraConfig, ModelId, SessionId, TinkerPath};
use tinkrs_wire::header as names;
use tinkrs_wire::query::ImportQuery;
use tokio::io::AsyncWriteExt;

use super::copies::session_of_key;
use super::import_bounds;
use super::models::RANK;
use super::{Plain, sessions::uuid};
use crate::Server;
use crate::accept::{AcceptOnce, Claimed};
use crate::auth::Owner;
use crate::checkpoints::{NewCheckpoint, SaveError, check_name};
use crate::error::{ApiError, chain};
use crate::extract::{Caller, Parameters};
use crate::memory::{Budget, MemoryKind, Reservation};
use crate::registry::records::{RunRecord, SavedCheckpoint, SessionRecord};
use crate::registry::{Registry, Run, Session};
use crate::state::Base;
use crate::store::Change;
use crate::store::files::remove;
use crate::worker::STATE_FILE;

/// The largest archive.
const ARCHIVE_BYTES: u64 = 4 << 30;
/// How long the next part of an upload may take.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest file of settings, which is read as a whole.
const SETTINGS_BYTES: u64 = 1 << 20;
/// The files of an adapter.
const FILES: [&str; 2] = [SETTINGS, TENSORS];
const SETTINGS: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// The most entries of an archive: the two files, their folder, and what some programs note beside each.
const ENTRIES: usize = 64;
/// How long an import waits for memory that runs use.
const MEMORY_WAIT: Duration = Duration::from_secs(3);
/// What a checkpoint is called that was given no name.
const NAME: &str = "imported";

pub(crate) async fn import(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(import): Parameters<ImportQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Plain<ImportedWeights>, ApiError> {
    let session = match headers.get(names::IDEMPOTENCY_KEY) {
        Some(key) => session_of_key(owner, &[b"import ", key.as_bytes()].concat()),
        None => SessionId::new(uuid()),
    };
    let imported = server.import_weights(owner, session, import, body);
    imported.await.map(Plain)
}

/// An adapter that is to become two checkpoints.
struct NewImport {
    owner: Owner,
    /// Made of the idempotency key, so a repeat asks for the same import.
    session: SessionId,
    base: Arc<Base>,
    imported: ImportedWeights,
    /// What was saved of it; `None` until all of it is there.
    saved: Option<(SavedCheckpoint, NewFolder)>,
}

/// An import that is listed, with the session and the run that hold it.
struct ClaimedImport {
    owner: Owner,
    session: SessionId,
    run: ModelId,
    imported: ImportedWeights,
    saved: SavedCheckpoint,
    folder: NewFolder,
}

/// The folder of a checkpoint that is removed again unless the import is stored.
struct NewFolder(Option<PathBuf>);

impl Drop for NewFolder {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            remove(folder);
        }
    }
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
        import: ImportQuery,
        body: Body,
    ) -> Result<ImportedWeights, ApiError> {
        let base = Arc::clone(self.base(&import.base_model)?);
        let name = import.name.unwrap_or_else(|| NAME.to_owned());
        check_name(&name)?;
        let run = ModelId::in_session(&session, 0);
        let imported = ImportedWeights::new(
            TinkerPath::new(run.clone(), CheckpointKind::Training, &*name)?,
            TinkerPath::new(run, CheckpointKind::Sampler, &*name)?,
        );
        let store = &self.shared().store;
        let new = NewImport {
            owner,
            session,
            base,
            imported,
            saved: None,
        };
        // Before the upload, so that a repeat need not send all of it.
        if let Some(imported) = self.accepted_before(&new).await? {
            return Ok(imported);
        }
        let permit = Arc::clone(&self.shared().imports).try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::busy("too many adapters are being imported"))?;

        let upload = format!("import.{:016x}", fastrand::u64(..));
        let upload = Upload(store.files().root().join("partial").join(upload));
        receive(body, &upload.0).await?;
        let server = self.clone();
        let finishing = tokio::spawn(async move {
            let _permit = permit;
            server.finish_import(new, upload).await
        });
        let finished = finishing.await;
        finished.map_err(|_| ApiError::unavailable("the server is stopping"))?
    }

    async fn finish_import(
        &self,
        mut new: NewImport,
        upload: Upload,
    ) -> Result<ImportedWeights, ApiError> {
        let server = self.clone();
        let (owner, path, base) = (
            new.owner,
            new.imported.tinker_path.clone(),
            Arc::clone(&new.base),
        );
        let saved = tokio::task::spawn_blocking(move || {
            let (run, info, _memory) = read(&upload.0, &base, &server.shared().memory)?;
            let new = NewCheckpoint {
                owner,
                path,
                info,
                overwrite: Some(false),
                ttl: None,
                user_metadata: None,
            };
            let saved = server.shared().checkpoints.fill(new, |folder| {
                run.save_state(&folder.join(STATE_FILE))?;
                run.save_adapter(folder, &base.name)
            });
            match saved {
                Ok(saved) => Ok(Ok(saved)),
                // The same import, sent at the same moment, may have come first.
                Err(error @ SaveError::Exists(..)) => Ok(Err(error)),
                Err(error @ (SaveError::Io(_) | SaveError::Backend(_))) => {
                    Err(ApiError::unavailable(chain(&error)))
                }
            }
        });
        let saved = saved
            .await
            .map_err(|_| ApiError::unavailable("the adapter could not be read"))??;
        let saved = match saved {
            Ok(saved) => saved,
            Err(exists) => {
                let first = self.accepted_before(&new).await?;
                return first.ok_or_else(|| ApiError::conflict(exists.to_string()));
            }
        };
        let folder = self.shared().checkpoints.folder(&saved.folder);
        new.saved = Some((saved, NewFolder(Some(folder))));
        self.accept_once(new).await
    }
}

impl AcceptOnce for NewImport {
    type Reply = ImportedWeights;
    type Claimed = ClaimedImport;

    fn seen(
        &self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<Option<ImportedWeights>, ApiError> {
        let checkpoints = &server.shared().checkpoints;
        match checkpoints.find_own(self.owner, &self.imported.tinker_path) {
            Some(saved) if saved.info.base_model == self.base.name => {
                Ok(Some(self.imported.clone()))
            }
            None if !registry.has_session(&self.session)? => Ok(None),
            Some(_) | None => Err(ApiError::bad_request(
                "`X-Idempotency-Key` was used for another import, or for one that was deleted",
            )),
        }
    }

    /// Lists the checkpoint twice, to be trained and to be sampled, in a session of its own.
    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, ClaimedImport), ApiError> {
        let (saved, folder) = self
            .saved
            .expect("an import is accepted once all of it is there");
        let title = format!("imported adapter {}", self.imported.tinker_path.name());
        let session = SessionRecord::holding(self.session, self.owner, title);
        let run = RunRecord::holding(&session, &saved.info, "it holds an imported adapter");
        let mut for_sampler = saved.clone();
        for_sampler.checkpoint.checkpoint_id = self.imported.sampler_path.checkpoint_id();
        for_sampler.checkpoint.checkpoint_type = CheckpointKind::Sampler;
        for_sampler.checkpoint.tinker_path = self.imported.sampler_path.clone();
        let claimed = ClaimedImport {
            owner: self.owner,
            session: session.id.clone(),
            run: run.id.clone(),
            imported: self.imported,
            saved: saved.clone(),
            folder,
        };
        let held = Session::new(session.clone());
        registry.sessions.insert(session.id.clone(), held);
        let held = Run::new(run.clone(), 1);
        registry.runs.insert(run.id.clone(), held);
        let (record, is_new) = (run, true);
        let mut changes = vec![Change::Session(session), Change::Run { record, is_new }];
        for saved in [saved, for_sampler] {
            server.shared().checkpoints.add(saved.clone());
            let replaced = None;
            changes.push(Change::Checkpoint { saved, replaced });
        }
        Ok((Change::Together(changes), claimed))
    }
}

impl Claimed for ClaimedImport {
    type Reply = ImportedWeights;

    fn commit(mut self, server: &Server, _: &mut Registry) -> Result<ImportedWeights, ApiError> {
        self.folder.0 = None;
        let path = &self.imported.tinker_path;
        server.remember(self.owner, "checkpoint_import", path);
        Ok(self.imported)
    }

    fn roll_back(self, server: &Server, registry: &mut Registry) {
        let checkpoints = &server.shared().checkpoints;
        drop(checkpoints.take(|other| other.folder == self.saved.folder));
        registry.runs.remove(&self.run);
        registry.sessions.remove(&self.session);
    }
}

/// Writes a body to the disk as it comes, into a new folder.
async fn receive(mut body: Body, folder: &Path) -> Result<(), ApiError> {
    let path = folder.join("archive.tar");
    let failed = |error: io::Error| cannot_write(&path, &error);
    tokio::fs::create_dir(folder).await.map_err(failed)?;
    let mut file = tokio::fs::File::create(&path).await.map_err(failed)?;
    let mut received = 0;
    loop {
        let frame = tokio::time::timeout(STALL_TIMEOUT, body.frame()).await;
        let frame = frame.map_err(|_| {
            ApiError::bad_request(format!("no more of the body came for {STALL_TIMEOUT:?}"))
        })?;
        let Some(frame) = frame else {
            break;
        };
        let unread = |_| ApiError::bad_request("the body could not be read to its end");
        if let Ok(data) = frame.map_err(unread)?.into_data() {
            received += data.len() as u64;
            if received > ARCHIVE_BYTES {
                return Err(ApiError::too_large(format!(
                    "the body has more than {ARCHIVE_BYTES} bytes"
                )));
            }
            file.write_all(&data).await.map_err(failed)?;
        }
    }
    file.flush().await.map_err(failed)
}

/// Takes an adapter out of its archive, and checks everything about it. The memory is for as long as the
/// run is.
fn read(
    folder: &Path,
    base: &Base,
    memory: &Budget,
) -> Result<(Box<dyn TrainingRun>, WeightsInfo, Reservation), ApiError> {
    unpack(folder)?;
    let bad = |error: Error| {
        // The sender knows the files by their names, not by where this machine keeps them.
        let text = chain(&error).replace(&format!("{}/", folder.display()), "");
        if error.is_storage() {
            ApiError::unavailable(text)
        } else {
            ApiError::bad_request(format!("the adapter cannot be imported: {text}"))
        }
    };
    import_bounds::check(&folder.join(TENSORS))?;
    // Before the tensors, which may be as large as the rank.
    let rank = base.backend.adapter_rank(folder).map_err(bad)?;
    if rank > RANK as usize {
        return Err(ApiError::bad_request(format!(
            "`{SETTINGS}`: found r = {rank}, expected at most {RANK}"
        )));
    }
    let lora = LoraConfig::new(rank as u32);
    let needs = [Need::Run { lora: lora.clone() }, Need::Copies { lora }];
    let bytes = needs.iter().map(|need| base.backend.memory(need)).sum();
    let memory = memory.reserve_within(MemoryKind::Runs, bytes, MEMORY_WAIT);
    let memory = memory.map_err(|refusal| {
        if refusal.is_permanent() {
            ApiError::bad_request(refusal.to_string())
        } else {
            ApiError::busy(refusal.to_string())
        }
    })?;
    let run = base.backend.import_adapter(folder).map_err(bad)?;
    let lora = run.lora();
    if !(lora.train_unembed || lora.train_mlp || lora.train_attn) {
        return Err(ApiError::bad_request(
            "`adapter_model.safetensors`: found no lora_A and lora_B of any layer",
        ));
    }
    let info = WeightsInfo::new(base.name.as_str(), &lora);
    Ok((run, info, memory))
}

/// Unpacks the two files of an adapter next to their archive. No other file is taken.
fn unpack(folder: &Path) -> Result<(), ApiError> {
    let malformed = |error: io::Error| {
        ApiError::bad_request(format!("the body is not an archive (tar): {error}"))
    };
    let path = folder.join("archive.tar");
    let mut archive = File::open(&path).map_err(|error| cannot_write(&path, &error))?;
    let mut start = [0; 2];
    if archive.read(&mut start).is_ok_and(|count| count == 2) && start == [0x1f, 0x8b] {
        return Err(ApiError::bad_request(
            "the archive is compressed (gzip); send a plain tar",
        ));
    }
    let archive = File::open(&path).map_err(|error| cannot_write(&path, &error))?;
    let mut archive = tar::Archive::new(archive);
    // As they are: the reader would hold long names and attributes in memory, however long they are.
    for (index, entry) in archive.entries().map_err(malformed)?.raw(true).enumerate() {
        let mut entry = entry.map_err(malformed)?;
        if index == ENTRIES {
            return Err(ApiError::bad_request(format!(
                "found more than {ENTRIES} entries in the archive, expected the files {}",
                FILES.join(" and ")
            )));
        }
        let kind = entry.header().entry_type();
        if kind.is_dir() || is_about_another(kind) {
            continue;
        }
        let inside = entry.path().map_err(malformed)?.into_owned();
        let Some(name) = file_of(&inside).filter(|_| kind.is_file()) else {
            return Err(ApiError::bad_request(format!(
                "found `{}` in the archive, expected only the files {}",
                inside.display(),
                FILES.join(" and ")
            )));
        };
        if name == SETTINGS && entry.size() > SETTINGS_BYTES {
            return Err(ApiError::too_large(format!(
                "`{name}` has more than {SETTINGS_BYTES} bytes"
            )));
        }
        let target = folder.join(name);
        let file = File::create_new(&target);
        let mut file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                ApiError::bad_request(format!("found `{name}` twice in the archive"))
            }
            _ => cannot_write(&target, &error),
        })?;
        // The archive is as large as it is: there is nothing in it that could become larger.
        let copied = io::copy(&mut entry, &mut file);
        let copied = copied.map_err(|error| cannot_write(&target, &error))?;
        if copied != entry.size() {
            return Err(ApiError::bad_request(format!("`{name}` is cut off")));
        }
    }
    for name in FILES {
        if !fs::exists(folder.join(name)).unwrap_or(false) {
            return Err(ApiError::bad_request(format!(
                "`{name}` is missing in the archive"
            )));
        }
    }
    Ok(())
}

/// Whether an entry only describes the one after it: by times and owners, or a name that is too long
/// for its own header and thus none of ours.
fn is_about_another(kind: tar::EntryType) -> bool {
    kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
        || kind.is_gnu_longname()
        || kind.is_gnu_longlink()
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

fn cannot_write(path: &Path, error: &io::Error) -> ApiError {
    let name = path.file_name().unwrap_or_default();
    let name = name.display();
    ApiError::unavailable(format!("could not write {name}: {error}"))
}
