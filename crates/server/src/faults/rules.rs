//! Rules: how they are read, and what they decide.

use std::num::NonZeroU64;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use tinkrs_types::InvalidInput;

use super::{DOCUMENT_BYTES, FaultsError};

/// How many rules a document may have.
const RULES: usize = 1000;
/// The longest delay.
const DELAY_MS: u64 = 3_600_000;

/// A document of rules. An object that serde reads as a struct could be a list as well: the rules are
/// read as maps first.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    rules: Vec<Map<String, Value>>,
}

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    endpoint: String,
    #[serde(default, deserialize_with = "given")]
    method: Option<MethodName>,
    fault: Fault,
    #[serde(default, deserialize_with = "given")]
    probability: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    every: Option<NonZeroU64>,
    #[serde(default, deserialize_with = "given")]
    first: Option<u64>,
    #[serde(default, deserialize_with = "given")]
    delay_ms: Option<u64>,
    #[serde(default, deserialize_with = "given")]
    retry_after: Option<f64>,
    #[serde(default)]
    after: bool,
}

/// Reads a member that is there: a null is none of its values.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum MethodName {
    Get,
    Post,
    Put,
    Delete,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The answer is this status.
    Status(StatusCode),
    /// There is no answer.
    Hang,
    /// Half of the answer comes.
    Cut,
    /// The connection is reset.
    Reset,
    /// Nothing, after the delay.
    Delay,
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let status = value.as_u64().filter(|status| (400..600).contains(status));
        let status = status.and_then(|status| StatusCode::from_u16(status as u16).ok());
        match (status, value.as_str()) {
            (Some(status), _) => Ok(Self::Status(status)),
            (_, Some("hang")) => Ok(Self::Hang),
            (_, Some("cut")) => Ok(Self::Cut),
            (_, Some("reset")) => Ok(Self::Reset),
            (_, Some("delay")) => Ok(Self::Delay),
            _ => Err(D::Error::custom(format_args!(
                "found {value}, expected a status from 400 to 599, hang, cut, reset or delay"
            ))),
        }
    }
}

/// Which of the requests that match are struck.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Often {
    Always,
    Probability(f64),
    Every(NonZeroU64),
    First(u64),
}

#[derive(Debug)]
pub(super) struct Rule {
    /// As it was written, to be shown.
    document: Map<String, Value>,
    pattern: String,
    method: Option<Method>,
    often: Often,
    pub(super) fault: Fault,
    pub(super) after: bool,
    pub(super) delay: Duration,
    pub(super) retry_after: Option<f64>,
    seen: u64,
    injected: u64,
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) seed: u64,
    rules: Vec<Rule>,
}

impl Rules {
    pub(super) fn parse(document: &[u8]) -> Result<Self, FaultsError> {
        if document.len() > DOCUMENT_BYTES {
            return Err(FaultsError::TooLarge);
        }
        let document: Value = serde_json::from_slice(document).map_err(FaultsError::Json)?;
        if !document.is_object() {
            return Err(FaultsError::member("faults", "expected an object"));
        }
        let Document { seed, rules } = read("", document)?;
        if rules.len() > RULES {
            let allowed = format!("at most {RULES}");
            return Err(InvalidInput::new("rules", rules.len(), allowed).into());
        }
        let rules = rules.into_iter().enumerate();
        let rules = rules.map(|(index, rule)| Rule::read(&format!("rules[{index}]"), rule));
        Ok(Self {
            seed,
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Counts a request, and returns the rule that strikes it and its place.
    pub(super) fn decide(&mut self, method: &Method, path: &str) -> Option<(usize, &Rule)> {
        let seed = self.seed;
        let (index, rule) = self
            .rules
            .iter_mut()
            .enumerate()
            .filter(|(_, rule)| rule.matches(method, path))
            .find_map(|(index, rule)| rule.strikes(seed, index).then_some((index, rule)))?;
        rule.injected += 1;
        Some((index, rule))
    }

    pub(super) fn described(&self) -> Vec<Value> {
        let describe = |rule: &Rule| {
            let mut members = rule.document.clone();
            members.insert("seen".to_owned(), json!(rule.seen));
            members.insert("injected".to_owned(), json!(rule.injected));
            Value::Object(members)
        };
        self.rules.iter().map(describe).collect()
    }
}

/// Reads an object; an error names the member inside `place`.
fn read<T: DeserializeOwned>(place: &str, value: Value) -> Result<T, FaultsError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let member = match (place, path.as_str()) {
            (place, ".") => place.to_owned(),
            ("", path) => path.to_owned(),
            (place, path) => format!("{place}.{path}"),
        };
        FaultsError::member(member, error.into_inner().to_string())
    })
}

impl Rule {
    fn read(place: &str, mut document: Map<String, Value>) -> Result<Self, FaultsError> {
        // What `GET` adds may be sent back.
        for count in ["seen", "injected"] {
            document.remove(count);
        }
        let written: Written = read(place, Value::Object(document.clone()))?;
        let rule = written.check(document);
        rule.map_err(|error| error.inside(place).into())
    }

    fn matches(&self, method: &Method, path: &str) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == method)
            && matches(self.pattern.as_bytes(), path.as_bytes())
    }

    fn strikes(&mut self, seed: u64, index: usize) -> bool {
        let count = self.seen;
        self.seen += 1;
        match self.often {
            Often::Always => true,
            Often::First(first) => count < first,
            Often::Every(every) => (count + 1).is_multiple_of(every.get()),
            Often::Probability(probability) => chance(seed, index as u64, count) < probability,
        }
    }
}

impl Written {
    fn check(self, document: Map<String, Value>) -> Result<Rule, InvalidInput> {
        let fault = self.fault;
        let pattern = match self.endpoint.as_str() {
            "" => return Err(InvalidInput::new("endpoint", "nothing", "a path")),
            path if path.starts_with('/') => self.endpoint,
            path => format!("/api/v1/{path}"),
        };
        let delay_ms = match self.delay_ms {
            Some(delay) if delay > DELAY_MS => {
                let allowed = format!("at most {DELAY_MS}");
                return Err(InvalidInput::new("delay_ms", delay, allowed));
            }
            None if fault == Fault::Delay => {
                return Err(InvalidInput::new("delay_ms", "nothing", "milliseconds"));
            }
            delay => delay.unwrap_or(0),
        };
        if let Some(seconds) = self.retry_after {
            if !(0.0..=3600.0).contains(&seconds) {
                let allowed = "seconds from 0 to 3600";
                return Err(InvalidInput::new("retry_after", seconds, allowed));
            }
            if !matches!(fault, Fault::Status(_)) {
                let allowed = "none: only a status can ask its client to wait";
                return Err(InvalidInput::new("retry_after", seconds, allowed));
            }
        }
        let method = self.method.map(|name| match name {
            MethodName::Get => Method::GET,
            MethodName::Post => Method::POST,
            MethodName::Put => Method::PUT,
            MethodName::Delete => Method::DELETE,
        });
        Ok(Rule {
            document,
            pattern,
            method,
            often: often(self.probability, self.every, self.first)?,
            fault,
            after: self.after || fault == Fault::Cut,
            delay: Duration::from_millis(delay_ms),
            retry_after: self.retry_after,
            seen: 0,
            injected: 0,
        })
    }
}

fn often(
    probability: Option<f64>,
    every: Option<NonZeroU64>,
    first: Option<u64>,
) -> Result<Often, InvalidInput> {
    let only_one = |name: &'static str| {
        let allowed = "at most one of probability, every and first";
        Err(InvalidInput::new(name, "another of them as well", allowed))
    };
    match (probability, every, first) {
        (None, None, None) => Ok(Often::Always),
        (Some(number), None, None) if (0.0..=1.0).contains(&number) => {
            Ok(Often::Probability(number))
        }
        (Some(number), None, None) => {
            let allowed = "a number from 0 to 1";
            Err(InvalidInput::new("probability", number, allowed))
        }
        (None, Some(every), None) => Ok(Often::Every(every)),
        (None, None, Some(first)) => Ok(Often::First(first)),
        (Some(_), ..) => only_one("probability"),
        (None, ..) => only_one("every"),
    }
}

/// Returns whether a path matches a pattern, in time proportional to the product of their lengths.
///
/// `*` stands for any run of characters but `/`, `**` for any run.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    // `reached[i]`: the pattern up to here matches the first `i` characters of the path.
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    let mut rest = pattern;
    while let Some((&first, tail)) = rest.split_first() {
        let crosses = rest.starts_with(b"**");
        rest = if crosses { &rest[2..] } else { tail };
        if first == b'*' {
            for i in 0..path.len() {
                reached[i + 1] |= reached[i] && (crosses || path[i] != b'/');
            }
        } else {
            for i in (0..path.len()).rev() {
                reached[i + 1] = reached[i] && path[i] == first;
            }
            reached[0] = false;
        }
    }
    reached[path.len()]
}

/// A number from 0 to 1, below 1, that looks random and depends on its arguments alone.
///
/// The mixing is that of SplitMix64. It is written out so that no update of a library can change
/// which requests of a recorded run fail.
fn chance(seed: u64, rule: u64, count: u64) -> f64 {
    let mix = |number: u64| {
        let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let bits = mix(mix(mix(seed) ^ rule) ^ count);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(document: Value) -> Rules {
        Rules::parse(document.to_string().as_bytes()).unwrap()
    }

    fn struck(rules: &mut Rules, requests: usize) -> Vec<usize> {
        (0..requests)
            .filter(|_| rules.decide(&Method::POST, "/api/v1/asample").is_some())
            .collect()
    }

    #[test]
    fn a_rule_strikes_as_often_as_it_says() {
        let cases = [
            (json!({}), vec![0, 1, 2, 3, 4, 5]),
            (json!({"first": 2}), vec![0, 1]),
            (json!({"first": 0}), vec![]),
            (json!({"every": 3}), vec![2, 5]),
            (json!({"probability": 0}), vec![]),
            (json!({"probability": 1.0}), vec![0, 1, 2, 3, 4, 5]),
        ];
        for (mut rule, expected) in cases {
            rule["endpoint"] = json!("asample");
            rule["fault"] = json!(503);
            let mut rules = rules(json!({"rules": [rule]}));
            assert_eq!(struck(&mut rules, 6), expected, "{rule}");
        }
    }

    #[test]
    fn chance_depends_on_the_seed_the_rule_and_the_count_alone() {
        let document = |seed: u64| {
            let rule = json!({"endpoint": "asample", "fault": "cut", "probability": 0.3});
            json!({"seed": seed, "rules": [rule]})
        };
        let first = struck(&mut rules(document(7)), 1000);
        assert_eq!(first, struck(&mut rules(document(7)), 1000));
        assert_ne!(first, struck(&mut rules(document(8)), 1000));
        assert!((250..350).contains(&first.len()), "{}", first.len());
        // Requests to other endpoints do not move the count.
        let mut mixed = rules(document(7));
        let again = (0..1000).filter(|_| {
            assert!(mixed.decide(&Method::GET, "/api/v1/healthz").is_none());
            mixed.decide(&Method::POST, "/api/v1/asample").is_some()
        });
        assert_eq!(first, again.collect::<Vec<_>>());
        // Recorded: a seed means the same faults in every version.
        assert_eq!(first[..5], [2, 3, 5, 8, 13]);
    }

    #[test]
    fn the_first_rule_that_strikes_is_the_one() {
        let mut rules = rules(json!({"rules": [
            {"endpoint": "other", "fault": 500},
            {"endpoint": "asample", "fault": 429, "first": 1},
            {"endpoint": "*", "fault": "hang", "method": "POST"},
        ]}));
        let mut decide = || rules.decide(&Method::POST, "/api/v1/asample").unwrap().0;
        assert_eq!([decide(), decide()], [1, 2]);
        assert!(rules.decide(&Method::GET, "/api/v1/asample").is_none());
        let counts: Vec<_> = rules
            .described()
            .iter()
            .map(|rule| (rule["seen"].as_u64(), rule["injected"].as_u64()))
            .collect();
        let counted = |seen, injected| (Some(seen), Some(injected));
        assert_eq!(counts, [counted(0, 0), counted(3, 1), counted(1, 1)]);
    }

    #[test]
    fn patterns_stay_inside_a_segment_unless_told_otherwise() {
        let cases = [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a/bc", false),
            ("/a/*", "/a/bc", true),
            ("/a/*", "/a/b/c", false),
            ("/a/**", "/a/b/c", true),
            ("/a/*/c", "/a/b/c", true),
            ("/a/*/c", "/a/c", false),
            ("/**/c", "/a/b/c", true),
            ("/a*c", "/abbc", true),
            ("**", "", true),
            ("/a", "", false),
        ];
        for (pattern, path, expected) in cases {
            let found = matches(pattern.as_bytes(), path.as_bytes());
            assert_eq!(found, expected, "{pattern} on {path}");
        }
        // A pattern that backtracking would never finish.
        let (pattern, path) = ("/*a".repeat(50), "/aaaa".repeat(500));
        assert!(!matches(pattern.as_bytes(), path.as_bytes()));
    }

    #[test]
    fn what_is_wrong_is_named_by_rule_and_member() {
        let rule = |members: Value| {
            let mut rule = json!({"endpoint": "asample", "fault": 503});
            for (name, value) in members.as_object().unwrap() {
                rule[name] = value.clone();
            }
            json!({"rules": [{"endpoint": "x", "fault": "cut"}, rule]})
        };
        let cases = [
            (json!([]), "`faults`"),
            (json!({"sed": 1}), "`sed`"),
            (json!({"seed": -1}), "`seed`: invalid value: integer `-1`"),
            (json!({"rules": {}}), "`rules`"),
            (json!({"rules": [3]}), "rules[0]"),
            (rule(json!({"endpoint": ""})), "rules[1].endpoint"),
            (rule(json!({"endpoint": 3})), "rules[1].endpoint"),
            (rule(json!({"fault": 200})), "rules[1].fault`: found 200"),
            (rule(json!({"fault": "explode"})), "rules[1].fault"),
            (rule(json!({"fault": null})), "rules[1].fault"),
            (rule(json!({"fault": "delay"})), "rules[1].delay_ms"),
            (rule(json!({"probability": null})), "rules[1].probability"),
            (rule(json!({"method": "get"})), "rules[1].method"),
            (rule(json!({"probability": 1.5})), "rules[1].probability"),
            (rule(json!({"every": 0})), "rules[1].every"),
            (rule(json!({"first": 0.5})), "rules[1].first"),
            (rule(json!({"every": 2, "first": 1})), "rules[1].every"),
            (
                rule(json!({"probability": 1, "first": 1})),
                "rules[1].probability",
            ),
            (rule(json!({"delay_ms": 1e12})), "rules[1].delay_ms"),
            (rule(json!({"retry_after": -1})), "rules[1].retry_after"),
            (
                rule(json!({"fault": "cut", "retry_after": 1})),
                "rules[1].retry_after",
            ),
            (rule(json!({"after": 1})), "rules[1].after"),
            (rule(json!({"propability": 1})), "rules[1].propability"),
            (json!({"rules": [["asample", null, 503]]}), "rules[0]"),
        ];
        for (document, expected) in cases {
            let error = Rules::parse(document.to_string().as_bytes()).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(expected), "{document}: {error}");
        }
    }

    #[test]
    fn what_is_described_can_be_read_again() {
        let mut first = rules(json!({"seed": 3, "rules": [
            {"endpoint": "asample", "fault": "reset", "every": 2, "after": true},
        ]}));
        struck(&mut first, 3);
        let again = rules(json!({"seed": 3, "rules": first.described()}));
        assert_eq!(again.rules[0].document, first.rules[0].document);
        assert_eq!(again.rules[0].seen, 0);
    }
}
