//! This machine as a server: inside this process, or inside another one that holds the data folder.
//!
//! One process holds a folder, and says in it where it can be reached. A command that comes later becomes its
//! client. So whoever comes first serves the others, until the last of them is done.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use tinkrs_backend::Need;
use tinkrs_server::{Announcement, BaseModel, Holder, Server, SessionWatch, Settings, StartError};
use tinkrs_types::SamplingSessionId;
use tinkrs_types::training::LoraConfig;
use tokio::time::Instant;

use crate::data_folder;
use crate::hint;
use crate::holder;
use crate::human::counted;
use crate::local_model::{self, NamedModel};
use crate::output::{self, Hint};
use crate::server_args::Target;

/// How long a folder may be locked by a process that does not say how to reach it: one that starts or ends.
const SETTLING: Duration = Duration::from_secs(30);
/// How often it is looked whether something has changed.
const LOOK: Duration = Duration::from_millis(100);

/// How large the passes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassSize {
    /// Rank of the adapter.
    pub(crate) rank: u32,
    /// Tokens of a step, at most.
    pub(crate) tokens: usize,
    /// Tokens of the longest sequence.
    pub(crate) longest: usize,
}

/// A server on this machine that has a data folder.
pub(crate) enum LocalServer {
    /// In this process.
    Held {
        server: tinkrs_server::LocalServer,
        announced: Announcement,
        folder: PathBuf,
        models: Vec<BaseModel>,
    },
    /// In another process.
    Joined { holder: Holder, folder: PathBuf },
}

impl LocalServer {
    /// Opens a data folder: in this process with these models, or as a client of the process that holds it.
    /// `command` says to others what this process is.
    pub(crate) async fn open(
        folder: &Path,
        models: &[NamedModel],
        command: &str,
    ) -> anyhow::Result<Self> {
        let mut loaded = None;
        let mut waits_for = None;
        let mut since = Instant::now();
        loop {
            if let Some(holder) = holder::find(folder).await {
                let pid = holder.pid;
                let joined = Self::Joined {
                    folder: folder.to_owned(),
                    holder,
                };
                match joined.has(models).await? {
                    Offer::Enough => return Ok(joined),
                    Offer::Gone => {}
                    Offer::Nothing if waits_for == Some(pid) => since = Instant::now(),
                    Offer::Nothing => {
                        waits_for = Some(pid);
                        output::note(format_args!("waiting for {}", joined.who()));
                    }
                }
            } else {
                let models = match &loaded {
                    Some(models) => models,
                    None => loaded.insert(load(folder, models)?),
                };
                let loaded = || models.iter().map(|(_, loaded)| loaded.clone()).collect();
                match start(loaded(), folder).await {
                    Err(StartError::Used(_)) if since.elapsed() < SETTLING => {}
                    started => {
                        let held = Self::held(started, folder, command, loaded())?;
                        let named: Vec<_> = models.iter().map(|(named, _)| named.clone()).collect();
                        data_folder::remember(folder, &named)?;
                        return Ok(held);
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn held(
        started: Result<tinkrs_server::LocalServer, StartError>,
        folder: &Path,
        command: &str,
        models: Vec<BaseModel>,
    ) -> anyhow::Result<Self> {
        let server = started.map_err(|error| match error {
            StartError::Used(_) => in_use(folder),
            StartError::Data { .. } => anyhow!(error).context(Hint(
                "check who may write to it and that the disk has room (`tinkrs doctor`), or name another folder with \
                 `--data-dir`",
            )),
            error => anyhow!(error).context("could not start a server in this process"),
        })?;
        let announced = server.server().announce(server.url(), command);
        let announced = announced
            .with_context(|| format!("could not write to the data folder {}", folder.display()))?;
        Ok(Self::Held {
            server,
            announced,
            folder: folder.to_owned(),
            models,
        })
    }

    /// Asks another process whether it has these models.
    async fn has(&self, models: &[NamedModel]) -> anyhow::Result<Offer> {
        if models.is_empty() {
            return Ok(Offer::Enough);
        }
        if let Some(model) = models.iter().find(|model| !model.numerics.is_empty()) {
            let typed = model.numerics.typed();
            let problem = anyhow!(
                "{} is used by {}, which has decided on the numbers of its models:{typed} comes too late",
                self.folder().display(),
                self.who(),
            );
            return Err(problem.context(Hint(
                "leave the option out, or end the other process and start it with the option",
            )));
        }
        let client = self.target().client().max_retry_time(LOOK).build();
        let offered = match client.get_server_capabilities().await {
            Ok(capabilities) => capabilities.supported_models,
            Err(tinkrs::Error::Unreachable { .. }) => return Ok(Offer::Gone),
            Err(error) => {
                let headline = format!("could not ask {} for its models", self.who());
                return Err(hint::explain(error, headline));
            }
        };
        let names = offered
            .iter()
            .filter_map(|model| model.model_name.as_deref());
        let names: Vec<_> = names.collect();
        let missing = models
            .iter()
            .find(|model| !names.contains(&model.name.as_str()));
        match missing {
            _ if names.is_empty() => Ok(Offer::Nothing),
            None => Ok(Offer::Enough),
            Some(model) => Err(anyhow!(
                "{} is used by {}, which has no model `{}`, only {}",
                self.folder().display(),
                self.who(),
                model.name,
                names.join(", ")
            )
            .context(Hint(
                "wait until it is done, name another folder with `--data-dir`, or serve all models at once: \
                 `tinkrs serve` with a `--model` for each",
            ))),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::Held { folder, .. } | Self::Joined { folder, .. } => folder,
        }
    }

    /// Says which process holds the folder.
    fn who(&self) -> String {
        match self {
            Self::Held { .. } => "this process".to_owned(),
            Self::Joined { holder, .. } => named(holder),
        }
    }

    /// Says which other process holds the folder, at the end of a sentence.
    pub(crate) fn through(&self) -> String {
        match self {
            Self::Held { .. } => String::new(),
            Self::Joined { .. } => format!(", through {}", self.who()),
        }
    }

    pub(crate) fn url(&self) -> &str {
        match self {
            Self::Held { server, .. } => server.url(),
            Self::Joined { holder, .. } => &holder.url,
        }
    }

    /// Returns how the server is reached.
    pub(crate) fn target(&self) -> Target {
        let url = self.url().to_owned();
        match self {
            // It takes the keys of a file, and one of them is in the environment.
            Self::Joined { holder, .. } if !holder.takes_any_key => Target::Url(url),
            _ => Target::Local(url),
        }
    }

    /// Returns the requests that come for a sampler from now on, with their tokens, if the server is in this
    /// process.
    pub(crate) fn watch_session(&self, sampler: SamplingSessionId) -> Option<SessionWatch> {
        match self {
            Self::Held { server, .. } => Some(server.server().watch_session(sampler)),
            Self::Joined { .. } => None,
        }
    }

    /// Bounds the bytes that a run takes, if the server is in this process, and says how many it may take.
    pub(crate) fn training_bytes(&self, model: &str, pass: &PassSize) -> Option<(u64, u64)> {
        let Self::Held { models, folder, .. } = self else {
            return None;
        };
        let base = models.iter().find(|base| base.name == model)?;
        let lora = LoraConfig::new(pass.rank);
        let needed = base.training_bytes(&lora, pass.tokens, pass.longest);
        // What the model itself takes is no longer available, and counts all the same.
        let limit = Settings::new(folder).memory_limit();
        Some((
            needed,
            limit.saturating_add(base.backend.memory(&Need::Weights)),
        ))
    }

    /// Completes when the process that holds the folder is gone, with what to say about that.
    pub(crate) fn lost(&self) -> impl Future<Output = anyhow::Error> + Send + 'static + use<> {
        let joined = match self {
            Self::Held { .. } => None,
            Self::Joined { holder, .. } => Some(holder.clone()),
        };
        let sentence = format!(
            "{}, which served {}, has ended",
            self.who(),
            self.folder().display()
        );
        async move {
            match joined {
                None => std::future::pending().await,
                Some(holder) => holder::gone(&holder).await,
            }
            anyhow!(sentence).context(Hint(
                "start this command again: it then serves the folder itself; `tinkrs train` continues \
                 from its last checkpoint",
            ))
        }
    }

    /// Stops a server in this process, once nobody else uses it and everything is stored. Ctrl-C stops it
    /// at once.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let Self::Held {
            server, announced, ..
        } = self
        else {
            return Ok(());
        };
        let handle = server.server().clone();
        tokio::select! {
            () = unused(&handle) => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        drop(handle);
        // Whoever comes from now on waits for the folder.
        drop(announced);
        let stopped = server.stop().await;
        stopped.context("the server in this process failed")
    }
}

/// What another process has of the models that are needed.
enum Offer {
    Enough,
    /// It has no models at all: it is not there to serve, and soon done.
    Nothing,
    /// It has ended just now.
    Gone,
}

/// Completes when nobody else uses a server, and says so if that takes a while.
async fn unused(server: &Server) {
    let mut said = 0;
    while server.is_used() {
        let sessions = server.open_sessions();
        if sessions > said {
            said = sessions;
            output::note(format_args!(
                "done; still serving {}; Ctrl-C ends it",
                counted(sessions as u64, "other command")
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Says which process a holder is.
fn named(holder: &Holder) -> String {
    format!("`{}` (process {})", holder.command, holder.pid)
}

/// Loads models in the numbers that were typed or that they had in the folder, and returns which these are.
fn load(folder: &Path, models: &[NamedModel]) -> anyhow::Result<Vec<(NamedModel, BaseModel)>> {
    if models.is_empty() {
        return Ok(Vec::new());
    }
    let threads = local_model::threads(None)?;
    let resolved = data_folder::in_known_numerics(folder, models)?;
    let loaded = models.iter().zip(resolved).map(|(typed, model)| {
        if model.numerics != typed.numerics {
            output::note(format_args!(
                "{} computes as it did in this data folder before:{}",
                model.name,
                model.numerics.typed()
            ));
        }
        let loaded = local_model::load(&model, &threads)?;
        Ok((model, loaded))
    });
    loaded.collect()
}

async fn start(
    models: Vec<BaseModel>,
    folder: &Path,
) -> Result<tinkrs_server::LocalServer, StartError> {
    let settings = Settings::new(folder);
    if models.is_empty() {
        tinkrs_server::LocalServer::start_without_models(settings).await
    } else {
        tinkrs_server::LocalServer::start(models, settings).await
    }
}

/// Says who uses a folder that cannot be joined.
pub(crate) fn in_use(folder: &Path) -> anyhow::Error {
    let who = match Holder::read(folder) {
        Some(holder) => named(&holder),
        None => "another process".to_owned(),
    };
    anyhow!("{who} uses {} and does not answer", folder.display())
        .context(Hint("end it, or name another folder with `--data-dir`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_on_a_folder_is_a_client_of_the_first_and_notices_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let first = LocalServer::open(folder.path(), &[], "first")
            .await
            .unwrap();
        let second = LocalServer::open(folder.path(), &[], "second")
            .await
            .unwrap();
        assert_eq!(second.url(), first.url());
        assert!(second.through().contains("`first` (process"));
        // As if its process had been killed: stopping would wait until the second is done.
        drop(first);
        let lost = second.lost().await;
        assert!(format!("{lost:#}").contains("`first`"), "{lost:#}");
        // The folder is free again, whatever the file says.
        let third = LocalServer::open(folder.path(), &[], "third")
            .await
            .unwrap();
        assert!(matches!(third, LocalServer::Held { .. }));
        third.stop().await.unwrap();
    }

    #[tokio::test]
    async fn both_of_two_that_start_at_once_have_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &'static str| LocalServer::open(folder.path(), &[], name);
        let (a, b) = tokio::join!(open("a"), open("b"));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a.url(), b.url());
        let held = |server: &LocalServer| matches!(server, LocalServer::Held { .. });
        assert_ne!(held(&a), held(&b));
        b.stop().await.unwrap();
        a.stop().await.unwrap();
    }
}
