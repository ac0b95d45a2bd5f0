//! How a command ended, as its session on the server records it.

use std::time::Duration;

use tinkrs::{FinishReason, ServiceClient};

use crate::context::Context;
use crate::ctrl_c::CtrlC;
use crate::output::{self, Aborted, Stopped};

/// How long a command waits for the server to take note of its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of an error is told.
const DETAIL_CHARS: usize = 500;

/// What the server is told about the end of a session.
#[derive(Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) reason: FinishReason,
    detail: Option<String>,
}

impl Ending {
    /// The user has ended it.
    pub(crate) const INTERRUPTED: Self = Self {
        reason: FinishReason::Interrupted,
        detail: None,
    };

    /// Reads from its result how a command ended.
    pub(crate) fn of<T>(result: &anyhow::Result<T>) -> Self {
        let success = Self {
            reason: FinishReason::Success,
            detail: None,
        };
        match result {
            Ok(_) => success,
            // `head` has seen enough.
            Err(error) if output::is_closed_pipe(error) => success,
            Err(error) if error.is::<Stopped>() || error.is::<Aborted>() => Self::INTERRUPTED,
            Err(error) => Self {
                reason: FinishReason::Errored,
                detail: Some(output::one_line(error).chars().take(DETAIL_CHARS).collect()),
            },
        }
    }

    /// Tells the server, if there is a session at all. A server that cannot be told is no reason to fail:
    /// it notices when nothing more is heard of the client.
    pub(crate) async fn tell(self, service: &ServiceClient) {
        if service.session_id().is_none() {
            return;
        }
        let Ok(mut ctrl_c) = CtrlC::listen() else {
            return;
        };
        let close = service.close(self.reason, self.detail.as_deref());
        let told = tokio::select! {
            // Who presses Ctrl-C now wants no more of it.
            () = ctrl_c.pressed() => return,
            told = tokio::time::timeout(CLOSE_TIMEOUT, close) => told,
        };
        match told {
            Ok(Ok(())) => {}
            Ok(Err(error)) if matches!(error.status(), Some(404 | 405 | 501)) => {
                output::note("the server does not record how a session ends");
            }
            Ok(Err(error)) => {
                output::note(format_args!(
                    "could not tell the server that the session has ended: {}",
                    output::one_line(&error.into())
                ));
            }
            Err(_) => output::note("the server did not confirm the end of the session"),
        }
    }
}

/// Does something in a session until it is done or the user presses Ctrl-C, and tells the server how it
/// ended.
pub(crate) async fn in_session<T>(
    ctx: &Context,
    service: &ServiceClient,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let _listening = ctx.listening_for_ctrl_c();
    let mut ctrl_c = CtrlC::listen()?;
    let result = tokio::select! {
        biased;
        () = ctrl_c.pressed() => Err(Aborted.into()),
        result = work => result,
    };
    Ending::of(&result).tell(service).await;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_result_says_how_the_session_ended() {
        let ending = |error: anyhow::Error| Ending::of::<()>(&Err(error));
        assert_eq!(Ending::of(&Ok(1)).reason, FinishReason::Success);
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(ending(pipe.into()).reason, FinishReason::Success);
        assert_eq!(ending(Aborted.into()), Ending::INTERRUPTED);
        let stopped = Stopped("stopped after 3 steps".to_owned());
        assert_eq!(ending(stopped.into()), Ending::INTERRUPTED);
        let error = anyhow!("connection refused").context("could not open the model");
        let failed = ending(error.context(output::Hint("start a server")));
        assert_eq!(failed.reason, FinishReason::Errored);
        let detail = "could not open the model: connection refused";
        assert_eq!(failed.detail.as_deref(), Some(detail));
        let long = ending(anyhow!("ä".repeat(2 * DETAIL_CHARS)))
            .detail
            .unwrap();
        assert_eq!(long.chars().count(), DETAIL_CHARS);
    }
}
