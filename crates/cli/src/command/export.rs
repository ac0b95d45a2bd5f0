//! `tinkrs export`: what was trained, as files for other tools.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use tempfile::TempDir;
use tinkrs::{CheckpointKind, CheckpointRef, TinkerPath};
use tinkrs_engine::peft::{self, PeftAdapter};
use tinkrs_engine::weights::Dtype;
use tinkrs_export::{Base, Error, Export, Progress, Quantisation, Staging, What, is_hub_id};
use tinkrs_recipes::run::Journal;

use super::checkpoint::{self, download, read_reference};
use crate::context::Context;
use crate::data_folder;
use crate::human::size;
use crate::local_model;
use crate::on_server::{NeededModel, on_server};
use crate::output::{self, Hint};
use crate::server_args::ServerArgs;
use crate::status_line::StatusLine;
use crate::system;
use crate::table::Table;

/// The files of an adapter.
const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
/// Room on the disk beside what is written.
const SPARE: u64 = 16 << 20;

/// Write a checkpoint as files for other tools
///
/// peft: the adapter, for Hugging Face `peft` and for servers that load adapters.
/// merged: a Hugging Face folder with the adapter added to the model's weights.
/// gguf: the same as one file, for llama.cpp and what is built on it.
/// gguf-adapter: the adapter alone, for llama.cpp.
/// ollama: the GGUF file and a Modelfile, for `ollama create`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkpoint: `tinker://...`, or its run, such as `my-run` or `my-run@NAME`; or a folder with an adapter, as `peft` and the hosted service write it; or a
    /// model: a Hugging Face folder or a GGUF file
    run: String,

    /// Folder to write. It appears when it is complete
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,

    /// What to write
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = ["peft", "merged", "gguf", "gguf-adapter", "ollama"],
        default_value = "merged"
    )]
    format: String,

    /// Model that was trained: a Hugging Face folder or a GGUF file. Default: the model of this machine that has
    /// the name which the checkpoint knows
    #[arg(long, value_name = "PATH")]
    base: Option<PathBuf>,

    /// What `peft` is to call the model: its id on the Hub. Default: the one in the model's config.json, or the
    /// name which the checkpoint knows
    #[arg(long, value_name = "ID")]
    base_name: Option<String>,

    /// Element type of `merged`. Default: as stored
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "bf16", "f16"])]
    dtype: Option<String>,

    /// Storage format of `gguf`, `gguf-adapter` and `ollama`. Default: as stored; f32 for an adapter
    #[arg(long, value_name = "TYPE", value_parser = Quantisation::NAMES)]
    quantize: Option<String>,

    /// Replace an earlier export in the folder. One with other things in it is not replaced
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    format: String,
    destination: String,
    base: String,
    base_model: Option<String>,
    size_bytes: u64,
    files: Vec<Written>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Written {
    name: String,
    size_bytes: u64,
}

/// What is exported: an adapter, or a model without one.
struct Source {
    adapter: Option<PathBuf>,
    base: PathBuf,
    /// What the one who trained it calls the model.
    model: Option<String>,
    /// What is here only for as long as the command runs.
    _files: TempDir,
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let what = what(args)?;
    let staging = Staging::new(&args.to, args.overwrite).map_err(explain)?;
    let source = find(ctx, args).await?;
    for path in [Some(&source.base), source.adapter.as_ref()] {
        path.map_or(Ok(()), |path| staging.spare(path))
            .map_err(explain)?;
    }
    let folder = staging.path().to_owned();
    let progress = Arc::new(StatusLine::new(ctx));
    let (name, to) = (args.base_name.clone(), args.to.clone());
    // Merging computes for seconds, and Ctrl-C has to be heard meanwhile.
    let (writing, has_ended) = Writing::begin();
    let stop = Arc::clone(&writing.stop);
    let written = tokio::task::spawn_blocking(move || {
        let _has_ended = has_ended;
        let made = write(&source, what, name, &to, &folder, &progress, &stop);
        made.map(|made| (made, source.base.display().to_string()))
    });
    let (made, base) = written.await.context("the export ended by itself")??;
    for note in &made.notes {
        ctx.note(format_args!("note: {note}"));
    }
    let files = list(staging.path())?;
    staging.finish(args.overwrite).map_err(explain)?;
    let report = Report {
        format: args.format.clone(),
        destination: args.to.display().to_string(),
        base,
        base_model: made.base_name,
        size_bytes: files.iter().map(|file| file.size_bytes).sum(),
        files,
        notes: made.notes,
    };
    ctx.show(&report, || properties(&report))
}

/// The thread that writes. When this is dropped it is told to stop, and has stopped: nothing is put into a folder that
/// is being removed.
struct Writing {
    stop: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl Writing {
    /// Returns what the thread has to drop when it ends, too.
    fn begin() -> (Self, Sender<()>) {
        let (has_ended, ended) = std::sync::mpsc::channel();
        let stop = Arc::default();
        (Self { stop, ended }, has_ended)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Nothing is ever sent.
        let _ = self.ended.recv();
    }
}

/// Reads what to write.
fn what(args: &Args) -> anyhow::Result<What> {
    let quantize = args.quantize.as_deref().and_then(Quantisation::from_name);
    let dtype = args.dtype.as_deref().map(|name| match name {
        "f16" => Dtype::F16,
        "bf16" => Dtype::Bf16,
        _ => Dtype::F32,
    });
    let what = match args.format.as_str() {
        "peft" => What::Peft,
        "merged" => What::Merged(dtype),
        "gguf" => What::Gguf(quantize),
        "gguf-adapter" => What::GgufAdapter(quantize),
        "ollama" => What::Ollama(quantize),
        // The option in front of the command, which is about results.
        other => {
            let error = anyhow!("`--format {other}` is not a format of exports");
            return Err(error.context(Hint("results as JSON: `--json`")));
        }
    };
    let takes_dtype = matches!(what, What::Merged(_));
    if dtype.is_some() && !takes_dtype {
        bail!("`--dtype` is for `--format merged`; GGUF files have `--quantize`");
    }
    if quantize.is_some() && matches!(what, What::Peft | What::Merged(_)) {
        bail!("`--quantize` is for GGUF files; `--format merged` has `--dtype`");
    }
    Ok(what)
}

/// Finds the adapter and its model, and downloads what is not here.
async fn find(ctx: &Context, args: &Args) -> anyhow::Result<Source> {
    let files = tempfile::tempdir().context("could not make a folder")?;
    let given = Path::new(&args.run);
    // The folder of a run has a file of settings with the name that models have.
    let of_run = last_run(given)?;
    let (adapter, model) = if given.join(ADAPTER_FILES[0]).is_file() {
        (given.to_owned(), None)
    } else if let Some(checkpoint) = of_run {
        let adapter = files.path().join("adapter");
        let model = fetch(ctx, args, &checkpoint, &adapter).await?;
        (adapter, Some(model))
    } else if given.join("config.json").is_file()
        || (given.is_file() && local_model::is_gguf(given))
    {
        return Ok(Source {
            adapter: None,
            base: given.to_owned(),
            model: None,
            _files: files,
        });
    } else {
        let adapter = files.path().join("adapter");
        let fetched = match read_reference(&args.run) {
            Ok(checkpoint) => fetch(ctx, args, &checkpoint, &adapter).await,
            Err(error) => Err(error),
        };
        // A run may be called like a folder that has nothing to do with it.
        let model = fetched.map_err(|error| {
            if !given.is_dir() {
                return error;
            }
            anyhow!(
                "{} has neither an adapter ({}) nor a model (config.json), and as a run: {}",
                given.display(),
                ADAPTER_FILES.join(" and "),
                output::one_line(&error)
            )
        })?;
        (adapter, Some(model))
    };
    let model = model.or_else(|| base_of(&adapter));
    let base = match &args.base {
        Some(base) => base.clone(),
        None => base_here(model.as_deref(), args.server.data_dir(), files.path())?,
    };
    Ok(Source {
        adapter: Some(adapter),
        base,
        model,
        _files: files,
    })
}

/// Returns the run that a folder is of, if it is one that has saved something.
fn last_run(folder: &Path) -> anyhow::Result<Option<CheckpointRef>> {
    let journal = folder.join("journal.jsonl");
    if !journal.is_file() {
        return Ok(None);
    }
    let journal = Journal::open(journal)?;
    let last = journal.last_checkpoint();
    Ok(last.map(|(_, path)| CheckpointRef::latest(path.run().as_str())))
}

/// Downloads an adapter, and returns the name of its model.
async fn fetch(
    ctx: &Context,
    args: &Args,
    checkpoint: &CheckpointRef,
    folder: &Path,
) -> anyhow::Result<String> {
    let kinds = [CheckpointKind::Sampler, CheckpointKind::Training];
    let is_training = |path: &TinkerPath| path.kind() == CheckpointKind::Training;
    let mut path = checkpoint.path().cloned();
    if path.as_ref().is_none_or(|path| !is_training(path)) {
        let found = on_server(ctx, &args.server, NeededModel::None, async |ctx| {
            let path = checkpoint::find(ctx, checkpoint, &kinds).await?;
            if is_training(&path) {
                return Ok((path, None));
            }
            let model = fetch_from(ctx, &path, folder).await?;
            Ok((path, Some(model)))
        });
        match found.await? {
            (_, Some(model)) => return Ok(model),
            (training, None) => path = Some(training),
        }
    }
    // Its adapter is made by its model.
    let path = path.expect("a checkpoint is one for training or for sampling");
    let checkpoint = CheckpointRef::from(path.clone());
    let need = NeededModel::BaseOf(&checkpoint);
    on_server(ctx, &args.server, need, async |ctx| {
        fetch_from(ctx, &path, folder).await
    })
    .await
}

/// Downloads an adapter from the server that was chosen.
async fn fetch_from(ctx: &Context, path: &TinkerPath, folder: &Path) -> anyhow::Result<String> {
    let rest = ctx.rest();
    let info = rest.get_weights_info_by_tinker_path(path);
    let info = ctx.ask("find the checkpoint", info).await?;
    if path.kind() == CheckpointKind::Sampler {
        let archive = rest.get_checkpoint_archive(path);
        unpack(&ctx.ask("download the checkpoint", archive).await?, folder)?;
    } else {
        download::fetch(ctx, path, folder).await?;
    }
    Ok(info.base_model)
}

/// Takes the files of an adapter out of an archive. Other names in it, wherever they lead, are not looked at.
fn unpack(archive: &[u8], folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).context("could not make a folder")?;
    let wrong = "the server sent an archive that cannot be read";
    for entry in tar::Archive::new(archive).entries().context(wrong)? {
        let mut entry = entry.context(wrong)?;
        let path = entry.path().context(wrong)?.into_owned();
        let name = ADAPTER_FILES.into_iter().find(|name| path.ends_with(name));
        if let (Some(name), true) = (name, entry.header().entry_type().is_file()) {
            let mut file = std::fs::File::create(folder.join(name))
                .context("could not write the downloaded adapter")?;
            std::io::copy(&mut entry, &mut file).context(wrong)?;
        }
    }
    Ok(())
}

/// Returns the name that an adapter has for its model.
fn base_of(adapter: &Path) -> Option<String> {
    let text = std::fs::read(adapter.join(ADAPTER_FILES[0])).ok()?;
    let settings: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let name = settings.get("base_model_name_or_path")?.as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Finds a model of this machine by its name.
fn base_here(name: Option<&str>, data: &Path, files: &Path) -> anyhow::Result<PathBuf> {
    let hint = Hint("name its folder or GGUF file: `--base PATH`");
    let Some(name) = name else {
        return Err(
            anyhow!("the adapter does not say which model it was trained on").context(hint),
        );
    };
    let wanted = data_folder::find_base_or(data, name, hint)?;
    Ok(wanted.place(files)?.path)
}

/// What came of an export.
struct Made {
    base_name: Option<String>,
    notes: Vec<String>,
}

/// Merges and writes.
fn write(
    source: &Source,
    what: What,
    base_name: Option<String>,
    to: &Path,
    folder: &Path,
    progress: &StatusLine,
    stop: &AtomicBool,
) -> anyhow::Result<Made> {
    let base = Base::open(&source.base)
        .with_context(|| format!("could not read the model {}", source.base.display()))?;
    let adapter = source.adapter.as_ref().map(|folder| load(folder, &base));
    let adapter = adapter.transpose()?;
    let mut notes = Vec::new();
    let base_name = base_name.or_else(|| known_name(&base, source));
    let name = match what {
        What::Peft => base_name.clone().unwrap_or_else(|| {
            notes.push(
                "the model's id on the Hub is not known, so the adapter does not name it: `--base-name ID`"
                    .to_owned(),
            );
            source.model.clone().unwrap_or_default()
        }),
        _ => title(to),
    };
    let export = Export::plan(&base, adapter.as_ref(), &name, what)
        .map_err(explain)
        .context("could not export")?;
    notes.extend(export.notes().iter().cloned());
    let total = export.size();
    if let Some(free) = system::free_bytes(folder)
        && free < total.saturating_add(SPARE)
    {
        let (total, free) = (size(total), size(free));
        bail!(
            "the export takes {total}, and there is room for {free} in {}",
            to.display()
        );
    }
    let written = std::cell::Cell::new(0u64);
    let on_tensor = |name: &str, bytes: u64| {
        written.set(written.get() + bytes);
        progress.say(|| format!("{} of {}: {name}", size(written.get()), size(total)));
        if stop.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        Ok(())
    };
    let progress = Progress {
        on_tensor: Some(&on_tensor),
    };
    let done = export.write(folder, &progress);
    done.map_err(explain).context("could not export")?;
    Ok(Made { base_name, notes })
}

fn load(folder: &Path, base: &Base) -> anyhow::Result<PeftAdapter> {
    peft::load(folder, base.weights().config())
        .context("the adapter does not fit the model")
        .context(Hint("`--base` must be the model that was trained"))
}

/// Returns the model's id on the Hub, as far as it or its trainer knows.
fn known_name(base: &Base, source: &Source) -> Option<String> {
    let trained = source.model.as_deref().filter(|name| is_hub_id(name));
    base.hub_id().or(trained).map(str::to_owned)
}

/// Returns what a model in a folder is called.
fn title(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn explain(error: Error) -> anyhow::Error {
    let hint = match &error {
        Error::Occupied(_) => {
            Some("name another folder, or replace what is there with `--overwrite`")
        }
        Error::NotAnExport { .. } | Error::Source(_) => Some("name another folder"),
        _ => None,
    };
    match hint {
        Some(hint) => anyhow!(error).context(Hint(hint)),
        None => anyhow!(error),
    }
}

fn list(folder: &Path) -> anyhow::Result<Vec<Written>> {
    let read = || -> std::io::Result<Vec<Written>> {
        let entries = std::fs::read_dir(folder)?.map(|entry| {
            let entry = entry?;
            Ok(Written {
                name: entry.file_name().to_string_lossy().into_owned(),
                size_bytes: entry.metadata()?.len(),
            })
        });
        entries.collect()
    };
    let mut files = read().context("could not look at what was written")?;
    files.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(files)
}

fn properties(report: &Report) -> Table {
    let mut table = Table::properties().title(format!("Exported: {}", report.format));
    table.row(["Folder", &report.destination]);
    table.row([
        "Base Model",
        report.base_model.as_deref().unwrap_or(&report.base),
    ]);
    table.row(["Total Size", &size(report.size_bytes)]);
    for file in &report.files {
        table.row([&file.name, &size(file.size_bytes)]);
    }
    table
}
