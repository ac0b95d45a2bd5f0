//! Policy gradients.

use crate::Error;
use serde::{Deserialize, Serialize};
use tinkrs::LossFn;
use tinkrs::training::ClipBounds;

/// Which policy gradient to train with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum PolicyGradient {
    /// Corrected by the probability ratio of trainer and sampler, without a limit.
    #[default]
    #[cfg_attr(feature = "clap", value(alias = "importance_sampling"))]
    ImportanceSampling,
    /// With the ratio's effect clipped.
    Ppo,
    /// With the ratio clipped, but every token's gradient kept.
    Cispo,
}

/// A policy gradient with the ratios that count.
///
/// ```
/// use tinkrs_recipes::rl::PolicyLoss;
///
/// let read = |text| serde_json::from_str::<PolicyLoss>(text);
/// assert_eq!(read(r#""ppo""#)?, PolicyLoss::ppo(0.8, 1.2));
/// assert_eq!(read(r#"{"kind": "ppo", "low": 0.9}"#)?, PolicyLoss::ppo(0.9, 1.2));
/// // As run folders had it before 0.1.
/// assert_eq!(read(r#"{"ppo": {"low": 0.9, "high": 1.1}}"#)?, PolicyLoss::ppo(0.9, 1.1));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "ReadLoss")]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct PolicyLoss {
    /// Which policy gradient.
    #[cfg_attr(
        feature = "clap",
        arg(id = "loss.kind", long = "loss", value_name = "NAME", value_enum)
    )]
    pub kind: PolicyGradient,
    /// Lowest ratio that counts, for the losses `ppo` and `cispo`.
    #[cfg_attr(
        feature = "clap",
        arg(id = "loss.low", long = "clip-low", value_name = "X")
    )]
    pub low: f64,
    /// Highest ratio that counts, for the losses `ppo` and `cispo`.
    #[cfg_attr(
        feature = "clap",
        arg(id = "loss.high", long = "clip-high", value_name = "X")
    )]
    pub high: f64,
}

impl PolicyLoss {
    /// A policy gradient with the default ratios.
    pub fn new(kind: PolicyGradient) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// PPO with ratios from `low` to `high`.
    pub fn ppo(low: f64, high: f64) -> Self {
        let kind = PolicyGradient::Ppo;
        Self { kind, low, high }
    }

    /// CISPO with ratios from `low` to `high`.
    pub fn cispo(low: f64, high: f64) -> Self {
        let kind = PolicyGradient::Cispo;
        Self { kind, low, high }
    }

    pub(super) fn to_loss_fn(self) -> LossFn {
        let bounds = ClipBounds::new(self.low, self.high);
        match self.kind {
            PolicyGradient::ImportanceSampling => LossFn::ImportanceSampling,
            PolicyGradient::Ppo => LossFn::Ppo(bounds),
            PolicyGradient::Cispo => LossFn::Cispo(bounds),
        }
    }

    /// Checks ranges.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { kind, low, high } = *self;
        if kind == PolicyGradient::ImportanceSampling {
            if *self != Self::default() {
                return Err(Error::setting(
                    "clip_low and clip_high",
                    "for the losses ppo and cispo only; importance_sampling has no limits",
                ));
            }
        } else if !((0.0..=1.0).contains(&low) && high >= 1.0 && high.is_finite()) {
            let problem = format!("ratios from {low} to {high}, expected a range around 1");
            return Err(Error::setting("loss", problem));
        }
        Ok(())
    }
}

impl Default for PolicyLoss {
    fn default() -> Self {
        Self {
            kind: PolicyGradient::default(),
            low: 0.8,
            high: 1.2,
        }
    }
}

/// The ways in which a loss may be written.
#[derive(Deserialize)]
#[serde(untagged)]
enum ReadLoss {
    Fields(Fields),
    Kind(PolicyGradient),
    Limits(Limits),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    kind: PolicyGradient,
    low: Option<f64>,
    high: Option<f64>,
}

/// As run folders had it before 0.1.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Limits {
    Ppo { low: f64, high: f64 },
    Cispo { low: f64, high: f64 },
}

impl From<ReadLoss> for PolicyLoss {
    fn from(read: ReadLoss) -> Self {
        let default = Self::default();
        match read {
            ReadLoss::Kind(kind) => Self::new(kind),
            ReadLoss::Fields(Fields { kind, low, high }) => Self {
                kind,
                low: low.unwrap_or(default.low),
                high: high.unwrap_or(default.high),
            },
            ReadLoss::Limits(Limits::Ppo { low, high }) => Self::ppo(low, high),
            ReadLoss::Limits(Limits::Cispo { low, high }) => Self::cispo(low, high),
        }
    }
}
