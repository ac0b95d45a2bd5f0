//! The tokenizer and the chat template of a model that another machine serves.

use std::path::{Path, PathBuf};

use tinkrs::{ServiceClient, TokenizerSource};

use crate::hint;

/// Asks a server for the tokenizer and the chat template of one of its models, and returns the folder that has them
/// now: in the user's cache, or where that cannot be written below `instead`. The hosted service is not asked;
/// other servers may not know the question.
pub(crate) async fn fetch(
    service: &ServiceClient,
    model: &str,
    instead: &Path,
) -> anyhow::Result<Option<PathBuf>> {
    let rest = service.create_rest_client();
    let cache = TokenizerSource::server_cache();
    let cache = cache.filter(|cache| std::fs::create_dir_all(cache).is_ok());
    let fetched = match &cache {
        Some(cache) => match rest.fetch_tokenizer(model, cache).await {
            // The disk is full, or the folder is not ours.
            Err(tinkrs::Error::Tokenizer { .. }) => rest.fetch_tokenizer(model, instead).await,
            fetched => fetched,
        },
        None => rest.fetch_tokenizer(model, instead).await,
    };
    fetched.map_err(|error| {
        let headline = format!("could not get the tokenizer of `{model}` from the server");
        hint::explain(error, headline)
    })
}
