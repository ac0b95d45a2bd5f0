//! Downloading a tokenizer into the hub's cache.

use super::{Resolved, TokenizerError};
use crate::hub::{Hub, HubError, RemoteFile, Repository, is_repository};
use crate::rest::download::OnProgress;
use std::path::PathBuf;

/// What a tokenizer is read from: one of these.
const MAIN: [&str; 2] = ["tokenizer.json", "tiktoken.model"];

/// What may belong to it: settings, special tokens, the chat template.
const BESIDES: [&str; 5] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Downloads a tokenizer, and returns its file. `missing` is the error if it cannot be on the hub, or may not be
/// asked for.
///
/// It works for as long as it takes, on a thread of its own: the caller's may belong to a runtime.
pub(super) fn fetch(
    hub: &Hub,
    wanted: &Resolved,
    on_progress: Option<OnProgress>,
    missing: TokenizerError,
) -> Result<PathBuf, TokenizerError> {
    let Some(cache) = hub.cache().filter(|_| is_repository(&wanted.id)) else {
        return Err(missing);
    };
    if hub.is_offline() {
        return Err(TokenizerError::Offline(Box::new(missing)));
    }
    let fetch = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|source| HubError::Cache {
            path: cache.clone(),
            source,
        })?;
        let (repo, revision) = (&wanted.id, wanted.revision);
        runtime.block_on(hub.fetch_into_cache(cache, repo, revision, needed, on_progress))
    };
    let fetched = std::thread::scope(|scope| match scope.spawn(fetch).join() {
        Ok(fetched) => fetched,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    fetched.map_err(|source| TokenizerError::Hub {
        id: wanted.id.clone(),
        source: Box::new(source),
    })
}

/// Picks the files of a tokenizer. The one that it is looked for by is the last, so that it is never alone.
fn needed(repository: &Repository) -> Result<Vec<RemoteFile>, HubError> {
    let mut files = Vec::new();
    for name in BESIDES {
        files.extend(repository.file(name)?);
    }
    for name in MAIN {
        if let Some(main) = repository.file(name)? {
            files.push(main);
            return Ok(files);
        }
    }
    Err(HubError::Missing {
        repo: repository.name().to_owned(),
        what: "tokenizer.json or tiktoken.model",
    })
}
