//! `tinkrs man`.

use std::path::PathBuf;

use anyhow::Context;

/// Write manual pages into a folder, one for each command
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder to write them into, made if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| format!("could not write manual pages into {}", folder.display()))
}
