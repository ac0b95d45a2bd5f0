//! `tinkrs models pull`: a model from the Hugging Face Hub.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use tinkrs::hub::{RemoteFile, Repository};
use tinkrs::rest::download::{DownloadError, DownloadOptions};

use super::remote;
use crate::command::checkpoint::check_repo;
use crate::context::Context;
use crate::human::size;
use crate::model_store::ModelStore;
use crate::output::Hint;
use crate::status_line::StatusLine;
use crate::system;

/// How many attempts in a row may bring nothing.
const ATTEMPTS: u32 = 5;
/// How long the first pause between them is.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How often the progress is shown.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// Download a model from the Hugging Face Hub
///
/// Gets what a model is made of and nothing else: configuration, tokenizer, chat template and safetensors.
/// A download that was interrupted continues where it ended, and every file is checked against the digest
/// that the Hub has. The model is known by the repository's name afterwards. HF_TOKEN is used if
/// it is set, HF_ENDPOINT names another Hub.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repository, such as Qwen/Qwen3-0.6B
    repo: String,

    /// Name to know the model by. Default: that of the repository
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    check_repo(&args.repo)?;
    let name = args.name.as_deref().unwrap_or(&args.repo);
    super::check_name(name)?;
    let repository = remote::look_up(&args.repo, &args.revision).await?;
    let files = remote::files(&repository)?;
    let folder = ModelStore::open()?.download_folder(&args.repo, &args.revision);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("could not make {}", folder.display()))?;

    let total: u64 = files.iter().map(|file| file.size_bytes).sum();
    ctx.note(format_args!(
        "{} at {}: {} in {} files",
        args.repo,
        repository.commit().get(..12).unwrap_or(repository.commit()),
        size(total),
        files.len()
    ));
    let mut missing = Vec::new();
    for file in &files {
        let path = folder.join(&file.name);
        let is_here = file.digest.matches(&path, file.size_bytes);
        if is_here.with_context(|| format!("could not read {}", path.display()))? {
            ctx.note(format_args!("{}: here already", file.name));
        } else {
            missing.push(file);
        }
    }
    let needed: u64 = missing.iter().map(|file| file.size_bytes).sum();
    if let Some(free) = system::free_bytes(&folder)
        && free < needed
    {
        return Err(anyhow!(
            "{} are to be downloaded, and {} has room for {}",
            size(needed),
            folder.display(),
            size(free)
        )
        .context(Hint("make room, or name another folder with TINKRS_HOME")));
    }
    for file in missing {
        download(ctx, &repository, file, &folder).await?;
        ctx.note(format_args!("{}: {}", file.name, size(file.size_bytes)));
    }
    remote::remove_others(&folder, &files)
        .with_context(|| format!("could not remove old files from {}", folder.display()))?;
    super::register(ctx, name, &folder)
}

/// Downloads a file and shows how far it is.
async fn download(
    ctx: &Context,
    repository: &Repository,
    file: &RemoteFile,
    folder: &Path,
) -> anyhow::Result<()> {
    let received = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&received);
    let options = DownloadOptions {
        retry_delay: RETRY_DELAY,
        attempts: ATTEMPTS,
        on_progress: Some(Arc::new(move |progress| {
            counter.store(progress.received_bytes, Ordering::Relaxed);
        })),
        ..DownloadOptions::default()
    };
    let mut fetched = pin!(repository.download(file, folder, &options));
    let progress = StatusLine::new(ctx);
    let start = Instant::now();
    let mut first = None;
    let fetched = loop {
        tokio::select! {
            fetched = &mut fetched => break fetched,
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
        let received = received.load(Ordering::Relaxed);
        // Less has arrived than before if the download had to start over.
        let new = received.saturating_sub(*first.get_or_insert(received)) as f64;
        let rate = size((new / start.elapsed().as_secs_f64().max(0.001)) as u64);
        let (name, of) = (&file.name, size(file.size_bytes));
        progress.say(|| format!("{name}: {} of {of}, {rate}/s", size(received)));
    };
    fetched.map_err(|error| {
        let name = &file.name;
        let (what, hint) = match &error {
            DownloadError::WrongDigest { .. } => (
                format!("{name} is not what the Hub says it is"),
                "run the same command again; the file is downloaded again",
            ),
            DownloadError::File { .. } => (
                format!("could not write {name} to {}", folder.display()),
                "is the disk full, or another download of it under way?",
            ),
            _ => (
                format!("could not download {name}"),
                "the same command continues from where this one ended",
            ),
        };
        anyhow::Error::new(error).context(what).context(Hint(hint))
    })
}
