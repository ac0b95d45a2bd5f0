//! Where the Hugging Face Hub is, and what its own tool keeps on this machine.

use std::path::PathBuf;

use tinkrs::auth::Secret;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the Hub's address, without a slash at the end: `HF_ENDPOINT`, or the one everybody uses.
pub(crate) fn endpoint() -> String {
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    endpoint.trim_end_matches('/').to_owned()
}

/// Returns the folder of the Hub's tool.
fn home() -> Option<PathBuf> {
    let cache = || {
        let set = variable("XDG_CACHE_HOME").map(PathBuf::from);
        set.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
    };
    let set = variable("HF_HOME").map(PathBuf::from);
    set.or_else(|| Some(cache()?.join("huggingface")))
}

/// Returns the folder of what the Hub's tool has downloaded.
pub(crate) fn cache() -> Option<PathBuf> {
    let set = variable("HF_HUB_CACHE").map(PathBuf::from);
    set.or_else(|| Some(home()?.join("hub")))
}

/// Returns the user's token: `HF_TOKEN`, or the one that the Hub's tool has stored.
pub(crate) fn token() -> Option<Secret> {
    let file = || {
        let path = variable("HF_TOKEN_PATH").map(PathBuf::from);
        std::fs::read_to_string(path.or_else(|| Some(home()?.join("token")))?).ok()
    };
    let token = variable("HF_TOKEN").or_else(file)?;
    let token = token.trim();
    (!token.is_empty()).then(|| Secret::from(token))
}
