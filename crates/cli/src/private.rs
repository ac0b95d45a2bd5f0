//! What a server on this machine keeps is for its owner alone.

use std::path::Path;

use anyhow::Context;
use tinkrs_server::data::{self, Privacy};

/// Makes a data folder private before anything is put into it, and all that this process writes from now on.
pub(crate) fn prepare(data: &Path) -> anyhow::Result<Privacy> {
    write_privately();
    data::make_private(data)
        .with_context(|| format!("could not use the data folder {}", data.display()))
}

/// Takes the rights of other users from every file and folder that this process makes from now on, whatever the
/// umask was.
pub(crate) fn write_privately() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}
