//! A server on a free port of this machine, inside a test or another program.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{BaseModel, Server, Settings, StartError, serve};

/// A server on a free port of this machine. It stops when it is dropped.
///
/// ```
/// use tinkrs_server::{BaseModel, LocalServer, Settings};
/// # use tinkrs_testkit::FakeBackend as Backend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let backend = Backend::new();
/// let data = tempfile::tempdir()?;
/// let models = vec![BaseModel::new("tiny", backend)];
/// let server = LocalServer::start(models, Settings::new(data.path())).await?;
/// assert!(server.url().starts_with("http://127.0.0.1:"));
/// server.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalServer {
    server: Server,
    address: SocketAddr,
    url: String,
    /// Dropping it stops the server, too.
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

impl LocalServer {
    /// Starts a server that listens on 127.0.0.1.
    ///
    /// # Errors
    ///
    /// As [`Server::start`], and when there is no port to listen on.
    pub async fn start(models: Vec<BaseModel>, settings: Settings) -> Result<Self, StartError> {
        Self::listen(Server::start(models, settings)?).await
    }

    /// Starts a server that listens on 127.0.0.1 and has no models.
    ///
    /// # Errors
    ///
    /// As [`Server::start_without_models`], and when there is no port to listen on.
    pub async fn start_without_models(settings: Settings) -> Result<Self, StartError> {
        Self::listen(Server::start_without_models(settings)?).await
    }

    async fn listen(server: Server) -> Result<Self, StartError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(StartError::Listen)?;
        let address = listener.local_addr().map_err(StartError::Listen)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, server.clone(), async {
            let _ = stopped.await;
        }));
        Ok(Self {
            server,
            address,
            url: format!("http://{address}"),
            stop,
            serving,
        })
    }

    /// Returns the URL that clients use.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server itself.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Stops the server, and returns when the operation under way has ended and everything is stored.
    ///
    /// # Errors
    ///
    /// When the server has failed before.
    pub async fn stop(self) -> io::Result<()> {
        drop(self.stop);
        // The data folder is released with the last handle.
        drop(self.server);
        self.serving.await?
    }
}
