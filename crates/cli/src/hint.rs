//! What to try when the server, or the way to it, says no.

use tinkrs::{CheckpointRef, Error};

use crate::output::Hint;

/// Says what could not be done and, where we know it, what to do about it.
pub(crate) fn explain(error: Error, headline: String) -> anyhow::Error {
    let hint = hint(&error);
    let error = anyhow::Error::new(error).context(headline);
    match hint {
        Some(hint) => error.context(Hint(hint)),
        None => error,
    }
}

/// Says that a checkpoint could not be found, and where to look.
pub(crate) fn no_checkpoint(error: Error, checkpoint: &CheckpointRef) -> anyhow::Error {
    if error.status() == Some(404) && checkpoint.path().is_none() {
        let problem = anyhow::anyhow!("there is no run `{}`", checkpoint.run());
        return problem.context(Hint(
            "`tinkrs run list` shows the runs and their names, `tinkrs checkpoint list` what they have saved",
        ));
    }
    explain(error, format!("could not find the checkpoint {checkpoint}"))
}

fn hint(error: &Error) -> Option<&'static str> {
    match error {
        Error::Credential(_) => Some("log in with `tinkrs auth login`, or set TINKER_API_KEY"),
        Error::Setup { .. } => Some("check TINKER_BASE_URL; `tinkrs doctor` shows what is used"),
        Error::Unreachable { .. } => Some(
            "check TINKER_BASE_URL and the network with `tinkrs doctor`, or start a local server with `tinkrs serve`",
        ),
        Error::Timeout { .. } => Some("the server is slow or stuck: try again later"),
        Error::Download(_) => {
            Some("try again; links to files last about an hour, and need room on the disk")
        }
        _ => error.status().and_then(for_status),
    }
}

fn for_status(status: u16) -> Option<&'static str> {
    match status {
        401 => Some("the key is wrong or revoked: see `tinkrs auth status`, then log in again"),
        402 => Some("set up or top up billing in the console, then try again"),
        403 => Some("this account may not do that: ask an administrator, or use another key"),
        404 => Some(
            "check the id: `list` of `tinkrs run`, `checkpoint` and `session` shows what this account has",
        ),
        429 => Some("too many requests: wait a moment and try again"),
        500.. => Some("the server failed: try again later"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_common_refusal_has_a_way_out() {
        for status in [401, 402, 403, 404, 429, 500, 503] {
            assert!(for_status(status).is_some(), "{status}");
        }
        // The server's own message says what is wrong with these.
        for status in [400, 409, 422] {
            assert_eq!(for_status(status), None, "{status}");
        }
    }
}
