//! Which loss to compute, with its typed options.

use crate::{InvalidInput, LossId};
use std::collections::BTreeMap;
use std::fmt;

/// Options of a loss by name, as they travel.
pub type LossConfig = BTreeMap<String, LossConfigValue>;

/// The value of one loss option.
#[derive(Clone, Debug, PartialEq)]
pub enum LossConfigValue {
    /// A number.
    Number(f64),
    /// A text, such as the id of an uploaded loss.
    Text(String),
}

impl fmt::Display for LossConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "`{text}`"),
        }
    }
}

/// Bounds on the probability ratio between learner and sampler.
///
/// They bound the ratio itself, not its distance from 1. `None` leaves the loss's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClipBounds {
    /// The lower bound, `clip_low_threshold`.
    pub low: Option<f64>,
    /// The upper bound, `clip_high_threshold`.
    pub high: Option<f64>,
}

impl ClipBounds {
    /// Sets both bounds.
    pub fn new(low: f64, high: f64) -> Self {
        Self {
            low: Some(low),
            high: Some(high),
        }
    }
}

/// A loss function and its options.
///
/// Every loss is a plain sum over tokens and datums. The formulas are in the documentation of
/// the engine's `loss` module.
///
/// ```
/// use tinkrs_types::training::ClipBounds;
/// use tinkrs_types::LossFn;
///
/// let loss = LossFn::Ppo(ClipBounds::new(0.9, 1.1));
/// assert_eq!(loss.name(), "ppo");
/// assert_eq!(loss.config().len(), 2);
/// assert_eq!(LossFn::default(), LossFn::CrossEntropy);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum LossFn {
    /// Weighted negative log-likelihood.
    #[default]
    CrossEntropy,
    /// Importance-weighted policy gradient.
    ImportanceSampling,
    /// Clipped policy gradient; by default the ratio is clipped to 0.8 to 1.2.
    Ppo(ClipBounds),
    /// Policy gradient with a clipped, detached ratio; by default 0.0 to 4.0.
    Cispo(ClipBounds),
    /// Policy gradient with a quadratic penalty of weight `beta`.
    Dro {
        /// The weight of the penalty; `None` leaves the server's default.
        beta: Option<f64>,
    },
    /// Clipped policy gradient with one ratio for each sequence.
    Gspo(ClipBounds),
    /// REINFORCE with data recorded while sampling.
    StableReinforce {
        /// The weight of the KL term; `None` leaves the server's default.
        kl_coeff: Option<f64>,
    },
    /// A loss that was uploaded to the session before.
    Custom {
        /// Which one.
        loss_id: LossId,
    },
    /// A loss that this crate does not know, for servers that do.
    Other {
        /// Its name.
        name: String,
        /// Its options.
        config: LossConfig,
    },
}

impl LossFn {
    /// Returns the name on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::ImportanceSampling => "importance_sampling",
            Self::Ppo(_) => "ppo",
            Self::Cispo(_) => "cispo",
            Self::Dro { .. } => "dro",
            Self::Gspo(_) => "gspo",
            Self::StableReinforce { .. } => "stable_reinforce",
            Self::Custom { .. } => "custom",
            Self::Other { name, .. } => name,
        }
    }

    /// Returns the options that are set, by their names on the wire.
    pub fn config(&self) -> LossConfig {
        let numbers = |options: &[(&str, Option<f64>)]| {
            options
                .iter()
                .filter_map(|(name, value)| {
                    Some(((*name).to_owned(), LossConfigValue::Number((*value)?)))
                })
                .collect()
        };
        match self {
            Self::CrossEntropy | Self::ImportanceSampling => LossConfig::new(),
            Self::Ppo(clip) | Self::Cispo(clip) | Self::Gspo(clip) => {
                numbers(&[(CLIP_LOW, clip.low), (CLIP_HIGH, clip.high)])
            }
            Self::Dro { beta } => numbers(&[(BETA, *beta)]),
            Self::StableReinforce { kl_coeff } => numbers(&[(KL_COEFF, *kl_coeff)]),
            Self::Custom { loss_id } => LossConfig::from([(
                LOSS_ID.to_owned(),
                LossConfigValue::Text(loss_id.as_str().to_owned()),
            )]),
            Self::Other { config, .. } => config.clone(),
        }
    }

    /// Reads a loss from its name and options; an unknown name gives [`LossFn::Other`].
    ///
    /// # Errors
    /// If a known loss is given an option that it does not have, or one of the wrong type.
    pub fn from_parts(name: &str, mut config: LossConfig) -> Result<Self, InvalidInput> {
        let mut options = Options {
            loss: name,
            config: &mut config,
        };
        let loss = match name {
            "cross_entropy" => Self::CrossEntropy,
            "importance_sampling" => Self::ImportanceSampling,
            "ppo" => Self::Ppo(options.clip()?),
            "cispo" => Self::Cispo(options.clip()?),
            "gspo" => Self::Gspo(options.clip()?),
            "dro" => Self::Dro {
                beta: options.number(BETA)?,
            },
            "stable_reinforce" => Self::StableReinforce {
                kl_coeff: options.number(KL_COEFF)?,
            },
            "custom" => Self::Custom {
                loss_id: options.text(LOSS_ID)?.into(),
            },
            _ => {
                return Ok(Self::Other {
                    name: name.to_owned(),
                    config,
                });
            }
        };
        match config.keys().next() {
            None => Ok(loss),
            Some(unknown) => Err(InvalidInput::new(
                format!("loss_fn_config.{unknown}"),
                config[unknown].to_string(),
                loss.allowed_options(),
            )),
        }
    }

    fn allowed_options(&self) -> String {
        let options = match self {
            Self::CrossEntropy | Self::ImportanceSampling | Self::Other { .. } => {
                return format!("no such option: `{}` has none", self.name());
            }
            Self::Ppo(_) | Self::Cispo(_) | Self::Gspo(_) => {
                "`clip_low_threshold` and `clip_high_threshold`"
            }
            Self::Dro { .. } => "`beta`",
            Self::StableReinforce { .. } => "`kl_coeff`",
            Self::Custom { .. } => "`loss_id`",
        };
        format!("no such option: `{}` takes {options}", self.name())
    }
}

const CLIP_LOW: &str = "clip_low_threshold";
const CLIP_HIGH: &str = "clip_high_threshold";
const BETA: &str = "beta";
const KL_COEFF: &str = "kl_coeff";
const LOSS_ID: &str = "loss_id";

/// Takes known options out of a config, so that what is left is unknown.
struct Options<'a> {
    loss: &'a str,
    config: &'a mut LossConfig,
}

impl Options<'_> {
    fn number(&mut self, name: &str) -> Result<Option<f64>, InvalidInput> {
        match self.config.remove(name) {
            None => Ok(None),
            Some(LossConfigValue::Number(number)) => Ok(Some(number)),
            Some(text) => Err(InvalidInput::new(
                format!("loss_fn_config.{name}"),
                text,
                "a number",
            )),
        }
    }

    fn text(&mut self, name: &str) -> Result<String, InvalidInput> {
        let field = format!("loss_fn_config.{name}");
        match self.config.remove(name) {
            Some(LossConfigValue::Text(text)) => Ok(text),
            Some(number) => Err(InvalidInput::new(field, number, "a text")),
            None => Err(InvalidInput::new(
                field,
                "nothing",
                format!("a text: `{}` needs it", self.loss),
            )),
        }
    }

    fn clip(&mut self) -> Result<ClipBounds, InvalidInput> {
        Ok(ClipBounds {
            low: self.number(CLIP_LOW)?,
            high: self.number(CLIP_HIGH)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_survives_its_own_name_and_config() {
        let losses = [
            LossFn::CrossEntropy,
            LossFn::ImportanceSampling,
            LossFn::Ppo(ClipBounds {
                low: None,
                high: Some(1.5),
            }),
            LossFn::Cispo(ClipBounds::new(0.0, 4.0)),
            LossFn::Gspo(ClipBounds::default()),
            LossFn::Dro { beta: Some(0.05) },
            LossFn::StableReinforce {
                kl_coeff: Some(0.01),
            },
            LossFn::Custom {
                loss_id: "L1".into(),
            },
            LossFn::Other {
                name: "dppo".to_owned(),
                config: LossConfig::from([("delta_low".to_owned(), LossConfigValue::Number(0.1))]),
            },
        ];
        for loss in losses {
            assert_eq!(
                LossFn::from_parts(loss.name(), loss.config()).unwrap(),
                loss
            );
        }
    }

    #[test]
    fn an_option_that_the_loss_does_not_have_is_refused_by_name() {
        let option =
            |name: &str| LossConfig::from([(name.to_owned(), LossConfigValue::Number(1.0))]);
        let error = LossFn::from_parts("ppo", option("clip_low")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`loss_fn_config.clip_low`: found 1, expected no such option: `ppo` takes \
             `clip_low_threshold` and `clip_high_threshold`"
        );
        assert!(LossFn::from_parts("cross_entropy", option("beta")).is_err());
        assert!(
            LossFn::from_parts("custom", option("loss_id")).is_err(),
            "an id is a text"
        );
        assert!(
            LossFn::from_parts("custom", LossConfig::new()).is_err(),
            "an id is needed"
        );
    }
}
