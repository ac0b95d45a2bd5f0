//! Reading the text format of OpenMetrics, as far as `/metrics` of the server uses it.
//!
//! A family is a `# TYPE` line and the samples behind it: counters (`_total`), gauges, and histograms
//! (`_bucket` with `le`, `_sum`, `_count`). What cannot be read is left out: it is our own text.

use std::collections::BTreeMap;

type Labels = Vec<(String, String)>;

/// A metric with all its series.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) unit: String,
    pub(crate) points: Vec<Point>,
}

/// A series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) labels: Labels,
    pub(crate) reading: Reading,
}

/// What a series says now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    Counter(f64),
    Gauge(f64),
    Histogram {
        bounds: Vec<f64>,
        /// For each bound and for what is above all of them, how many are not above it.
        counts: Vec<u64>,
        sum: f64,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Type {
    Counter,
    Gauge,
    Histogram,
}

/// Reads the families of a text.
pub(crate) fn read(text: &str) -> Vec<Family> {
    let mut families = Vec::new();
    let mut open: Option<Builder> = None;
    let mut help = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(about)) => {
                help.insert(name.to_owned(), about.to_owned());
            }
            (Some("#"), Some("UNIT"), Some(_), Some(unit)) => {
                if let Some(builder) = &mut open {
                    builder.family.unit = unit_of(unit).to_owned();
                }
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                families.extend(open.take().map(Builder::finish));
                open = Builder::new(name, kind, &help);
            }
            (Some("#"), ..) => {}
            _ => {
                if let (Some(builder), Some(sample)) = (&mut open, sample(line)) {
                    builder.add(sample);
                }
            }
        }
    }
    families.extend(open.map(Builder::finish));
    families.retain(|family| !family.points.is_empty());
    families
}

/// Units as OTLP writes them.
fn unit_of(unit: &str) -> &str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        other => other,
    }
}

struct Sample<'a> {
    name: &'a str,
    labels: Labels,
    value: f64,
}

/// Reads `name{a="b"} 1.5`.
fn sample(line: &str) -> Option<Sample<'_>> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name,
        labels,
        value,
    })
}

/// Reads up to the quotation mark that ends a value; returns what is behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

struct Builder {
    family: Family,
    kind: Type,
    /// Histograms by their labels: bounds with counts, and the sum.
    histograms: BTreeMap<Labels, (Vec<(f64, u64)>, f64)>,
}

impl Builder {
    fn new(name: &str, kind: &str, help: &BTreeMap<String, String>) -> Option<Self> {
        let kind = match kind {
            "counter" => Type::Counter,
            "gauge" => Type::Gauge,
            "histogram" => Type::Histogram,
            _ => return None,
        };
        let family = Family {
            name: name.to_owned(),
            help: help.get(name).cloned().unwrap_or_default(),
            ..Family::default()
        };
        Some(Self {
            family,
            kind,
            histograms: BTreeMap::new(),
        })
    }

    fn add(&mut self, mut sample: Sample<'_>) {
        let part = sample
            .name
            .strip_prefix(self.family.name.as_str())
            .unwrap_or_default();
        let reading = match (self.kind, part) {
            (Type::Counter, _) => Reading::Counter(sample.value),
            (Type::Gauge, _) => Reading::Gauge(sample.value),
            (Type::Histogram, "_bucket") => {
                let Some(at) = sample.labels.iter().position(|(name, _)| name == "le") else {
                    return;
                };
                let bound = sample.labels.remove(at).1.parse().unwrap_or(f64::INFINITY);
                let histogram = self.histograms.entry(sample.labels).or_default();
                histogram.0.push((bound, sample.value as u64));
                return;
            }
            (Type::Histogram, "_sum") => {
                self.histograms.entry(sample.labels).or_default().1 = sample.value;
                return;
            }
            (Type::Histogram, _) => return,
        };
        self.family.points.push(Point {
            labels: sample.labels,
            reading,
        });
    }

    fn finish(mut self) -> Family {
        for (labels, (mut buckets, sum)) in self.histograms {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            let bounds = buckets
                .iter()
                .map(|bucket| bucket.0)
                .filter(|it| it.is_finite())
                .collect();
            let counts = buckets.iter().map(|bucket| bucket.1).collect();
            let reading = Reading::Histogram {
                bounds,
                counts,
                sum,
            };
            self.family.points.push(Point { labels, reading });
        }
        self.family
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP tinkrs_operations Operations finished.
# TYPE tinkrs_operations counter
tinkrs_operations_total{kind="optim_step",outcome="done"} 3
tinkrs_operations_total{kind="a \"b\"\n",outcome="done"} 1
# HELP tinkrs_request_seconds Time.
# TYPE tinkrs_request_seconds histogram
# UNIT tinkrs_request_seconds seconds
tinkrs_request_seconds_sum{route="/x"} 2.5
tinkrs_request_seconds_count{route="/x"} 4
tinkrs_request_seconds_bucket{le="0.1",route="/x"} 1
tinkrs_request_seconds_bucket{le="1.0",route="/x"} 3
tinkrs_request_seconds_bucket{le="+Inf",route="/x"} 4
# TYPE tinkrs_uptime_seconds gauge
tinkrs_uptime_seconds 12.5
# TYPE tinkrs_empty counter
# EOF
"#;

    #[test]
    fn families_are_read_with_their_labels_and_buckets() {
        let families = read(TEXT);
        let names: Vec<_> = families.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "tinkrs_operations",
                "tinkrs_request_seconds",
                "tinkrs_uptime_seconds"
            ]
        );
        assert_eq!(families[0].help, "Operations finished.");
        assert_eq!(families[0].points[0].reading, Reading::Counter(3.0));
        assert_eq!(families[0].points[1].labels[0].1, "a \"b\"\n");
        assert_eq!(families[1].unit, "s");
        let histogram = &families[1].points[0];
        assert_eq!(histogram.labels, [("route".to_owned(), "/x".to_owned())]);
        let expected = Reading::Histogram {
            bounds: vec![0.1, 1.0],
            counts: vec![1, 3, 4],
            sum: 2.5,
        };
        assert_eq!(histogram.reading, expected);
        assert_eq!(families[2].points[0].reading, Reading::Gauge(12.5));
    }

    #[test]
    fn any_part_of_a_text_is_read_without_a_panic() {
        for end in 0..TEXT.len() {
            if TEXT.is_char_boundary(end) {
                read(&TEXT[..end]);
                read(&TEXT[end..]);
            }
        }
    }
}
