//! Settings in a TOML file: each key is the name of an option, with `_` for `-`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Settings, key, place, tree};
use crate::output::Hint;

const SEE_HELP: Hint =
    Hint("every option of the command is a key, with `_` for `-`: see its `--help`");

/// A file of settings.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    text: String,
}

impl File {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("could not read {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            text,
        })
    }

    /// Puts what the file says in place of the defaults. Also returns the ids of the options.
    pub(super) fn over_defaults<S: Settings>(
        &self,
        command: &Command,
    ) -> anyhow::Result<(S, Vec<String>)> {
        let mut tree = tree::<S>();
        let mut settings = S::default();
        let mut ids = Vec::new();
        for (key, value) in self.parse()?.get_ref() {
            let option = self.option(command, key)?;
            let id = option.get_id().as_str();
            let Some(pointer) = place(&tree, id) else {
                let problem = format!("`{}` can only be given on the command line", key.get_ref());
                return Err(self.wrong(key.span().start, &problem));
            };
            for entry in self.entries(&tree, pointer, option, key, value)? {
                let wrong = |problem: &str| {
                    self.wrong(entry.offset, &format!("`{}`: {problem}", entry.name))
                };
                let value = entry.value.as_ref().map_err(|problem| wrong(problem))?;
                if let Some(node) = tree.pointer_mut(&entry.pointer) {
                    *node = value.clone();
                }
                // One at a time, to know which of them is wrong.
                settings = S::deserialize(&tree).map_err(|error| wrong(&error.to_string()))?;
            }
            ids.push(id.to_owned());
        }
        Ok((settings, ids))
    }

    /// Returns the ids of the options that the file sets.
    pub(super) fn ids(&self, command: &Command) -> anyhow::Result<Vec<String>> {
        let table = self.parse()?;
        let options = table.get_ref().keys().map(|key| self.option(command, key));
        options
            .map(|option| Ok(option?.get_id().as_str().to_owned()))
            .collect()
    }

    /// Returns the value of a key, if it is a text.
    pub(super) fn text_of(&self, key: &str) -> anyhow::Result<Option<String>> {
        let table = self.parse()?;
        let mut entries = table.get_ref().iter();
        let found = entries.find(|(found, _)| found.get_ref() == key);
        Ok(found.and_then(|(_, value)| Some(value.get_ref().as_str()?.to_owned())))
    }

    fn parse(&self) -> anyhow::Result<Spanned<DeTable<'_>>> {
        DeTable::parse(&self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            self.wrong(offset, error.message())
        })
    }

    /// Returns the option that a key names.
    fn option<'c>(&self, command: &'c Command, found: &Key<'_>) -> anyhow::Result<&'c Arg> {
        let name = found.get_ref().as_ref();
        let is_named = |option: &&Arg| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            key(option) == name || aliases.contains(&name)
        };
        command.get_arguments().find(is_named).ok_or_else(|| {
            let problem = unknown("key", name, command.get_arguments().map(key));
            let error = self.wrong(found.span().start, &problem);
            error.context(SEE_HELP)
        })
    }

    /// Returns the values that a key sets: one, or those of a table whose keys the defaults list.
    fn entries(
        &self,
        tree: &Value,
        pointer: String,
        option: &Arg,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> anyhow::Result<Vec<Entry>> {
        let known = tree.pointer(&pointer).and_then(Value::as_object);
        let name = key.get_ref().to_string();
        match (value.get_ref(), known.filter(|known| !known.is_empty())) {
            (DeValue::Table(table), Some(known)) => {
                let entry = |(inner, value): (&Key<'_>, &Spanned<DeValue<'_>>)| {
                    let (key, offset) = (inner.get_ref().as_ref(), inner.span().start);
                    if !known.contains_key(key) {
                        let problem = unknown("flag", key, known.keys().cloned());
                        let problem = format!("`{name}`: {problem}");
                        return Err(self.wrong(offset, &problem));
                    }
                    Ok(Entry {
                        pointer: format!("{pointer}/{key}"),
                        name: format!("{name}.{key}"),
                        offset,
                        value: json(value.get_ref()),
                    })
                };
                table.iter().map(entry).collect()
            }
            (value, _) => Ok(vec![Entry {
                pointer,
                name,
                offset: key.span().start,
                value: read(option, value),
            }]),
        }
    }

    fn wrong(&self, offset: usize, problem: &str) -> anyhow::Error {
        let before = self.text.bytes().take(offset);
        let line = before.filter(|byte| *byte == b'\n').count() + 1;
        anyhow!("{}, line {line}: {problem}", self.path.display())
    }
}

type Key<'t> = Spanned<std::borrow::Cow<'t, str>>;

/// One value of a file.
struct Entry {
    /// Where it belongs in the tree.
    pointer: String,
    name: String,
    /// Where it is in the text.
    offset: usize,
    value: Result<Value, String>,
}

/// Reads the value of an option.
fn read(option: &Arg, value: &DeValue<'_>) -> Result<Value, String> {
    let names = option.get_possible_values();
    match (option.get_action(), value) {
        (ArgAction::Append, DeValue::String(_)) => Ok(Value::Array(vec![json(value)?])),
        (action, DeValue::String(name)) if action.takes_values() && !names.is_empty() => {
            let typed = name.replace('_', "-");
            // Some names have a `_` on the command line, too, such as `q8_0`.
            let is_meant =
                |known: &PossibleValue| known.matches(&typed, false) || known.matches(name, false);
            if names.iter().any(is_meant) {
                return Ok(Value::String(name.replace('-', "_")));
            }
            let names: Vec<_> = names.iter().map(|name| name.get_name()).collect();
            Err(format!("`{name}`, expected one of {}", names.join(", ")))
        }
        _ => json(value),
    }
}

fn json(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(value) => Value::from(*value),
        DeValue::Integer(number) => {
            let number = i128::from_str_radix(number.as_str(), number.radix());
            let number = number.map_err(|error| error.to_string())?;
            match (u64::try_from(number), i64::try_from(number)) {
                (Ok(number), _) => Value::from(number),
                (_, Ok(number)) => Value::from(number),
                _ => return Err(format!("{number} is too large")),
            }
        }
        DeValue::Float(number) => {
            let number: f64 = number
                .as_str()
                .parse()
                .map_err(|error| format!("{number}: {error}"))?;
            if !number.is_finite() {
                return Err(format!("{number}, expected a finite number"));
            }
            Value::from(number)
        }
        DeValue::Array(items) => {
            let items = items.iter().map(|item| json(item.get_ref()));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let member = |(key, value): (&Key<'_>, &Spanned<DeValue<'_>>)| {
                Ok((key.get_ref().to_string(), json(value.get_ref())?))
            };
            Value::Object(table.iter().map(member).collect::<Result<_, String>>()?)
        }
        DeValue::Datetime(_) => return Err("a date; put it in quotes".to_owned()),
    })
}

/// Says that a name is not known, and which one it may be meant to be.
fn unknown(what: &str, name: &str, known: impl Iterator<Item = String>) -> String {
    match nearest(name, known) {
        Some(known) => format!("unknown {what} `{name}`; did you mean `{known}`?"),
        None => format!("unknown {what} `{name}`"),
    }
}

/// Returns the name that differs from another one by a few letters, if there is one.
pub(crate) fn nearest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let distances = known.map(|known| (strsim::levenshtein(name, &known), known));
    let (distance, known) = distances.min()?;
    (distance <= 3).then_some(known)
}
