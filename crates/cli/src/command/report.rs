//! `tinkrs report`: a page about a run.

use std::path::PathBuf;

use serde_json::json;

use crate::context::Context;

/// Write the report page of a run folder again
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the run
    run_dir: PathBuf,
}

pub(crate) fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let page = tinkrs_recipes::report::write(&args.run_dir)?;
    ctx.done(&json!({"report": page}), page.display())
}
