//! The help of every command, as files. `TINKRS_BLESS=1 cargo test -p tinkrs-cli` rewrites them.

use std::path::Path;
use std::process::Command;

use crate::{text, tinkrs};

/// All commands.
const COMMANDS: &[&str] = &[
    "",
    "auth",
    "auth login",
    "auth logout",
    "auth status",
    "auth whoami",
    "auth list",
    "billing",
    "billing usage",
    "billing checkpoint-storage",
    "chat",
    "checkpoint",
    "checkpoint list",
    "checkpoint info",
    "checkpoint download",
    "checkpoint import",
    "checkpoint publish",
    "checkpoint unpublish",
    "checkpoint set-ttl",
    "checkpoint delete",
    "checkpoint push-hf",
    "completions",
    "conform",
    "data",
    "data check",
    "data repair",
    "data show",
    "data stats",
    "demo",
    "doctor",
    "eval",
    "export",
    "man",
    "model",
    "model list",
    "models",
    "models list",
    "models add",
    "models remove",
    "models pull",
    "report",
    "run",
    "run list",
    "run info",
    "sample",
    "serve",
    "session",
    "session list",
    "session info",
    "session export-trace",
    "studio",
    "train",
    "train distill",
    "train dpo",
    "train reward",
    "train rl",
    "train sft",
    "version",
];

fn file_name(command: &str) -> String {
    match command {
        "" => "tinkrs.txt".to_owned(),
        _ => format!("tinkrs-{}.txt", command.replace(' ', "-")),
    }
}

#[test]
fn the_help_of_every_command_is_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let bless = std::env::var_os("TINKRS_BLESS").is_some();
    std::fs::create_dir_all(&folder).unwrap();
    for command in COMMANDS {
        let mut arguments: Vec<_> = command.split_whitespace().collect();
        arguments.push("--help");
        let output = tinkrs(&arguments);
        assert!(output.status.success(), "{command}");
        let (shown, file) = (text(&output.stdout), folder.join(file_name(command)));
        if bless {
            std::fs::write(&file, shown).unwrap();
        }
        let kept = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(
            shown, kept,
            "help of `{command}`; TINKRS_BLESS=1 rewrites it"
        );
    }
}

#[test]
fn every_command_has_a_file_of_its_help() {
    let output = tinkrs(&["--help"]);
    let help = text(&output.stdout);
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let names = listed.lines().take_while(|line| !line.is_empty());
    for name in names.filter_map(|line| line.split_whitespace().next()) {
        let known = COMMANDS.contains(&name) || name == "help";
        assert!(known, "`{name}` is not in the list of this test");
    }
}

#[test]
fn no_command_shows_help_on_stderr_and_is_wrong_usage() {
    let output = tinkrs(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("Usage: tinkrs"));
}

#[test]
fn completions_are_scripts_that_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = tinkrs(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(text(&output.stdout).contains("checkpoint"), "{shell}");
    }
    let script = tinkrs(&["completions", "bash"]).stdout;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tinkrs.bash");
    std::fs::write(&file, script).unwrap();
    if let Ok(checked) = Command::new("bash").arg("-n").arg(&file).status() {
        assert!(checked.success(), "bash cannot read the script");
    }
    assert_eq!(tinkrs(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    let output = tinkrs(&["man", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    for page in ["tinkrs.1", "tinkrs-checkpoint-delete.1", "tinkrs-serve.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}
