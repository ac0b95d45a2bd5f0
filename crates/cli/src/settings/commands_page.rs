//! `docs/cli.md`, the reference of every command, written from the commands themselves.
//!
//! `TINKRS_BLESS=1 cargo test -p tinkrs-cli commands_page` rewrites it.

use std::fmt::Write;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::reference::with_values;
use crate::Cli;

const HEAD: &str = "# Commands

Every command and option of `tinkrs`, written from their definitions by `TINKRS_BLESS=1 cargo test -p tinkrs-cli commands_page`. `tinkrs help COMMAND` shows
the same in a terminal, `tinkrs man DIR` writes manual pages, and `tinkrs completions SHELL` a script for the shell. [settings.md](settings.md) says how the
options of `tinkrs train` are written in a file.

Data goes to stdout, everything else to stderr. The exit code is 0 for success, 1 for a failure, 2 for wrong usage and 130 for a run that was
stopped by Ctrl-C.

Every command takes `--format table` (the default) or `--format json`, and `--json` for the latter, `--help` and `--version`; the tables below leave those out.
";

/// Options that every command has.
const EVERYWHERE: [&str; 4] = ["help", "version", "format", "json"];

#[test]
fn the_page_of_commands_is_what_the_commands_say() {
    let mut command = Cli::command();
    command.build();
    let mut expected = HEAD.to_owned();
    section(&command, "tinkrs", &mut expected);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    if std::env::var_os("TINKRS_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/cli.md is out of date: TINKRS_BLESS=1 rewrites it"
    );
}

/// Writes the sections of a command and of those below it.
fn section(command: &Command, name: &str, page: &mut String) {
    let inner = || {
        command
            .get_subcommands()
            .filter(|it| !it.is_hide_set() && it.get_name() != "help")
    };
    if name != "tinkrs" {
        let about = command.get_long_about().or(command.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        write!(page, "\n## `{name}`\n\n{}\n", prose(&about)).unwrap();
    }
    if inner().next().is_some() {
        page.push_str("\n| command | |\n|---|---|\n");
        for command in inner() {
            let (about, name) = (
                command.get_about(),
                format!("{name} {}", command.get_name()),
            );
            let about = about.map(ToString::to_string).unwrap_or_default();
            writeln!(
                page,
                "| [`{name}`](#{}) | {} |",
                name.replace(' ', "-"),
                cell(&about)
            )
            .unwrap();
        }
    } else {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").trim();
        write!(page, "\n```text\n{usage}\n```\n").unwrap();
        let options: Vec<_> = command.get_arguments().filter(|it| is_shown(it)).collect();
        if !options.is_empty() {
            page.push_str("\n| option | default | |\n|---|---|---|\n");
        }
        page.extend(options.into_iter().map(row));
    }
    for command in inner() {
        section(command, &format!("{name} {}", command.get_name()), page);
    }
}

fn is_shown(option: &Arg) -> bool {
    !option.is_hide_set() && !EVERYWHERE.contains(&option.get_id().as_str())
}

fn row(option: &Arg) -> String {
    let value = if option.get_action().takes_values() {
        option.get_value_names().unwrap_or_default().join(" ")
    } else {
        String::new()
    };
    let names = match (option.get_short(), option.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
        (Some(short), None) => format!("-{short} {value}"),
        (None, Some(long)) => format!("--{long} {value}"),
        (None, None) => value,
    };
    let default = match option.get_default_values() {
        [value, ..]
            if !option.is_hide_default_value_set() && option.get_action().takes_values() =>
        {
            format!("`{}`", value.to_string_lossy())
        }
        _ => String::new(),
    };
    let help = option.get_long_help().or(option.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let help = with_values(&sentences(&help), option);
    format!(
        "| `{}` | {default} | {} |\n",
        names.trim_end().replace('|', "\\|"),
        cell(&help)
    )
}

/// Joins the paragraphs of a help text, of which the first has no full stop.
fn sentences(help: &str) -> String {
    let mut joined = String::new();
    for paragraph in help.split("\n\n").map(str::trim) {
        if !joined.is_empty() {
            joined.push_str(if joined.ends_with(['.', ':', '?']) {
                " "
            } else {
                ". "
            });
        }
        joined.push_str(paragraph);
    }
    joined
}

/// A text in a cell of a table: one line, and nothing that would be taken for HTML or the end of the cell.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;")
}

/// A long help text, with what is indented there as it stands.
fn prose(text: &str) -> String {
    let mut page = String::new();
    let mut inside = false;
    for line in text.trim().lines() {
        let indented = line.starts_with("  ");
        if indented != inside && !line.is_empty() {
            page.push_str(if indented { "```text\n" } else { "```\n\n" });
            inside = indented;
        }
        page.push_str(&if inside {
            line.to_owned()
        } else {
            line.replace('<', "&lt;")
        });
        page.push('\n');
    }
    if inside {
        page.push_str("```\n");
    }
    // An empty line before the end of a block belongs behind it.
    page.replace("\n\n```\n", "\n```\n").trim_end().to_owned()
}
