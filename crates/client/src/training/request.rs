use crate::future::Pending;
use crate::{Error, TrainingClient};
use std::future::{Future, IntoFuture};
use std::pin::Pin;

/// A future in a box, as awaiting a request gives it.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a [`Request`] asks for.
pub trait Operation: Send + 'static {
    /// What it gives.
    type Output: Send + 'static;

    #[doc(hidden)]
    fn submit(self, client: &TrainingClient) -> Pending<Self::Output>;
}

/// A request that has been described but not sent.
///
/// Awaiting it submits it and waits for its result. To keep the server busy,
/// [`submit`](Self::submit) it now and await the [`Pending`] result later.
#[derive(Clone, Debug)]
#[must_use = "requests do nothing until awaited or submitted"]
pub struct Request<O> {
    pub(crate) client: TrainingClient,
    pub(crate) operation: O,
}

impl<O: Operation> Request<O> {
    /// Takes the next place in the model's order and hands the request to the client's own task.
    ///
    /// This is a plain function and returns at once. Requests of one client run in the order of
    /// these calls. What is wrong with the arguments is found before anything is sent, and
    /// comes as the result.
    pub fn submit(self) -> Pending<O::Output> {
        self.operation.submit(&self.client)
    }
}

impl<O: Operation> IntoFuture for Request<O> {
    type Output = Result<O::Output, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.submit().await })
    }
}
