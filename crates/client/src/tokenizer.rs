//! The tokenizer that belongs to a model.
//!
//! [`TokenizerSource`] finds and loads it: which one it is follows from the model's name
//! (`resolve.rs`), where it lies from the environment (`locate.rs`), and each is loaded once in a
//! process however many threads want it (`cache.rs`). One that is not on this machine comes from the model's
//! server, if that is not the hosted one (`from_server.rs`), or else it is downloaded into the cache of the hub's
//! tools (`download.rs`).

mod cache;
mod download;
mod from_server;
mod locate;
mod of_client;
mod resolve;
mod server_cache;

use crate::hub::{Hub, HubError};
use crate::rest::download::OnProgress;
use crate::{BoxError, Error};
use cache::Cache;
use locate::Folders;
pub use of_client::GetTokenizer;
use resolve::{Resolved, resolve};
use server_cache::ServerCache;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tinkrs_chat::Tokenizer;

/// Says which tokenizer to load, and from where.
///
/// ```no_run
/// use tinkrs::{ModelInput, TokenizerSource};
///
/// let tokenizer = TokenizerSource::new("Qwen/Qwen3-8B").load()?;
/// let prompt = ModelInput::from_tokens(tokenizer.encode("The weather today is")?);
/// # Ok::<(), tinkrs::Error>(())
/// ```
#[derive(Clone)]
pub struct TokenizerSource {
    model: String,
    tokenizer_id: Option<String>,
    folder: Option<PathBuf>,
    hub: Option<Hub>,
    on_progress: Option<OnProgress>,
}

impl TokenizerSource {
    /// Asks for the tokenizer of a model, by the model's name or the path of its folder.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            tokenizer_id: None,
            folder: None,
            hub: None,
            on_progress: None,
        }
    }

    /// Names the tokenizer, as the server does for a model that does not use its own.
    #[must_use]
    pub fn tokenizer_id(mut self, id: impl Into<String>) -> Self {
        self.tokenizer_id = Some(id.into());
        self
    }

    /// Looks in this folder first, for `org/name/tokenizer.json` and `name/tokenizer.json`.
    ///
    /// The default is `TINKER_TOKENIZERS`, if that is set.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets where a tokenizer that is not on this machine comes from, and which cache it goes into.
    ///
    /// The default is [`Hub::from_env`].
    #[must_use]
    pub fn hub(mut self, hub: Hub) -> Self {
        self.hub = Some(hub);
        self
    }

    /// Sets who is told how far a download is.
    #[must_use]
    pub fn on_progress(mut self, on_progress: OnProgress) -> Self {
        self.on_progress = Some(on_progress);
        self
    }

    /// Loads the tokenizer, or returns the one that was loaded before.
    ///
    /// It comes from the folder, from the cache of the hub's tools, or else from the hub itself: its files are
    /// downloaded into that cache, each checked against the digest that the hub has, unless `HF_HUB_OFFLINE`
    /// is set. `tokenizer.json` is read, and `tiktoken.model` with its `tokenizer_config.json`.
    ///
    /// The process keeps the 32 tokenizers that were wanted last. Loading reads and parses a file
    /// of several megabytes: in async code, do it on a thread for blocking work.
    ///
    /// # Errors
    /// If there is no such tokenizer, or it cannot be downloaded. The source of the error says where it was
    /// looked for and what to do.
    pub fn load(&self) -> Result<Arc<Tokenizer>, Error> {
        self.load_from(&TOKENIZERS, |name| std::env::var_os(name))
    }

    /// Returns the folder in which tokenizers are kept that servers have sent: `tinkrs/tokenizers` in the user's
    /// folder for caches, if the environment says where that is.
    #[must_use]
    pub fn server_cache() -> Option<PathBuf> {
        let cache = ServerCache::from_variables(|name| std::env::var_os(name));
        cache.map(|cache| cache.path().to_owned())
    }

    /// Loads the tokenizer as [`load`](Self::load) does, if it is on this machine.
    fn load_here(&self) -> Result<Option<Arc<Tokenizer>>, Error> {
        let missing = |_: &Hub, _: &Resolved, missing| Err(missing);
        let var = |name: &str| std::env::var_os(name);
        match self.load_or(&TOKENIZERS, var, missing) {
            Ok(tokenizer) => Ok(Some(tokenizer)),
            Err(TokenizerError::Unreadable(error)) => Err(failure(&self.model, error)),
            Err(_) => Ok(None),
        }
    }

    fn load_from(
        &self,
        cache: &Cache<Key, Tokenizer>,
        var: impl Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Result<Arc<Tokenizer>, Error> {
        let fetch = |hub: &Hub, wanted: &Resolved, missing| {
            download::fetch(hub, wanted, self.on_progress.clone(), missing)
        };
        let loaded = self.load_or(cache, var, fetch);
        loaded.map_err(|source| failure(&self.model, source))
    }

    /// Loads the tokenizer. One that is not on this machine comes from `elsewhere`.
    fn load_or(
        &self,
        cache: &Cache<Key, Tokenizer>,
        var: impl Fn(&str) -> Option<std::ffi::OsString>,
        elsewhere: impl Fn(&Hub, &Resolved, TokenizerError) -> Result<PathBuf, TokenizerError>,
    ) -> Result<Arc<Tokenizer>, TokenizerError> {
        let set = || var("TINKER_TOKENIZERS").filter(|folder| !folder.is_empty());
        let own = self.folder.clone().or_else(|| set().map(PathBuf::from));
        let hub = self.hub.clone().unwrap_or_else(|| Hub::from_variables(var));
        let cached = hub.cache().cloned();
        let folders = Folders { own, hub: cached };
        let wanted = resolve(&self.model, self.tokenizer_id.as_deref())?;
        let key = (wanted.id.clone(), folders.own.clone(), folders.hub.clone());
        cache.get_or_make(key, || {
            let file = match folders.locate(&wanted) {
                Err(missing @ TokenizerError::NotFound { .. }) => {
                    elsewhere(&hub, &wanted, missing)?
                }
                found => found?,
            };
            Ok(Tokenizer::from_path(file)?)
        })
    }
}

impl fmt::Debug for TokenizerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenizerSource")
            .field("model", &self.model)
            .field("tokenizer_id", &self.tokenizer_id)
            .field("folder", &self.folder)
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}

/// A resolved id, and the caller's folder and the cache, in which the same id may be another tokenizer.
type Key = (String, Option<PathBuf>, Option<PathBuf>);

static TOKENIZERS: Cache<Key, Tokenizer> = Cache::new(32);

fn failure(model: impl Into<String>, source: impl Into<BoxError>) -> Error {
    Error::Tokenizer {
        model: model.into(),
        source: source.into(),
    }
}

/// Why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenizerError {
    /// It is only in the vendor's own package.
    #[error(
        "`{id}` comes with its own renderer instead of a tokenizer: use the vendor's \
         `tml-renderers` package, and send the tokens that it makes"
    )]
    Vendor { id: String },

    /// A name that no tokenizer has.
    #[error("`{id}` is not the id of a tokenizer, such as `org/name`, nor a path")]
    NotAnId { id: String },

    /// It is not on this machine.
    #[error("`{id}` is not on this machine ({}): {}", looked(.places), advice(.id, .revision))]
    NotFound {
        id: String,
        revision: Option<&'static str>,
        places: Vec<PathBuf>,
    },

    /// It is not on this machine, and the hub may not be asked.
    #[error("the hub is not asked, because HF_HUB_OFFLINE is set: {0}")]
    Offline(Box<Self>),

    /// It could not be downloaded.
    #[error("`{id}` is not on this machine and could not be downloaded")]
    Hub { id: String, source: Box<HubError> },

    /// The file is there but cannot be used.
    #[error(transparent)]
    Unreadable(#[from] tinkrs_chat::Error),
}

fn looked(places: &[PathBuf]) -> String {
    let places = places.iter().map(|place| place.display().to_string());
    match places.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "there is no folder to look in".to_owned(),
        places => format!("looked for {places}"),
    }
}

fn advice(id: &str, revision: &Option<&'static str>) -> String {
    let revision = revision.map_or(String::new(), |revision| format!(" --revision {revision}"));
    format!(
        "get it with `hf download {id}{revision} --include '*tok*'`, or put its \
         `tokenizer.json` into a folder and name that in `TINKER_TOKENIZERS`"
    )
}

#[cfg(test)]
mod tests;
