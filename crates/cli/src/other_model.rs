//! Models besides the one that is trained: teachers, references, reward models. Each is a base model, or a checkpoint.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail, ensure};
use tinkrs::{CheckpointKind, CheckpointRef};
use tinkrs_recipes::run::{Journal, ReferenceModel};

use crate::backend::{Backend, BackendArgs};
use crate::context::Context;
use crate::data_folder;
use crate::hint;
use crate::local_model::{self, Wanted};
use crate::output;

/// Weights that were saved for training can be sampled from, too.
const KINDS: [CheckpointKind; 2] = [CheckpointKind::Sampler, CheckpointKind::Training];

/// A model besides the one that is trained, as an option or a key of a table names it.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    /// The option or the key that names it.
    place: &'static str,
    text: String,
}

impl Other {
    /// Reads what is said in a `place`, such as `--teacher`: a model, a checkpoint, or the folder of a run, which means its last checkpoint.
    pub(crate) fn new(place: &'static str, text: &str) -> anyhow::Result<Self> {
        let has = |name| Path::new(text).join(name).is_file();
        // An adapter is refused there, with what to do about it.
        let is_folder = has("journal.jsonl") || has("adapter_config.json");
        let is_checkpoint = text.starts_with("tinker://") || text.contains('@');
        let text = if is_folder || is_checkpoint {
            checkpoint(text, place)?.to_string()
        } else {
            text.to_owned()
        };
        Ok(Self { place, text })
    }

    /// Finds the model that this machine needs for it, besides the one that is trained. Another server has what it
    /// has.
    pub(crate) async fn model(
        &self,
        ctx: &Context,
        args: &BackendArgs,
    ) -> anyhow::Result<Option<Wanted>> {
        let Self { place, text } = self;
        if let Some(wanted) = local_model::find(text)? {
            return Ok(Some(wanted));
        }
        let Some(server) = args.on_this_machine()? else {
            return Ok(None);
        };
        let Ok(checkpoint) = text.parse::<CheckpointRef>() else {
            return data_folder::find(text).map(Some);
        };
        let base = data_folder::base_of(ctx, server, &checkpoint, &KINDS).await;
        let base = base.map_err(|error| {
            let problem =
                "it is neither a model of this machine nor a run that can be sampled from";
            let why = output::one_line(&error);
            anyhow!("{place}: `{text}`: {problem}: {why}")
        })?;
        data_folder::find_base(server.data_dir(), &base).map(Some)
    }

    /// Finds it on the server.
    pub(crate) async fn source(&self, backend: &Backend) -> anyhow::Result<ReferenceModel> {
        let text = &self.text;
        if let Some(wanted) = local_model::find(text)? {
            return Ok(ReferenceModel::Base(wanted.name().to_owned()));
        }
        let is_checkpoint = text.starts_with("tinker://") || text.contains('@');
        let checkpoint = match text.parse::<CheckpointRef>() {
            Ok(checkpoint) => checkpoint,
            Err(error) if is_checkpoint => {
                return Err(error).with_context(|| format!("`{text}` is not a checkpoint"));
            }
            Err(_) => return Ok(ReferenceModel::Base(text.clone())),
        };
        if !is_checkpoint {
            // A model may have such a name, too.
            let rest = backend.service.create_rest_client();
            let run = rest.find_run(checkpoint.run()).await;
            let run =
                run.map_err(|error| hint::explain(error, "could not list runs".to_owned()))?;
            if run.is_none() {
                return Ok(ReferenceModel::Base(text.clone()));
            }
        }
        let path = backend.resolve_as(&checkpoint, &KINDS).await?;
        Ok(ReferenceModel::Checkpoint(path))
    }
}

/// Reads what is said in a `place`, such as an option, about a checkpoint: its path, the name of its run, or the folder of a run, which
/// means its last one.
pub(crate) fn checkpoint(text: &str, place: &str) -> anyhow::Result<CheckpointRef> {
    let folder = Path::new(text);
    let journal = folder.join("journal.jsonl");
    if journal.is_file() {
        let journal = Journal::open(journal)?;
        let last = journal.last_checkpoint();
        let last = last.map(|(_, path)| CheckpointRef::from(path.clone()));
        return last.ok_or_else(|| anyhow!("{place}: the run in {text} has saved no checkpoint"));
    }
    let has = |name| folder.join(name).is_file();
    if has("adapter_config.json") {
        bail!(
            "{place}: `{text}` is an adapter: `tinkrs checkpoint import {text} --base-model NAME` makes a \
             checkpoint of it"
        );
    }
    ensure!(
        !has("config.json"),
        "{place}: `{text}` is a whole model, expected a checkpoint or the folder of a run"
    );
    text.parse()
        .with_context(|| format!("{place}: {}", not_a_start(text)))
}

/// Says that a text names nothing that a run could start from.
pub(crate) fn not_a_start(text: &str) -> String {
    format!(
        "`{text}` is neither a checkpoint nor a folder with a run (journal.jsonl), an adapter (adapter_config.json) \
         or a model (config.json)"
    )
}
