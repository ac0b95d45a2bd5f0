//! `tinkrs serve`: a Tinker server on this machine.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tinkrs_engine::weights::{GgufFile, HuggingFaceFolder};
use tinkrs_engine::{Model, Precision, Threads};
use tinkrs_server::{BaseModel, Server, Settings};
use tokio::net::TcpListener;

use crate::report::Hint;

/// How long answers under way may take once the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Serve models to Tinker clients on this machine
///
/// Clients find the server through TINKER_BASE_URL; any TINKER_API_KEY that starts with `tml-`
/// will do. The first line on stdout has the address, and appears when the server is ready.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model to serve: a Hugging Face folder or a GGUF file, and the name that clients use
    #[arg(long = "model", value_name = "NAME=PATH", required = true, value_parser = read_model)]
    models: Vec<NamedModel>,

    /// Port on 127.0.0.1; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,

    /// Folder for checkpoints, made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "tinkrs-data")]
    data: PathBuf,

    /// Threads that compute; one for each core unless given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Clone, Debug, PartialEq)]
struct NamedModel {
    name: String,
    path: PathBuf,
}

fn read_model(text: &str) -> Result<NamedModel, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(NamedModel {
            name: name.to_owned(),
            path: path.into(),
        }),
        _ => Err("expected NAME=PATH, such as `my-org/my-model=./folder`".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let threads = match args.threads {
        Some(count) => Threads::new(count),
        None => Threads::all_cores(),
    };
    let threads = threads.context("could not start the threads that compute")?;
    let models = args.models.iter().map(|named| load(named, &threads));
    let models = models.collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("could not start the threads that answer requests")?;
    runtime.block_on(answer(args, models))
}

fn load(named: &NamedModel, threads: &Threads) -> anyhow::Result<BaseModel> {
    let NamedModel { name, path } = named;
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let model = if is_gguf {
        GgufFile::open(path).and_then(|file| Model::load(&file, Precision::Stored, threads))
    } else {
        HuggingFaceFolder::open(path)
            .and_then(|folder| Model::load(&folder, Precision::Stored, threads))
    };
    let model = model
        .with_context(|| format!("could not load model `{name}` from {}", path.display()))
        .context(Hint(
            "a model is a Hugging Face folder with config.json and safetensors, or a GGUF file",
        ))?;
    Ok(BaseModel {
        tokenizer: tokenizer(path),
        ..BaseModel::new(name, Arc::new(model))
    })
}

/// Returns the folder if clients can load a tokenizer from it.
fn tokenizer(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let has_one = folder.join("tokenizer_config.json").exists();
    has_one.then(|| folder.to_str().map(str::to_owned))?
}

async fn answer(args: &Args, models: Vec<BaseModel>) -> anyhow::Result<()> {
    let server =
        Server::start(models, Settings::new(&args.data)).context("could not start the server")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
        .await
        .with_context(|| format!("could not listen on 127.0.0.1:{}", args.port))
        .context(Hint(
            "choose another port with `--port`, or 0 for any free one",
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
        () = overdue => bail!("some requests had no answer {} s after the server was told to stop", GRACE.as_secs()),
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
    fn a_model_is_a_name_and_a_path() {
        let model = read_model("org/tiny=/models/a=b").unwrap();
        assert_eq!(model.name, "org/tiny");
        assert_eq!(model.path, Path::new("/models/a=b"));
        for wrong in ["", "tiny", "=folder", "tiny="] {
            assert!(read_model(wrong).is_err(), "{wrong}");
        }
    }
}
