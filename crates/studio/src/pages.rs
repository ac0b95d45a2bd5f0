//! The pages.

mod console;
mod login;
mod playground;
mod run;
mod runs;
mod server;

pub use console::{Fact, facts, listing, refused};
pub use login::login;
pub use playground::playground;
pub use run::run;
pub use runs::runs;
pub use server::server;
