//! `tinkrs man`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;

use crate::context::Context;

/// Write manual pages into a folder, one for each command
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder to write them into, made if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(ctx: &Context, args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let folder = &args.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .and_then(|()| pages(folder));
    let pages = written
        .with_context(|| format!("could not write manual pages into {}", folder.display()))?;
    if ctx.is_json() {
        ctx.done(&json!({"folder": folder, "pages": pages}), "")?;
    }
    Ok(())
}

/// Lists the pages of a folder.
fn pages(folder: &Path) -> std::io::Result<Vec<String>> {
    let names = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.retain(|name| name.starts_with("tinkrs") && name.ends_with(".1"));
    names.sort();
    Ok(names)
}
