use crate::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// The result of a submitted operation. Await it now or later.
///
/// The work goes on in a task of the client's own, whether or not anybody awaits this.
///
/// **Dropping it** means different things. A training operation goes on: its place in the
/// model's order is taken, and later operations build on it. A sample is given up: the client
/// stops waiting, and tells the server to stop too if the server takes such requests.
#[derive(Debug)]
#[must_use = "the result, and any error, is lost unless this is awaited"]
pub struct Pending<T> {
    operation: &'static str,
    receiver: oneshot::Receiver<Result<T, Error>>,
}

impl<T> Pending<T> {
    /// Makes a pending result and the end that fulfils it.
    pub(crate) fn new(operation: &'static str) -> (oneshot::Sender<Result<T, Error>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (
            sender,
            Self {
                operation,
                receiver,
            },
        )
    }

    /// Makes a result that is there already.
    pub(crate) fn ready(operation: &'static str, result: Result<T, Error>) -> Self {
        let (sender, pending) = Self::new(operation);
        // Sending cannot fail: `pending` holds the receiver.
        let _ = sender.send(result);
        pending
    }
}

impl<T> Pending<T> {
    /// Returns whether the result is there: awaiting it then takes no time.
    pub fn is_done(&self) -> bool {
        !self.receiver.is_empty() || self.receiver.is_terminated()
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = self.operation;
        let result = ready!(Pin::new(&mut self.receiver).poll(cx));
        // The sender is only lost with the task, and the task only with its runtime.
        Poll::Ready(result.unwrap_or(Err(Error::Closed { operation })))
    }
}
