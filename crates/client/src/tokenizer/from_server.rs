//! The tokenizer of a model as its server has it.
//!
//! `tinkrs serve` sends the files of a tokenizer and the chat template to those who ask, so that its clients need
//! neither the model's folder nor the Hub. They stay in a cache on this machine; a server that still has the same
//! does not send them again. The hosted service is never asked: it has no such endpoint.

use super::failure;
use super::server_cache::{Files, ServerCache, digest_of};
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::rest::RestClient;
use crate::{Error, server_url};
use std::path::{Path, PathBuf};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::tokenizer::{FILES, TokenizerFiles};

/// The longest response: texts that are written as JSON take somewhat more bytes than in their files.
const MAX_RESPONSE_BYTES: usize = 128 << 20;
/// What servers answer that have no such endpoint, or no tokenizer of the model.
const ABSENT: [Option<u16>; 3] = [Some(404), Some(405), Some(501)];

impl RestClient {
    /// Asks the server for the tokenizer and the chat template of one of its models, and returns the folder that
    /// has them now. It is below `cache`, from which they are taken again while the server has the same ones.
    ///
    /// Returns nothing if the server has no such endpoint, which is one of `tinkrs serve`, or no tokenizer of the
    /// model. The hosted service is not asked.
    ///
    /// # Errors
    /// If the server cannot be asked or has no such model, if what it sends is no tokenizer, or if it cannot be
    /// written to the cache.
    pub async fn fetch_tokenizer(
        &self,
        model: &str,
        cache: &Path,
    ) -> Result<Option<PathBuf>, Error> {
        let connection = self.service().connection(endpoint::TOKENIZER.name).await?;
        folder(&connection, model, &ServerCache::at(cache)).await
    }
}

/// Asks as [`RestClient::fetch_tokenizer`] does.
pub(super) async fn folder(
    connection: &Connection,
    model: &str,
    cache: &ServerCache,
) -> Result<Option<PathBuf>, Error> {
    let server = &connection.address.base_url;
    if server_url::is_hosted(server) {
        return Ok(None);
    }
    let known = cache.known(server, model);
    let digest = known.as_deref().map(|digest| ("digest", digest.into()));
    let query = [("model", model.into())].into_iter().chain(digest);
    let call = Call::new(&endpoint::TOKENIZER)
        .query(query)
        .max_response_bytes(MAX_RESPONSE_BYTES);
    let sent: TokenizerFiles = match connection.json(call).await {
        Err(error) if ABSENT.contains(&error.status()) => return Ok(None),
        sent => sent?,
    };
    let wrong = |problem: String| Error::answer(endpoint::TOKENIZER.name, problem);
    let Some(files) = sent.files else {
        let folder = known.filter(|known| *known == sent.digest);
        let folder = folder.and_then(|known| cache.folder(&known));
        let missing = || wrong("nothing was sent, and nothing of it is here".to_owned());
        return folder.map(Some).ok_or_else(missing);
    };
    check(&files, &sent.digest).map_err(wrong)?;
    let kept = cache.keep(server, model, &sent.digest, &files);
    kept.map(Some).map_err(|error| failure(model, error))
}

/// Refuses what is not the files of a tokenizer.
fn check(files: &Files, digest: &str) -> Result<(), String> {
    let strange = files.keys().find(|name| !FILES.contains(&name.as_str()));
    if let Some(name) = strange {
        return Err(format!(
            "`files`: found `{name}`, expected {}",
            FILES.join(", ")
        ));
    }
    let main = ["tokenizer.json", "tiktoken.model"];
    if !main.iter().any(|name| files.contains_key(*name)) {
        return Err(format!("`files`: found neither {}", main.join(" nor ")));
    }
    let found = digest_of(files);
    if found != digest {
        return Err(format!("`digest`: found {digest}, the files have {found}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_of_a_tokenizer_with_their_own_digest_are_taken() {
        let files = |names: &[&str]| -> Files {
            let files = names
                .iter()
                .map(|name| ((*name).to_owned(), "{}".to_owned()));
            files.collect()
        };
        let good = files(&["tokenizer.json", "chat_template.jinja"]);
        check(&good, &digest_of(&good)).unwrap();
        for (names, problem) in [
            (
                &["tokenizer.json", "../../.bashrc"][..],
                "found `../../.bashrc`",
            ),
            (&["tokenizer.json", "config.json"], "found `config.json`"),
            (&["chat_template.jinja"], "found neither tokenizer.json"),
            (&[], "found neither tokenizer.json"),
        ] {
            let files = files(names);
            let error = check(&files, &digest_of(&files)).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let error = check(&good, "0").unwrap_err();
        assert!(error.contains("`digest`: found 0"), "{error}");
    }
}
