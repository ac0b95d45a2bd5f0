//! `…/metrics` of a training run: what was measured at each step.

use crate::json::body;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Reports what a client has measured at a step, such as a reward. A metric that was reported of the step before is
/// replaced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogMetricsRequest {
    /// The step, from 0.
    pub step: u64,
    /// Finite numbers by their names.
    #[serde(deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
}

body!(LogMetricsRequest);

/// Refuses null for a number: it is what JSON writers make of NaN.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let all = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    let number = |(name, value): (String, Option<f64>)| match value {
        Some(value) => Ok((name, value)),
        None => Err(serde::de::Error::custom(format_args!(
            "`metrics.{}`: found null, expected a finite number",
            name.escape_debug()
        ))),
    };
    all.into_iter().map(number).collect()
}

/// Which metrics of a run, and how much of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MetricsQuery {
    /// Names with commas between them; all by default.
    pub names: Option<String>,
    /// The first step.
    pub from: Option<i64>,
    /// The last step.
    pub to: Option<i64>,
    /// How many points a series has at most; 500 by default, and never more than 5000.
    pub points: Option<u64>,
}

/// The metrics of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunMetrics {
    /// The last step that any of them has.
    pub last_step: i64,
    /// A series for each name and source.
    pub series: Vec<MetricSeries>,
}

/// A metric of a run by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MetricSeries {
    /// What it is called.
    pub name: String,
    /// Who computed it.
    pub source: MetricSource,
    /// How many steps have a value.
    pub count: u64,
    /// In the order of the steps: the last step that the point stands for, the mean, the least and the greatest value
    /// of its steps, and when the last of them was, in milliseconds since 1970.
    pub points: Vec<(i64, f64, f64, f64, i64)>,
}

/// Who computed a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MetricSource {
    /// The server, of any client's operations.
    Server,
    /// A client, which reported it.
    Client,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;

    #[test]
    fn null_is_no_number_and_the_metric_is_named() {
        let body = br#"{"step": 1, "metrics": {"a": 1, "b": null}}"#;
        let error = LogMetricsRequest::decode_strict(body).unwrap_err();
        let text = format!("{error:?}");
        assert!(text.contains("metrics.b"), "{text}");
        let body = br#"{"step": 1, "metrics": {"a": 1}}"#;
        let request = LogMetricsRequest::decode_strict(body).unwrap();
        assert_eq!(request.metrics["a"].to_bits(), 1.0_f64.to_bits());
    }
}
