//! How large a schema may be.

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

/// Checks that a schema is an object or a boolean, and of bounded size.
pub(super) fn check(field: &str, schema: &Value) -> Result<(), InvalidInput> {
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
