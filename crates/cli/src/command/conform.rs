//! `tinkrs conform`: how well a server keeps to the protocol.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use jiff::Timestamp;
use tinkrs::auth::{CredentialPolicy, Secret, resolve_from_env};
use tinkrs::server_url;
use tinkrs_conform::{Options, Report, Row, Suite, all_cases};

use crate::context::Context;
use crate::output::{Hint, Stopped};
use crate::status_line::StatusLine;
use crate::table::Table;

/// What a server on this machine is called with if there is no key: they take any.
const LOCAL_KEY: &str = "tml-conform";

/// Test how well a server keeps to the Tinker protocol
///
/// Sends the server what the official client sends, and also what it sends when things go wrong: repeats, the wrong order, much
/// at once. Prints a table of what did not pass, and a score. The exit code is 0 if everything that counts passed.
///
/// It trains small adapters on the server and deletes what it saved. On a service that charges, this costs a little.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Server to test; TINKER_BASE_URL unless given
    url: Option<String>,

    /// Base model to train and sample; the first that the server offers unless given
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Run only cases whose names begin with this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Leave out the bursts, which take much of a server
    #[arg(long)]
    quick: bool,

    /// Time for everything, in seconds; what is left then is skipped
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,

    /// Time for one case, in seconds; a few have a multiple of it
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    case_timeout: u64,

    /// Show the cases that passed, too
    #[arg(long)]
    all: bool,

    /// List the cases, and what each checks, without a server
    #[arg(long)]
    list: bool,

    /// Write the result into a Markdown file, in place of an earlier one of the same title
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Title in the Markdown file, such as the server's name and version; its URL unless given
    #[arg(long, value_name = "TEXT", requires = "markdown")]
    title: Option<String>,
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    if args.list {
        return list(ctx);
    }
    let url = args.url.clone().unwrap_or_else(server_url::from_env);
    if !server_url::is_valid(&url) {
        bail!("`{url}` is not the URL of a server: it has to begin with http:// or https://");
    }
    let suite = Suite::new(Options {
        model: args.model.clone(),
        timeout: Duration::from_secs(args.timeout),
        case_timeout: Duration::from_secs(args.case_timeout),
        quick: args.quick,
        only: args.only.clone(),
        ..Options::new(url.as_str(), key(&url).await?)
    });
    let line = StatusLine::new(ctx);
    let cases = suite.run(|case| line.say(|| format!("{} ...", case.name)), |_| ());
    let report = tokio::select! {
        report = cases => report,
        Ok(()) = tokio::signal::ctrl_c() => {
            ctx.note("stopping: deleting what was saved");
            suite.stop().await;
            return Err(Stopped("stopped before the end: no score".to_owned()).into());
        }
    };
    drop(line);
    if report.rows.is_empty() {
        return Err(anyhow!(
            "no case has a name that begins with that; `tinkrs conform --list` shows them"
        ));
    }
    if let Some(file) = &args.markdown {
        write_section(
            file,
            args.title.as_deref().unwrap_or(&url),
            &command(args, &url),
            &report,
        )
        .with_context(|| format!("could not write {}", file.display()))?;
    }
    ctx.show(&report.to_json(), || table(&report, args.all))?;
    if !report.is_full() {
        bail!(
            "{url} does not keep to the protocol in full: {}",
            report.summary()
        );
    }
    if !ctx.is_json() {
        ctx.note(report.summary());
    }
    Ok(())
}

/// The key of the environment. A server on this machine is tested without one, too.
async fn key(url: &str) -> anyhow::Result<Secret> {
    match resolve_from_env(None, CredentialPolicy::Any) {
        Ok(source) => source.credential().await.context("no credential"),
        Err(_) if server_url::is_loopback(url) => Ok(LOCAL_KEY.into()),
        Err(error) => Err(anyhow!(error).context(Hint(
            "name a server, such as `tinkrs conform http://127.0.0.1:8000`; for the hosted service, log in with \
             `tinkrs auth login`",
        ))),
    }
}

fn list(ctx: &Context) -> anyhow::Result<()> {
    let cases: Vec<_> = all_cases().collect();
    let value: Vec<_> = cases
        .iter()
        .map(
            |case| serde_json::json!({"name": case.name, "checks": case.checks, "spec": case.spec}),
        )
        .collect();
    ctx.show(&value, || {
        let mut table =
            Table::new(["Case", "Checks", "Protocol"]).title(format!("{} cases", cases.len()));
        for case in &cases {
            table.row([case.name, case.checks, case.spec]);
        }
        table
    })
}

fn table(report: &Report, all: bool) -> Table {
    // A server that is not there has told of no model.
    let model = match report.model.as_str() {
        "" => String::new(),
        model => format!(" with {model}"),
    };
    let title = format!("{}{model}: {}", report.base_url, report.summary());
    let mut table = Table::new(["Case", "Result", "Protocol", "Seen"]).title(title);
    for row in report.rows.iter().filter(|row| all || row.result != "pass") {
        table.row([row.name, &result(row), row.spec, &row.detail]);
    }
    table
}

fn result(row: &Row) -> String {
    match (row.result, row.required) {
        ("fail", _) => "FAIL".to_owned(),
        ("not supported", false) => "not supported (optional)".to_owned(),
        (other, _) => other.to_owned(),
    }
}

/// The command that repeats this run. A port that was picked by the system means nothing to others.
fn command(args: &Args, url: &str) -> String {
    let url = if server_url::is_loopback(url) {
        "http://127.0.0.1:PORT"
    } else {
        url
    };
    let mut command = format!("tinkrs conform {url}");
    for (option, value) in [
        ("model", args.model.as_deref()),
        (
            "timeout",
            (args.timeout != 900)
                .then_some(args.timeout.to_string())
                .as_deref(),
        ),
        (
            "case-timeout",
            (args.case_timeout != 60)
                .then_some(args.case_timeout.to_string())
                .as_deref(),
        ),
    ] {
        if let Some(value) = value {
            command.push_str(&format!(" --{option} {value}"));
        }
    }
    for name in &args.only {
        command.push_str(&format!(" --only {name}"));
    }
    if args.quick {
        command.push_str(" --quick");
    }
    command
}

fn write_section(file: &Path, title: &str, command: &str, report: &Report) -> anyhow::Result<()> {
    let before = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let date = Timestamp::now().strftime("%Y-%m-%d").to_string();
    let section = report.to_markdown(title, command, &date);
    Ok(std::fs::write(file, replaced(&before, title, &section))?)
}

/// Returns a file with a section in the place of an older one of the same title, or at its end.
fn replaced(before: &str, title: &str, section: &str) -> String {
    let title = title.replace("--", "- -");
    let (begin, end) = (
        format!("<!-- conform: {title} -->\n"),
        format!("<!-- end of conform: {title} -->\n"),
    );
    let whole = format!("{begin}{section}{end}");
    let found = before.find(&begin).and_then(|start| {
        let rest = before[start..].find(&end)?;
        Some((start, start + rest + end.len()))
    });
    match found {
        Some((start, end)) => format!("{}{whole}{}", &before[..start], &before[end..]),
        None if before.is_empty() => whole,
        None => format!("{}\n\n{whole}", before.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_the_one_of_the_same_title_and_leaves_others_alone() {
        let first = replaced("# Servers\n", "a 1.0", "## a\nold\n");
        let both = replaced(&first, "b -- 2", "## b\n");
        let again = replaced(&both, "a 1.0", "## a\nnew\n");
        assert_eq!(
            again,
            "# Servers\n\n<!-- conform: a 1.0 -->\n## a\nnew\n<!-- end of conform: a 1.0 -->\n\n\
             <!-- conform: b - - 2 -->\n## b\n<!-- end of conform: b - - 2 -->\n"
        );
        assert_eq!(replaced(&again, "b -- 2", "## b\n"), again);
    }
}
