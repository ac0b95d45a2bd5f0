//! `tinkrs serve`: a Tinker server on this machine.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use tinkrs_server::{BaseModel, Holder, Server, Settings, StartError};
use tinkrs_types::protocol::ClientConfig;
use tokio::net::TcpListener;
use tracing_subscriber::filter::LevelFilter;

use crate::command::{demo, doctor};
use crate::context;
use crate::ctrl_c::CtrlC;
use crate::data_folder;
use crate::local_model::{self, NamedModel, NumericsArgs, Wanted};
use crate::output::{self, Hint};
use crate::server_args::{DATA_DIR, LOCAL_KEY};
use crate::settings::{self, Layered};

/// What is told the address of the studio.
type Ready<'a> = &'a dyn Fn(&str) -> anyhow::Result<()>;

/// How long responses under way may take once the server is asked to stop.
const GRACE: Duration = Duration::from_secs(9);
const SERVED: &str = "Models and address";

/// Serve models to Tinker clients on this machine
///
/// Clients find the server through TINKER_BASE_URL; any TINKER_API_KEY that starts with `tml-`
/// will do, unless there is a key file. The first line on stdout has the address, and appears when
/// the server is ready. What it has acknowledged is not lost, however it ends.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Model to serve: a name that `tinkrs models list` has, or NAME=PATH with the name that clients use
    /// and a Hugging Face folder or GGUF file; may be repeated. Without one, the small model that comes with
    /// this program: tinkrs/nano. In a file: a table `[models]` of names and paths
    #[arg(
        id = "models",
        long = "model",
        alias = "models",
        value_name = "MODEL",
        value_parser = local_model::read_wanted,
        help_heading = SERVED
    )]
    #[serde(skip)]
    typed_models: Vec<Wanted>,

    #[arg(skip)]
    models: BTreeMap<String, PathBuf>,

    /// Address to listen on; port 0 picks a free one
    #[arg(long, value_name = "IP:PORT", value_parser = read_address, help_heading = SERVED)]
    addr: SocketAddr,

    /// Port to listen on, for this machine alone: the same as `--addr 127.0.0.1:PORT`
    #[arg(long, value_name = "PORT", conflicts_with = "addr", help_heading = SERVED)]
    port: Option<u16>,

    /// Threads that compute; one for each core unless given
    #[arg(long, value_name = "N", help_heading = SERVED)]
    threads: Option<usize>,

    #[command(flatten)]
    #[serde(flatten)]
    numerics: NumericsArgs,

    /// How much to log, as JSON lines on stderr: off, error, warn, info (a line for each request) or debug
    #[arg(long, value_name = "LEVEL")]
    #[serde(with = "level")]
    log: LevelFilter,

    /// Flag that official clients ask for, such as parallel_fwdbwd_chunks=false; may be repeated. In a file:
    /// a table `[client]`
    #[arg(id = "client", long = "client", value_name = "FLAG=VALUE")]
    #[serde(skip)]
    client_flags: Vec<String>,

    /// Stop when standard input ends: a program that keeps its end of a pipe open has a server that ends with it,
    /// however it ends
    #[arg(long)]
    #[serde(skip)]
    stop_with_stdin: bool,

    /// TOML file of settings: every option here is a key, with `_` for `-`
    ///
    /// What is typed comes before what the file says.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            typed_models: Vec::new(),
            models: BTreeMap::new(),
            addr: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000),
            port: None,
            threads: None,
            numerics: NumericsArgs::default(),
            log: LevelFilter::WARN,
            client_flags: Vec::new(),
            stop_with_stdin: false,
            config: None,
            settings: Settings::new(DATA_DIR),
        }
    }
}

/// Log levels as text.
mod level {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use tracing_subscriber::filter::LevelFilter;

    pub(super) fn serialize<S: Serializer>(level: &LevelFilter, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(level)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LevelFilter, D::Error> {
        let name = String::deserialize(from)?;
        let expected = "expected off, error, warn, info or debug";
        let level = name.parse();
        level.map_err(|_| D::Error::custom(format_args!("`{name}`, {expected}")))
    }
}

impl Args {
    /// The server of a data folder, on this machine alone, with these models; with none, the built-in one.
    pub(crate) fn here(data: PathBuf, port: u16, models: Vec<Wanted>) -> Self {
        Self {
            typed_models: models,
            port: Some(port),
            settings: Settings::new(data),
            ..Self::default()
        }
    }

    /// Returns where to listen.
    fn address(&self) -> SocketAddr {
        match self.port {
            Some(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            None => self.addr,
        }
    }

    /// Returns the models to serve, from the command line first.
    fn models(&self) -> anyhow::Result<Vec<NamedModel>> {
        let mut models = self.typed_models.clone();
        for (name, path) in &self.models {
            if !models.iter().any(|model| model.name() == name) {
                models.push(Wanted::At(NamedModel::new(name, path)));
            }
        }
        if models.is_empty() {
            models.push(Wanted::BuiltIn);
        }
        let data = &self.settings.data;
        let placed = models.into_iter().map(|model| {
            let placed = model.place(data)?;
            Ok(placed.held_as(self.numerics))
        });
        data_folder::in_known_numerics(data, &placed.collect::<anyhow::Result<Vec<_>>>()?)
    }

    /// Returns the settings of the server.
    fn server_settings(&self) -> anyhow::Result<Settings> {
        let mut settings = self.settings.clone();
        for flag in &self.client_flags {
            set_flag(&mut settings.client, flag)?;
        }
        settings.check()?;
        if settings.key_file.is_none() && !self.address().ip().is_loopback() {
            return Err(anyhow!(
                "{} can be reached from other machines, and no keys are set",
                self.address()
            )
            .context(Hint(
                "name a file of keys with `--api-key-file`, or listen on 127.0.0.1",
            )));
        }
        Ok(settings)
    }
}

/// Sets one of the flags that clients ask for, from `FLAG=VALUE`.
fn set_flag(client: &mut ClientConfig, text: &str) -> anyhow::Result<()> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("--client: `{text}`, expected FLAG=VALUE"))?;
    let mut flags = serde_json::to_value(&*client)?;
    let Some(flag) = flags.get_mut(name) else {
        let known = flags.as_object().into_iter().flatten();
        let near = settings::nearest(name, known.map(|(name, _)| name.clone()));
        let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(anyhow!("--client: unknown flag `{name}`{near}"));
    };
    *flag = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    *client = serde_json::from_value(flags).with_context(|| format!("--client {name}"))?;
    Ok(())
}

pub(crate) fn run(ctx: &context::Context, args: &Layered<Args>) -> anyhow::Result<()> {
    start(ctx, &args.load()?, None)
}

/// Serves until asked to stop. `ready` is given the address of the studio, which logs in once.
pub(crate) fn start(
    ctx: &context::Context,
    args: &Args,
    ready: Option<Ready<'_>>,
) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .json()
        .with_max_level(args.log)
        .with_writer(|| output::JsonLines)
        .init();
    let mut settings = args.server_settings()?;
    // If others can enter it, the server logs so.
    let (_prepared, _) = data_folder::make(&settings.data)?;
    let models = args.models()?;
    // Decided before the weights take their part of what is available.
    settings.memory = Some(settings.memory_limit());
    let weights = models.iter().map(local_model::weight_bytes).sum();
    settings
        .check_weights(weights)
        .map_err(|error| anyhow!(error))
        .context("could not load the models")?;
    let threads = local_model::threads(args.threads)?;
    let loaded = models
        .iter()
        .map(|named| local_model::load(named, &threads));
    let loaded = loaded.collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("could not start the threads that answer requests")?;
    let work = answer(ctx, args, settings, &models, loaded, ready);
    runtime.block_on(work)
}

async fn answer(
    ctx: &context::Context,
    args: &Args,
    settings: Settings,
    models: &[NamedModel],
    loaded: Vec<BaseModel>,
    ready: Option<Ready<'_>>,
) -> anyhow::Result<()> {
    let (addr, stop_with_stdin) = (args.address(), args.stop_with_stdin);
    let (folder, memory) = (settings.data.clone(), settings.memory_limit());
    let server = Server::start(loaded, settings).map_err(|error| match error {
        StartError::Used(_) => in_use(&folder),
        error => anyhow!(error).context("could not start the server"),
    })?;
    data_folder::remember(&folder, models)?;
    let listener = TcpListener::bind(addr)
        .await
        .with_context(|| format!("could not listen on {addr}"))
        .context(Hint(
            "choose another one with `--port`; port 0 picks a free one",
        ))?;
    let address = listener.local_addr()?;
    offer_demo(&server, &reachable(address), models);
    let looked_at = folder.clone();
    server.report_findings(move || doctor::findings(&looked_at, memory));
    let announced = server.announce(&reachable(address), ctx.command());
    let _announced = announced
        .with_context(|| format!("could not write to the data folder {}", folder.display()))?;
    // Before anybody knows that it is ready: from then on a signal is a request to stop.
    let signals = stop_signals()?;
    let asked_to_stop = async move {
        if stop_with_stdin {
            tokio::select! {
                () = signals => {}
                () = end_of_stdin() => {}
            }
        } else {
            signals.await;
        }
    };
    let studio = studio(&server, &reachable(address));
    if let Some(ready) = ready {
        ready(&studio)?;
    } else if ctx.is_json() {
        let ready = serde_json::json!({"url": format!("http://{address}"), "data_dir": folder});
        output::say(context::ascii(&ready.to_string()))?;
    } else {
        output::say(format_args!("listening on http://{address}"))?;
    }
    if std::io::stderr().is_terminal() && ready.is_none() {
        // For whoever looks at it; stderr is otherwise lines of JSON.
        let urls = base_urls(&reachable(address));
        let _ = writeln!(std::io::stderr(), "{urls}  Studio     {studio}");
    }

    let (stop, stopped) = tokio::sync::oneshot::channel();
    let shutdown = async move {
        asked_to_stop.await;
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
            result.context("could not continue to listen")
        }
        // What is under way is in the journal; the next server on this folder continues it.
        () = overdue => std::process::exit(0),
    }
}

/// Returns where the studio is: with a link that logs in once, unless keys are needed.
fn studio(server: &Server, url: &str) -> String {
    let login = server.login_path(LOCAL_KEY);
    format!("{url}{}", login.as_deref().unwrap_or("/"))
}

/// Lets the studio start the demo, if the model for it is served.
fn offer_demo(server: &Server, url: &str, models: &[NamedModel]) {
    if models.iter().any(|model| model.name == tinkrs_nano::NAME) {
        let url = url.to_owned();
        server.offer_demo(move |credential| {
            let url = url.clone();
            async move {
                let demo = demo::on_server(&url, credential).await;
                demo.map_err(|error| format!("{error:#}"))
            }
        });
    }
}

/// Returns what to paste into clients.
fn base_urls(url: &str) -> String {
    format!(
        "  Tinker     TINKER_BASE_URL={url}\n  \
           OpenAI     OPENAI_BASE_URL={url}/v1\n  \
           Anthropic  ANTHROPIC_BASE_URL={url}\n"
    )
}

/// Reads an address to listen on.
fn read_address(text: &str) -> Result<SocketAddr, String> {
    let expected = |_| "expected an IP address and a port, such as 127.0.0.1:8000".to_owned();
    text.parse().map_err(expected)
}

/// Returns the URL at which processes on this machine reach an address that is listened on.
fn reachable(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// Says who uses the data folder.
fn in_use(folder: &Path) -> anyhow::Error {
    let error = match Holder::read(folder) {
        Some(holder) => anyhow!(
            "`{}` (process {}) uses {}, at {}",
            holder.command,
            holder.pid,
            folder.display(),
            holder.url
        ),
        None => anyhow!("another process uses {}", folder.display()),
    };
    error.context("could not start the server").context(Hint(
        "end it or wait until it is done, or name another folder with `--data-dir`",
    ))
}

/// Waits until standard input ends or cannot be read.
async fn end_of_stdin() {
    let (ended, end) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait for one of its blocking threads when it is shut down.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}

/// Listens for Ctrl-C and for the system's request to end. Returns what completes at the first of them.
fn stop_signals() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut ctrl_c = CtrlC::listen()?;
    #[cfg(unix)]
    let mut terminate = {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::terminate()).context("could not listen for SIGTERM")?
    };
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = terminate.recv() => {}
            () = ctrl_c.pressed() => {}
        }
        #[cfg(not(unix))]
        ctrl_c.pressed().await;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, typed: &[&str]) -> anyhow::Result<Args> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("server.toml");
        std::fs::write(&path, text)?;
        let file = format!("--config={}", path.display());
        let command = settings::command::<Args>().no_binary_name(true);
        let typed = command.get_matches_from([&[file.as_str()], typed].concat());
        settings::load(&typed)
    }

    #[test]
    fn the_base_urls_are_those_that_clients_append_their_paths_to() {
        let expected = "  Tinker     TINKER_BASE_URL=http://[::1]:8000\n  \
                        OpenAI     OPENAI_BASE_URL=http://[::1]:8000/v1\n  \
                        Anthropic  ANTHROPIC_BASE_URL=http://[::1]:8000\n";
        assert_eq!(base_urls("http://[::1]:8000"), expected);
    }

    #[test]
    fn every_setting_is_a_key_and_an_option() {
        let text = "addr = \"127.0.0.1:0\"\ndata_dir = \"d\"\napi_key_file = \"k\"\nlog = \"info\"\n\
                    poll_timeout = \"2s\"\nsession_timeout = 90\ninline_bytes = \"1KiB\"\n\
                    snapshot_interval = \"1m 30s\"\nsnapshot_operations = 3\nqueued_samples = 7\n\
                    [models]\nmine = \"folder\"\n";
        let args = load(text, &[]).unwrap();
        let settings = args.server_settings().unwrap();
        assert_eq!(settings.data, PathBuf::from("d"));
        assert_eq!(settings.key_file, Some(PathBuf::from("k")));
        assert_eq!(settings.poll_timeout, Duration::from_secs(2));
        assert_eq!(settings.session_timeout, Duration::from_secs(90));
        assert_eq!(settings.snapshot_interval, Duration::from_secs(90));
        assert_eq!(settings.inline_bytes, 1024);
        assert_eq!(
            (settings.snapshot_operations, settings.queued_samples),
            (3, 7)
        );
        assert_eq!((args.log, args.address().port()), (LevelFilter::INFO, 0));
        let both = load(text, &["--port", "8080"]).unwrap_err().to_string();
        assert!(
            both.contains("`port` and `addr`") || both.contains("`addr` and `port`"),
            "{both}"
        );
        let port = load("", &["--port", "8080"]).unwrap();
        assert_eq!(port.address().to_string(), "127.0.0.1:8080");
        let mine = NamedModel::new("mine", "folder");
        assert_eq!(args.models().unwrap(), [mine]);

        let typed = [
            "--poll-timeout",
            "3s",
            "--inline-bytes=2MiB",
            "--model",
            "mine=other",
        ];
        let args = load(text, &typed).unwrap();
        let settings = args.server_settings().unwrap();
        assert_eq!(settings.poll_timeout, Duration::from_secs(3));
        assert_eq!(settings.inline_bytes, 2 << 20);
        assert_eq!(settings.session_timeout, Duration::from_secs(90));
        assert_eq!(args.models().unwrap()[0].path, PathBuf::from("other"));
    }

    #[test]
    fn an_unknown_flag_for_clients_is_a_mistake_with_its_name() {
        let settings = |text: &str, typed: &[&str]| load(text, typed)?.server_settings();
        let mut expected = Settings::new("").client;
        expected.proto_compress_fwdbwd = true;
        let file = settings("[client]\nproto_compress_fwdbwd = true\n", &[]).unwrap();
        assert_eq!(file.client, expected, "the others are as without a file");
        let typed = settings("", &["--client", "proto_compress_fwdbwd=true"]).unwrap();
        assert_eq!(typed.client, expected);
        for (text, typed, expected) in [
            (
                "[client]\nproto_compress_fwdbwt = true\n",
                None,
                "server.toml, line 2: `client`: unknown flag `proto_compress_fwdbwt`; did you mean `proto_compress_fwdbwd`?",
            ),
            (
                "\n[client]\nfwdbwd_max_chunk_len = \"4\"\n",
                None,
                "server.toml, line 3: `client.fwdbwd_max_chunk_len`: invalid type: string \"4\", expected usize",
            ),
            ("", Some("nothing=1"), "--client: unknown flag `nothing`"),
            ("", Some("sample_no_retries"), "expected FLAG=VALUE"),
            (
                "",
                Some("sample_no_retries=7"),
                "--client sample_no_retries",
            ),
        ] {
            let typed: Vec<_> = typed
                .into_iter()
                .flat_map(|flag| ["--client", flag])
                .collect();
            let error = format!("{:#}", settings(text, &typed).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_server_that_others_can_reach_needs_keys_and_queues_need_room() {
        let refused = |typed: &[&str]| {
            let error = load("", typed).unwrap().server_settings().unwrap_err();
            error.root_cause().to_string()
        };
        let open = refused(&["--addr", "0.0.0.0:0"]);
        assert!(open.contains("no keys are set"), "{open}");
        let full = refused(&["--queued-samples", "0"]);
        assert!(full.contains("queued_samples"), "{full}");
        let dead = refused(&["--session-timeout", "0"]);
        assert!(dead.contains("session_timeout"), "{dead}");
        assert!(
            load("poll_timeout = \"soon\"", &[])
                .unwrap_err()
                .to_string()
                .contains("`soon`, expected a time such as 500ms, 30s, 5m or 24h")
        );
    }
}
