use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::Serialize;
use tinkrs::rest::download::{DownloadOptions, Downloaded};
use tinkrs::{CheckpointKind, RestClient, ServiceClient, TinkerPath};

use super::{WITH_FILES, find, read_reference};
use crate::context::Context;
use crate::ending::in_session;
use crate::human::size;
use crate::output::Hint;
use crate::status_line::StatusLine;
use crate::table::Table;

/// How long the files of a training checkpoint are kept on the server to be downloaded.
const EXPORT_TTL: Duration = Duration::from_secs(3600);
/// How often that time starts anew while a download goes on.
const RENEW: Duration = Duration::from_secs(1200);

/// Download the weights of a checkpoint
///
/// Takes training and external checkpoints. A training checkpoint is first exported by the
/// server, which starts a session. The files are put in a folder named after the path.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkpoint: its path, `tinker://...`, or its run, such as `my-run` or `my-run@120`
    path: String,

    /// Folder to put the checkpoint's folder in, made if it does not exist. Default: this one
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Replace what was downloaded before
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoint_path: TinkerPath,
    destination: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_size_bytes: Option<u64>,
}

impl Args {
    /// Returns the path of the checkpoint, as it was typed.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let path = find(ctx, &read_reference(&args.path)?, &WITH_FILES).await?;
    let folder = args.output.clone().unwrap_or_default();
    let target = folder.join(folder_name(&path));
    make_room(&target, args.force)?;

    let mut unfinished = RemoveOnDrop(Some(target.clone()));
    let downloaded = fetch(ctx, &path, &target).await?;
    unfinished.0 = None;

    let bytes = downloaded.size_bytes();
    let report = Report {
        checkpoint_path: path,
        destination: target.display().to_string(),
        file_size_bytes: (bytes > 0).then_some(bytes),
    };
    ctx.show(&report, || properties(&report))
}

/// Downloads a checkpoint into a folder.
pub(in crate::command) async fn fetch(
    ctx: &Context,
    path: &TinkerPath,
    folder: &Path,
) -> anyhow::Result<Downloaded> {
    match path.kind() {
        CheckpointKind::External => download(ctx, &ctx.rest(), path, None, folder).await,
        CheckpointKind::Training => {
            if !ctx.is_json() {
                ctx.note("Exporting the checkpoint to files; this may take a while");
            }
            let service = ctx.service();
            in_session(ctx, &service, export(ctx, &service, path, folder)).await
        }
        kind => Err(anyhow!(
            "{path} is a {kind} checkpoint, which cannot be downloaded"
        )
        .context(Hint(
            "download a training checkpoint of the same run: `tinkrs checkpoint list --run-id RUN`",
        ))),
    }
}

/// Saves the weights of a training checkpoint as files, and downloads those.
async fn export(
    ctx: &Context,
    service: &ServiceClient,
    path: &TinkerPath,
    folder: &Path,
) -> anyhow::Result<Downloaded> {
    let label = (
        "created_by".to_owned(),
        "tinkrs checkpoint download".to_owned(),
    );
    let model = service
        .create_training_client_from_state(path.clone())
        .user_metadata([label].into_iter().collect());
    let model = ctx.ask("load the checkpoint", model.into_future()).await?;
    let save = model.save_weights_external("download").ttl(EXPORT_TTL);
    let saved = ctx.ask("export the checkpoint", save.into_future()).await?;
    let (export, announced) = (saved.path, saved.size_bytes);
    let rest = service.create_rest_client();
    let result = tokio::select! {
        result = download(ctx, &rest, &export, announced, folder) => result,
        never = renew(&rest, &export) => match never {},
    };
    if let Err(error) = rest.delete_checkpoint(&export).await {
        ctx.note(format_args!(
            "warning: the export {export} stays for an hour: {error}"
        ));
    }
    result
}

async fn renew(rest: &RestClient, export: &TinkerPath) -> Infallible {
    loop {
        tokio::time::sleep(RENEW).await;
        // If the server forgets the files after all, the download says so.
        let _ = rest.set_checkpoint_ttl(export, Some(EXPORT_TTL)).await;
    }
}

/// Downloads files, none of which may be longer than what the server has announced for all of them, plus a
/// tenth for formats and counting.
async fn download(
    ctx: &Context,
    rest: &RestClient,
    path: &TinkerPath,
    announced: Option<u64>,
    folder: &Path,
) -> anyhow::Result<Downloaded> {
    let progress = Arc::new(StatusLine::new(ctx));
    let drawn = Arc::clone(&progress);
    let defaults = DownloadOptions::default();
    let with_margin = |bytes: u64| bytes.saturating_add(bytes / 10).saturating_add(1 << 20);
    let options = DownloadOptions {
        max_file_bytes: announced.map_or(defaults.max_file_bytes, |bytes| {
            with_margin(bytes).min(defaults.max_file_bytes)
        }),
        on_progress: Some(Arc::new(move |of| {
            drawn.say(|| {
                let total = of
                    .total_bytes
                    .map_or_else(String::new, |b| format!(" of {}", size(b)));
                format!("{}: {}{total}", of.name, size(of.received_bytes))
            });
        })),
        ..defaults
    };
    let files = rest
        .download_checkpoint(path.clone(), folder)
        .options(options);
    ctx.ask("download the checkpoint", files.into_future())
        .await
}

/// Returns the name of the folder for a checkpoint: its path with `_` for `/`.
fn folder_name(path: &TinkerPath) -> String {
    let text = path.to_string();
    text.trim_start_matches("tinker://").replace('/', "_")
}

fn make_room(target: &Path, force: bool) -> anyhow::Result<()> {
    match target.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) if !force => Err(anyhow!("{} exists already", target.display()).context(Hint(
            "replace it with `--force`, or choose another folder with `-o`",
        ))),
        Ok(found) => {
            let removed = if found.is_dir() {
                std::fs::remove_dir_all(target)
            } else {
                std::fs::remove_file(target)
            };
            removed.with_context(|| format!("could not remove {}", target.display()))
        }
    }
}

/// A folder that is of no use unless it is complete.
struct RemoveOnDrop(Option<PathBuf>);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // It may not have been made yet.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn properties(report: &Report) -> Table {
    let path = report.checkpoint_path.to_string();
    let mut table = Table::properties().title(format!("Checkpoint Download: {path}"));
    table.row(["Checkpoint Path", &path]);
    if let Some(bytes) = report.file_size_bytes {
        table.row(["Total Size", &size(bytes)]);
    }
    table.row(["Downloaded to", &report.destination]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_named_after_the_path() {
        let path = "tinker://s:train:0/weights/step-1".parse().unwrap();
        assert_eq!(folder_name(&path), "s:train:0_weights_step-1");
    }

    #[test]
    fn only_force_replaces_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x");
        make_room(&target, false).unwrap();
        std::fs::create_dir(&target).unwrap();
        assert!(make_room(&target, false).is_err());
        make_room(&target, true).unwrap();
        assert!(!target.exists());
        drop(RemoveOnDrop(Some(target)));
    }
}
