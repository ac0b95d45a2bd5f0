//! The `tinkrs` command line.
//!
//! One module for each command, with its arguments and a `run` function. Data goes to stdout, all
//! else to stderr. Exit codes: 0 for success, 1 for a failure, 2 for wrong usage.

mod command;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Train and sample language models through the Tinker API
#[derive(Debug, Parser)]
#[command(name = "tinkrs", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(command::serve::Args),
    Version(command::version::Args),
}

fn main() -> ExitCode {
    let result = match &Cli::parse().command {
        Command::Serve(args) => command::serve::run(args),
        Command::Version(args) => command::version::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::error(&error);
            ExitCode::FAILURE
        }
    }
}
