//! `tinkrs run`: training runs.

use anyhow::anyhow;
use jiff::Timestamp;
use serde::Serialize;
use tinkrs::rest::{Checkpoint, TrainingRun};

use crate::command::listing::{self, LimitArgs, Listed};
use crate::context::Context;
use crate::human::{age, yes_no};
use crate::table::Table;

/// The server gives no more runs at once.
const PAGE: u64 = 100;

/// Show training runs
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
    Info(InfoArgs),
}

/// List training runs, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    rows: LimitArgs,

    /// Columns of the table: name, id, model, owner, lora, updated, status, checkpoint, checkpoint_time
    #[arg(
        short,
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "name,id,model,lora,updated,status",
        value_parser = Column::read
    )]
    columns: Vec<Column>,
}

/// Show one training run
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// Name or id of the run
    run_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    Name,
    Id,
    Model,
    Owner,
    Lora,
    Updated,
    Status,
    Checkpoint,
    CheckpointTime,
}

impl Column {
    const ALL: [(&'static str, Self, &'static str); 9] = [
        ("name", Self::Name, "Name"),
        ("id", Self::Id, "Run ID"),
        ("model", Self::Model, "Base Model"),
        ("owner", Self::Owner, "Owner"),
        ("lora", Self::Lora, "LoRA"),
        ("updated", Self::Updated, "Last Update"),
        ("status", Self::Status, "Status"),
        ("checkpoint", Self::Checkpoint, "Last Checkpoint"),
        ("checkpoint_time", Self::CheckpointTime, "Checkpoint Time"),
    ];

    fn read(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(key, ..)| *key == text.trim());
        found.map(|(_, column, _)| *column).ok_or_else(|| {
            let keys: Vec<_> = Self::ALL.iter().map(|(key, ..)| *key).collect();
            format!("the columns are {}", keys.join(", "))
        })
    }

    fn header(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, column, _)| *column == self);
        found.map_or("", |(.., header)| header)
    }

    fn cell(self, run: &TrainingRun, now: Timestamp) -> String {
        let checkpoint = run.last_checkpoint.as_ref();
        match self {
            Self::Name => run.name().unwrap_or_default().to_owned(),
            Self::Id => run.training_run_id.to_string(),
            Self::Model => run.base_model.clone(),
            Self::Owner => run.model_owner.clone(),
            Self::Lora => match run.lora_rank {
                Some(rank) if run.is_lora => format!("Rank {rank}"),
                _ => yes_no(run.is_lora).to_owned(),
            },
            Self::Updated => age(run.last_request_time, now),
            Self::Status => status(run).to_owned(),
            Self::Checkpoint => checkpoint.map_or("None".to_owned(), |c| c.checkpoint_id.clone()),
            Self::CheckpointTime => checkpoint.map_or("N/A".to_owned(), |c| age(c.time, now)),
        }
    }
}

#[derive(Debug, Serialize)]
struct Runs {
    runs: Vec<TrainingRun>,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(ctx, args).await,
        Command::Info(args) => info(ctx, args).await,
    }
}

async fn list(ctx: &Context, args: &ListArgs) -> anyhow::Result<()> {
    let rest = ctx.rest();
    let page = |limit, offset| {
        let rest = rest.clone();
        async move {
            let page = rest
                .list_training_runs()
                .limit(limit)
                .offset(offset)
                .await?;
            Ok((page.training_runs, Some(page.cursor.total_count)))
        }
    };
    let Listed { items, total } =
        listing::fetch(ctx, "training run", args.rows.limit, PAGE, page).await?;
    let title = listing::title("training run", items.len() as u64, total, "");
    let runs = Runs { runs: items };
    ctx.show(&runs, || {
        let mut table = Table::new(args.columns.iter().map(|column| column.header())).title(title);
        let now = Timestamp::now();
        for run in &runs.runs {
            table.row(args.columns.iter().map(|column| column.cell(run, now)));
        }
        table
    })
}

async fn info(ctx: &Context, args: &InfoArgs) -> anyhow::Result<()> {
    if args.run_id.is_empty() || args.run_id.contains('/') {
        return Err(anyhow!("`{}` is not the id of a training run", args.run_id));
    }
    let rest = ctx.rest();
    let id = ctx
        .ask("find the training run", rest.resolve_run(&args.run_id))
        .await?;
    let run = ctx
        .ask(
            "show the training run",
            rest.get_training_run(&id).into_future(),
        )
        .await?;
    ctx.show(&run, || properties(&run, Timestamp::now()))
}

fn status(run: &TrainingRun) -> &'static str {
    if run.corrupted { "Failed" } else { "OK" }
}

/// Says whether an adapter is trained, and its rank.
pub(super) fn lora(is_lora: bool, rank: Option<u32>) -> String {
    match rank {
        Some(rank) if is_lora => format!("Yes (Rank {rank})"),
        _ => yes_no(is_lora).to_owned(),
    }
}

fn properties(run: &TrainingRun, now: Timestamp) -> Table {
    let mut table = Table::properties().title(format!("Training Run: {}", run.training_run_id));
    if let Some(name) = run.name() {
        table.row(["Name", name]);
    }
    table.row(["Run ID", run.training_run_id.as_str()]);
    table.row(["Base Model", &run.base_model]);
    table.row(["Owner", &run.model_owner]);
    table.row(["LoRA", &lora(run.is_lora, run.lora_rank)]);
    if let Some(numerics) = &run.numerics {
        table.row(["Numerics", numerics]);
    }
    if !run.earlier_numerics.is_empty() {
        table.row(["Earlier Numerics", &run.earlier_numerics.join(", ")]);
    }
    table.row(["Last Update", &age(run.last_request_time, now)]);
    table.row(["Status", status(run)]);
    let mut checkpoint = |name: &str, checkpoint: &Option<Checkpoint>| {
        if let Some(checkpoint) = checkpoint {
            table.row([name, &checkpoint.checkpoint_id]);
            table.row(["  - Time", &age(checkpoint.time, now)]);
            table.row(["  - Path", &checkpoint.tinker_path.to_string()]);
        }
    };
    checkpoint("Last Training Checkpoint", &run.last_checkpoint);
    checkpoint("Last Sampler Checkpoint", &run.last_sampler_checkpoint);
    if let Some(labels) = run
        .user_metadata
        .as_ref()
        .filter(|labels| !labels.is_empty())
    {
        table.row(["Metadata", ""]);
        for (key, value) in labels {
            table.row([format!("  - {key}").as_str(), value]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_by_key_and_unknown_ones_name_the_others() {
        assert_eq!(Column::read(" lora "), Ok(Column::Lora));
        assert_eq!(Column::CheckpointTime.header(), "Checkpoint Time");
        let error = Column::read("rank").unwrap_err();
        assert!(error.contains("checkpoint_time"), "{error}");
    }

    #[test]
    fn a_rank_belongs_to_an_adapter() {
        assert_eq!(lora(true, Some(8)), "Yes (Rank 8)");
        assert_eq!(lora(true, None), "Yes");
        assert_eq!(lora(false, Some(8)), "No");
    }
}
