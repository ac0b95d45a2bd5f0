use super::client::RestClient;
use crate::Error;
use crate::connection::call::Call;
use crate::training::BoxFuture;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use tinkrs_types::session::AccessScope;

/// A question about one thing, such as a run, that has been described but not asked. Await it to ask.
#[must_use = "nothing is asked until this is awaited"]
pub struct Scoped<T> {
    client: RestClient,
    call: Call,
    access: AccessScope,
    answer: PhantomData<fn() -> T>,
}

impl<T> Scoped<T> {
    pub(super) fn new(client: &RestClient, call: Call) -> Self {
        Self {
            client: client.clone(),
            call,
            access: AccessScope::Owned,
            answer: PhantomData,
        }
    }

    /// Sets among whose things to look. The default is [`AccessScope::Owned`].
    pub fn access_scope(mut self, access: AccessScope) -> Self {
        self.access = access;
        self
    }
}

impl<T> fmt::Debug for Scoped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoped")
            .field("operation", &self.call.operation)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for Scoped<T> {
    type Output = Result<T, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let call = self.call.query(scope(self.access));
        Box::pin(async move { self.client.json(call).await })
    }
}

pub(super) fn scope(access: AccessScope) -> [(&'static str, Cow<'static, str>); 1] {
    [("access_scope", access.name().into())]
}
