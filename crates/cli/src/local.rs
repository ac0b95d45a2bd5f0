//! A server inside this process, for commands that need no other.

use std::path::Path;

use anyhow::Context;
use tinkrs::ServiceClient;
use tinkrs_server::{SessionWatch, Settings};
use tinkrs_types::SamplingSessionId;

use crate::local_model::{self, NamedModel};
use crate::output::Hint;

/// The key that commands on this machine use.
const KEY: &str = "tml-local";

/// A server on a free port of this machine.
pub(crate) struct LocalServer(tinkrs_server::LocalServer);

impl LocalServer {
    /// Starts a server with some models, on a data folder that no other server uses.
    pub(crate) async fn start(models: &[NamedModel], data: &Path) -> anyhow::Result<Self> {
        let threads = local_model::threads(None)?;
        let loaded = models
            .iter()
            .map(|model| local_model::load(model, &threads));
        let loaded = loaded.collect::<anyhow::Result<Vec<_>>>()?;
        let server = tinkrs_server::LocalServer::start(loaded, Settings::new(data))
            .await
            .context("could not start a server in this process")
            .context(Hint(
                "if another server uses the folder, name it with `--base-url`, or another folder with \
                 `--data-dir`",
            ))?;
        Ok(Self(server))
    }

    /// Returns a client of the server.
    pub(crate) fn service(&self) -> ServiceClient {
        ServiceClient::builder()
            .base_url(self.0.url())
            .api_key(KEY)
            .telemetry(false)
            .build()
    }

    /// Returns the requests that come for a sampler from now on, with their tokens.
    pub(crate) fn watch_session(&self, sampler: SamplingSessionId) -> SessionWatch {
        self.0.server().watch_session(sampler)
    }

    /// Stops the server, and waits until everything is stored.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let stopped = self.0.stop().await;
        stopped.context("the server in this process failed")
    }
}
