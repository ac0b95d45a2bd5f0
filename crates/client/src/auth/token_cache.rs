//! A short-lived token that is there when a request needs it.
//!
//! A request that finds more than a minute left uses the token as it is. Otherwise it exchanges
//! the credential for a new one first; requests that come meanwhile wait for that one exchange.
//! So that no request has to wait in the ordinary case, a background task exchanges five
//! minutes before the end. [`freshness`] is the rule; the rest is the loop around it.
//!
//! Invariants: at most one exchange is under way, and a failed exchange never takes away a
//! token that was there before.

use super::claims::Claims;
use super::{AuthError, Secret};
use crate::lock;
use http::header::HeaderValue;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::AbortHandle;

/// How long before the end the background task exchanges.
const LEAD_SECONDS: i64 = 300;
/// How long before the end a request exchanges first.
const LAST_SECONDS: i64 = 60;
/// How long the background task waits at least: after failures, for tokens without an end, and
/// for those that live so briefly that they would be exchanged without pause.
const RETRY: Duration = Duration::from_secs(60);

/// What to do about a token's age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Use it.
    Fresh,
    /// Use it, and exchange in the background.
    RefreshSoon,
    /// Exchange before using it.
    RefreshNow,
}

/// Judges a token by the time it has left. One whose end is unknown counts as expired.
pub(super) fn freshness(now: i64, expiry: Option<i64>) -> Freshness {
    match expiry.map(|expiry| expiry.saturating_sub(now)) {
        Some(left) if left > LEAD_SECONDS => Freshness::Fresh,
        Some(left) if left > LAST_SECONDS => Freshness::RefreshSoon,
        _ => Freshness::RefreshNow,
    }
}

/// How long the background task sleeps before it looks at the token again.
fn nap(now: i64, expiry: Option<i64>) -> Duration {
    let until_lead = expiry.map_or(0, |expiry| {
        expiry.saturating_sub(LEAD_SECONDS).saturating_sub(now)
    });
    Duration::from_secs(until_lead.try_into().unwrap_or(0)).max(RETRY)
}

/// A token, ready to be sent.
pub(crate) struct Token {
    secret: Secret,
    header: HeaderValue,
    expiry: Option<i64>,
}

impl Token {
    fn new(secret: Secret) -> Result<Self, AuthError> {
        Ok(Self {
            header: secret.to_header()?,
            expiry: Claims::read(&secret).and_then(|claims| claims.expiry()),
            secret,
        })
    }

    /// Returns the header that carries the token.
    pub(crate) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// Returns the token itself.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// Holds the current token and exchanges it in time.
///
/// Clones share the token. The background task begins with the first token and ends with
/// [`close`](Self::close), or when the last clone is dropped. The closure must not hold a clone
/// of the cache, or that never happens.
pub(crate) struct TokenCache<E> {
    shared: Arc<Shared<E>>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Shared<E> {
    exchange: Box<dyn Fn() -> BoxFuture<Result<Secret, E>> + Send + Sync>,
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
    /// Read by every request, written once an hour or so: readers never wait for an exchange.
    current: RwLock<Option<Arc<Token>>>,
    /// Held during an exchange.
    exchanging: tokio::sync::Mutex<()>,
    /// How many exchanges have ended, well or not.
    exchanges: AtomicU64,
    background: Mutex<Background>,
}

enum Background {
    NotStarted,
    Running(AbortHandle),
    Closed,
}

impl<E: From<AuthError> + fmt::Display + Send + 'static> TokenCache<E> {
    /// Makes a cache without a token. `exchange` gets one; it is called when the first request
    /// needs it, and later in time for the next.
    pub(crate) fn new<F, Fut>(exchange: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Secret, E>> + Send + 'static,
    {
        Self::with_clock(exchange, unix_seconds)
    }

    /// Like [`new`](Self::new), with another clock than the system's, in Unix seconds.
    fn with_clock<F, Fut>(exchange: F, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Secret, E>> + Send + 'static,
    {
        Self {
            shared: Arc::new(Shared {
                exchange: Box::new(move || Box::pin(exchange())),
                clock: Box::new(clock),
                current: RwLock::new(None),
                exchanging: tokio::sync::Mutex::new(()),
                exchanges: AtomicU64::new(0),
                background: Mutex::new(Background::NotStarted),
            }),
        }
    }

    /// Returns a token that is good for the next request, exchanging first if it must.
    ///
    /// If the exchange fails, an older token is returned, and a warning is logged.
    ///
    /// # Errors
    /// If the exchange fails and there was never a token. The error is the exchange's own.
    pub(crate) async fn token(&self) -> Result<Arc<Token>, E> {
        match self.shared.current() {
            Some(token) if !self.shared.is_due(&token) => Ok(token),
            _ => self.exchange_on_demand().await,
        }
    }

    /// Ends the background task. Tokens are still exchanged on demand.
    pub(crate) fn close(&self) {
        let mut background = self.shared.background();
        if let Background::Running(task) = std::mem::replace(&mut *background, Background::Closed) {
            task.abort();
        }
    }

    async fn exchange_on_demand(&self) -> Result<Arc<Token>, E> {
        let shared = &self.shared;
        let before = shared.exchanges.load(Ordering::Acquire);
        let _exchanging = shared.exchanging.lock().await;
        if let Some(token) = shared.current() {
            // What came of an exchange that ended while this request waited is as good as what
            // another one would bring, even if it failed or brought a token without an end.
            let ended = shared.exchanges.load(Ordering::Acquire) != before;
            if ended || !shared.is_due(&token) {
                return Ok(token);
            }
        }
        match shared.exchange().await {
            Ok(token) => {
                self.start_background();
                Ok(token)
            }
            Err(error) => match shared.current() {
                Some(older) => {
                    tracing::warn!(%error, "could not exchange the token, using the older one");
                    Ok(older)
                }
                None => Err(error),
            },
        }
    }

    fn start_background(&self) {
        let mut background = self.shared.background();
        if matches!(*background, Background::NotStarted) {
            let task = tokio::spawn(refresh(Arc::downgrade(&self.shared)));
            *background = Background::Running(task.abort_handle());
        }
    }
}

impl<E> Clone for TokenCache<E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<E> fmt::Debug for TokenCache<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache").finish_non_exhaustive()
    }
}

impl<E> Shared<E> {
    fn current(&self) -> Option<Arc<Token>> {
        lock::read(&self.current).clone()
    }

    fn background(&self) -> MutexGuard<'_, Background> {
        lock::lock(&self.background)
    }

    fn expiry(&self) -> Option<i64> {
        self.current()?.expiry
    }

    fn is_due(&self, token: &Token) -> bool {
        freshness((self.clock)(), token.expiry) == Freshness::RefreshNow
    }
}

impl<E: From<AuthError>> Shared<E> {
    /// Exchanges. The caller holds the lock `exchanging`.
    async fn exchange(&self) -> Result<Arc<Token>, E> {
        let exchanged = (self.exchange)().await;
        let outcome = exchanged.and_then(|secret| Ok(Arc::new(Token::new(secret)?)));
        if let Ok(token) = &outcome {
            let mut current = lock::write(&self.current);
            *current = Some(Arc::clone(token));
        }
        self.exchanges.fetch_add(1, Ordering::Release);
        outcome
    }
}

impl<E> Drop for Shared<E> {
    fn drop(&mut self) {
        if let Background::Running(task) = &*self.background() {
            task.abort();
        }
    }
}

/// The background task. It holds the cache only while it exchanges, so that it ends with it.
async fn refresh<E: From<AuthError> + fmt::Display>(shared: Weak<Shared<E>>) {
    let nap = || {
        let shared = shared.upgrade()?;
        Some(nap((shared.clock)(), shared.expiry()))
    };
    while let Some(nap) = nap() {
        tokio::time::sleep(nap).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let _exchanging = shared.exchanging.lock().await;
        // A request may have exchanged meanwhile.
        if freshness((shared.clock)(), shared.expiry()) == Freshness::Fresh {
            continue;
        }
        if let Err(error) = shared.exchange().await {
            tracing::warn!(%error, "could not exchange the token, trying again in a minute");
        }
    }
}

fn unix_seconds() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 is wrong anyway, and makes every token look fresh.
    since_epoch.map_or(0, |elapsed| elapsed.as_secs() as i64)
}

#[cfg(test)]
mod tests;
