//! Settings of a command: defaults, then a `--config` file, then the command line.
//!
//! The settings are one struct. Its `Default` has the default values, its doc comments and `arg`
//! attributes make the options, and serialized it is a tree in which the id of an option is the path of
//! its value, at the top or in one of the structs there. So help, file and command line cannot disagree.
//! An option that is not in the tree (`#[serde(skip)]`) is for the command line only.

#[cfg(test)]
mod commands_page;
mod file;
#[cfg(test)]
mod reference;

use std::marker::PhantomData;
use std::path::PathBuf;

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use file::File;
pub(crate) use file::nearest;

/// Settings that help, a file and the command line share.
pub(crate) trait Settings: clap::Args + Serialize + DeserializeOwned + Default {}

impl<S: clap::Args + Serialize + DeserializeOwned + Default> Settings for S {}

/// What was typed for a command with settings.
#[derive(Clone, Debug)]
pub(crate) struct Layered<S> {
    typed: ArgMatches,
    settings: PhantomData<S>,
}

impl<S: Settings> Layered<S> {
    /// Returns the settings that count.
    pub(crate) fn load(&self) -> anyhow::Result<S> {
        load(&self.typed)
    }

    /// Whether an option was typed or stands in the file.
    pub(crate) fn has(&self, id: &str) -> anyhow::Result<bool> {
        let given = given(&command::<S>(), &self.typed)?;
        Ok(given.iter().any(|given| given == id))
    }
}

impl<S: Settings> clap::Args for Layered<S> {
    fn augment_args(command: Command) -> Command {
        add_options::<S>(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S> FromArgMatches for Layered<S> {
    fn from_arg_matches(typed: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            typed: typed.clone(),
            settings: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, typed: &ArgMatches) -> Result<(), clap::Error> {
        self.typed = typed.clone();
        Ok(())
    }
}

/// Adds the options of some settings to a command, with their defaults.
pub(crate) fn add_options<S: Settings>(command: Command) -> Command {
    let tree = tree::<S>();
    S::augment_args(command).mut_args(|option| {
        let Some(place) = place(&tree, option.get_id().as_str()) else {
            return option;
        };
        let value = tree.pointer(&place).unwrap_or(&Value::Null);
        debug_assert!(
            !value.is_object() || matches!(option.get_action(), ArgAction::Append),
            "`{place}` is both a part of the settings and an option"
        );
        let option = option.required(false);
        match shown(value, &option) {
            Some(text) => option.default_value(text),
            None => option,
        }
    })
}

/// Returns a command with nothing but the options of some settings.
pub(crate) fn command<S: Settings>() -> Command {
    add_options::<S>(Command::new("settings"))
}

/// Returns the settings that count: what was typed, else what the file says, else the defaults.
pub(crate) fn load<S: Settings>(typed: &ArgMatches) -> anyhow::Result<S> {
    let command = command::<S>();
    let mut given = typed_ids(typed);
    let mut settings = match config_file(typed)? {
        Some(file) => {
            let (settings, ids) = file.over_defaults::<S>(&command)?;
            given.extend(ids);
            settings
        }
        None => S::default(),
    };
    refuse_conflicts(&command, &given)?;
    let mut typed = only_typed(typed);
    settings.update_from_arg_matches_mut(&mut typed)?;
    Ok(settings)
}

/// Returns the ids of the options that were typed or are keys of the file. `command` has all options.
pub(crate) fn given(command: &Command, typed: &ArgMatches) -> anyhow::Result<Vec<String>> {
    let mut given = typed_ids(typed);
    if let Some(file) = config_file(typed)? {
        given.extend(file.ids(command)?);
    }
    Ok(given)
}

/// Returns what the file says about an option, if that is a text.
pub(crate) fn text_in_file(typed: &ArgMatches, key: &str) -> anyhow::Result<Option<String>> {
    match config_file(typed)? {
        Some(file) => file.text_of(key),
        None => Ok(None),
    }
}

fn config_file(typed: &ArgMatches) -> anyhow::Result<Option<File>> {
    let path = typed.try_get_one::<PathBuf>("config").ok().flatten();
    path.map(|path| File::read(path)).transpose()
}

fn typed_ids(typed: &ArgMatches) -> Vec<String> {
    let is_typed =
        |id: &&clap::Id| typed.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let ids = typed.ids().filter(is_typed);
    ids.map(|id| id.as_str().to_owned()).collect()
}

/// Drops the defaults, which must not replace what a file says.
fn only_typed(matches: &ArgMatches) -> ArgMatches {
    let typed = typed_ids(matches);
    let mut only = matches.clone();
    for id in matches.ids().map(clap::Id::as_str) {
        if !typed.iter().any(|typed| typed == id) {
            // Ids that the matches list are known to them.
            let _ = only.try_clear_id(id);
        }
    }
    only
}

/// Refuses options that exclude each other, also if one of them is in the file.
fn refuse_conflicts(command: &Command, given: &[String]) -> anyhow::Result<()> {
    let is_given = |option: &&Arg| given.iter().any(|id| id == option.get_id().as_str());
    for option in command.get_arguments().filter(is_given) {
        let conflicts = command.get_arg_conflicts_with(option);
        if let Some(other) = conflicts.into_iter().find(is_given) {
            bail!(
                "`{}` and `{}` cannot be used together",
                key(option),
                key(other)
            );
        }
    }
    Ok(())
}

/// Returns the default settings as a tree.
fn tree<S: Settings>() -> Value {
    serde_json::to_value(S::default()).expect("settings are plain data")
}

/// Returns where the setting of an option is in a tree, as a JSON pointer.
fn place(tree: &Value, id: &str) -> Option<String> {
    let path = format!("/{}", id.replace('.', "/"));
    if tree.pointer(&path).is_some() {
        return Some(path);
    }
    let mut parts = tree.as_object()?.iter();
    parts.find_map(|(part, value)| value.pointer(&path).map(|_| format!("/{part}{path}")))
}

/// Returns the key of an option in a file.
fn key(option: &Arg) -> String {
    let long = option.get_long().unwrap_or(option.get_id().as_str());
    long.replace('-', "_")
}

/// Writes a default as it would be typed.
fn shown(value: &Value, option: &Arg) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) if option.get_possible_values().is_empty() => Some(text.clone()),
        Value::String(name) => Some(name.replace('_', "-")),
        Value::Number(number) => {
            let text = number.to_string();
            Some(text.strip_suffix(".0").unwrap_or(&text).to_owned())
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "snake_case")]
    enum Decay {
        #[default]
        Linear,
        SlowCosine,
        // As the numbers of a model are called.
        #[serde(rename = "q8_0")]
        #[value(name = "q8_0")]
        Q8_0,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, clap::Args)]
    struct Optimizer {
        #[command(flatten)]
        rate: Rate,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
    struct Rate {
        #[arg(id = "rate.peak", long = "learning-rate")]
        peak: f64,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, clap::Args)]
    struct Train {
        #[arg(long)]
        #[serde(skip)]
        config: Option<PathBuf>,
        #[arg(long)]
        batch_size: u32,
        #[arg(long, value_enum)]
        decay: Decay,
        #[arg(long)]
        ask: Vec<String>,
        #[arg(long)]
        local: bool,
        #[arg(long, conflicts_with = "local")]
        url: Option<String>,
        #[arg(long)]
        #[serde(skip)]
        yes: bool,
        #[command(flatten)]
        optimizer: Optimizer,
    }

    impl Default for Train {
        fn default() -> Self {
            Self {
                config: None,
                batch_size: 16,
                decay: Decay::Linear,
                ask: Vec::new(),
                local: false,
                url: None,
                yes: false,
                optimizer: Optimizer {
                    rate: Rate { peak: 0.5 },
                },
            }
        }
    }

    fn loaded(text: &str, typed: &[&str]) -> Result<Train, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, text).unwrap();
        let file = format!("--config={}", path.display());
        let command = command::<Train>().no_binary_name(true);
        let typed = command.get_matches_from([&[file.as_str()], typed].concat());
        load(&typed).map_err(|error| {
            let text = error.root_cause().to_string();
            text.replace(&format!("{}/", folder.path().display()), "")
        })
    }

    #[test]
    fn what_is_typed_comes_before_the_file_and_the_file_before_the_defaults() {
        let text = "batch_size = 0x10\ndecay = \"slow-cosine\"\nask = [\"a\", \"--b\"]\n\
                    local = true\nlearning_rate = 2\n";
        let expected = || Train {
            batch_size: 16,
            decay: Decay::SlowCosine,
            ask: vec!["a".to_owned(), "--b".to_owned()],
            local: true,
            optimizer: Optimizer {
                rate: Rate { peak: 2.0 },
            },
            ..Train::default()
        };
        let without_path = |settings: Result<Train, String>| Train {
            config: None,
            ..settings.unwrap()
        };
        assert_eq!(without_path(loaded(text, &[])), expected());
        let typed = ["--batch-size", "3", "--ask", "c", "--decay", "linear"];
        let both = without_path(loaded(text, &typed));
        assert_eq!(
            (both.batch_size, both.decay, both.ask, both.local),
            (3, Decay::Linear, vec!["c".to_owned()], true)
        );
        assert_eq!(both.optimizer, expected().optimizer);
        assert_eq!(
            loaded("decay = \"slow_cosine\"\nask = \"a\"", &[])
                .unwrap()
                .ask,
            ["a"]
        );
        let named = loaded("decay = \"q8_0\"", &[]).unwrap();
        assert_eq!(named.decay, Decay::Q8_0);
        // A default that is typed is typed.
        assert_eq!(
            loaded("batch_size = 4", &["--batch-size", "16"])
                .unwrap()
                .batch_size,
            16
        );
    }

    #[test]
    fn help_shows_the_defaults() {
        let help = command::<Train>().render_long_help().to_string();
        for expected in ["[default: 16]", "[default: linear]", "[default: 0.5]"] {
            assert!(help.contains(expected), "{help}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let cases = [
            (
                "bach_size = 3",
                "unknown key `bach_size`; did you mean `batch_size`?",
            ),
            ("nothing_like_it = 3", "unknown key `nothing_like_it`"),
            (
                "batch_size = -1",
                "`batch_size`: invalid value: integer `-1`, expected u32",
            ),
            (
                "batch_size = \"many\"",
                "`batch_size`: invalid type: string \"many\", expected u32",
            ),
            (
                "learning_rate = \"fast\"",
                "`learning_rate`: invalid type: string \"fast\", expected f64",
            ),
            (
                "decay = \"fast\"",
                "`decay`: `fast`, expected one of linear, slow-cosine, q8_0",
            ),
            ("decay = [\"linear\"]", "`decay`: invalid type: sequence"),
            (
                "local = \"yes\"",
                "`local`: invalid type: string \"yes\", expected a boolean",
            ),
            ("yes = true", "`yes` can only be given on the command line"),
            ("decay = ", ""),
            ("[batch_size]", "`batch_size`: invalid type: map"),
        ];
        for (line, expected) in cases {
            let error = loaded(&format!("# comment\nask = \"a\"\n{line}\n"), &[]).unwrap_err();
            let expected = format!("run.toml, line 3: {expected}");
            assert!(error.starts_with(&expected), "{line}: {error}");
        }
        let error = loaded("local = true", &["--url", "http://a"]).unwrap_err();
        assert_eq!(error, "`url` and `local` cannot be used together");
    }
}
