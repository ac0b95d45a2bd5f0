//! Connections that clients with the same settings share.
//!
//! A client of the metadata endpoints is often made for a single call, in many places of a program. Without
//! this, each would ask for the server's settings and open connections of its own.

use super::{Connection, credential};
use crate::Error;
use crate::auth::CredentialPolicy;
use crate::lock::lock;
use crate::options::Options;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use tokio::runtime::{self, Handle};

/// Whose connection it is: clients on the same runtime (the tasks of a connection end with it) with the same settings.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    runtime: Option<runtime::Id>,
    /// A digest, since credentials are among them.
    settings: [u8; 32],
    /// Functions have no other identity than where they are, which a connection that lives keeps for them.
    listeners: [usize; 2],
}

/// Held while a connection opens, so that those who want the same one wait for it.
type Slot = tokio::sync::Mutex<Weak<Connection>>;

impl Connection {
    /// Returns the connection without a session that all living clients with these settings have in common.
    pub(crate) async fn shared(options: &Options) -> Result<Arc<Self>, Error> {
        static SLOTS: LazyLock<Mutex<HashMap<Key, Arc<Slot>>>> = LazyLock::new(Mutex::default);
        let key = key(options)?;
        let slot = {
            let mut slots = lock(&SLOTS);
            // Drops the slots that no caller is opening and whose connection was dropped.
            slots.retain(|_, slot| {
                let unused = Arc::strong_count(slot) == 1;
                !unused || slot.try_lock().is_ok_and(|held| held.strong_count() > 0)
            });
            Arc::clone(slots.entry(key).or_default())
        };
        let mut held = slot.lock().await;
        if let Some(connection) = held.upgrade() {
            return Ok(connection);
        }
        let connection = Self::without_session(options).await?;
        *held = Arc::downgrade(&connection);
        Ok(connection)
    }
}

fn key(options: &Options) -> Result<Key, Error> {
    let source = options.credential_source(CredentialPolicy::Any)?;
    let settings = format!(
        "{} {:?} {:?} {:?} {:?} {:?} {}",
        options.base_url()?,
        credential::digest(&source),
        options.extra_headers(),
        options.http_timeout,
        options.max_retry_time,
        options.backpressure,
        options.telemetry(),
    );
    let address = |listener: Option<*const ()>| listener.map_or(0, |at| at as usize);
    Ok(Key {
        runtime: Handle::try_current().ok().map(|handle| handle.id()),
        settings: credential::sha256(&settings),
        listeners: [
            address(
                options
                    .queue_listener
                    .as_ref()
                    .map(|it| Arc::as_ptr(it).cast()),
            ),
            address(
                options
                    .retry_listener
                    .as_ref()
                    .map(|it| Arc::as_ptr(it).cast()),
            ),
        ],
    })
}
