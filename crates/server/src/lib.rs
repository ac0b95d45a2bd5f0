//! A local server of the Tinker API: the official SDK trains and samples on this machine.
//!
//! [`Server::start`] takes loaded models and gives a handle; [`serve()`] answers requests with it
//! until told to stop. Reading order:
//!
//! 1. `router`, `serve`, `connections`, `host`, `cors`, `extract`, `intake`, `body`, `error`: every route on one page, and what
//!    handlers are given and answer with;
//! 2. `api`: one file for each group of endpoints: handlers, and what they do;
//!    `endpoints`: those of other APIs, over the same models, with `grammar` for answers of a given form; `studio`: pages for
//!    people;
//! 3. `accept`: the one way in for everything that is accepted once; `operations`: the operations of a
//!    model and their queue; `places`, `waiting`: who has how much of it; `registry`: sessions, runs and
//!    samplers; `run_names`: finding them by name; `results`: from the promise to the poll;
//! 4. `worker`: the thread that owns a model and computes; `token_watch`: who sees its tokens as they are drawn;
//!    `uploaded_losses`, `custom_loss`: losses of clients; `memory`: what is counted before it is allocated;
//! 5. `store`, `checkpoints`, `unnamed`, `recovery`, `numerics`, `under_way`, `data`, `holder`: what is on the disk, how it comes
//!    back and with the same bits, what to do when it is damaged, and who holds it;
//! 6. `state`, `shared`, `settings`, `auth`, `permissions`: the handle, what is behind it, and who may use it;
//! 7. `maintenance`, `metrics`, `trace`, `otel`, `faults`: what happens by itself, what can be seen of it, and
//!    what fails on purpose.
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

mod body;
mod connections;
mod cors;
mod error;
mod extract;
mod grammar;
mod host;
mod intake;
mod local_server;
mod router;
mod serve;

mod api;
mod endpoints;
mod studio;

mod accept;
mod numerics;
mod operations;
mod places;
mod registry;
mod results;
mod run_names;
mod under_way;
mod unnamed;
mod uploaded_losses;
mod waiting;

mod custom_loss;
mod token_watch;
mod worker;

mod checkpoints;
pub mod data;
mod holder;
mod recovery;
mod store;

mod auth;
mod permissions;
mod settings;
mod shared;
mod state;
pub mod units;

mod faults;
mod lock;
mod maintenance;
mod memory;
mod metrics;
mod otel;
mod trace;

pub use holder::{ASK_INTERVAL, Announcement, Holder};
pub use local_server::LocalServer;
pub use router::router;
pub use serve::serve;
pub use settings::Settings;
pub use state::{BaseModel, Server, StartError};
pub use tinkrs_wire::op::server_view::Finding;
pub use token_watch::{DrawnToken, SessionWatch, TokenWatch, Watched};
