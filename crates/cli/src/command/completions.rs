//! `tinkrs completions`.

use clap_complete::Shell;

/// Print a script that completes commands in a shell
///
/// For bash: `tinkrs completions bash > ~/.local/share/bash-completion/completions/tinkrs`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell to print it for
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    // Generating into a closed pipe would panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(())
}
