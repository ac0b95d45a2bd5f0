//! The rotary settings, wherever a file has them.

use serde::Deserialize;
use serde_json::Value;

use super::{RawConfig, required};
use crate::Error;
use crate::config::architecture::Family;
use crate::config::{Rope, RopeScaling};

#[derive(Debug, Default, Deserialize)]
struct RawRope {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    // The name of `rope_type` in older files.
    #[serde(rename = "type")]
    old_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
    short_factor: Option<Vec<f64>>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
}

/// The rotations of a model, and the context in which they hold.
pub(super) struct Ropes {
    pub(super) rope: Rope,
    pub(super) local: Option<Rope>,
    pub(super) context: usize,
}

impl RawConfig {
    pub(super) fn ropes(
        &self,
        family: &Family,
        head_dim: usize,
        context: usize,
    ) -> Result<Ropes, Error> {
        let written = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let written = written.filter(|value| !value.is_null());
        let by_kind = |kind: &str| written.and_then(|value| value.get(kind));
        let (full, sliding) = (by_kind("full_attention"), by_kind("sliding_attention"));
        let is_by_kind = full.is_some() || sliding.is_some();
        let global = read(if is_by_kind { full } else { written })?;
        let (rope, context) = self.rope(&global, family, head_dim, context)?;
        let local = match family.local_theta {
            None => None,
            Some(theta) => {
                let found = read(sliding)?;
                let theta = found
                    .rope_theta
                    .or(self.rope_local_base_freq)
                    .unwrap_or(theta);
                let scaling = found.scaling(self, context)?.0;
                Some(Rope {
                    theta,
                    scaling,
                    dimensions: rope.dimensions,
                })
            }
        };
        if local.is_none() && sliding.is_some() {
            let (other, _) = self.rope(&read(sliding)?, family, head_dim, context)?;
            if other != rope {
                return Err(Error::unsupported(
                    "rope_parameters",
                    "sliding_attention",
                    "one rotation for all layers of this family",
                ));
            }
        }
        Ok(Ropes {
            rope,
            local,
            context,
        })
    }

    fn rope(
        &self,
        found: &RawRope,
        family: &Family,
        head_dim: usize,
        context: usize,
    ) -> Result<(Rope, usize), Error> {
        let theta = found.rope_theta.or(self.rope_theta);
        let part = found.partial_rotary_factor.or(self.partial_rotary_factor);
        let dimensions = match part.or(Some(family.default_rotary)) {
            None | Some(1.0) => None,
            // As `transformers` rounds it.
            Some(part) if part > 0.0 && part < 1.0 => Some((head_dim as f64 * part) as usize),
            Some(part) => {
                let supported = "above 0 and at most 1";
                return Err(Error::unsupported("partial_rotary_factor", part, supported));
            }
        };
        let (scaling, context) = found.scaling(self, context)?;
        let rope = Rope {
            theta: theta.unwrap_or(family.default_theta),
            scaling,
            dimensions,
        };
        Ok((rope, context))
    }
}

fn read(value: Option<&Value>) -> Result<RawRope, Error> {
    let Some(value) = value else {
        return Ok(RawRope::default());
    };
    RawRope::deserialize(value).map_err(|source| Error::Json {
        document: "the rotary settings of config.json".to_owned(),
        source,
    })
}

impl RawRope {
    /// Returns the scaling, and how long a context it is right for.
    fn scaling(&self, config: &RawConfig, context: usize) -> Result<(RopeScaling, usize), Error> {
        let kind = self.rope_type.as_ref().or(self.old_type.as_ref());
        let kind = kind.map_or("default", String::as_str);
        let factor = || required("rope_scaling.factor", self.factor);
        let original = self
            .original_max_position_embeddings
            .or(config.original_max_position_embeddings);
        let original = || required("rope_scaling.original_max_position_embeddings", original);
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: factor()? },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: required("rope_scaling.low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: required("rope_scaling.high_freq_factor", self.high_freq_factor)?,
                original_context: original()?,
            },
            "yarn" => {
                let factor = factor()?;
                RopeScaling::Yarn {
                    factor,
                    beta_fast: self.beta_fast.unwrap_or(32.0),
                    beta_slow: self.beta_slow.unwrap_or(1.0),
                    original_context: original()?,
                    attention_factor: self.yarn_attention_factor(factor),
                    truncate: self.truncate.unwrap_or(true),
                }
            }
            // Beyond the first context `transformers` takes other divisors for all positions, and a
            // sequence would have other numbers once it has grown: the first context is what there is.
            "longrope" | "su" => {
                let original = original()?;
                let longer = context as f64 / original as f64;
                let default = match longer > 1.0 {
                    true => (1.0 + longer.ln() / (original as f64).ln()).sqrt(),
                    false => 1.0,
                };
                let divisors = required("rope_scaling.short_factor", self.short_factor.clone())?;
                let scaling = RopeScaling::Divided {
                    divisors,
                    attention_factor: self.attention_factor.unwrap_or(default),
                };
                return Ok((scaling, context.min(original)));
            }
            other => {
                let supported = "default, linear, llama3, yarn and longrope";
                return Err(Error::unsupported("rope_type", other, supported));
            }
        };
        Ok((scaling, context))
    }

    fn yarn_attention_factor(&self, factor: f64) -> f64 {
        let of = |scale: f64| match factor > 1.0 {
            true => 0.1 * scale * factor.ln() + 1.0,
            false => 1.0,
        };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => of(scale) / of(all),
            _ => of(1.0),
        }
    }
}
