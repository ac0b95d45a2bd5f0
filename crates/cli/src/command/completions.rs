//! `tinkrs completions`.

use clap_complete::Shell;
use serde_json::json;

use crate::context::Context;

/// Print a script that completes commands in a shell
///
/// For bash: `tinkrs completions bash > ~/.local/share/bash-completion/completions/tinkrs`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell to print it for
    shell: Shell,
}

pub(crate) fn run(ctx: &Context, args: &Args, mut command: clap::Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    // Generating into a closed pipe would panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    if ctx.is_json() {
        let script = String::from_utf8_lossy(&script);
        return ctx.done(
            &json!({"shell": args.shell.to_string(), "script": script}),
            "",
        );
    }
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(())
}
