//! The `tinkrs` command line.
//!
//! One module for each group of commands, with its arguments and a `run` function. Data goes to
//! stdout, all else to stderr. Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 130 for a run
//! that the user stopped.

mod backend;
mod chat_api;
mod chat_format;
mod command;
mod context;
mod cost;
mod ctrl_c;
mod data_folder;
mod ending;
mod hint;
mod holder;
mod http;
mod human;
mod judge;
mod local;
mod local_model;
mod loggers;
mod model_store;
mod notices;
mod on_server;
mod other_model;
mod output;
mod private;
mod prompt;
mod remote_tokenizer;
mod server_args;
mod settings;
mod status_line;
mod system;
mod table;
mod terminal_line;
mod training_progress;
mod training_watch;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use command::{
    auth, billing, chat, checkpoint, completions, conform, data, demo, doctor, eval, export, man,
    model, models, run, sample, serve, session, studio, train, version,
};
use context::{Context, OutputArgs};
use on_server::{NeededModel, OnServer};

/// Train and sample language models through the Tinker API
#[derive(Debug, Parser)]
#[command(name = "tinkrs", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    output: OutputArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(subcommand)]
    Auth(auth::Command),
    #[command(subcommand)]
    Billing(billing::Command),
    Chat(chat::Args),
    /// List, download, share and delete saved weights
    Checkpoint(OnServer<checkpoint::Command>),
    Completions(completions::Args),
    Conform(conform::Args),
    #[command(subcommand)]
    Data(data::Command),
    Demo(demo::Args),
    Doctor(doctor::Args),
    Eval(eval::Args),
    Export(export::Args),
    Man(man::Args),
    /// List the models that a server offers (for model files on this machine: `tinkrs models`)
    Model(OnServer<model::Command>),
    #[command(subcommand)]
    Models(models::Command),
    Report(command::report::Args),
    /// Show training runs
    Run(OnServer<run::Command>),
    Sample(sample::Args),
    Serve(settings::Layered<serve::Args>),
    /// Show sessions and export their traces
    Session(OnServer<session::Command>),
    Studio(studio::Args),
    #[command(subcommand)]
    Train(Box<train::Command>),
    Version(version::Args),
}

/// Shows what the client logs, on stderr, if TINKER_LOG is `info` or `debug`, as for the official client.
fn show_log() {
    let level = match std::env::var("TINKER_LOG").as_deref() {
        Ok("info") => LevelFilter::INFO,
        Ok("debug") => LevelFilter::DEBUG,
        _ => return,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(|| output::LogLines)
        .init();
}

/// Exports traces and metrics for as long as what it returns lives, if the environment names a collector.
#[cfg(feature = "otel")]
fn export_telemetry() -> anyhow::Result<Option<tinkrs_otel::Exporting>> {
    let settings = tinkrs_otel::Settings::from_env("tinkrs")?;
    let settings = settings.map(|it| it.resource("service.version", env!("CARGO_PKG_VERSION")));
    Ok(settings.map(tinkrs_otel::start).transpose()?)
}

#[cfg(not(feature = "otel"))]
fn export_telemetry() -> anyhow::Result<()> {
    Ok(())
}

/// Returns the command with its subcommands, and nothing of what it was given: other processes are told.
fn name_of(matches: &ArgMatches) -> String {
    let mut name = String::from("tinkrs");
    let mut rest = matches.subcommand();
    while let Some((command, matches)) = rest {
        name.push(' ');
        name.push_str(command);
        rest = matches.subcommand();
    }
    name
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // A server has a log of its own, with a setting of its own.
    if !matches!(cli.command, Command::Serve(_) | Command::Studio(_)) {
        show_log();
    }
    let exporting = match export_telemetry() {
        Ok(exporting) => exporting,
        Err(error) => {
            output::error(&error);
            return ExitCode::FAILURE;
        }
    };
    let ctx = Context::new(&cli.output, name_of(&matches));
    let result = match &cli.command {
        Command::Auth(args) => ctx.block_on(auth::run(&ctx, args)),
        Command::Billing(args) => ctx.block_on(billing::run(&ctx, args)),
        Command::Chat(args) => ctx.block_on_to_end(chat::run(&ctx, args)),
        Command::Checkpoint(args) => ctx.block_on(checkpoint::run(&ctx, args)),
        Command::Completions(args) => completions::run(&ctx, args, Cli::command()),
        Command::Conform(args) => ctx.block_on_to_end(conform::run(&ctx, args)),
        Command::Data(args) => ctx.block_on(data::run(&ctx, args)),
        Command::Demo(args) => ctx.block_on(demo::run(&ctx, args)),
        Command::Doctor(args) => ctx.block_on(doctor::run(&ctx, args)),
        Command::Eval(args) => ctx.block_on(eval::run(&ctx, args)),
        Command::Export(args) => ctx.block_on(export::run(&ctx, args)),
        Command::Man(args) => man::run(&ctx, args, Cli::command()),
        Command::Model(args) => ctx.block_on(args.run(&ctx, NeededModel::None, model::run)),
        Command::Models(args) => ctx.block_on(models::run(&ctx, args)),
        Command::Report(args) => command::report::run(&ctx, args),
        Command::Run(args) => ctx.block_on(args.run(&ctx, NeededModel::None, run::run)),
        Command::Sample(args) => ctx.block_on(sample::run(&ctx, args)),
        Command::Serve(args) => serve::run(&ctx, args),
        Command::Studio(args) => studio::run(&ctx, args),
        Command::Session(args) => ctx.block_on(args.run(&ctx, NeededModel::None, session::run)),
        Command::Train(args) => ctx.block_on_to_end(train::run(&ctx, args)),
        Command::Version(args) => version::run(&ctx, args),
    };
    judge::end_all();
    // Sends what is left.
    drop(exporting);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it, as `head` does: that is not a failure.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<output::Stopped>() => {
            output::note(&error);
            ExitCode::from(130)
        }
        Err(error) => {
            output::error(&error);
            // As shells count a program that Ctrl-C has ended.
            if error.is::<output::Aborted>() {
                return ExitCode::from(130);
            }
            ExitCode::FAILURE
        }
    }
}
