//! What episodes may take, and what becomes of those that fail.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Limits of episodes, and what becomes of those that fail. By default there are no limits, and an episode that
/// fails ends the run, with a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Episodes {
    /// Most turns of an episode, which then ends with what it has earned; 0 for no limit.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Episodes")
    )]
    pub max_turns: usize,
    /// Most tokens of an episode, seen and written, after which it ends as well; 0 for no limit.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Episodes")
    )]
    pub max_episode_tokens: usize,
    /// Seconds that an episode may take, sampling included, before it has failed; 0 for no limit.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "SECONDS", help_heading = "Episodes")
    )]
    pub episode_timeout: f64,
    /// How often an episode that fails is played again.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Episodes")
    )]
    pub episode_retries: usize,
    /// Episodes that a group needs when others of it have failed. A smaller group is left out, and the run goes on
    /// as long as a step has one group. With 0, an episode that fails ends the run.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Episodes")
    )]
    pub min_group_size: usize,
    /// Of each step, so many of the best and of the worst episodes are written to `transcripts.jsonl`.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Episodes")
    )]
    pub transcripts: usize,
}

impl Episodes {
    pub(super) fn check(&self, group_size: usize) -> Result<(), Error> {
        let longest = Duration::MAX.as_secs_f64() / 2.0;
        if !(0.0..longest).contains(&self.episode_timeout) {
            let problem = format!("{}, expected seconds, 0 or more", self.episode_timeout);
            return Err(Error::setting("episode_timeout", problem));
        }
        if self.min_group_size > group_size {
            let problem = format!(
                "{}, expected at most the group size, {group_size}",
                self.min_group_size
            );
            return Err(Error::setting("min_group_size", problem));
        }
        Ok(())
    }

    /// Returns how long an episode may take.
    pub(super) fn timeout(&self) -> Option<Duration> {
        (self.episode_timeout > 0.0).then(|| Duration::from_secs_f64(self.episode_timeout))
    }

    /// Returns whether the run goes on when an episode fails.
    pub(super) fn tolerates(&self) -> bool {
        self.min_group_size > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_named() {
        let wrong = |change: fn(&mut Episodes)| {
            let mut episodes = Episodes::default();
            change(&mut episodes);
            episodes.check(4).map_err(|error| error.to_string())
        };
        assert_eq!(wrong(|_| ()), Ok(()));
        let error = wrong(|episodes| episodes.min_group_size = 5).unwrap_err();
        assert_eq!(
            error,
            "min_group_size: 5, expected at most the group size, 4"
        );
        for seconds in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
            let episodes = Episodes {
                episode_timeout: seconds,
                ..Episodes::default()
            };
            let error = episodes.check(4).unwrap_err().to_string();
            assert!(error.starts_with("episode_timeout: "), "{error}");
        }
    }
}
