//! The data folder of this machine: private, and with a list of the models that were used in it.
//!
//! What is trained here knows its model by name alone. So the folder remembers where each model was, and the next
//! command needs no `--model NAME=PATH`.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use tinkrs::{CheckpointKind, CheckpointRef};
use tinkrs_server::data::Privacy;

use crate::context::Context;
use crate::hint;
use crate::local::LocalServer;
use crate::local_model::{self, NamedModel, Wanted};
use crate::model_store::ModelStore;
use crate::output::{self, Hint};
use crate::private;
use crate::server_args::ServerArgs;

/// A data folder that a command is about to use. One that was made for it and is still empty when this is
/// dropped goes away again.
#[must_use]
pub(crate) struct Prepared {
    made: Option<PathBuf>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(folder) = &self.made {
            // It fails if there is something in it, and then the folder is to stay.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Makes a data folder that only its owner can enter, and says so if others can.
pub(crate) fn prepare(data: &Path) -> anyhow::Result<Prepared> {
    let (prepared, privacy) = make(data)?;
    if privacy == Privacy::OpenToOthers {
        let data = data.display();
        output::note(format_args!(
            "other users of this machine can enter {data}; `chmod 700 {data}` keeps them out"
        ));
    }
    Ok(prepared)
}

/// Makes a data folder that only its owner can enter, and returns whether that is so.
pub(crate) fn make(data: &Path) -> anyhow::Result<(Prepared, Privacy)> {
    let made = (!data.exists()).then(|| data.to_owned());
    let privacy = private::prepare(data)?;
    Ok((Prepared { made }, privacy))
}

/// Returns models in the numbers that were typed, or else in those that they had in a data folder before.
pub(crate) fn in_known_numerics(
    data: &Path,
    models: &[NamedModel],
) -> anyhow::Result<Vec<NamedModel>> {
    let store = ModelStore::in_folder(data.to_owned())?;
    let models = models.iter().map(|model| {
        let numerics = model.numerics.or(store.numerics(&model.name));
        model.clone().held_as(numerics)
    });
    Ok(models.collect())
}

/// Writes down where models are that are used in a data folder, and in which numbers. The built-in one is always in it.
pub(crate) fn remember(data: &Path, models: &[NamedModel]) -> anyhow::Result<()> {
    let mut store = ModelStore::in_folder(data.to_owned())?;
    for model in models {
        store.set_numerics(&model.name, model.numerics)?;
        if model.name == tinkrs_nano::NAME {
            continue;
        }
        // The next command may run elsewhere.
        let path = model.path.canonicalize();
        let path = path.unwrap_or_else(|_| model.path.clone());
        if store
            .find(&model.name)
            .is_none_or(|known| known.path != path)
        {
            store.add(&NamedModel::new(&model.name, path))?;
        }
    }
    Ok(())
}

/// Finds a model of this machine that was named.
pub(crate) fn find(name: &str) -> anyhow::Result<Wanted> {
    local_model::find(name)?.ok_or_else(|| {
        anyhow!("`{name}` is not a model on this machine").context(Hint(
            "name its folder: `--model NAME=PATH`; `tinkrs models list` shows the names that are known",
        ))
    })
}

/// Finds the model that something in a data folder was trained on: where it was then, or else by its name.
pub(crate) fn find_base(data: &Path, name: &str) -> anyhow::Result<Wanted> {
    const HINT: Hint = Hint("say where it is: `--model NAME=PATH`");
    find_base_or(data, name, HINT)
}

/// Finds a model as [`find_base`] does. `hint` says what to do if it is not there.
pub(crate) fn find_base_or(data: &Path, name: &str, hint: Hint) -> anyhow::Result<Wanted> {
    let remembered = match name {
        tinkrs_nano::NAME => None,
        _ => ModelStore::in_folder(data.to_owned())?.find(name),
    };
    let gone = match remembered {
        Some(model) if model.path.exists() => return Ok(Wanted::At(model)),
        gone => gone,
    };
    // It may have been added since, under the same name.
    local_model::find(name)?.ok_or_else(|| {
        let problem = match gone {
            Some(model) => anyhow!(
                "the model `{name}` was at {} when it was used in {}, and is not there any more",
                model.path.display(),
                data.display()
            ),
            None => anyhow!("`{name}`, which was trained, is not a model on this machine"),
        };
        problem.context(hint)
    })
}

/// Asks a data folder which model a checkpoint was trained on. That is known before any is loaded.
pub(crate) async fn base_of(
    ctx: &Context,
    args: &ServerArgs,
    checkpoint: &CheckpointRef,
    kinds: &[CheckpointKind],
) -> anyhow::Result<String> {
    let data = args.data_dir();
    if !data.is_dir() {
        let run = checkpoint.run();
        bail!(
            "there is no run `{run}`: {} is not there yet",
            data.display()
        );
    }
    let _prepared = prepare(data)?;
    let local = LocalServer::open(data, &[], ctx.command()).await?;
    let base = base_on(&ctx.on(local.target()), checkpoint, kinds).await;
    local.stop().await?;
    base
}

/// Asks the server which model a checkpoint was trained on.
pub(crate) async fn base_on(
    ctx: &Context,
    checkpoint: &CheckpointRef,
    kinds: &[CheckpointKind],
) -> anyhow::Result<String> {
    let rest = ctx.rest();
    let path = rest.resolve_checkpoint(checkpoint, kinds).await;
    let path = path.map_err(|error| hint::no_checkpoint(error, checkpoint))?;
    let info = rest.get_weights_info_by_tinker_path(&path);
    let info = ctx.ask("find the model of the checkpoint", info).await?;
    Ok(info.base_model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_made_for_nothing_goes_away_and_others_stay() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        drop(prepare(&data).unwrap());
        assert!(!data.exists());
        let prepared = prepare(&data).unwrap();
        std::fs::write(data.join("tinkrs.db"), "").unwrap();
        drop(prepared);
        assert!(data.exists());
        std::fs::remove_file(data.join("tinkrs.db")).unwrap();
        drop(prepare(&data).unwrap());
        assert!(data.exists(), "it was there before");
    }

    #[test]
    fn a_folder_remembers_where_its_models_were_and_says_which_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let (data, path) = (home.path().join("data"), home.path().join("model"));
        std::fs::create_dir(&path).unwrap();
        let path = path.canonicalize().unwrap();
        let model = |name: &str| NamedModel::new(name, &path);
        remember(&data, &[model("tinkrs/nano")]).unwrap();
        assert!(!data.exists(), "nothing to remember");
        remember(&data, &[model("acme/mine")]).unwrap();
        let found = find_base(&data, "acme/mine").unwrap();
        assert_eq!(found, Wanted::At(model("acme/mine")));
        std::fs::remove_dir(&path).unwrap();
        let gone = find_base(&data, "acme/mine").unwrap_err();
        let gone = format!("{gone:#}");
        assert!(
            gone.contains(&format!("was at {}", path.display())),
            "{gone}"
        );
        let never = find_base(&data, "acme/other").unwrap_err();
        assert!(format!("{never:#}").contains("is not a model on this machine"));
    }
}
