//! Accepting a request once, however often it is sent.
//!
//! A client repeats a request whose reply it did not get, so each request that changes something has
//! a key: a sequence id, or an idempotency key. [`Server::accept_once`] is the only way in:
//!
//! 1. under the registry's lock: was there a request with this key? The same one gets the reply that
//!    the first one got; another one is refused;
//! 2. still under the lock, a new request claims its key, so that no repeat can come in between, and
//!    what has to be stored is sent to the store;
//! 3. when that is durable, the request is committed (its operation is queued, its checkpoint is
//!    listed) and its reply is given; if the disk refuses it, the claim is rolled back, and a repeat
//!    starts from nothing.
//!
//! From the second step on, nothing depends on the connection: if the client hangs up, the request is
//! accepted or rolled back all the same.
//!
//! Invariant: a reply is given only when what it promises is durable, to a repeat as to the first.

use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_types::RequestId;

use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::intake::Held;
use crate::registry::{Promised, Registry, in_milliseconds};
use crate::results::{OperationResult, Responder};
use crate::store::{Change, Digest, NewRequest, WriteError};

/// A request that is accepted once. All its methods are called under the registry's lock.
pub(crate) trait AcceptOnce: Send + Sized + 'static {
    /// The reply, which is the same for every repeat.
    type Reply: PartialEq + Send + 'static;
    /// A key that was claimed, and what follows from it.
    type Claimed: Claimed<Reply = Self::Reply>;

    /// Checks that requests of this kind are possible now, for a repeat as for a new one.
    fn check(&self, _server: &Server, _registry: &mut Registry) -> Result<(), ApiError> {
        Ok(())
    }

    /// Finds the reply to the same request, if it came before. Another request with the same key is
    /// an error.
    fn seen(
        &self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<Option<Self::Reply>, ApiError>;

    /// Claims the key of a new request, and returns what has to be stored.
    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, Self::Claimed), ApiError>;
}

/// A request whose key is claimed. It is either committed or rolled back, under the registry's lock.
pub(crate) trait Claimed: Send + 'static {
    /// As [`AcceptOnce::Reply`].
    type Reply;

    /// Does what the request asks for, now that it is stored.
    fn commit(self, server: &Server, registry: &mut Registry) -> Result<Self::Reply, ApiError>;

    /// Gives the key back: nothing was stored.
    fn roll_back(self, server: &Server, registry: &mut Registry);
}

/// A request whose key was looked up.
enum Begun<R: AcceptOnce, W> {
    /// It was accepted before, with this reply.
    Seen(R, R::Reply),
    /// Its key is claimed, and this completes when it is stored.
    New(R::Claimed, W),
}

impl Server {
    /// Accepts a request, unless it was accepted before; then it gets the same reply. Dropping the
    /// future does not take the request back.
    pub(crate) async fn accept_once<R: AcceptOnce>(
        &self,
        request: R,
    ) -> Result<R::Reply, ApiError> {
        let (claimed, written) = match self.begin(request)? {
            Begun::Seen(request, reply) => {
                let seen = move || request.seen(self, &mut self.registry());
                return self.confirm(reply, seen).await;
            }
            Begun::New(claimed, written) => (claimed, written),
        };
        let server = self.clone();
        let accepted = tokio::spawn(async move {
            let written = written.await;
            let mut registry = server.registry();
            match written {
                Ok(()) => claimed.commit(&server, &mut registry),
                Err(error) => {
                    claimed.roll_back(&server, &mut registry);
                    Err(error.into())
                }
            }
        });
        let accepted = accepted.await;
        accepted.map_err(|_| ApiError::unavailable("the server is stopping"))?
    }

    /// Looks for the first request, and claims the key if there was none.
    fn begin<R: AcceptOnce>(
        &self,
        request: R,
    ) -> Result<Begun<R, impl Future<Output = Result<(), WriteError>> + use<R>>, ApiError> {
        let mut registry = self.registry();
        request.check(self, &mut registry)?;
        if let Some(reply) = request.seen(self, &mut registry)? {
            return Ok(Begun::Seen(request, reply));
        }
        let (change, claimed) = request.claim(self, &mut registry)?;
        // Sent under the lock: what a repeat sends to the store comes after it.
        let written = self.shared().store.write(change);
        Ok(Begun::New(claimed, written))
    }

    /// Finds the reply to a request that was accepted before.
    pub(crate) async fn accepted_before<R: AcceptOnce>(
        &self,
        request: &R,
    ) -> Result<Option<R::Reply>, ApiError> {
        let reply = {
            let mut registry = self.registry();
            request.check(self, &mut registry)?;
            request.seen(self, &mut registry)?
        };
        match reply {
            Some(reply) => {
                let seen = || request.seen(self, &mut self.registry());
                self.confirm(reply, seen).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Waits until the first request with a key is durable.
    async fn confirm<T: PartialEq>(
        &self,
        reply: T,
        seen: impl FnOnce() -> Result<Option<T>, ApiError>,
    ) -> Result<T, ApiError> {
        self.shared().store.write(Change::Nothing).await?;
        match seen()? {
            Some(first) if first == reply => Ok(reply),
            _ => Err(ApiError::unavailable(
                "the first request with this key could not be stored",
            )),
        }
    }
}

/// A request that is promised a result, as the journal keeps it.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) owner: Owner,
    /// What kind of request it is, in the journal and in traces.
    pub(crate) kind: &'static str,
    /// The run, sampler or session that the sequence id belongs to.
    pub(crate) subject: String,
    /// `None` for a request that has no place in an order, and cannot be told from another one.
    pub(crate) seq_id: Option<i64>,
    /// The seed of what is drawn by chance.
    pub(crate) seed: u64,
    pub(crate) digest: Digest,
    pub(crate) accepted: Timestamp,
    pub(crate) body: Bytes,
    /// The memory of the body, until it is stored.
    pub(crate) held: Held,
}

impl Submission {
    pub(crate) fn new(owner: Owner, kind: &'static str, subject: String, body: Bytes) -> Self {
        Self {
            owner,
            kind,
            subject,
            seq_id: None,
            seed: 0,
            digest: digest(&body),
            accepted: in_milliseconds(Timestamp::now()),
            body,
            held: Held::default(),
        }
    }

    /// Returns the id of the first request, if there was one and this is the same.
    pub(crate) fn repeats(&self, first: Option<&Promised>) -> Result<Option<RequestId>, ApiError> {
        match first {
            None => Ok(None),
            Some(first) if first.digest == self.digest => Ok(Some(first.id.clone())),
            // Not 409: the official client repeats that for minutes, and no repeat can help.
            Some(_) => Err(ApiError::bad_request(format!(
                "`seq_id`: {} was used for a request with another body",
                self.seq_id.unwrap_or_default()
            ))),
        }
    }

    /// Describes the promise that is given.
    pub(crate) fn promised(&self, responder: &Responder) -> Promised {
        Promised {
            id: responder.id().clone(),
            digest: self.digest,
        }
    }

    /// Returns what has to be stored: the request, its result if that is known at once, and what comes
    /// into being with it.
    pub(crate) fn journal(
        &self,
        responder: &Responder,
        outcome: Option<OperationResult>,
        also: Vec<Change>,
    ) -> Change {
        responder.describe(self);
        Change::Request(Box::new(NewRequest {
            id: responder.id().clone(),
            owner: self.owner,
            kind: self.kind,
            subject: self.subject.clone(),
            seq_id: self.seq_id,
            digest: self.digest,
            seed: self.seed,
            accepted: self.accepted,
            body: self.body.clone(),
            outcome,
            also,
        }))
    }
}

/// Returns the SHA-256 of a body.
pub(crate) fn digest(body: &[u8]) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, body);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}
