//! How large a schema may be.

use std::collections::HashMap;

use serde_json::Value;
use tinkrs_types::InvalidInput;

/// Deepest nesting of a schema.
const MAX_DEPTH: usize = 64;
/// Most values in a schema, all parts counted.
const MAX_VALUES: usize = 20_000;
/// Most bytes of all keys and texts.
const MAX_BYTES: usize = 512 << 10;
/// Longest text that a regular expression is repeated to, and longest array.
const MAX_REPEAT: u64 = 10_000;
/// Most properties of all objects. The library goes a level deeper for each.
const MAX_PROPERTIES: usize = 500;
/// Most alternatives and conjunctions: members of `anyOf`, `oneOf`, `allOf` and `prefixItems`.
const MAX_BRANCHES: usize = 1_000;
/// Most regular expressions, and formats, which are such.
const MAX_PATTERNS: usize = 200;
/// Most regular expressions that may have to hold for the same text: what they have in common takes time that grows much faster than
/// their number.
const MAX_TOGETHER: u64 = 12;
/// Longest all regular expressions may be when what they repeat is written out.
const MAX_PATTERN_LENGTH: u64 = 10_000;
/// Most values of a schema when each reference is replaced by what it refers to: the library does that where schemas are combined.
const MAX_EXPANDED: u64 = 100_000;
/// Largest least common multiple of all `multipleOf`, in units of their last digits. The library multiplies two such numbers in 32 bits,
/// and where it is optimised nothing says that they did not fit.
const MAX_MULTIPLE: u64 = 65_535;
/// Most digits behind the point of a `multipleOf`.
const MAX_DIGITS: u32 = 6;
/// Longest reason that a message gives.
const MAX_REASON: usize = 400;

/// Keywords whose number says how often something is repeated.
const REPEATS: [&str; 6] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];

/// The key that the library reads its own options from.
const LIBRARY_OPTIONS: &str = "x-guidance";

/// Checks that a schema is an object or a boolean, and of bounded size, which takes no longer than reading it.
pub(crate) fn check_size(field: &str, schema: &Value) -> Result<(), InvalidInput> {
    let refuse =
        |found: String, allowed: String| Err(InvalidInput::new(field.to_owned(), found, allowed));
    match schema {
        Value::Object(members) if members.contains_key(LIBRARY_OPTIONS) => {
            let allowed = "a schema without it";
            return refuse(format!("`{LIBRARY_OPTIONS}`"), allowed.to_owned());
        }
        Value::Object(_) | Value::Bool(_) => {}
        _ => return refuse(kind(schema).to_owned(), "a JSON schema".to_owned()),
    }
    let (mut values, mut bytes) = (0, 0);
    // Not recursive: a deep schema must not overflow the stack before its depth is known.
    let mut rest = vec![(schema, 1)];
    while let Some((value, depth)) = rest.pop() {
        values += 1;
        if depth > MAX_DEPTH {
            return refuse(
                format!("more than {MAX_DEPTH} levels"),
                format!("at most {MAX_DEPTH}"),
            );
        }
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    bytes += key.len();
                    if let (true, Some(count)) = (REPEATS.contains(&key.as_str()), member.as_f64())
                        && count > MAX_REPEAT as f64
                    {
                        let allowed = format!("{key} of at most {MAX_REPEAT}");
                        return refuse(format!("{key} of {member}"), allowed);
                    }
                    rest.push((member, depth + 1));
                }
            }
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1))),
            Value::String(text) => bytes += text.len(),
            _ => {}
        }
        if values + rest.len() > MAX_VALUES {
            return refuse(
                format!("more than {MAX_VALUES} values"),
                format!("at most {MAX_VALUES}"),
            );
        }
    }
    if bytes > MAX_BYTES {
        return refuse(
            format!("{bytes} bytes of text"),
            format!("at most {MAX_BYTES}"),
        );
    }
    Ok(())
}

/// Checks that a schema is an object or a boolean, of bounded size, and does not take much more work than its size.
pub(super) fn check(field: &str, schema: &Value) -> Result<(), InvalidInput> {
    check_size(field, schema)?;
    let counts = Counts::of(schema);
    for (what, found, most) in [
        (
            "properties",
            counts.properties as u64,
            MAX_PROPERTIES as u64,
        ),
        ("alternatives", counts.branches as u64, MAX_BRANCHES as u64),
        ("patterns", counts.patterns as u64, MAX_PATTERNS as u64),
        (
            "characters of patterns, repeats written out",
            counts.pattern_length,
            MAX_PATTERN_LENGTH,
        ),
        (
            "patterns for the same text",
            together(schema, schema, &mut HashMap::new(), 0),
            MAX_TOGETHER,
        ),
        (
            "as the least common multiple of all multipleOf, in units of their last digits",
            common_multiple(&counts.multiples),
            MAX_MULTIPLE,
        ),
        (
            "values, references written out",
            expanded(schema),
            MAX_EXPANDED,
        ),
    ] {
        if found > most {
            let (found, allowed) = (
                format!("more than {most} {what}"),
                format!("at most {most}"),
            );
            return Err(InvalidInput::new(field.to_owned(), found, allowed));
        }
    }
    Ok(())
}

/// How much there is of what costs more than its size.
#[derive(Default)]
struct Counts {
    properties: usize,
    branches: usize,
    patterns: usize,
    pattern_length: u64,
    multiples: Vec<f64>,
}

impl Counts {
    /// Counts all parts of a schema, whose depth is known to be bounded.
    fn of(schema: &Value) -> Self {
        let mut counts = Self::default();
        counts.add(schema);
        counts
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    match (key.as_str(), member) {
                        ("properties", Value::Object(properties)) => {
                            self.properties += properties.len();
                        }
                        ("patternProperties", Value::Object(properties)) => {
                            properties.keys().for_each(|pattern| self.pattern(pattern));
                        }
                        ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(branches)) => {
                            self.branches += branches.len();
                        }
                        ("pattern", Value::String(pattern)) => self.pattern(pattern),
                        ("format", Value::String(_)) => self.patterns += 1,
                        ("multipleOf", Value::Number(number)) => {
                            self.multiples.extend(number.as_f64());
                        }
                        _ => {}
                    }
                    self.add(member);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            _ => {}
        }
    }

    fn pattern(&mut self, pattern: &str) {
        self.patterns += 1;
        self.pattern_length = self.pattern_length.saturating_add(pattern_length(pattern));
    }
}

/// Returns the least common multiple of numbers without their points, such as 300 of 0.03 and 1.
fn common_multiple(numbers: &[f64]) -> u64 {
    let mut parts = Vec::with_capacity(numbers.len());
    for number in numbers.iter().filter(|number| **number > 0.0) {
        let (mut number, mut digits) = (*number, 0);
        while number.fract() != 0.0 {
            if digits == MAX_DIGITS {
                return u64::MAX;
            }
            number *= 10.0;
            digits += 1;
        }
        // A larger number is as large as can be.
        parts.push((number as u64, digits));
    }
    let most = parts.iter().map(|(_, digits)| *digits).max().unwrap_or(0);
    let scaled = parts
        .iter()
        .map(|(number, digits)| number.saturating_mul(10u64.pow(most - digits)));
    scaled.fold(1, |all, number| {
        (all / common_divisor(all, number)).saturating_mul(number)
    })
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Returns how long a regular expression is when counted repeats are written out.
fn pattern_length(pattern: &str) -> u64 {
    // What is before the last unit, of each group that is open, and the last unit, which a count repeats.
    let (mut open, mut sum, mut last) = (Vec::new(), 0u64, 0u64);
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '(' => {
                open.push(sum.saturating_add(last));
                (sum, last) = (0, 0);
            }
            ')' => {
                last = sum.saturating_add(last);
                sum = open.pop().unwrap_or(0);
            }
            '{' if letters.peek().is_some_and(char::is_ascii_digit) => {
                let count: String = letters
                    .by_ref()
                    .take_while(|letter| *letter != '}')
                    .collect();
                let mut counts = count
                    .split(',')
                    .filter_map(|count| count.trim().parse::<u64>().ok());
                let least = counts.next().unwrap_or(1);
                last = last.saturating_mul(counts.next().unwrap_or(least).max(1));
            }
            '*' | '+' | '?' | '|' => {}
            _ => {
                sum = sum.saturating_add(last);
                last = 1;
                match letter {
                    '\\' => drop(letters.next()),
                    '[' => {
                        let mut is_first = true;
                        while let Some(inside) = letters.next() {
                            match inside {
                                '\\' => drop(letters.next()),
                                ']' if !is_first => break,
                                '^' if is_first => continue,
                                _ => {}
                            }
                            is_first = false;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    let rest = open
        .iter()
        .fold(sum, |sum, group| sum.saturating_add(*group));
    rest.saturating_add(last)
}

/// Returns how many regular expressions may have to hold for one text, or more. Parts of `allOf` may say something of the same members, so all of
/// theirs count.
fn together<'a>(
    value: &'a Value,
    root: &'a Value,
    known: &mut HashMap<&'a str, Option<u64>>,
    depth: usize,
) -> u64 {
    if depth > MAX_VALUES / 20 {
        return u64::MAX;
    }
    let members = match value {
        Value::Object(members) => members,
        Value::Array(items) => {
            let mut most = 0;
            for item in items {
                most = most.max(together(item, root, known, depth + 1));
            }
            return most;
        }
        _ => return 0,
    };
    let (mut here, mut inside) = (0u64, 0);
    for (name, member) in members {
        match (name.as_str(), member) {
            ("pattern" | "format", Value::String(_)) => here = here.saturating_add(1),
            ("allOf", member) => {
                here = here.saturating_add(Counts::of(member).patterns as u64);
            }
            ("anyOf" | "oneOf", member) => {
                here = here.saturating_add(together(member, root, known, depth + 1));
            }
            ("$ref", Value::String(name)) => {
                let found = match known.get(name.as_str()) {
                    // One that leads back to itself counts once.
                    Some(found) => found.unwrap_or(0),
                    None => {
                        known.insert(name, None);
                        let target = name.strip_prefix('#').and_then(|path| root.pointer(path));
                        let found =
                            target.map_or(0, |target| together(target, root, known, depth + 1));
                        known.insert(name, Some(found));
                        found
                    }
                };
                here = here.saturating_add(found);
            }
            (_, member) => inside = inside.max(together(member, root, known, depth + 1)),
        }
    }
    here.max(inside)
}

/// Returns how many values a schema has when each reference to a definition is replaced by it. One that leads back to itself
/// counts once.
fn expanded(schema: &Value) -> u64 {
    let mut known = HashMap::new();
    expand(schema, schema, &mut known, 0)
}

fn expand<'a>(
    value: &'a Value,
    root: &'a Value,
    known: &mut HashMap<&'a str, Option<u64>>,
    depth: usize,
) -> u64 {
    // Definitions that refer to each other in a chain go as deep as there are such.
    if depth > MAX_VALUES / 20 {
        return u64::MAX;
    }
    let children: Box<dyn Iterator<Item = &'a Value>> = match value {
        Value::Object(members) => {
            if let Some(Value::String(name)) = members.get("$ref") {
                let found = match known.get(name.as_str()) {
                    Some(size) => size.unwrap_or(1),
                    None => {
                        known.insert(name, None);
                        let target = name.strip_prefix('#').and_then(|path| root.pointer(path));
                        let size =
                            target.map_or(1, |target| expand(target, root, known, depth + 1));
                        known.insert(name, Some(size));
                        size
                    }
                };
                return found.saturating_add(1);
            }
            let is_used = |name: &str| name != "$defs" && name != "definitions";
            Box::new(
                members
                    .iter()
                    .filter(move |(name, _)| is_used(name))
                    .map(|(_, member)| member),
            )
        }
        Value::Array(items) => Box::new(items.iter()),
        _ => return 1,
    };
    children.fold(1u64, |sum, child| {
        sum.saturating_add(expand(child, root, known, depth + 1))
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Cuts a reason of the library, which may quote a whole schema.
pub(super) fn shorten(reason: &str) -> String {
    let reason = reason.trim();
    if reason.len() <= MAX_REASON {
        return reason.to_owned();
    }
    let end = reason.floor_char_boundary(MAX_REASON);
    format!("{}…", &reason[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repeats_of_patterns_are_written_out() {
        let uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
        for (pattern, length) in [
            ("abc", 3),
            (uuid, 38),
            ("(a|b){300}", 600),
            ("(ab){2,3}c", 7),
            ("a{2,}", 2),
            (r"\d{3}\{9}", 6),
            ("[]{9}a{9}]", 1),
            ("[^]]{5}", 5),
            ("((a{9}){9}){9}", 729),
            (
                "((((a{99}){99}){99}){99}){99}){99}){99}){99}){99}){99}){99}",
                u64::MAX,
            ),
            ("(((", 0),
            (")))", 0),
            ("{5}", 0),
        ] {
            assert_eq!(pattern_length(pattern), length, "{pattern}");
        }
    }

    #[test]
    fn multiples_are_counted_in_units_of_their_last_digits() {
        for (numbers, multiple) in [
            (&[][..], 1),
            (&[0.0, -5.0], 1),
            (&[0.5, 0.25, 1.0], 100),
            (&[4.0, 6.0, 6.0], 12),
            (&[0.1, 100.0], 1000),
            (&[1e-9], u64::MAX),
            (&[1e308, 3.0], u64::MAX),
        ] {
            assert_eq!(common_multiple(numbers), multiple, "{numbers:?}");
        }
        check("s", &json!({"type": "integer", "multipleOf": 65_535})).unwrap();
        for wrong in [
            json!({"multipleOf": 65_536}),
            json!({"multipleOf": 1_000_000_007}),
            json!({"allOf": [{"multipleOf": 4093}, {"multipleOf": 4099}]}),
            json!({"multipleOf": 0.000_000_1}),
        ] {
            check("s", &wrong).unwrap_err();
        }
    }

    #[test]
    fn references_are_written_out_and_those_in_a_circle_once() {
        let tree =
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"items": {"$ref": "#/$defs/node"}}}});
        assert!(expanded(&tree) < 10);
        let mut definitions = serde_json::Map::new();
        for level in 0..60 {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            definitions.insert(level.to_string(), json!({"anyOf": [next, next]}));
        }
        let doubling = json!({"$ref": "#/$defs/0", "$defs": definitions});
        assert!(expanded(&doubling) > MAX_EXPANDED);
        check("s", &doubling).unwrap_err();
    }
}
