//! Where the Hugging Face Hub is, and the user's token for it.

use std::path::PathBuf;

use tinkrs::auth::Secret;
use tinkrs_chat::HubFolders;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the Hub's address, without a slash at the end: `HF_ENDPOINT`, or the one everybody uses.
pub(crate) fn endpoint() -> String {
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    endpoint.trim_end_matches('/').to_owned()
}

/// Returns the user's token: `HF_TOKEN`, or the one that the Hub's tool has stored.
pub(crate) fn token() -> Option<Secret> {
    let file = || {
        let path = variable("HF_TOKEN_PATH").map(PathBuf::from);
        std::fs::read_to_string(path.or_else(|| Some(HubFolders::from_env().home?.join("token")))?)
            .ok()
    };
    let token = variable("HF_TOKEN").or_else(file)?;
    let token = token.trim();
    (!token.is_empty()).then(|| Secret::from(token))
}
