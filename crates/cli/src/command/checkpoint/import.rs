use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::context::Context;
use crate::output::Hint;
use crate::table::Table;

/// The files that PEFT writes.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Import a LoRA adapter that was made elsewhere, with Hugging Face `peft`
///
/// The adapter becomes a training run with two checkpoints: one to train on, one to sample from.
/// Works with `tinkrs serve`; the hosted service takes no adapters.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with `adapter_config.json` and `adapter_model.safetensors`
    folder: PathBuf,

    /// Model that the adapter was trained on, as the server calls it
    #[arg(long, value_name = "NAME")]
    base_model: String,

    /// Name of the checkpoints. Default: imported
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

impl Args {
    /// Returns the model that the adapter is for.
    pub(super) fn base_model(&self) -> &str {
        &self.base_model
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let archive = pack(&args.folder)?;
    let rest = ctx.rest();
    let call = rest.import_weights(&args.base_model, args.name.as_deref(), archive);
    let imported = ctx.ask("import the adapter", call).await?;
    ctx.show(&imported, || {
        let folder = args.folder.display();
        let mut table = Table::properties().title(format!("Imported Adapter: {folder}"));
        table.row(["To train on", &imported.tinker_path.to_string()]);
        table.row(["To sample from", &imported.sampler_path.to_string()]);
        table
    })
}

/// Puts the two files of a folder into an archive.
pub(crate) fn pack(folder: &Path) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.mode(tar::HeaderMode::Deterministic);
    for name in FILES {
        let path = folder.join(name);
        let packed = archive.append_path_with_name(&path, name);
        packed
            .with_context(|| format!("could not read {}", path.display()))
            .context(Hint(
                "expected a folder that `model.save_pretrained` of `peft` wrote, with safetensors",
            ))?;
    }
    Ok(archive.into_inner()?)
}
