//! Finds parameters that would otherwise be ignored without a word.
//!
//! A body is decoded into a type and written again; what was sent and does not come back is
//! something that this server does not know. It is refused, unless its value says "nothing": null,
//! false, zero or empty.

use serde_json::Value;

/// Other names of members, as (sent, written).
const ALIASES: [(&str, &str); 2] = [
    ("optimizer_params", "adam_params"),
    ("optim_params", "adam_params"),
];

/// Returns the path of the first member of `sent` that is missing in `known`.
pub(crate) fn member(sent: &Value, known: &Value) -> Option<String> {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => sent.iter().find_map(|(name, value)| {
            if name == "type" || says_nothing(value) {
                return None;
            }
            let alias = ALIASES.iter().find(|(alias, _)| alias == name);
            let written = known
                .get(name)
                .or_else(|| known.get(alias.map_or("", |(_, written)| written)));
            match written {
                None => Some(name.clone()),
                Some(written) => member(value, written).map(|inner| format!("{name}.{inner}")),
            }
        }),
        (Value::Array(sent), Value::Array(known)) => {
            let pairs = sent.iter().zip(known).enumerate();
            pairs
                .filter(|(_, (sent, _))| sent.is_object())
                .find_map(|(index, (sent, known))| {
                    member(sent, known).map(|inner| format!("[{index}].{inner}"))
                })
        }
        _ => None,
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_members_that_say_something_are_refused() {
        let known = json!({"rank": 8, "lora": {"seed": 1}, "chunks": [{"tokens": [1]}], "adam_params": {"eps": 1}});
        let cases = [
            (json!({"rank": 8, "type": "x"}), None),
            (
                json!({"alpha": null, "dora": false, "bias": 0, "tags": []}),
                None,
            ),
            (json!({"alpha": 16}), Some("alpha")),
            (json!({"lora": {"alpha": 16}}), Some("lora.alpha")),
            (
                json!({"chunks": [{"tokens": [1], "crop": 1}]}),
                Some("chunks.[0].crop"),
            ),
            (json!({"optim_params": {"eps": 1}}), None),
            (
                json!({"optim_params": {"momentum": 1}}),
                Some("optim_params.momentum"),
            ),
        ];
        for (sent, expected) in cases {
            assert_eq!(member(&sent, &known).as_deref(), expected, "{sent}");
        }
    }
}
