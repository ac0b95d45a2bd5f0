//! The names that people know training runs by.

use crate::checkpoint_ref::is_plain;
use crate::{InvalidInput, ModelId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name.
const MAX_LENGTH: usize = 64;

/// The label of a run whose value is its name.
pub const NAME_LABEL: &str = "name";

/// The label of a run that is the same for all attempts of one training: the one that began it, and those that
/// resumed it after it was stopped.
pub const RESUME_LABEL: &str = "resume_id";

const FIRST: [&str; 32] = [
    "amber", "brave", "brisk", "calm", "clear", "cosy", "crisp", "deft", "eager", "fair", "fleet",
    "fond", "gentle", "glad", "grand", "handy", "keen", "kind", "lively", "lucid", "mellow",
    "merry", "neat", "nimble", "plain", "quick", "quiet", "ready", "sunny", "swift", "warm",
    "wise",
];
const SECOND: [&str; 32] = [
    "badger", "beaver", "bison", "crane", "dove", "eagle", "falcon", "ferret", "finch", "fox",
    "gecko", "hare", "heron", "ibis", "jay", "koala", "lark", "lemur", "lynx", "marten", "mole",
    "moose", "newt", "otter", "owl", "panda", "robin", "seal", "stork", "swan", "tapir", "wren",
];

/// The name of a training run: unique among the runs of its owner.
///
/// It has letters, digits, `_`, `.` and `-`, begins with a letter or a digit, and is none of the words that mean
/// something else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunName(String);

impl RunName {
    /// Makes a name of whatever a client has called its run; `None` if nothing of it can be in a name.
    pub fn from_label(label: &str) -> Option<Self> {
        let plain = |c: char| {
            if is_plain(c.encode_utf8(&mut [0; 4])) {
                c
            } else {
                '-'
            }
        };
        let text: String = label.trim().chars().take(MAX_LENGTH).map(plain).collect();
        let text = text.trim_matches(['-', '.', '_']);
        text.parse().ok()
    }

    /// Makes up a name: always the same one for the same run.
    pub fn made_up(run: &ModelId) -> Self {
        // FNV-1a: it only has to spread.
        let hash = run
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let pick = |words: &[&'static str; 32], bits: u64| words[(bits % 32) as usize];
        let (first, second) = (pick(&FIRST, hash >> 8), pick(&SECOND, hash >> 16));
        Self(format!("{first}-{second}-{:02x}", (hash >> 24) & 0xff))
    }

    /// Returns the `n`-th name of those that begin like this one.
    #[must_use]
    pub fn numbered(&self, n: u64) -> Self {
        let ending = format!("-{n}");
        let kept = self.0.len().min(MAX_LENGTH - ending.len());
        Self(format!("{}{ending}", &self.0[..kept]))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunName {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if text.len() > MAX_LENGTH || !is_plain(text) || !begins_well {
            let found: String = text.chars().take(MAX_LENGTH).collect();
            return Err(InvalidInput::new(
                "name",
                format_args!("`{found}`"),
                format!(
                    "1 to {MAX_LENGTH} letters, digits, `_`, `.` and `-`, the first a letter or a digit"
                ),
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for RunName {
    type Error = InvalidInput;

    fn try_from(text: String) -> Result<Self, InvalidInput> {
        text.parse()
    }
}

impl From<RunName> for String {
    fn from(name: RunName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        for good in ["a", "my-run", "v1.2_b", "7", &"a".repeat(MAX_LENGTH)] {
            assert_eq!(good.parse::<RunName>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "-a",
            ".",
            "..",
            "a@b",
            "a/b",
            "s:train:0",
            "a b",
            "é",
            &"a".repeat(65),
        ] {
            assert!(bad.parse::<RunName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn any_label_becomes_a_name_that_is_like_it() {
        let name = |label: &str| RunName::from_label(label).map(String::from);
        for (label, expected) in [
            ("my-run", Some("my-run")),
            ("  My cool run!  ", Some("My-cool-run")),
            ("lr=1e-4/b@2", Some("lr-1e-4-b-2")),
            ("../../etc", Some("etc")),
            ("", None),
            ("  ", None),
            ("日本", None),
        ] {
            assert_eq!(name(label).as_deref(), expected, "{label}");
        }
        assert_eq!(name(&"é".repeat(200)), None);
        assert_eq!(name(&"x".repeat(200)).unwrap().len(), MAX_LENGTH);
    }

    #[test]
    fn a_name_that_is_made_up_is_the_same_each_time_and_others_differ() {
        let made_up = |id: &str| RunName::made_up(&ModelId::new(id)).to_string();
        assert_eq!(made_up("s:train:0"), made_up("s:train:0"));
        let names: std::collections::BTreeSet<_> =
            (0..100).map(|n| made_up(&format!("s:train:{n}"))).collect();
        assert!(names.len() > 95, "{names:?}");
        for name in names {
            assert!(name.parse::<RunName>().is_ok(), "{name}");
        }
    }

    #[test]
    fn a_number_fits_at_the_end() {
        let name: RunName = "my-run".parse().unwrap();
        assert_eq!(name.numbered(2).as_str(), "my-run-2");
        let long: RunName = "a".repeat(MAX_LENGTH).parse().unwrap();
        let numbered = long.numbered(12);
        assert_eq!(numbered.as_str().len(), MAX_LENGTH);
        assert!(numbered.as_str().ends_with("a-12"));
    }
}
