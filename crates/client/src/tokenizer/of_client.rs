//! Which tokenizer a client's model has.

use super::server_cache::ServerCache;
use super::{TokenizerSource, from_server};
use crate::connection::Connection;
use crate::hub::Hub;
use crate::rest::download::OnProgress;
use crate::training::BoxFuture;
use crate::{Error, SamplingClient, TrainingClient};
use std::fmt;
use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tinkrs_chat::Tokenizer;

/// A model whose tokenizer is wanted. Await it to load it.
#[must_use = "nothing is loaded until this is awaited"]
pub struct GetTokenizer {
    source: BoxFuture<Result<TokenizerSource, Error>>,
    connection: Arc<Connection>,
    cache: Option<PathBuf>,
    hub: Option<Hub>,
    on_progress: Option<OnProgress>,
}

impl TrainingClient {
    /// Loads the tokenizer of the model, as the server names it: from this machine, or else from the server, if that
    /// is `tinkrs serve`, or else from the Hugging Face Hub, as [`TokenizerSource::load`] does.
    ///
    /// # Errors
    /// If the server cannot be asked, or the tokenizer is neither on this machine nor on the server or the Hub.
    pub fn get_tokenizer(&self) -> GetTokenizer {
        let client = self.clone();
        GetTokenizer::new(self.connection(), async move {
            let info = client.get_info().await?;
            let name = info.model_data.model_name.or(info.model_name);
            let missing = || Error::answer("get_tokenizer", "no name of the model");
            let name = name.ok_or_else(missing)?;
            Ok(source(name, info.model_data.tokenizer_id))
        })
    }
}

impl SamplingClient {
    /// Loads the tokenizer of the model that this samples from: from this machine, or else from the server, if that
    /// is `tinkrs serve`, or else from the Hugging Face Hub, as [`TokenizerSource::load`] does.
    ///
    /// # Errors
    /// If the server cannot be asked, or the tokenizer is neither on this machine nor on the server or the Hub.
    pub fn get_tokenizer(&self) -> GetTokenizer {
        let client = self.clone();
        GetTokenizer::new(self.connection(), async move {
            let info = client.get_info().await?;
            Ok(source(info.base_model, info.tokenizer_id))
        })
    }
}

/// Takes the server's word for which tokenizer it is. A folder that a server names is on the server's machine,
/// which may be another one: then the model's name has to do.
fn source(model: String, tokenizer_id: Option<String>) -> TokenizerSource {
    let source = TokenizerSource::new(model);
    let is_elsewhere = |id: &str| Path::new(id).is_absolute() && !Path::new(id).exists();
    match tokenizer_id.filter(|id| !is_elsewhere(id)) {
        Some(id) => source.tokenizer_id(id),
        None => source,
    }
}

impl GetTokenizer {
    fn new(
        connection: Arc<Connection>,
        source: impl Future<Output = Result<TokenizerSource, Error>> + Send + 'static,
    ) -> Self {
        Self {
            source: Box::pin(source),
            connection,
            cache: None,
            hub: None,
            on_progress: None,
        }
    }

    /// Sets the folder for what the server sends. The default is [`TokenizerSource::server_cache`].
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Sets where a tokenizer comes from that neither this machine nor the server has. The default is
    /// [`Hub::from_env`].
    pub fn hub(mut self, hub: Hub) -> Self {
        self.hub = Some(hub);
        self
    }

    /// Sets who is told how far a download is.
    pub fn on_progress(mut self, on_progress: OnProgress) -> Self {
        self.on_progress = Some(on_progress);
        self
    }

    async fn load(self) -> Result<Arc<Tokenizer>, Error> {
        let mut source = self.source.await?;
        source.hub = self.hub;
        source.on_progress = self.on_progress;
        let here = source.clone();
        if let Some(tokenizer) = blocking(move || here.load_here()).await? {
            return Ok(tokenizer);
        }
        let cache = self.cache.or_else(TokenizerSource::server_cache);
        let folder = match cache.map(ServerCache::at) {
            Some(cache) => from_server::folder(&self.connection, &source.model, &cache).await?,
            None => None,
        };
        let source = match folder {
            Some(folder) => source.tokenizer_id(folder.display().to_string()),
            None => source,
        };
        blocking(move || source.load()).await
    }
}

/// Loads where it may take its time: a download, and then a second for a large vocabulary.
async fn blocking<T: Send + 'static>(
    load: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let loaded = tokio::task::spawn_blocking(load).await;
    // The loader does not panic, so only the end of the runtime can end it.
    loaded.unwrap_or(Err(Error::Closed {
        operation: "get_tokenizer",
    }))
}

impl IntoFuture for GetTokenizer {
    type Output = Result<Arc<Tokenizer>, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.load())
    }
}

impl fmt::Debug for GetTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetTokenizer")
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}
