//! From rewards to advantages.

use serde::{Deserialize, Serialize};

/// How the rewards of a group become advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Baseline {
    /// The reward less the group's mean.
    #[default]
    #[cfg_attr(feature = "clap", value(alias = "group_mean"))]
    GroupMean,
    /// That, divided by the group's standard deviation. Easy and hard problems then count alike.
    #[cfg_attr(feature = "clap", value(alias = "group_normalized"))]
    GroupNormalized,
    /// The reward itself.
    None,
}

impl Baseline {
    /// Returns the advantage of each member of a group.
    pub fn advantages(self, rewards: &[f64]) -> Vec<f64> {
        let count = rewards.len().max(1) as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let centred: Vec<f64> = rewards.iter().map(|reward| reward - mean).collect();
        match self {
            Self::None => rewards.to_vec(),
            Self::GroupMean => centred,
            Self::GroupNormalized => {
                let variance = centred.iter().map(|x| x * x).sum::<f64>() / count;
                // A group that agrees has no signal, only rounding errors to blow up.
                let scale = if variance > 1e-12 {
                    variance.sqrt()
                } else {
                    f64::INFINITY
                };
                centred.iter().map(|x| x / scale).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_of_a_group_add_up_to_nothing() {
        let rewards = [1.0, 0.0, 0.0, 3.0];
        assert_eq!(
            Baseline::GroupMean.advantages(&rewards),
            [0.0, -1.0, -1.0, 2.0]
        );
        let normalized = Baseline::GroupNormalized.advantages(&rewards);
        assert!(normalized.iter().sum::<f64>().abs() < 1e-12);
        let square = normalized.iter().map(|x| x * x).sum::<f64>() / 4.0;
        assert!((square - 1.0).abs() < 1e-12);
        assert_eq!(Baseline::None.advantages(&rewards), rewards);
    }

    #[test]
    fn a_group_that_agrees_has_no_signal() {
        for baseline in [Baseline::GroupMean, Baseline::GroupNormalized] {
            assert_eq!(baseline.advantages(&[0.5; 3]), [0.0; 3]);
            assert!(baseline.advantages(&[]).is_empty());
        }
    }
}
