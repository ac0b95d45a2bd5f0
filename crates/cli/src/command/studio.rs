//! `tinkrs studio`: the pages of a server on this machine, in a browser.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::json;
use tinkrs::auth::{CredentialPolicy, Secret, resolve_from_env};
use tinkrs::external::HttpClient;
use tinkrs_recipes::report;
use tinkrs_server::Holder;
use tinkrs_wire::endpoint::CREATE_LOGIN_LINK;
use tinkrs_wire::header;
use tinkrs_wire::op::studio::{CreateLoginLinkRequest, LoginLink};

use super::serve;
use crate::context::Context;
use crate::holder;
use crate::http::check_status;
use crate::local_model::{self, Wanted};
use crate::output::{self, Hint};
use crate::server_args::{DATA_DIR, LOCAL_KEY};

/// How long a server on this machine may take to answer.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// See runs, their data and their models in a browser
///
/// Opens the studio of a data folder: of the process that serves it, or of a server that this command starts and that
/// ends with it. The address logs in once, by itself. With run folders, as `tinkrs train` leaves them, it writes a page
/// with the curves of all of them instead and opens that: no server is needed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folders of runs to compare
    run_dirs: Vec<PathBuf>,

    /// Folder of the server
    #[arg(long, value_name = "DIR", default_value = DATA_DIR, conflicts_with = "run_dirs")]
    data_dir: PathBuf,

    /// Model to serve, as for `tinkrs serve`; may be repeated
    #[arg(long = "model", value_name = "MODEL", value_parser = local_model::read_wanted, conflicts_with = "run_dirs")]
    models: Vec<Wanted>,

    /// Port to listen on; 0 picks a free one
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        conflicts_with = "run_dirs"
    )]
    port: u16,

    /// File to write the curves of run folders to
    #[arg(
        long,
        value_name = "FILE",
        default_value = "tinkrs-runs.html",
        requires = "run_dirs"
    )]
    output: PathBuf,

    /// Only print the address
    #[arg(long)]
    no_open: bool,
}

pub(crate) fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    if !args.run_dirs.is_empty() {
        let page = report::write_comparison(&args.run_dirs, &args.output)?;
        ctx.done(&json!({"page": page}), page.display())?;
        args.open(&page.display().to_string());
        return Ok(());
    }
    let mut running = None;
    ctx.block_on(async {
        if let Some(holder) = holder::find(&args.data_dir).await {
            running = Some((login_link(&holder).await?, holder.command));
        }
        Ok(())
    })?;
    if let Some((url, command)) = running {
        let folder = args.data_dir.display();
        output::note(format_args!("`{command}` serves {folder}"));
        return args.show(ctx, &url);
    }
    let served = serve::Args::here(args.data_dir.clone(), args.port, args.models.clone());
    serve::start(
        ctx,
        &served,
        Some(&|url| {
            args.show(ctx, url)?;
            output::note("Ctrl-C ends the server; what it has is kept");
            Ok(())
        }),
    )
}

impl Args {
    fn show(&self, ctx: &Context, url: &str) -> anyhow::Result<()> {
        ctx.done(&json!({"url": url}), url)?;
        self.open(url);
        Ok(())
    }

    /// Opens a page in the browser that the system would use.
    fn open(&self, page: &str) {
        if self.no_open {
            return;
        }
        let (program, before): (&str, &[&str]) = if cfg!(target_os = "macos") {
            ("open", &[])
        } else if cfg!(windows) {
            ("cmd", &["/c", "start", ""])
        } else {
            ("xdg-open", &[])
        };
        let mut command = Command::new(program);
        command.args(before).arg(page);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if command.spawn().is_err() {
            output::note("no browser could be opened: open the address above");
        }
    }
}

/// Asks a running server for an address that logs in once.
async fn login_link(holder: &Holder) -> anyhow::Result<String> {
    let key = if holder.takes_any_key {
        Secret::from(LOCAL_KEY)
    } else {
        let source = resolve_from_env(None, CredentialPolicy::Any)
            .context("this server takes only the keys of its file")
            .context(Hint(
                "set TINKER_API_KEY to one of them, or open its address and log in there",
            ))?;
        source.credential().await.context("no credential")?
    };
    let url = &holder.url;
    let request = HttpClient::new(TIMEOUT).post(&format!("{url}{}", CREATE_LOGIN_LINK.path));
    let request = request
        .secret_header(header::API_KEY, &key)
        .json(&CreateLoginLinkRequest {});
    let response = request
        .send()
        .await
        .with_context(|| format!("could not reach {url}"))?;
    let link: LoginLink = check_status(response).await?.json().await?;
    Ok(format!("{url}{}", link.path))
}
