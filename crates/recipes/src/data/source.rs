//! Which files a run learns from, and in which proportion.

use super::format::DataFormat;
use super::rows::Rows;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A file or folder of data, with its weight among several: `chats.jsonl`, or `chats.jsonl:0.7`.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The file or folder.
    pub path: PathBuf,
    /// Its part of what is learned from, where that is not left to its length.
    pub weight: Option<f64>,
    /// What it is, where that is not left to be found out.
    pub format: DataFormat,
}

impl Source {
    /// Takes a file or folder as it is.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            weight: None,
            format: DataFormat::default(),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// As [`Rows::open`].
    pub fn rows(&self) -> Result<Rows, Error> {
        Rows::open_as(&self.path, self.format)
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weighted = text.rsplit_once(':');
        let number = weighted.and_then(|(path, weight)| Some((path, weight.parse::<f64>().ok()?)));
        match number {
            // A file may have such a name.
            Some((path, weight)) if !path.is_empty() && !PathBuf::from(text).exists() => {
                if !(weight > 0.0 && weight.is_finite()) {
                    return Err(format!(
                        "`{text}`: the weight is {weight}, expected more than 0"
                    ));
                }
                Ok(Self {
                    weight: Some(weight),
                    ..Self::new(path)
                })
            }
            _ if text.is_empty() => Err("an empty name of a file".to_owned()),
            _ => Ok(Self::new(text)),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            Some(weight) => write!(f, "{}:{weight}", self.path.display()),
            None => write!(f, "{}", self.path.display()),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Returns the part of each source in what is learned from; `None` if no source has a weight, so that each example
/// counts the same. Sources without a weight share what the others leave of 1.
///
/// # Errors
/// If they leave nothing.
pub(super) fn shares(sources: &[Source]) -> Result<Option<Vec<f64>>, Error> {
    let given: f64 = sources.iter().filter_map(|source| source.weight).sum();
    let without: Vec<_> = sources.iter().filter(|s| s.weight.is_none()).collect();
    if sources.len() < 2 || without.len() == sources.len() {
        return Ok(None);
    }
    let left = 1.0 - given;
    if let Some(first) = without.first()
        && left <= 0.0
    {
        return Err(Error::setting(
            "data",
            format!(
                "the weights of the other files are {given} together and leave nothing of 1 for `{first}`: give it a \
                 weight, too"
            ),
        ));
    }
    let total = if without.is_empty() { given } else { 1.0 };
    let share = |source: &Source| match source.weight {
        Some(weight) => weight / total,
        None => left / without.len() as f64,
    };
    Ok(Some(sources.iter().map(share).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_stands_behind_the_name() {
        let source: Source = "a:b.jsonl:0.7".parse().unwrap();
        assert_eq!(
            (source.path.to_str(), source.weight),
            (Some("a:b.jsonl"), Some(0.7))
        );
        assert_eq!(source.to_string(), "a:b.jsonl:0.7");
        let plain: Source = "C:\\data.jsonl".parse().unwrap();
        assert_eq!(plain.weight, None);
        for text in ["a:0", "a:-1", "a:nan", "a:inf"] {
            let error = text.parse::<Source>().unwrap_err();
            assert!(error.contains("expected more than 0"), "{error}");
        }
    }

    #[test]
    fn what_has_no_weight_gets_what_is_left() {
        let of = |texts: &[&str]| {
            let sources: Vec<Source> = texts.iter().map(|text| text.parse().unwrap()).collect();
            shares(&sources).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["a", "b"]), Ok(None));
        assert_eq!(of(&["a:3"]), Ok(None));
        assert_eq!(of(&["a:3", "b:1"]), Ok(Some(vec![0.75, 0.25])));
        assert_eq!(of(&["a:0.5", "b", "c"]), Ok(Some(vec![0.5, 0.25, 0.25])));
        let error = of(&["a:2", "b"]).unwrap_err();
        assert!(error.contains("leave nothing of 1 for `b`"), "{error}");
    }
}
