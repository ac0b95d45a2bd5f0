//! Which checkpoints of a run stay on the server, and for how long.
//!
//! Only what the run's own journal lists is ever deleted, and only after a newer one is in the journal: a process
//! that is killed in between leaves one too many, which is deleted when the run goes on.

use super::journal::SavedCheckpoint;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tinkrs::{RestClient, TinkerPath};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// The service's longest time to live.
const TEN_YEARS: u64 = 3650 * DAY;

/// Which checkpoints of a run stay on the server, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Checkpoints {
    /// Save a checkpoint, too, before so many seconds of work would be lost with the process; the next one
    /// replaces it. 0 never does.
    #[serde(rename = "checkpoint_seconds")]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "checkpoint_seconds",
            long = "checkpoint-seconds",
            value_name = "X",
            help_heading = "Run"
        )
    )]
    pub seconds: f64,
    /// Keep the newest so many checkpoints of the run, and delete older ones from the server, except for
    /// published ones; 0 keeps all.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub keep_last: usize,
    /// How long the server keeps what the run saves, in days or hours: `7d`, `36h`. For ever, unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TIME", help_heading = "Run"))]
    pub ttl: Option<Ttl>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            seconds: 60.0,
            keep_last: 0,
            ttl: None,
        }
    }
}

impl Checkpoints {
    /// Checks ranges.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.seconds >= 0.0 && self.seconds.is_finite() {
            return Ok(());
        }
        let problem = format!("{}, expected 0 or more", self.seconds);
        Err(Error::setting("checkpoint_seconds", problem))
    }

    /// Returns the checkpoints that are to be deleted, oldest first. `best` is the number of steps after which
    /// the best one was saved, if that is to stay.
    pub(super) fn surplus<'s>(
        &self,
        saved: &'s [SavedCheckpoint],
        best: Option<usize>,
    ) -> Vec<&'s TinkerPath> {
        // A run resumes from the last one, whatever it is.
        let Some((_, earlier)) = saved.split_last() else {
            return Vec::new();
        };
        let lasting = saved.iter().filter(|saved| !saved.temporary).count();
        let mut older = match self.keep_last {
            0 => 0,
            keep => lasting.saturating_sub(keep),
        };
        let surplus = earlier.iter().filter(|saved| {
            let is_old = !saved.temporary && older > 0;
            older -= usize::from(is_old);
            (saved.temporary || is_old) && best != Some(saved.steps)
        });
        surplus.map(|saved| &saved.path).collect()
    }
}

/// Deletes a checkpoint of a run, unless it was published. Returns whether it is gone.
pub(super) async fn delete(rest: &RestClient, path: &TinkerPath) -> bool {
    let Ok(saved) = rest.list_checkpoints(path.run()).await else {
        return false;
    };
    match saved.iter().find(|saved| saved.tinker_path == *path) {
        Some(saved) if saved.public => false,
        Some(_) => rest.delete_checkpoint(path).await.is_ok(),
        None => true,
    }
}

/// A time to live: whole hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ttl {
    seconds: u64,
}

impl Ttl {
    /// Returns it as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl FromStr for Ttl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}`, expected days or hours, such as 7d or 36h: an hour to {}d",
                TEN_YEARS / DAY
            )
        };
        let unit = match text.chars().last() {
            Some('d') => DAY,
            Some('h') => HOUR,
            _ => return Err(expected()),
        };
        let count: u64 = text[..text.len() - 1].parse().map_err(|_| expected())?;
        let seconds = count.checked_mul(unit).ok_or_else(expected)?;
        if !(HOUR..=TEN_YEARS).contains(&seconds) {
            return Err(expected());
        }
        Ok(Self { seconds })
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seconds.is_multiple_of(DAY) {
            write!(f, "{}d", self.seconds / DAY)
        } else {
            write!(f, "{}h", self.seconds / HOUR)
        }
    }
}

impl TryFrom<String> for Ttl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Ttl> for String {
    fn from(ttl: Ttl) -> Self {
        ttl.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(steps: usize, temporary: bool) -> SavedCheckpoint {
        let path = format!("tinker://run:train:0/weights/step-{steps}");
        SavedCheckpoint {
            steps,
            path: path.parse().unwrap(),
            temporary,
        }
    }

    #[test]
    fn the_last_ones_the_best_one_and_what_a_run_resumes_from_stay() {
        let all = [
            saved(10, false),
            saved(20, false),
            saved(25, true),
            saved(30, false),
            saved(35, true),
        ];
        let cases: [(usize, usize, Option<usize>, &[usize]); 7] = [
            (0, 5, None, &[25]),
            (1, 5, None, &[10, 20, 25]),
            (2, 5, None, &[10, 25]),
            (2, 5, Some(10), &[25]),
            (1, 4, Some(20), &[10, 25]),
            (9, 5, None, &[25]),
            (1, 1, None, &[]),
        ];
        for (keep_last, count, best, expected) in cases {
            let checkpoints = Checkpoints {
                keep_last,
                ..Checkpoints::default()
            };
            let surplus = checkpoints.surplus(&all[..count], best);
            let path_of = |steps: &usize| saved(*steps, false).path;
            let expected: Vec<_> = expected.iter().map(path_of).collect();
            let expected: Vec<_> = expected.iter().collect();
            assert_eq!(surplus, expected, "{keep_last} of {count}, best {best:?}");
        }
        assert!(Checkpoints::default().surplus(&[], None).is_empty());
    }

    #[test]
    fn a_time_to_live_is_days_or_hours() {
        for (text, seconds, shown) in [
            ("1h", 3600, "1h"),
            ("36h", 36 * 3600, "36h"),
            ("48h", 48 * 3600, "2d"),
            ("7d", 7 * 86_400, "7d"),
            ("3650d", 315_360_000, "3650d"),
        ] {
            let ttl: Ttl = text.parse().unwrap();
            assert_eq!(ttl.duration().as_secs(), seconds);
            assert_eq!(ttl.to_string(), shown);
        }
        for wrong in [
            "",
            "d",
            "7",
            "-1d",
            "0h",
            "1.5d",
            "7 d",
            "3651d",
            "9999999999999999999h",
            "7ü",
        ] {
            let error = wrong.parse::<Ttl>().unwrap_err();
            assert!(error.contains(wrong) && error.contains("7d"), "{error}");
        }
    }
}
