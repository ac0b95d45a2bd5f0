//! `tinkrs model`: the models of the server.

use anyhow::{Context as _, anyhow};
use serde::Serialize;
use tinkrs::SupportedModel;

use crate::context::Context;
use crate::human::{or_unknown, yes_no};
use crate::local_model;
use crate::model_store::ModelStore;
use crate::output::Hint;
use crate::table::Table;

/// List the models that a server offers (for model files on this machine: `tinkrs models`)
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
}

/// List the models that can be trained or sampled
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only models whose name has this in it, in upper or lower case
    substring: Option<String>,
}

#[derive(Debug, Serialize)]
struct Listing {
    models: Vec<SupportedModel>,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(ctx, args).await,
    }
}

async fn list(ctx: &Context, args: &ListArgs) -> anyhow::Result<()> {
    let service = ctx.service();
    let capabilities = service.get_server_capabilities();
    let mut models = ctx.ask("list models", capabilities).await?.supported_models;
    // Nobody serves here at the moment: what commands on this machine can use.
    if models.is_empty() && ctx.is_local() {
        models = here()?;
    }
    if let Some(substring) = &args.substring {
        models.retain(|model| has(model, substring));
        if models.is_empty() {
            // The credential may not say whose it is.
            let organization = service.whoami().await.map(|me| me.org_urn);
            let organization = organization.unwrap_or_else(|_| "this account".to_owned());
            return Err(
                anyhow!("no model for {organization} has `{substring}` in its name")
                    .context(Hint("`tinkrs model list` shows all of them")),
            );
        }
    }
    let listing = Listing { models };
    ctx.show(&listing, || table(&listing.models))
}

/// Lists the models of this machine that can be read.
fn here() -> anyhow::Result<Vec<SupportedModel>> {
    let files = tempfile::tempdir().context("could not make a folder")?;
    let mut known = vec![local_model::nano(files.path())?];
    known.extend(ModelStore::open()?.all());
    let described = known.into_iter().filter_map(|named| {
        let description = local_model::describe(&named.path).ok()?;
        let mut model = SupportedModel::default();
        model.model_name = Some(named.name);
        model.max_context_length = Some(description.context as u64);
        model.trainable = Some(true);
        model.sampleable = Some(true);
        Some(model)
    });
    Ok(described.collect())
}

fn has(model: &SupportedModel, substring: &str) -> bool {
    let name = model.model_name.as_deref().unwrap_or_default();
    name.to_lowercase().contains(&substring.to_lowercase())
}

fn table(models: &[SupportedModel]) -> Table {
    let mut table = Table::new(["Model", "Max Context", "Trainable", "Sampleable"]);
    for model in models {
        table.row([
            or_unknown(model.model_name.as_deref()),
            or_unknown(model.max_context_length),
            or_unknown(model.trainable.map(yes_no)),
            or_unknown(model.sampleable.map(yes_no)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_of_a_model_is_said() {
        let mut model = SupportedModel::default();
        model.model_name = Some("Qwen/Qwen3-8B".to_owned());
        model.trainable = Some(true);
        assert!(has(&model, "qWEN"));
        assert!(!has(&model, "llama"));
        let text = table(&[model]).text(None);
        assert!(
            text.ends_with("Qwen/Qwen3-8B  N/A          Yes        N/A\n"),
            "{text}"
        );
    }
}
