//! Which tokenizer a client's model has.

use super::TokenizerSource;
use crate::{Error, SamplingClient, TrainingClient};
use std::sync::Arc;
use tinkrs_chat::Tokenizer;

impl TrainingClient {
    /// Finds and loads the tokenizer of the model, as the server names it.
    ///
    /// # Errors
    /// If the server cannot be asked, or there is no such tokenizer on this machine.
    pub async fn get_tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        let info = self.get_info().await?;
        let name = info.model_data.model_name.or(info.model_name);
        let missing = || Error::answer("get_tokenizer", "no name of the model");
        let source = TokenizerSource::new(name.ok_or_else(missing)?);
        let source = match info.model_data.tokenizer_id {
            Some(id) => source.tokenizer_id(id),
            None => source,
        };
        load(source).await
    }
}

impl SamplingClient {
    /// Finds and loads the tokenizer of the model that this samples from.
    ///
    /// # Errors
    /// If the server cannot be asked, or there is no such tokenizer on this machine.
    pub async fn get_tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        load(TokenizerSource::new(self.get_base_model().await?)).await
    }
}

/// Loads where it may take its time: a large vocabulary takes a second.
async fn load(source: TokenizerSource) -> Result<Arc<Tokenizer>, Error> {
    let loaded = tokio::task::spawn_blocking(move || source.load()).await;
    // The loader does not panic, so only the end of the runtime can end it.
    loaded.unwrap_or(Err(Error::Closed {
        operation: "get_tokenizer",
    }))
}
