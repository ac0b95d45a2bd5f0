//! `tinkrs session`: what clients did.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::json;
use tinkrs::SessionId;
use tinkrs::external::HttpClient;
use tinkrs::rest::{SessionInfo, SessionSearch, SessionStatus, SessionSummary};
use tokio::io::AsyncWriteExt;

use crate::context::Context;
use crate::http;
use crate::human::{age, or_unknown, size};
use crate::output::Hint;
use crate::status_line::StatusLine;
use crate::table::Table;

/// How long a download may bring nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest trace whose length the server does not announce.
const MAX_UNANNOUNCED_BYTES: u64 = 256 << 20;

/// Show sessions and export their traces
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
    Info(InfoArgs),
    ExportTrace(ExportArgs),
}

/// List sessions, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only sessions whose name has these words
    #[arg(long, value_name = "WORDS")]
    name: Option<String>,

    /// Most sessions to show, up to 200
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
}

/// Show what a session holds
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// Id of the session
    session_id: String,
}

/// Download a session's trace, for Perfetto
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Id of the session
    session_id: String,

    /// File to write. Default: the session's id with `.pftrace`, in this folder
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the link instead, which works for about an hour
    #[arg(long)]
    url_only: bool,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(ctx, args).await,
        Command::Info(args) => info(ctx, args).await,
        Command::ExportTrace(args) => export_trace(ctx, args).await,
    }
}

#[derive(Debug, Serialize)]
struct Sessions {
    sessions: Vec<SessionSummary>,
}

async fn list(ctx: &Context, args: &ListArgs) -> anyhow::Result<()> {
    let search = SessionSearch {
        display_name: args.name.clone(),
        limit: args.limit,
        ..SessionSearch::default()
    };
    let rest = ctx.rest();
    let page = ctx
        .ask("list sessions", rest.search_sessions(&search))
        .await?;
    let sessions = Sessions {
        sessions: page.sessions,
    };
    ctx.show(&sessions, || {
        table(&sessions.sessions, jiff::Timestamp::now())
    })
}

fn table(sessions: &[SessionSummary], now: jiff::Timestamp) -> Table {
    let headers = [
        "Session ID",
        "Name",
        "Status",
        "Checkpoints",
        "Size",
        "Created",
    ];
    let mut table = Table::new(headers);
    if sessions.is_empty() {
        table = table.title("No sessions found");
    }
    for session in sessions {
        table.row([
            session.session_id.as_str(),
            session.display_name.as_deref().unwrap_or(""),
            status(session.status.as_ref()),
            &session.checkpoints_count.to_string(),
            &or_unknown(session.checkpoint_storage_bytes.map(size)),
            &age(session.created_at, now),
        ]);
    }
    table
}

fn status(status: Option<&SessionStatus>) -> &'static str {
    match status {
        Some(SessionStatus::Active) => "active",
        Some(SessionStatus::Cancelled { .. }) => "cancelled",
        Some(SessionStatus::Failed { .. }) => "failed",
        Some(SessionStatus::ClientFinished { reason, .. }) => reason.name(),
        None | Some(_) => "N/A",
    }
}

async fn info(ctx: &Context, args: &InfoArgs) -> anyhow::Result<()> {
    let (id, rest) = (read_id(&args.session_id)?, ctx.rest());
    let info: SessionInfo = ctx
        .ask("show the session", rest.get_session(&id).into_future())
        .await?;
    ctx.show(&info, || {
        let mut table = Table::properties().title(format!("Session: {id}"));
        table.row(["Name", &or_unknown(info.display_name.as_deref())]);
        for run in &info.training_run_ids {
            table.row(["Training Run", run.as_str()]);
        }
        for sampler in &info.sampler_ids {
            table.row(["Sampler", sampler.as_str()]);
        }
        for (key, value) in info.user_metadata.iter().flatten() {
            table.row([format!("  - {key}").as_str(), value]);
        }
        table
    })
}

#[derive(Debug, Serialize)]
struct Exported {
    session_id: SessionId,
    destination: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_size_bytes: Option<u64>,
}

async fn export_trace(ctx: &Context, args: &ExportArgs) -> anyhow::Result<()> {
    let (id, rest) = (read_id(&args.session_id)?, ctx.rest());
    if !ctx.is_json() {
        ctx.note("Exporting the trace; this may take a while");
    }
    // The server may take minutes, so there is nothing odd in waiting.
    let url = rest.export_session_trace(&id).await;
    let url = url.map_err(|e| crate::hint::explain(e, "could not export the trace".to_owned()))?;
    if args.url_only {
        return ctx.done(&json!({"session_id": id, "url": url}), &url);
    }
    let file = args.output.clone();
    let file = file.unwrap_or_else(|| PathBuf::from(format!("{id}.pftrace")));
    let bytes = download(ctx, &url, &file)
        .await
        .with_context(|| format!("could not download the trace to {}", file.display()))
        .context(Hint("links to traces last about an hour: export it again"))?;
    let exported = Exported {
        session_id: id,
        destination: file.display().to_string(),
        file_size_bytes: (bytes > 0).then_some(bytes),
    };
    ctx.show(&exported, || {
        let id = &exported.session_id;
        let mut table = Table::properties().title(format!("Trace Export: {id}"));
        table.row(["Session ID", id.as_str()]);
        table.row(["Saved to", &exported.destination]);
        if let Some(bytes) = exported.file_size_bytes {
            table.row(["Size", &size(bytes)]);
        }
        table
    })
}

/// Downloads a link, which must not be shown: anyone who has it can use it.
async fn download(ctx: &Context, url: &str, file: &Path) -> anyhow::Result<u64> {
    let response = HttpClient::new(SILENCE).get(url).send().await?;
    let mut response = http::check_status(response).await?;
    if let Some(parent) = file.parent() {
        tokio::fs::create_dir_all(parent).await?;
    }
    let mut output = tokio::fs::File::create(file).await?;
    let progress = StatusLine::new(ctx);
    let mut bytes = 0;
    let announced = response.header("content-length");
    let announced = announced.and_then(|length| length.parse::<u64>().ok());
    let limit = announced.unwrap_or(MAX_UNANNOUNCED_BYTES);
    while let Some(part) = response.chunk().await? {
        bytes += part.as_ref().len() as u64;
        ensure!(bytes <= limit, "the trace is longer than {}", size(limit));
        output.write_all(part.as_ref()).await?;
        progress.say(|| format!("Downloading trace: {}", size(bytes)));
    }
    output.flush().await?;
    Ok(bytes)
}

fn read_id(text: &str) -> anyhow::Result<SessionId> {
    let is_id = !text.is_empty() && !text.contains(['/', '\\']) && text != "..";
    ensure!(is_id, "`{text}` is not the id of a session");
    Ok(SessionId::new(text))
}
