//! `tinkrs serve`: a Tinker server on this machine.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use tinkrs_server::{BaseModel, Server, Settings};
use tinkrs_types::protocol::ClientConfig;
use tokio::net::TcpListener;
use tracing_subscriber::filter::LevelFilter;

use crate::local_model::{self, NamedModel, Wanted};
use crate::report::Hint;

/// How long answers under way may take once the server is told to stop.
const GRACE: Duration = Duration::from_secs(9);
/// Where the server listens unless told otherwise.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000);

/// Serve models to Tinker clients on this machine
///
/// Clients find the server through TINKER_BASE_URL; any TINKER_API_KEY that starts with `tml-`
/// will do, unless there is a key file. The first line on stdout has the address, and appears when
/// the server is ready. What it has acknowledged is not lost, however it ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model to serve: a name that `tinkrs models list` has, or NAME=PATH with the name that clients use
    /// and a Hugging Face folder or GGUF file. Without one, the small model that comes with this program:
    /// tinkrs/nano
    #[arg(long = "model", value_name = "MODEL", value_parser = local_model::read_wanted)]
    models: Vec<Wanted>,

    /// Address to listen on; port 0 picks a free one. Default 127.0.0.1:8000
    #[arg(long, value_name = "IP:PORT")]
    addr: Option<SocketAddr>,

    /// Folder for everything that is kept, made if it does not exist. Default tinkrs-data
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// File of the keys that are taken, one on a line, each with an optional name behind it
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// File of faults to answer with on purpose, for testing clients
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,

    /// Threads that compute. Default one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// How much to log, as JSON lines on stderr: off, error, warn, info (a line for each request) or debug
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: LevelFilter,

    /// TOML file with the same settings: `addr`, `data_dir`, `api_key_file`, `faults`, `threads`, a table
    /// `[models]` of names and paths, and a table `[client]` of flags that official clients ask for. What
    /// is given on the command line comes first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The settings of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    addr: Option<SocketAddr>,
    data_dir: Option<PathBuf>,
    api_key_file: Option<PathBuf>,
    faults: Option<PathBuf>,
    threads: Option<usize>,
    #[serde(default)]
    models: BTreeMap<String, PathBuf>,
    client: Option<KnownFlags>,
}

/// Flags for clients; what is not given stays as the server has it. A client passes over those that it does
/// not know; here a name that nobody knows is a mistake.
#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Table")]
struct KnownFlags(ClientConfig);

impl TryFrom<toml::Table> for KnownFlags {
    type Error = anyhow::Error;

    fn try_from(flags: toml::Table) -> anyhow::Result<Self> {
        let mut all = toml::Table::try_from(Settings::new("").client)?;
        if let Some(name) = flags.keys().find(|name| !all.contains_key(*name)) {
            let known: Vec<_> = all.keys().map(String::as_str).collect();
            let known = known.join(", ");
            bail!("unknown flag `{name}`, expected one of: {known}");
        }
        all.extend(flags);
        Ok(Self(all.try_into()?))
    }
}

/// The settings that count.
#[derive(Debug)]
struct Setup {
    models: Vec<NamedModel>,
    addr: SocketAddr,
    threads: Option<usize>,
    settings: Settings,
}

impl Setup {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let config = match &args.config {
            Some(path) => read_config(path)?,
            None => Config::default(),
        };
        let mut models = args.models.clone();
        for (name, path) in config.models {
            if !models.iter().any(|model| model.name() == name) {
                models.push(Wanted::At(NamedModel { name, path }));
            }
        }
        let data = args.data_dir.clone().or(config.data_dir);
        let data = data.unwrap_or_else(|| PathBuf::from("tinkrs-data"));
        if models.is_empty() {
            models.push(Wanted::BuiltIn);
        }
        let models = models.into_iter().map(|model| model.place(&data));
        let models = models.collect::<anyhow::Result<Vec<_>>>()?;
        let mut settings = Settings::new(data);
        settings.key_file = args.api_key_file.clone().or(config.api_key_file);
        settings.faults = args.faults.clone().or(config.faults);
        if let Some(KnownFlags(client)) = config.client {
            settings.client = client;
        }
        let addr = args.addr.or(config.addr).unwrap_or(DEFAULT_ADDRESS);
        if settings.key_file.is_none() && !addr.ip().is_loopback() {
            return Err(
                anyhow!("{addr} can be reached from other machines, and no keys are set").context(
                    Hint("name a file of keys with `--api-key-file`, or listen on 127.0.0.1"),
                ),
            );
        }
        Ok(Self {
            models,
            addr,
            threads: args.threads.or(config.threads),
            settings,
        })
    }
}

fn read_config(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} has a mistake", path.display()))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .json()
        .with_max_level(args.log)
        .with_writer(std::io::stderr)
        .init();
    let setup = Setup::new(args)?;
    let threads = local_model::threads(setup.threads)?;
    let models = setup
        .models
        .iter()
        .map(|named| local_model::load(named, &threads));
    let models = models.collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("could not start the threads that answer requests")?;
    runtime.block_on(answer(setup, models))
}

async fn answer(setup: Setup, models: Vec<BaseModel>) -> anyhow::Result<()> {
    let Setup { addr, settings, .. } = setup;
    let server = Server::start(models, settings).context("could not start the server")?;
    let listener = TcpListener::bind(addr)
        .await
        .with_context(|| format!("could not listen on {addr}"))
        .context(Hint(
            "choose another address with `--addr`; port 0 picks a free one",
        ))?;
    let address = listener.local_addr()?;
    writeln!(std::io::stdout(), "listening on http://{address}")?;
    std::io::stdout().flush()?;

    let (stop, stopped) = tokio::sync::oneshot::channel();
    let shutdown = async move {
        asked_to_stop().await;
        // The receiver is gone only if the server has stopped by itself.
        let _ = stop.send(());
    };
    let overdue = async {
        if stopped.await.is_ok() {
            tokio::time::sleep(GRACE).await;
        } else {
            std::future::pending().await
        }
    };
    tokio::select! {
        result = tinkrs_server::serve(listener, server, shutdown) => {
            result.context("could not go on listening")
        }
        // What is under way is in the journal, and the next server takes it up.
        () = overdue => std::process::exit(0),
    }
}

/// Completes when the user presses Ctrl-C or the system asks the process to end.
async fn asked_to_stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_for_clients_that_nobody_knows_is_a_mistake_with_its_name() {
        let read = |text: &str| toml::from_str::<Config>(text);
        let config = read("[client]\nproto_compress_fwdbwd = true\n").unwrap();
        let KnownFlags(client) = config.client.unwrap();
        let mut expected = Settings::new("").client;
        expected.proto_compress_fwdbwd = true;
        assert_eq!(client, expected, "the others are as without a file");
        for (text, expected) in [
            (
                "[client]\nproto_compress = true\n",
                "unknown flag `proto_compress`",
            ),
            (
                "[client]\nfwdbwd_max_chunk_len = \"4\"\n",
                "fwdbwd_max_chunk_len",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
