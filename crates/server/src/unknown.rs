//! Finds parameters that would otherwise be ignored without a word.
//!
//! A body is decoded into a type and written again; what was sent and does not come back is
//! something that this server does not know. It is refused, unless its value says "nothing": null,
//! false, zero or empty.

use serde_json::{Value, json};

/// Other names of members, as (sent, written).
const ALIASES: [(&str, &str); 3] = [
    ("optimizer_params", "adam_params"),
    ("optim_params", "adam_params"),
    ("optim_params", "optimizer_params"),
];

/// Returns the path of the first member of `sent` that is missing in `known`.
pub(crate) fn member(sent: &Value, known: &Value) -> Option<String> {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => sent.iter().find_map(|(name, value)| {
            if name == "type" || says_nothing(value) {
                return None;
            }
            let mut aliases = ALIASES.iter().filter(|(alias, _)| alias == name);
            let written = known
                .get(name)
                .or_else(|| aliases.find_map(|(_, written)| known.get(*written)));
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

/// Returns the path of the first member of a pass, sent as JSON by an older client, that is not
/// one of those it may have.
pub(crate) fn pass_member(sent: &Value) -> Option<String> {
    let tensor = json!({
        "data": null, "dtype": null, "shape": null,
        "sparse_crow_indices": null, "sparse_col_indices": null,
    });
    let chunk = json!({
        "tokens": null, "data": null, "format": null, "expected_tokens": null,
        "height": null, "width": null, "location": null, "dmel": null,
    });
    let datum = json!({"model_input": {"chunks": [chunk]}, "loss_fn_inputs": {"*": tensor}});
    let input = json!({"data": [datum], "loss_fn": null, "loss_fn_config": {"*": null}});
    let pass = json!({
        "forward_backward_input": input, "forward_input": input, "model_id": null, "seq_id": null,
    });
    outside(sent, &pass)
}

/// As [`member`], for a pattern: `*` stands for any name, the one item of an array for all items,
/// null for any value.
fn outside(sent: &Value, pattern: &Value) -> Option<String> {
    match (sent, pattern) {
        (Value::Object(sent), Value::Object(pattern)) => sent.iter().find_map(|(name, value)| {
            if name == "type" || says_nothing(value) {
                return None;
            }
            match pattern.get(name).or_else(|| pattern.get("*")) {
                None => Some(name.clone()),
                Some(inner) => outside(value, inner).map(|inner| format!("{name}.{inner}")),
            }
        }),
        (Value::Array(sent), Value::Array(pattern)) => {
            let pattern = pattern.first()?;
            sent.iter().enumerate().find_map(|(index, value)| {
                outside(value, pattern).map(|inner| format!("[{index}].{inner}"))
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

    #[test]
    fn members_of_a_pass_are_known_at_every_level() {
        let pass = |datum: Value| {
            json!({
                "forward_backward_input": {"data": [{}, datum], "loss_fn": "ppo",
                    "loss_fn_config": {"clip_low_threshold": 0.9}},
                "model_id": "m", "seq_id": 1,
            })
        };
        let known = json!({
            "model_input": {"chunks": [{"tokens": [1], "type": "encoded_text"}]},
            "loss_fn_inputs": {"anything": {"data": [1], "dtype": "int64", "shape": [1]}},
        });
        assert_eq!(pass_member(&pass(known)), None);
        let masked = json!({"mask": [1]});
        let expected = "forward_backward_input.data.[1].mask";
        assert_eq!(pass_member(&pass(masked)).as_deref(), Some(expected));
        let tensor = json!({"loss_fn_inputs": {"weights": {"device": "cpu"}}});
        let expected = "forward_backward_input.data.[1].loss_fn_inputs.weights.device";
        assert_eq!(pass_member(&pass(tensor)).as_deref(), Some(expected));
    }
}
