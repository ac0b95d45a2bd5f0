//! Metrics of a loss, and how those of several datums become one.
//!
//! The part of a name after its colon says how values combine. Clients apply the same rule to the
//! results of the requests into which they split a batch, weighting `:mean` by the number of datums;
//! a mean over datums is therefore the only mean that does not depend on the split.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The metrics of one datum, by name.
///
/// Each name has exactly one colon, followed by `sum`, `mean`, `min` or `max`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(Cow<'static, str>, f64)>);

impl Metrics {
    pub(super) fn push(&mut self, name: impl Into<Cow<'static, str>>, value: f64) {
        let name = name.into();
        debug_assert_eq!(name.matches(':').count(), 1, "{name}");
        self.0.push((name, value));
    }

    /// Returns the value under `name`, if the loss reports it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// Iterates over names and values, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> + '_ {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }
}

/// Combines the metrics of the datums of a request.
#[derive(Clone, Debug, Default)]
pub struct MetricTotals {
    datums: usize,
    combined: BTreeMap<String, f64>,
}

impl MetricTotals {
    /// Adds the metrics of one more datum.
    pub fn add(&mut self, datum: &Metrics) {
        self.datums += 1;
        for (name, value) in datum.iter() {
            self.combined
                .entry(name.to_owned())
                .and_modify(|total| {
                    *total = if name.ends_with(":max") {
                        total.max(value)
                    } else if name.ends_with(":min") {
                        total.min(value)
                    } else {
                        *total + value
                    };
                })
                .or_insert(value);
        }
    }

    /// Returns the metrics of all datums together. Of no datums, there are none.
    #[must_use]
    pub fn finish(&self) -> BTreeMap<String, f64> {
        let combine = |(name, &total): (&String, &f64)| {
            let is_mean = name.ends_with(":mean");
            let value = if is_mean {
                total / self.datums as f64
            } else {
                total
            };
            (name.clone(), value)
        };
        self.combined.iter().map(combine).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_suffix_combines_datums_its_own_way() {
        let mut totals = MetricTotals::default();
        for value in [3.0, 1.0, 8.0] {
            let mut datum = Metrics::default();
            for name in ["a:sum", "a:mean", "a:min", "a:max"] {
                datum.push(name, value);
            }
            totals.add(&datum);
        }
        let combined = totals.finish();
        for (name, expected) in [
            ("a:sum", 12.0),
            ("a:mean", 4.0),
            ("a:min", 1.0),
            ("a:max", 8.0),
        ] {
            assert_eq!(combined[name], expected, "{name}");
        }
    }

    #[test]
    fn no_datums_have_no_metrics() {
        assert!(MetricTotals::default().finish().is_empty());
    }
}
