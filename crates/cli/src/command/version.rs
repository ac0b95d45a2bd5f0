//! `tinkrs version`.

use serde_json::json;

use crate::context::Context;

/// Print the version
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(ctx: &Context, _: &Args) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    ctx.done(
        &json!({"version": version}),
        format_args!("tinkrs {version}"),
    )
}
