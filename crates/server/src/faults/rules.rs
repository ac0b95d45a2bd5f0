//! Rules: how they are read, and what they decide.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tinkrs_types::InvalidInput;

use super::{DOCUMENT_BYTES, FaultsError};

/// How many rules a document may have.
const RULES: usize = 1000;
/// The longest delay.
const DELAY_MS: u64 = 3_600_000;

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

/// Which of the requests that match are struck.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Often {
    Always,
    Probability(f64),
    Every(u64),
    First(u64),
}

#[derive(Debug)]
pub(super) struct Rule {
    /// As it was written, for those who ask.
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
        Ok(Self::read(&document)?)
    }

    fn read(document: &Value) -> Result<Self, InvalidInput> {
        let members = Members::of("faults", document, &["seed", "rules"])?;
        let seed = members.whole("seed", 0, u64::MAX)?.unwrap_or(0);
        let list = match members.0.get("rules") {
            None => &Vec::new(),
            Some(Value::Array(list)) if list.len() <= RULES => list,
            Some(other) => {
                let allowed = format!("a list of up to {RULES} rules");
                return Err(InvalidInput::new("rules", short(other), allowed));
            }
        };
        let rules = list.iter().enumerate().map(|(index, rule)| {
            let place = format!("rules[{index}]");
            Rule::read(&place, rule).map_err(|error| error.inside(&place))
        });
        let rules = rules.collect::<Result<_, _>>()?;
        Ok(Self { seed, rules })
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

impl Rule {
    fn read(place: &str, rule: &Value) -> Result<Self, InvalidInput> {
        const MEMBERS: [&str; 9] = [
            "endpoint",
            "method",
            "fault",
            "probability",
            "every",
            "first",
            "delay_ms",
            "retry_after",
            "after",
        ];
        // What `GET` adds may be sent back.
        let counts = ["seen", "injected"];
        let members = Members::of(place, rule, &[MEMBERS.as_slice(), &counts].concat())?;
        let fault = members.fault()?;
        let delay_ms = members.whole("delay_ms", 0, DELAY_MS)?;
        if fault == Fault::Delay && delay_ms.is_none() {
            return Err(InvalidInput::new("delay_ms", "nothing", "milliseconds"));
        }
        let retry_after = members.number("retry_after", "seconds from 0 to 3600", |seconds| {
            (0.0..=3600.0).contains(&seconds)
        })?;
        if retry_after.is_some() && !matches!(fault, Fault::Status(_)) {
            let allowed = "none: only a status can ask its client to wait";
            return Err(InvalidInput::new("retry_after", "a value", allowed));
        }
        let mut document = members.0.clone();
        for name in counts {
            document.remove(name);
        }
        Ok(Self {
            pattern: members.endpoint()?,
            method: members.method()?,
            often: members.often()?,
            fault,
            after: members.flag("after")? || fault == Fault::Cut,
            delay: Duration::from_millis(delay_ms.unwrap_or(0)),
            retry_after,
            document,
            seen: 0,
            injected: 0,
        })
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
            Often::Every(every) => (count + 1).is_multiple_of(every),
            Often::Probability(probability) => chance(seed, index as u64, count) < probability,
        }
    }
}

/// The members of an object, all of which have a meaning.
struct Members<'a>(&'a Map<String, Value>);

impl<'a> Members<'a> {
    fn of(place: &str, value: &'a Value, known: &[&str]) -> Result<Self, InvalidInput> {
        let Value::Object(members) = value else {
            return Err(InvalidInput::new(
                place.to_owned(),
                short(value),
                "an object",
            ));
        };
        match members.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(Self(members)),
            Some(name) => {
                let allowed = format!("one of: {}", known.join(", "));
                Err(InvalidInput::new(
                    name.clone(),
                    "an unknown member",
                    allowed,
                ))
            }
        }
    }

    fn whole(
        &self,
        name: &'static str,
        least: u64,
        most: u64,
    ) -> Result<Option<u64>, InvalidInput> {
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let allowed = format!("a whole number from {least} to {most}");
                Err(InvalidInput::new(name, short(value), allowed))
            }
        }
    }

    fn number(
        &self,
        name: &'static str,
        allowed: &'static str,
        is_allowed: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, InvalidInput> {
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if is_allowed(number) => Ok(Some(number)),
            _ => Err(InvalidInput::new(name, short(value), allowed)),
        }
    }

    fn flag(&self, name: &'static str) -> Result<bool, InvalidInput> {
        match self.0.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(InvalidInput::new(name, short(other), "true or false")),
        }
    }

    fn endpoint(&self) -> Result<String, InvalidInput> {
        match self.0.get("endpoint") {
            Some(Value::String(path)) if path.starts_with('/') => Ok(path.clone()),
            Some(Value::String(path)) if !path.is_empty() => Ok(format!("/api/v1/{path}")),
            other => {
                let found = other.map_or_else(|| "nothing".to_owned(), short);
                Err(InvalidInput::new("endpoint", found, "a path"))
            }
        }
    }

    fn method(&self) -> Result<Option<Method>, InvalidInput> {
        const KNOWN: [Method; 4] = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
        let Some(value) = self.0.get("method") else {
            return Ok(None);
        };
        let found = KNOWN.iter().find(|method| value == method.as_str());
        let refused = || InvalidInput::new("method", short(value), "GET, POST, PUT or DELETE");
        found.cloned().map(Some).ok_or_else(refused)
    }

    fn fault(&self) -> Result<Fault, InvalidInput> {
        let value = self.0.get("fault").unwrap_or(&Value::Null);
        let status = value.as_u64().filter(|status| (400..600).contains(status));
        let status = status.and_then(|status| StatusCode::from_u16(status as u16).ok());
        match (status, value.as_str()) {
            (Some(status), _) => Ok(Fault::Status(status)),
            (_, Some("hang")) => Ok(Fault::Hang),
            (_, Some("cut")) => Ok(Fault::Cut),
            (_, Some("reset")) => Ok(Fault::Reset),
            (_, Some("delay")) => Ok(Fault::Delay),
            _ => {
                let allowed = "a status from 400 to 599, hang, cut, reset or delay";
                Err(InvalidInput::new("fault", short(value), allowed))
            }
        }
    }

    fn often(&self) -> Result<Often, InvalidInput> {
        let probability = self.number("probability", "a number from 0 to 1", |number| {
            (0.0..=1.0).contains(&number)
        })?;
        let every = self.whole("every", 1, u64::MAX)?;
        let first = self.whole("first", 0, u64::MAX)?;
        match (probability, every, first) {
            (None, None, None) => Ok(Often::Always),
            (Some(probability), None, None) => Ok(Often::Probability(probability)),
            (None, Some(every), None) => Ok(Often::Every(every)),
            (None, None, Some(first)) => Ok(Often::First(first)),
            (Some(_), ..) => Err(only_one("probability")),
            (None, ..) => Err(only_one("every")),
        }
    }
}

fn only_one(name: &'static str) -> InvalidInput {
    let allowed = "at most one of probability, every and first";
    InvalidInput::new(name, "another of its kind as well", allowed)
}

/// Writes a value for a message, cut to a length that fits one.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
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
            (json!({"seed": -1}), "`seed`: found -1"),
            (json!({"rules": {}}), "`rules`"),
            (json!({"rules": [3]}), "rules[0]"),
            (rule(json!({"endpoint": ""})), "rules[1].endpoint"),
            (rule(json!({"endpoint": 3})), "rules[1].endpoint"),
            (rule(json!({"fault": 200})), "rules[1].fault`: found 200"),
            (rule(json!({"fault": "explode"})), "rules[1].fault"),
            (rule(json!({"fault": null})), "rules[1].fault"),
            (rule(json!({"fault": "delay"})), "rules[1].delay_ms"),
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
