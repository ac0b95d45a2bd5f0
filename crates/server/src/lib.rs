//! A local server of the Tinker API: the official SDK trains and samples on this machine.
//!
//! [`Server::start`] takes loaded models and gives a handle; [`serve()`] answers requests with it
//! until told to stop. Reading order:
//!
//! 1. `router`: every route on one page; what is not there is answered by 404 and says so;
//! 2. `api`: one file for each group of operations, handlers and what they do; `extract`, `auth`:
//!    who asks, and for what;
//! 3. `state`, `shared`, `registry`: the handle, and what it knows of sessions, models and samplers;
//! 4. `queue`, `order`: each model's operations run by sequence number, each exactly once;
//! 5. `results`, `feed`: results between the promise and the poll; `watch`: tokens before that;
//! 6. `worker`: the thread that owns a model and computes, through the traits of `tinkrs-backend`;
//! 7. `store`, `checkpoints`, `recovery`: what is on the disk, and how it comes back;
//! 8. `maintenance`, `faults`: what happens by itself, and what happens on purpose.
//!
//! What was acknowledged is in the data folder, and a server that is killed at any moment and
//! started again goes on where it was: see `store` and `recovery`. Every key is an owner of its
//! own; without a key file any well-formed key is taken, so the server then belongs on a loopback
//! address.
//!
//! [`LocalServer`] is a server on a free port, for tests and programs that contain one:
//!
//! ```
//! use tinkrs_backend::Backend;
//! use tinkrs_server::{BaseModel, LocalServer, Settings};
//!
//! /// Serves a model until Enter is pressed.
//! async fn run(backend: impl Backend + 'static) -> Result<(), Box<dyn std::error::Error>> {
//!     let models = vec![BaseModel::new("tiny", backend)];
//!     let server = LocalServer::start(models, Settings::new("data")).await?;
//!     println!("listening on {}", server.url());
//!     let _ = std::io::stdin().read_line(&mut String::new());
//!     server.stop().await?;
//!     Ok(())
//! }
//! ```

mod local_server;
mod router;
mod serve;

mod api;

mod accept;
mod body;
mod operations;
mod queue;
mod registry;
mod settings;
mod shared;
mod state;

mod auth;
mod checkpoints;
mod custom_loss;
mod error;
mod extract;
mod faults;
mod feed;
mod lock;
mod maintenance;
mod metrics;
mod order;
mod outcome;
mod recent;
mod record;
mod recovery;
mod results;
mod store;
mod trace;
pub mod units;
mod uploaded_losses;
mod watch;
mod worker;

pub use local_server::LocalServer;
pub use router::router;
pub use serve::serve;
pub use settings::Settings;
pub use state::{BaseModel, Server, StartError};
pub use watch::{DrawnToken, SessionWatch, TokenWatch, Watched};
