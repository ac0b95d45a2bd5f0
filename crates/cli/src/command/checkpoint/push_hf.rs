use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use serde_json::Value;
use tinkrs::TinkerPath;
use tinkrs::rest::WeightsInfo;
use tinkrs_engine::peft::{self, HeadName};

use super::hub::{Commit, Hub, LocalFile};
use super::model_card::{card, named_path};
use super::{WITH_FILES, download, find, read_reference};
use crate::context::Context;
use crate::human::yes_no;
use crate::output::Hint;
use crate::table::Table;

const CARD: &str = "README.md";
const CONFIG: &str = "adapter_config.json";

/// Upload a checkpoint to the Hugging Face Hub, as an adapter for PEFT
///
/// Needs a Hub token with write access: in HF_TOKEN, or stored by the Hub's own tool.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkpoint: its path, `tinker://...`, or its run, such as `my-run` or `my-run@120`
    path: String,

    /// Repository on the Hub. Default: named after the base model and the run, in your account
    #[arg(short, long, value_name = "REPO")]
    repo: Option<String>,

    /// Create the repository for everybody to read
    #[arg(long)]
    public: bool,

    /// Branch to upload to, made if it does not exist
    #[arg(long, value_name = "BRANCH")]
    revision: Option<String>,

    /// Message of the commit
    #[arg(long, value_name = "TEXT")]
    commit_message: Option<String>,

    /// Open a pull request instead of committing to the branch
    #[arg(long)]
    create_pr: bool,

    /// Upload only files that match, such as `*.json`; may be repeated
    #[arg(long, value_name = "PATTERN")]
    allow_pattern: Vec<String>,

    /// Do not upload files that match; may be repeated
    #[arg(long, value_name = "PATTERN")]
    ignore_pattern: Vec<String>,

    /// Do not write a README.md
    #[arg(long)]
    no_model_card: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    checkpoint_path: TinkerPath,
    repo_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    public: bool,
}

impl Args {
    /// Returns the path of the checkpoint, as it was typed.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let path = find(ctx, &read_reference(&args.path)?, &WITH_FILES).await?;
    args.repo.as_deref().map_or(Ok(()), check_repo)?;
    let hub = Hub::from_env()?;
    let user = hub
        .user()
        .await
        .context("could not log in to the Hub")
        .context(Hint("check the token in HF_TOKEN and the network"))?;

    let folder = tempfile::tempdir().context("could not make a folder to download to")?;
    download::fetch(ctx, &path, folder.path()).await?;
    // The files say most of it themselves.
    let info = ctx.rest().get_weights_info_by_tinker_path(&path).await.ok();
    let base_model = prepare(folder.path(), &path, info.as_ref(), !args.no_model_card)?;
    let (repo, revision) = destination(args, &path, base_model.as_deref(), &user);

    hub.create_repository(&repo, !args.public).await?;
    if let Some(revision) = &revision {
        hub.create_branch(&repo, revision).await?;
    }
    let branch = revision.as_deref().unwrap_or("main");
    let there = hub.read_text(&repo, branch, CARD).await?;
    if let Some(other) = there.as_deref().and_then(named_path)
        && other != path.to_string()
    {
        return Err(
            anyhow!("{repo} has another checkpoint already: {other}").context(Hint(
                "choose another repository with `--repo`, or another `--revision`",
            )),
        );
    }
    let mut files = LocalFile::all_in(folder.path())?;
    files.retain(|file| is_selected(&file.name, &args.allow_pattern, &args.ignore_pattern));
    if files.is_empty() {
        bail!("no file matches the patterns: there is nothing to upload");
    }
    let commit = Commit {
        repo: &repo,
        branch,
        message: args
            .commit_message
            .as_deref()
            .unwrap_or("Upload Tinker checkpoint"),
        create_pr: args.create_pr,
    };
    hub.upload(&commit, &files)
        .await
        .context("could not upload the checkpoint")?;

    let report = Report {
        checkpoint_path: path,
        repo_id: repo,
        revision,
        public: args.public,
    };
    ctx.show(&report, || properties(&report))
}

/// Checks that the files are an adapter, completes them, and returns the base model.
fn prepare(
    folder: &Path,
    path: &TinkerPath,
    info: Option<&WeightsInfo>,
    write_card: bool,
) -> anyhow::Result<Option<String>> {
    let has = |name: &str| folder.join(name).is_file();
    let has_weights = has("adapter_model.safetensors") || has("adapter_model.bin");
    if !has(CONFIG) || !has_weights {
        bail!(
            "the checkpoint is not a LoRA adapter: it needs {CONFIG} and adapter_model.safetensors"
        );
    }
    if has("adapter_model.safetensors") {
        // `peft` would leave out the head's adapter under the name that it has in checkpoints.
        peft::name_head(folder, HeadName::Peft).context("could not rename the head's adapter")?;
    }
    let file = folder.join(CONFIG);
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("could not read {CONFIG}"))?;
    let mut config: Value =
        serde_json::from_str(&text).with_context(|| format!("{CONFIG} is not JSON"))?;
    if !config["base_model_name_or_path"].is_string()
        && let (Some(info), Some(members)) = (info, config.as_object_mut())
    {
        let name = Value::from(info.base_model.as_str());
        members.insert("base_model_name_or_path".to_owned(), name);
        std::fs::write(&file, serde_json::to_string_pretty(&config)?)
            .with_context(|| format!("could not write {CONFIG}"))?;
    }
    let named = config["base_model_name_or_path"].as_str();
    // The server's name is the Hub's; a file may name a folder of the server.
    let base_model = info.map(|info| info.base_model.as_str()).or(named);
    let base_model = base_model
        .filter(|name| !name.is_empty())
        .map(str::to_owned);
    if write_card && !has(CARD) {
        let text = card(path, base_model.as_deref(), info);
        std::fs::write(folder.join(CARD), text).context("could not write the model card")?;
    }
    Ok(base_model)
}

/// Decides where the upload goes: the repository with its owner, and the branch if it is not the
/// usual one.
fn destination(
    args: &Args,
    path: &TinkerPath,
    base_model: Option<&str>,
    user: &str,
) -> (String, Option<String>) {
    let Some(repo) = &args.repo else {
        let model = base_model.and_then(|name| name.rsplit('/').next());
        let name = hub_name(&format!(
            "tinker-{}-{}",
            model.unwrap_or("adapter"),
            path.run()
        ));
        let revision = args.revision.clone();
        let revision = revision.unwrap_or_else(|| hub_name(&path.checkpoint_id()));
        return (format!("{user}/{name}"), Some(revision));
    };
    let repo = if repo.contains('/') {
        repo.clone()
    } else {
        format!("{user}/{repo}")
    };
    (repo, args.revision.clone())
}

pub(crate) fn check_repo(repo: &str) -> anyhow::Result<()> {
    let is_name = |name: &str| !name.is_empty() && hub_name(name) == name;
    if repo.matches('/').count() > 1 || !repo.split('/').all(is_name) {
        return Err(
            anyhow!("`{repo}` is not a repository of the Hub").context(Hint(
                "repositories are called OWNER/NAME, or NAME for your own",
            )),
        );
    }
    Ok(())
}

/// Makes a name that the Hub takes.
fn hub_name(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        let fits = character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
        let character = if fits { character } else { '-' };
        if character != '-' || !name.ends_with('-') {
            name.push(character);
        }
    }
    name.trim_matches(['-', '.']).to_owned()
}

fn is_selected(name: &str, allow: &[String], ignore: &[String]) -> bool {
    let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
    if allow.is_empty() {
        // A mark of the server's own, of no use to anybody else.
        return name != "checkpoint_complete" && !any(ignore);
    }
    any(allow) && !any(ignore)
}

/// Matches a name with `*` for any text and `?` for any character. A folder stands for all in it.
fn matches(pattern: &str, name: &str) -> bool {
    fn matches(pattern: &[char], name: &[char]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some('*'), _) => {
                matches(&pattern[1..], name) || (!name.is_empty() && matches(pattern, &name[1..]))
            }
            (Some('?'), Some(_)) => matches(&pattern[1..], &name[1..]),
            (Some(expected), Some(found)) => {
                expected == found && matches(&pattern[1..], &name[1..])
            }
            _ => false,
        }
    }
    let mut pattern: Vec<char> = pattern.chars().collect();
    if pattern.ends_with(&['/']) {
        pattern.push('*');
    }
    // A run of stars means the same as one, and would take much longer.
    pattern.dedup_by(|a, b| *a == '*' && *b == '*');
    matches(&pattern, &name.chars().collect::<Vec<_>>())
}

fn properties(report: &Report) -> Table {
    let path = report.checkpoint_path.to_string();
    let mut table = Table::properties().title(format!("Checkpoint Hub Upload: {path}"));
    table.row(["Checkpoint Path", &path]);
    table.row(["Repo ID", &report.repo_id]);
    if let Some(revision) = &report.revision {
        table.row(["Revision", revision]);
    }
    table.row(["Public", yes_no(report.public)]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_fit_for_the_hub() {
        assert_eq!(
            hub_name("tinker-Qwen3-8B-s:train:0"),
            "tinker-Qwen3-8B-s-train-0"
        );
        assert_eq!(hub_name("weights/step 1"), "weights-step-1");
        assert_eq!(hub_name("--a//b."), "a-b");
        for (repo, ok) in [
            ("ada/mine", true),
            ("mine", true),
            ("a/b/c", false),
            ("a/?x", false),
        ] {
            assert_eq!(check_repo(repo).is_ok(), ok, "{repo}");
        }
    }

    #[test]
    fn patterns_select_files() {
        let patterns = |list: &[&str]| list.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
        let cases = [
            ("a.json", &[][..], &[][..], true),
            ("checkpoint_complete", &[], &[], false),
            ("a.json", &["*.json"], &[], true),
            ("a.bin", &["*.json"], &[], false),
            ("a.json", &["*.json"], &["a.*"], false),
            ("sub/a", &["sub/"], &[], true),
            ("a1", &["a?"], &[], true),
            ("a", &["a?"], &[], false),
        ];
        for (name, allow, ignore, expected) in cases {
            let found = is_selected(name, &patterns(allow), &patterns(ignore));
            assert_eq!(found, expected, "{name} {allow:?} {ignore:?}");
        }
    }
}
