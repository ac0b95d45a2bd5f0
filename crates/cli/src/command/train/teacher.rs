//! The model that another one learns from: a base model, or a checkpoint.

use anyhow::{Context as _, anyhow};
use tinkrs::{CheckpointKind, CheckpointRef, SampleFrom};

use crate::backend::{Backend, BackendArgs};
use crate::context::Context;
use crate::data_folder;
use crate::hint;
use crate::local_model::{self, Wanted};
use crate::output;

const KINDS: [CheckpointKind; 1] = [CheckpointKind::Sampler];

/// Finds the model that this machine needs for a teacher, besides the one that is trained. Another server has what
/// it has.
pub(super) async fn model(
    ctx: &Context,
    args: &BackendArgs,
    teacher: &str,
) -> anyhow::Result<Option<Wanted>> {
    if let Some(wanted) = local_model::find(teacher)? {
        return Ok(Some(wanted));
    }
    let Some(server) = args.on_this_machine()? else {
        return Ok(None);
    };
    let Ok(checkpoint) = teacher.parse::<CheckpointRef>() else {
        return data_folder::find(teacher).map(Some);
    };
    let base = data_folder::base_of(ctx, server, &checkpoint, &KINDS).await;
    let base = base.map_err(|error| {
        let problem = "it is neither a model of this machine nor a run that can be sampled from";
        anyhow!(
            "--teacher: `{teacher}`: {problem}: {}",
            output::one_line(&error)
        )
    })?;
    data_folder::find_base(server.data_dir(), &base).map(Some)
}

/// Finds what to sample from for a teacher, on the server.
pub(super) async fn source(backend: &Backend, teacher: &str) -> anyhow::Result<SampleFrom> {
    if let Some(wanted) = local_model::find(teacher)? {
        return Ok(SampleFrom::BaseModel(wanted.name().to_owned()));
    }
    let is_checkpoint = teacher.starts_with("tinker://") || teacher.contains('@');
    let checkpoint = match teacher.parse::<CheckpointRef>() {
        Ok(checkpoint) => checkpoint,
        Err(error) if is_checkpoint => {
            return Err(error).with_context(|| format!("`{teacher}` is not a checkpoint"));
        }
        Err(_) => return Ok(SampleFrom::BaseModel(teacher.to_owned())),
    };
    if !is_checkpoint {
        // A model may have such a name, too.
        let rest = backend.service.create_rest_client();
        let run = rest.find_run(checkpoint.run()).await;
        let run = run.map_err(|error| hint::explain(error, "could not list runs".to_owned()))?;
        if run.is_none() {
            return Ok(SampleFrom::BaseModel(teacher.to_owned()));
        }
    }
    let path = backend.resolve_as(&checkpoint, &KINDS).await?;
    Ok(SampleFrom::Checkpoint(path))
}
