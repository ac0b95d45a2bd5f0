//! The reference pages of settings in `docs`, written from the options themselves.
//!
//! `TINKRS_BLESS=1 cargo test -p tinkrs-cli reference` rewrites them.

use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;
use crate::command::serve;

/// Options that a table leaves out: they are no settings.
const LEFT_OUT: [&str; 8] = [
    "config",
    "yes",
    "help",
    "version",
    "format",
    "json",
    "output",
    "stop_with_stdin",
];

/// Writes the options of a command as a table, or `None` if there is no such command.
fn table(path: &[&str]) -> Option<String> {
    let mut command = Cli::command();
    for name in path {
        command = command.find_subcommand(name)?.clone();
    }
    let mut text = "| key | option | default | |\n|---|---|---|---|\n".to_owned();
    for option in settings(&command) {
        text += &row(option);
    }
    Some(text)
}

fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    let options = command.get_arguments();
    options.filter(|option| {
        let id = option.get_id().as_str();
        !LEFT_OUT.contains(&id) && !option.is_hide_set()
    })
}

fn row(option: &Arg) -> String {
    let long = option.get_long().unwrap_or_default();
    let key = match option.get_all_aliases().unwrap_or_default().first() {
        Some(alias) => (*alias).to_owned(),
        None => long.replace('-', "_"),
    };
    let value = if option.get_action().takes_values() {
        option.get_value_names().unwrap_or_default().join(" ")
    } else {
        String::new()
    };
    let default = match option.get_default_values() {
        [value, ..] if !option.is_hide_default_value_set() => {
            format!("`{}`", value.to_string_lossy())
        }
        _ => String::new(),
    };
    let help = option.get_help().map(ToString::to_string);
    let help = with_values(&help.unwrap_or_default().replace('\n', " "), option);
    let help = help.replace('|', "\\|");
    let option = format!("--{long} {value}");
    let option = option.trim_end();
    format!("| `{key}` | `{option}` | {default} | {help} |\n")
}

/// Adds the values that an option takes to its help, if they have names.
pub(super) fn with_values(help: &str, option: &Arg) -> String {
    let values = option.get_possible_values();
    if values.is_empty() || !option.get_action().takes_values() {
        return help.to_owned();
    }
    let names: Vec<_> = values
        .iter()
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    format!(
        "{}. One of {}",
        help.trim_end_matches('.'),
        names.join(", ")
    )
}

/// Compares a part of a page between two comments with what it should be, or rewrites it.
fn check(page: &str, name: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->\n"),
    );
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{page} has no {begin}"));
    let (found, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{page} has no {end}"));
    if std::env::var_os("TINKRS_BLESS").is_some() {
        let text = format!("{before}{begin}{expected}{end}{after}");
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert_eq!(
        found, expected,
        "{page}, {name}: TINKRS_BLESS=1 rewrites it"
    );
}

#[test]
fn the_pages_of_settings_are_what_the_options_say() {
    for recipe in ["sft", "rl", "dpo", "reward", "distill"] {
        let name = format!("settings of train {recipe}");
        check("settings.md", &name, &table(&["train", recipe]).unwrap());
    }
    check(
        "server.md",
        "settings of serve",
        &table(&["serve"]).unwrap(),
    );
    assert_eq!(table(&["train", "nothing"]), None);
}

#[test]
fn names_of_options_are_words_with_dashes() {
    for path in [
        ["train", "sft"],
        ["train", "rl"],
        ["train", "dpo"],
        ["train", "reward"],
        ["train", "distill"],
    ] {
        let train = Cli::command().find_subcommand(path[0]).unwrap().clone();
        for option in settings(train.find_subcommand(path[1]).unwrap()) {
            let long = option.get_long().unwrap();
            let is_plain = |c: char| c == '-' || c.is_ascii_alphanumeric();
            assert!(long.chars().all(is_plain), "{path:?}: {long}");
        }
    }
}

#[test]
fn every_option_of_a_server_can_be_in_its_file() {
    let tree = super::tree::<serve::Args>();
    for option in settings(&super::command::<serve::Args>()) {
        let id = option.get_id().as_str();
        assert!(super::place(&tree, id).is_some(), "{id}");
    }
}

#[test]
fn the_file_that_the_page_of_the_server_shows_can_be_read() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```toml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.toml");
    std::fs::write(&path, block).unwrap();
    let file = super::File::read(&path).unwrap();
    file.over_defaults::<serve::Args>(&super::command::<serve::Args>())
        .unwrap();
}
