//! Settings of a command from a TOML file.
//!
//! Each key of the file is a long option of the command with `_` for `-`, so an option is defined,
//! checked and explained in one place. What the file says is added to the command line, unless the
//! same option was typed; then everything is parsed as if it had been typed.

use std::error::Error as _;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

use crate::report::Hint;

/// What a file must not decide: where it is, and that something may be billed.
const ONLY_TYPED: [&str; 2] = ["config", "yes"];

/// Adds the settings of the file that `--config` of a command names to the arguments.
///
/// `command` is the command that was chosen, `matches` what was typed for it.
pub(crate) fn join(
    command: &Command,
    matches: &ArgMatches,
    mut arguments: Vec<OsString>,
) -> anyhow::Result<Vec<OsString>> {
    if let Some(path) = matches.get_one::<PathBuf>("config") {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("could not read {}", path.display()))?;
        let file = File { path, text: &text };
        arguments.extend(file.arguments(command, matches)?);
    }
    Ok(arguments)
}

struct File<'f> {
    path: &'f Path,
    text: &'f str,
}

impl File<'_> {
    fn arguments(&self, command: &Command, typed: &ArgMatches) -> anyhow::Result<Vec<OsString>> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let place = error.span().map_or(0, |span| span.start);
            self.wrong(place, error.message())
        })?;
        let mut arguments = Vec::new();
        for (key, value) in table.get_ref() {
            let (name, place) = (key.get_ref().as_ref(), key.span().start);
            let option = find(command, name)
                .map_err(|problem| self.wrong(place, &problem).context(SEE_HELP))?;
            let given = values(option, name, value.get_ref());
            let given = given.map_err(|problem| self.wrong(place, &problem))?;
            self.check(command, name, place, &given)?;
            if typed.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine) {
                arguments.extend(given);
            }
        }
        Ok(arguments)
    }

    /// Parses the value on its own, to tell which line is wrong.
    fn check(
        &self,
        command: &Command,
        name: &str,
        place: usize,
        given: &[OsString],
    ) -> anyhow::Result<()> {
        let alone = command.clone().no_binary_name(true);
        match alone.try_get_matches_from(given) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.wrong(place, &format!("`{name}`: {}", complaint(&error)))),
        }
    }

    fn wrong(&self, place: usize, problem: &str) -> anyhow::Error {
        let before = self.text.bytes().take(place);
        let line = before.filter(|byte| *byte == b'\n').count() + 1;
        anyhow!("{}, line {line}: {problem}", self.path.display())
    }
}

const SEE_HELP: Hint =
    Hint("every option of the command is a key, with `_` for `-`: see its `--help`");

/// Returns the option that a key means.
fn find<'c>(command: &'c Command, key: &str) -> Result<&'c Arg, String> {
    let options = || {
        command.get_arguments().filter_map(|option| {
            let name = option.get_long()?.replace('-', "_");
            (!ONLY_TYPED.contains(&name.as_str())).then_some((name, option))
        })
    };
    if ONLY_TYPED.contains(&key) {
        return Err(format!("`{key}` belongs on the command line"));
    }
    if let Some((_, option)) = options().find(|(name, _)| name == key) {
        return Ok(option);
    }
    let near = options().map(|(name, _)| (distance(key, &name), name));
    match near.min().filter(|(distance, _)| *distance <= 3) {
        Some((_, name)) => Err(format!("unknown key `{key}`; did you mean `{name}`?")),
        None => Err(format!("unknown key `{key}`")),
    }
}

/// Writes a value as arguments.
fn values(option: &Arg, name: &str, value: &DeValue<'_>) -> Result<Vec<OsString>, String> {
    let long = name.replace('_', "-");
    let argument = |text: &str| OsString::from(format!("--{long}={text}"));
    match (option.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{long}").into()]),
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err(format!("`{name}`: expected true or false")),
        (ArgAction::Append, DeValue::Array(items)) => items
            .iter()
            .map(|item| Ok(argument(&scalar(name, item.get_ref())?)))
            .collect(),
        (_, value) => Ok(vec![argument(&scalar(name, value)?)]),
    }
}

fn scalar(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|error| format!("`{name}`: {error}")),
        DeValue::Table(_) => Err(format!("`{name}` is a table; settings are plain keys")),
        DeValue::Array(_) => Err(format!("`{name}` is a list; expected a single value")),
        DeValue::Datetime(_) => Err(format!("`{name}` is a date; put it in quotes")),
    }
}

/// Says what is wrong with a value, without the option's name.
fn complaint(error: &clap::Error) -> String {
    if let Some(ContextValue::Strings(allowed)) = error.get(ContextKind::ValidValue)
        && !allowed.is_empty()
    {
        return format!("expected one of {}", allowed.join(", "));
    }
    if let Some(reason) = error.source() {
        let value = match error.get(ContextKind::InvalidValue) {
            Some(ContextValue::String(value)) => format!("{value}: "),
            _ => String::new(),
        };
        return format!("{value}{reason}");
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or("wrong value");
    line.trim_start_matches("error: ").to_owned()
}

/// Returns how many letters must be changed, added or left out to make one word of another.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::value_parser;

    fn command() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name);
        Command::new("train")
            .arg(option("config").value_parser(value_parser!(PathBuf)))
            .arg(
                Arg::new("batch_size")
                    .long("batch-size")
                    .value_parser(value_parser!(u32)),
            )
            .arg(option("decay").value_parser(["linear", "cosine"]))
            .arg(option("ask").action(ArgAction::Append))
            .arg(option("local").action(ArgAction::SetTrue))
            .arg(option("yes").action(ArgAction::SetTrue))
    }

    fn joined(text: &str, typed: &[&str]) -> Result<Vec<String>, String> {
        let command = command();
        let matches = command.clone().no_binary_name(true).get_matches_from(typed);
        let file = File {
            path: Path::new("run.toml"),
            text,
        };
        let arguments = file.arguments(&command, &matches);
        let arguments = arguments.map_err(|error| error.root_cause().to_string())?;
        Ok(arguments
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect())
    }

    #[test]
    fn keys_are_options_unless_those_were_typed() {
        let text = "batch_size = 0x10\ndecay = \"cosine\"\nask = [\"a\", \"--b\"]\nlocal = true\n";
        let expected = [
            "--ask=a",
            "--ask=--b",
            "--batch-size=16",
            "--decay=cosine",
            "--local",
        ];
        assert_eq!(joined(text, &[]).unwrap(), expected);
        let typed = ["--batch-size", "3", "--ask", "c"];
        assert_eq!(joined(text, &typed).unwrap(), ["--decay=cosine", "--local"]);
        assert!(joined("local = false", &[]).unwrap().is_empty());
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let cases = [
            (
                "bach_size = 3",
                "unknown key `bach_size`; did you mean `batch_size`?",
            ),
            ("nothing_like_it = 3", "unknown key `nothing_like_it`"),
            ("batch_size = -1", "`batch_size`: -1: "),
            ("batch_size = \"many\"", "`batch_size`: many: invalid digit"),
            (
                "decay = \"fast\"",
                "`decay`: expected one of linear, cosine",
            ),
            ("decay = [\"linear\"]", "`decay` is a list"),
            ("local = \"yes\"", "`local`: expected true or false"),
            ("yes = true", "`yes` belongs on the command line"),
            ("decay = ", ""),
            ("[batch_size]", "`batch_size` is a table"),
        ];
        for (line, expected) in cases {
            let error = joined(&format!("# comment\nask = \"a\"\n{line}\n"), &[]).unwrap_err();
            let expected = format!("run.toml, line 3: {expected}");
            assert!(error.starts_with(&expected), "{line}: {error}");
        }
    }
}
