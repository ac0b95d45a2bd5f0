//! A server inside this process, for commands that need no other.

use std::path::Path;

use anyhow::Context;
use tinkrs::ServiceClient;
use tinkrs_server::{DrawnToken, Server, Settings};
use tinkrs_types::SamplingSessionId;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::local_model::{self, NamedModel};
use crate::report::Hint;

/// The key of whoever runs commands on this machine.
const KEY: &str = "tml-local";

/// A server on a free port of this machine.
pub(crate) struct LocalServer {
    server: Server,
    url: String,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl LocalServer {
    /// Starts a server with some models, on a data folder that nobody else uses.
    pub(crate) async fn start(models: &[NamedModel], data: &Path) -> anyhow::Result<Self> {
        let threads = local_model::threads(None)?;
        let loaded = models
            .iter()
            .map(|model| local_model::load(model, &threads));
        let loaded = loaded.collect::<anyhow::Result<Vec<_>>>()?;
        let server = Server::start(loaded, Settings::new(data))
            .context("could not start a server in this process")
            .context(Hint(
                "if another server uses the folder, name it with `--base-url`, or another folder with \
                 `--data-dir`",
            ))?;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("could not listen on 127.0.0.1")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(tinkrs_server::serve(listener, server.clone(), async {
            let _ = stopped.await;
        }));
        Ok(Self {
            server,
            url,
            stop,
            serving,
        })
    }

    /// Returns a client of the server.
    pub(crate) fn service(&self) -> ServiceClient {
        ServiceClient::builder()
            .base_url(&self.url)
            .api_key(KEY)
            .telemetry(false)
            .build()
    }

    /// Returns the tokens that are drawn for a sampler from now on.
    pub(crate) fn watch_tokens(&self, sampler: SamplingSessionId) -> UnboundedReceiver<DrawnToken> {
        self.server.watch_tokens(sampler)
    }

    /// Stops the server, and waits until everything is stored.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.serving
            .await?
            .context("the server in this process failed")
    }
}
