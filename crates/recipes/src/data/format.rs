//! What a file of data may be: how its rows are laid out, and which members they have.

use std::fmt;
use std::str::FromStr;

/// How rows are laid out in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// One JSON object a line.
    JsonLines,
    /// One JSON array of objects.
    JsonArray,
    /// A table with a header, its fields apart by commas.
    Csv,
    /// A table with a header, its fields apart by tabs.
    Tsv,
    /// Paragraphs of plain text: each is a row with a `text`.
    Text,
    /// Parquet.
    Parquet,
    /// An Arrow stream or file, as `datasets` of Hugging Face saves them.
    Arrow,
}

impl Layout {
    const NAMES: [(&'static str, Self); 7] = [
        ("jsonl", Self::JsonLines),
        ("json", Self::JsonArray),
        ("csv", Self::Csv),
        ("tsv", Self::Tsv),
        ("text", Self::Text),
        ("parquet", Self::Parquet),
        ("arrow", Self::Arrow),
    ];

    /// Whether rows are those of columns, which have no lines.
    pub(super) fn is_columns(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonLines => "JSON lines",
            Self::JsonArray => "a JSON array",
            Self::Csv => "CSV",
            Self::Tsv => "TSV",
            Self::Text => "plain text",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
        })
    }
}

/// Which members of a row are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// `messages`, or `conversations` as ShareGPT has them.
    Messages,
    /// `instruction`, `input` and `output`, as Alpaca has them.
    Alpaca,
    /// `prompt` and `completion`.
    Pairs,
    /// `chosen` and `rejected`.
    Preferences,
    /// `text`.
    Plain,
}

impl Form {
    const NAMES: [(&'static str, Self); 5] = [
        ("messages", Self::Messages),
        ("alpaca", Self::Alpaca),
        ("pairs", Self::Pairs),
        ("preferences", Self::Preferences),
        ("plain", Self::Plain),
    ];

    /// Returns the members that the form has; those before the first `""` tell it from others.
    fn members(self) -> &'static [&'static str] {
        match self {
            Self::Messages => &["messages", "conversations", "", "tools", "system"],
            Self::Alpaca => &["instruction", "", "input", "output", "system"],
            Self::Pairs => &["completion", "", "prompt"],
            Self::Preferences => &["chosen", "rejected", "", "prompt", "messages"],
            Self::Plain => &["text"],
        }
    }

    /// Whether a row of this form is looked at for a member.
    pub(super) fn has(self, member: &str) -> bool {
        !member.is_empty() && self.members().contains(&member)
    }

    /// Returns the form of a row with such members.
    pub(super) fn of<'m>(members: impl Iterator<Item = &'m str> + Clone) -> Option<Self> {
        let order = [
            Self::Preferences,
            Self::Messages,
            Self::Alpaca,
            Self::Pairs,
            Self::Plain,
        ];
        order.into_iter().find(|form| {
            let mut signs = form.members().iter().take_while(|name| !name.is_empty());
            signs.any(|sign| members.clone().any(|member| member == *sign))
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Messages => "chats (`messages`)",
            Self::Alpaca => "instructions (`instruction`, `output`)",
            Self::Pairs => "pairs (`prompt`, `completion`)",
            Self::Preferences => "preferences (`chosen`, `rejected`)",
            Self::Plain => "plain text (`text`)",
        })
    }
}

/// What a file is said to be, where that is not left to be found out: `parquet`, `messages`, or both as
/// `parquet,messages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataFormat {
    /// How its rows are laid out.
    pub layout: Option<Layout>,
    /// Which members of a row are looked at.
    pub form: Option<Form>,
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    let mut names = names.iter();
    names
        .find(|(_, known)| known == value)
        .map_or("", |(name, _)| name)
}

impl fmt::Display for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = self.layout.map(|layout| name_of(&Layout::NAMES, &layout));
        let form = self.form.map(|form| name_of(&Form::NAMES, &form));
        let parts: Vec<_> = layout.into_iter().chain(form).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for DataFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut format = Self::default();
        for part in text.split(',') {
            let layout = Layout::NAMES.iter().find(|(name, _)| *name == part);
            let form = Form::NAMES.iter().find(|(name, _)| *name == part);
            match (layout, form) {
                (Some((_, layout)), _) if format.layout.is_none() => format.layout = Some(*layout),
                (_, Some((_, form))) if format.form.is_none() => format.form = Some(*form),
                _ => {
                    let layouts = Layout::NAMES.map(|(name, _)| name).join(", ");
                    let forms = Form::NAMES.map(|(name, _)| name).join(", ");
                    return Err(format!(
                        "`{text}`, expected one of {layouts}, one of {forms}, or both with a comma between"
                    ));
                }
            }
        }
        Ok(format)
    }
}

impl serde::Serialize for DataFormat {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for DataFormat {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_a_layout_a_form_or_both() {
        for text in ["parquet", "messages", "jsonl,alpaca"] {
            let format: DataFormat = text.parse().unwrap();
            assert_eq!(format.to_string(), text);
        }
        for text in ["", "xml", "csv,tsv", "messages,pairs", "csv,"] {
            let error = text.parse::<DataFormat>().unwrap_err();
            assert!(error.contains("expected one of jsonl, json"), "{error}");
        }
    }

    #[test]
    fn the_form_is_found_by_what_no_other_has() {
        let of = |members: &[&str]| Form::of(members.iter().copied());
        assert_eq!(of(&["id", "prompt", "messages"]), Some(Form::Messages));
        assert_eq!(
            of(&["prompt", "messages", "chosen"]),
            Some(Form::Preferences)
        );
        assert_eq!(of(&["prompt", "completion"]), Some(Form::Pairs));
        assert_eq!(of(&["prompt", "answer"]), None);
    }
}
