//! `tinkrs models pull`: a model from the Hugging Face Hub.

use std::time::Instant;

use anyhow::{Context as _, anyhow};

use super::remote::Repository;
use super::transfer;
use crate::command::checkpoint::check_repo;
use crate::context::Context;
use crate::human::size;
use crate::model_store::ModelStore;
use crate::progress::Progress;
use crate::report::Hint;
use crate::system;

/// Download a model from the Hugging Face Hub
///
/// Gets what a model is made of and nothing else: configuration, tokenizer, chat template and safetensors.
/// A download that was interrupted goes on where it ended, and every file is checked against the digest
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
    let repository = Repository::look_up(&args.repo, &args.revision).await?;
    let folder = ModelStore::open()?.download_folder(&args.repo, &args.revision);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("could not make {}", folder.display()))?;

    let total: u64 = repository.files.iter().map(|file| file.size_bytes).sum();
    ctx.note(format_args!(
        "{} at {}: {} in {} files",
        args.repo,
        repository.commit.get(..12).unwrap_or(&repository.commit),
        size(total),
        repository.files.len()
    ));
    let mut missing = Vec::new();
    for file in &repository.files {
        match transfer::is_here(file, &folder)? {
            true => ctx.note(format_args!("{}: here already", file.name)),
            false => missing.push(file),
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
        let progress = Progress::new(ctx);
        let start = Instant::now();
        let first = std::cell::Cell::new(None);
        let said = |received: u64| {
            let begin = first.get().unwrap_or(received);
            first.set(Some(begin));
            progress.say(|| {
                // Less has come than before if the Hub had to start over.
                let new = received.saturating_sub(begin) as f64;
                let rate = new / start.elapsed().as_secs_f64().max(0.001);
                let of = size(file.size_bytes);
                format!(
                    "{}: {} of {of}, {}/s",
                    file.name,
                    size(received),
                    size(rate as u64)
                )
            });
        };
        transfer::fetch(&repository, file, &folder, said).await?;
        drop(progress);
        ctx.note(format_args!("{}: {}", file.name, size(file.size_bytes)));
    }
    repository
        .remove_others(&folder)
        .with_context(|| format!("could not remove old files from {}", folder.display()))?;
    super::register(ctx, name, &folder)
}
