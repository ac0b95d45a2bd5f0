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
    /// Without a ratio, and with a quadratic penalty on leaving the sampler: `--dro-beta`.
    Dro,
    /// As `ppo`, with one ratio for a whole sequence: the geometric mean over the tokens that the model wrote.
    Gspo,
}

impl PolicyGradient {
    /// Whether ratios are clipped.
    fn clips(self) -> bool {
        match self {
            Self::ImportanceSampling | Self::Dro => false,
            Self::Ppo | Self::Cispo | Self::Gspo => true,
        }
    }

    /// Whether the loss wants to know which tokens make the ratio of a sequence.
    pub(super) fn is_of_sequences(self) -> bool {
        self == Self::Gspo
    }

    fn name(self) -> &'static str {
        match self {
            Self::ImportanceSampling => "importance_sampling",
            Self::Ppo => "ppo",
            Self::Cispo => "cispo",
            Self::Dro => "dro",
            Self::Gspo => "gspo",
        }
    }
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
        arg(
            id = "loss.kind",
            long = "loss",
            value_name = "NAME",
            value_enum,
            help_heading = "Loss"
        )
    )]
    pub kind: PolicyGradient,
    /// Lowest ratio that counts, for the losses `ppo`, `cispo` and `gspo`.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "loss.low",
            long = "clip-low",
            value_name = "X",
            help_heading = "Loss"
        )
    )]
    pub low: f64,
    /// Highest ratio that counts, for the losses `ppo`, `cispo` and `gspo`.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "loss.high",
            long = "clip-high",
            value_name = "X",
            help_heading = "Loss"
        )
    )]
    pub high: f64,
    /// How much distance from the sampler costs, for the loss `dro`, which needs it.
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "loss.beta",
            long = "dro-beta",
            value_name = "X",
            help_heading = "Loss"
        )
    )]
    pub beta: Option<f64>,
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
        Self {
            low,
            high,
            ..Self::new(kind)
        }
    }

    /// CISPO with ratios from `low` to `high`.
    pub fn cispo(low: f64, high: f64) -> Self {
        let kind = PolicyGradient::Cispo;
        Self {
            low,
            high,
            ..Self::new(kind)
        }
    }

    /// GSPO with ratios from `low` to `high`. A sequence's ratio is much closer to 1 than a token's.
    pub fn gspo(low: f64, high: f64) -> Self {
        let kind = PolicyGradient::Gspo;
        Self {
            low,
            high,
            ..Self::new(kind)
        }
    }

    /// DRO with this penalty.
    pub fn dro(beta: f64) -> Self {
        let kind = PolicyGradient::Dro;
        Self {
            beta: Some(beta),
            ..Self::new(kind)
        }
    }

    pub(super) fn to_loss_fn(self) -> LossFn {
        let bounds = ClipBounds::new(self.low, self.high);
        match self.kind {
            PolicyGradient::ImportanceSampling => LossFn::ImportanceSampling,
            PolicyGradient::Ppo => LossFn::Ppo(bounds),
            PolicyGradient::Cispo => LossFn::Cispo(bounds),
            PolicyGradient::Gspo => LossFn::Gspo(bounds),
            PolicyGradient::Dro => LossFn::Dro { beta: self.beta },
        }
    }

    /// Checks ranges.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Self {
            kind,
            low,
            high,
            beta,
        } = *self;
        let default = Self::default();
        if !kind.clips() && (low, high) != (default.low, default.high) {
            let problem = format!(
                "for the losses ppo, cispo and gspo only; {} has no limits",
                kind.name()
            );
            return Err(Error::setting("clip_low and clip_high", problem));
        }
        if kind.clips() && !((0.0..=1.0).contains(&low) && high >= 1.0 && high.is_finite()) {
            let problem = format!("ratios from {low} to {high}, expected a range around 1");
            return Err(Error::setting("loss", problem));
        }
        match beta {
            None if kind == PolicyGradient::Dro => {
                let problem = "nothing, but the loss dro needs a positive number";
                return Err(Error::setting("dro_beta", problem));
            }
            Some(beta) if kind != PolicyGradient::Dro => {
                let problem = format!("{beta}, but the loss is {}, not dro", kind.name());
                return Err(Error::setting("dro_beta", problem));
            }
            Some(beta) if !(beta > 0.0 && beta.is_finite()) => {
                let problem = format!("{beta}, expected a positive number");
                return Err(Error::setting("dro_beta", problem));
            }
            _ => {}
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
            beta: None,
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
    beta: Option<f64>,
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
            ReadLoss::Fields(fields) => Self {
                kind: fields.kind,
                low: fields.low.unwrap_or(default.low),
                high: fields.high.unwrap_or(default.high),
                beta: fields.beta,
            },
            ReadLoss::Limits(Limits::Ppo { low, high }) => Self::ppo(low, high),
            ReadLoss::Limits(Limits::Cispo { low, high }) => Self::cispo(low, high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_another_loss_are_refused_by_name() {
        let wrong = |loss: PolicyLoss| loss.check().unwrap_err().to_string();
        let ratios = PolicyLoss {
            low: 0.5,
            ..PolicyLoss::dro(0.1)
        };
        assert_eq!(
            wrong(ratios),
            "clip_low and clip_high: for the losses ppo, cispo and gspo only; dro has no limits"
        );
        let none = wrong(PolicyLoss::new(PolicyGradient::Dro));
        assert_eq!(
            none,
            "dro_beta: nothing, but the loss dro needs a positive number"
        );
        for beta in [0.0, -1.0, f64::NAN] {
            assert!(wrong(PolicyLoss::dro(beta)).starts_with("dro_beta: "));
        }
        let gspo = PolicyLoss {
            beta: Some(0.1),
            ..PolicyLoss::gspo(0.99, 1.01)
        };
        assert_eq!(wrong(gspo), "dro_beta: 0.1, but the loss is gspo, not dro");
        assert!(PolicyLoss::gspo(0.99, 1.01).check().is_ok());
        assert!(PolicyLoss::dro(0.05).check().is_ok());
        assert!(wrong(PolicyLoss::gspo(1.1, 1.2)).contains("a range around 1"));
    }
}
