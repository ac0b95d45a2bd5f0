//! `tinkrs doctor`: what is in the way, and what to do about it.

mod here;
mod remote;

use std::path::Path;

use anyhow::anyhow;
use serde::Serialize;
use tinkrs::server_url;
use tinkrs_server::Finding;
use tinkrs_wire::SDK_VERSION;

use crate::context::Context;
use crate::human::counted;
use crate::server_args::{Choice, Environment, ServerArgs, Target};
use crate::table::Table;

/// Check the setup and say what to do about what is wrong
///
/// On this machine it looks at the processor, the memory, the data folder and its disk, and the models; a key is not
/// needed. For another server it looks at the URL, the credential, the server, the clock and the models.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only ask the server whether it is up, as the health check of a container does; no key is needed
    #[arg(long)]
    alive: bool,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Something to know that is not wrong.
    Note,
    Warning,
    Failed,
    Skipped,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

impl Check {
    fn new(name: &'static str, status: Status, detail: impl Into<String>) -> Self {
        Self {
            name,
            status,
            detail: detail.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

/// Returns what is not well on the machine of a server that runs, in a word or two; what the server knows of itself it
/// tells of its own accord.
pub(crate) fn findings(folder: &Path, memory: u64) -> Vec<Finding> {
    let checks = here::while_served(folder, memory).into_iter();
    let wrong = checks.filter(|check| !matches!(check.status, Status::Ok | Status::Skipped));
    wrong
        .map(|check| Finding {
            level: "warning".to_owned(),
            text: format!("{}: {}", check.name, check.detail),
            hint: check.hint.map(str::to_owned),
        })
        .collect()
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    if args.alive {
        return alive(ctx, args).await;
    }
    let mut checks = vec![version()];
    checks.extend(match args.server.choose(false, &Environment::read()) {
        Choice::Local => here::checks(args.server.data_dir()).await,
        Choice::Url(url) => {
            let named = args.server.base_url();
            let target = Target::Url(url);
            remote::checks(&ctx.on(target), named).await
        }
        Choice::Hosted => remote::checks(ctx, None).await,
    });
    if !checks.iter().any(|check| check.name == here::DISK) {
        checks.push(here::disk(args.server.data_dir()));
    }
    report(ctx, checks)
}

/// Asks one server whether it is up.
async fn alive(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let url = match args.server.choose(false, &Environment::read()) {
        Choice::Local => {
            return Err(anyhow!(
                "`--alive` asks a server, and none is named: name it with `--base-url` or TINKER_BASE_URL"
            ));
        }
        Choice::Url(url) => url,
        Choice::Hosted => server_url::from_env(),
    };
    report(ctx, vec![remote::server(&url).await])
}

/// Shows the checks, and fails if one of them did.
fn report(ctx: &Context, checks: Vec<Check>) -> anyhow::Result<()> {
    let failures = checks.iter().filter(|check| check.status == Status::Failed);
    let failures = failures.count() as u64;
    let ok = failures == 0;
    let report = Report { ok, checks };
    ctx.show(&report, || table(&report.checks))?;
    if ok {
        Ok(())
    } else {
        Err(anyhow!("{} failed", counted(failures, "check")))
    }
}

fn version() -> Check {
    let detail = format!(
        "tinkrs {}, API level {SDK_VERSION}",
        env!("CARGO_PKG_VERSION")
    );
    Check::new("version", Status::Ok, detail)
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(["Check", "Result", "Detail"]);
    for check in checks {
        let result = match check.status {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Warning => "warning",
            Status::Failed => "FAILED",
            Status::Skipped => "skipped",
        };
        table.row([check.name, result, &check.detail]);
        if let Some(hint) = check.hint {
            table.row(["", "", &format!("-> {hint}")]);
        }
    }
    table
}
