//! `tinkrs report`: a page about a run.

use std::path::PathBuf;

use serde_json::json;

use crate::context::Context;
use crate::output::Hint;

/// Write the report page of a run folder again
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the run: what `tinkrs train` was given as `--run-dir`
    run_dir: PathBuf,
}

pub(crate) fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let folder = &args.run_dir;
    let page = tinkrs_recipes::report::write(folder).map_err(|error| {
        let error = anyhow::Error::from(error);
        if folder.join("metrics.jsonl").exists() {
            return error;
        }
        error.context(Hint(
            "name the folder that `tinkrs train` was given as `--run-dir`",
        ))
    })?;
    ctx.done(&json!({"report": page}), page.display())
}
