//! `tinkrs version`.

use std::io::Write;

/// Print the version
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "tinkrs {}", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
