//! JSON in which every member is read by something.
//!
//! A parameter that nothing reads would be ignored without a word. It is refused by its name, unless
//! its value says "nothing": null, false, zero, or an empty text or list. An empty object asks for
//! something, with all defaults: `"web_search_options": {}` switches the search on.
//!
//! Serde tells of each member that it skips, while it reads the body. Types that read into a buffer
//! first (internally tagged enums, flattened members) would hide theirs, so the types of requests are
//! read without one.

use crate::DecodeError;
use crate::json::decode_without_nulls;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_ignored::Path;
use serde_json::Value;

/// Reads JSON in which a null means that a member was not given, and every other member is known.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut is_whole = true;
    let body = read(bytes, |path| is_whole &= is_tag(path))?;
    if is_whole {
        return Ok(body);
    }
    // Something was skipped. Only now it matters whether it said anything.
    let sent: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let mut unread = None;
    read::<T>(bytes, |path| {
        if unread.is_none() && !is_tag(path) && !find(&sent, path).is_none_or(says_nothing) {
            unread = Some(name(path));
        }
    })?;
    match unread {
        None => Ok(body),
        Some(member) => Err(DecodeError::Unread { member }),
    }
}

/// Reads an object that is a part of a body. Returns it with the first member that nothing reads.
pub(crate) fn read_value<'v, S: DeserializeSeed<'v>>(
    value: &'v Value,
    seed: S,
) -> Result<(S::Value, Option<String>), serde_json::Error> {
    let mut unread = None;
    let mut skipped = |path: Path<'_>| {
        if unread.is_none() && !find(value, &path).is_none_or(says_nothing) {
            unread = Some(name(&path));
        }
    };
    let read = seed.deserialize(serde_ignored::Deserializer::new(value, &mut skipped))?;
    Ok((read, unread))
}

fn read<T: DeserializeOwned>(
    bytes: &[u8],
    mut skipped: impl FnMut(&Path<'_>),
) -> Result<T, DecodeError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let body = serde_ignored::deserialize(&mut json, |path| skipped(&path));
    match body.and_then(|body| json.end().map(|()| body)) {
        Ok(body) => Ok(body),
        Err(error) => decode_without_nulls(bytes, error, |value| {
            serde_ignored::deserialize(value, |path| skipped(&path))
        }),
    }
}

/// Clients send the `type` of an object also where there is only one.
fn is_tag(path: &Path<'_>) -> bool {
    matches!(path, Path::Map { key, .. } if key == "type")
}

fn find<'v>(value: &'v Value, path: &Path<'_>) -> Option<&'v Value> {
    match path {
        Path::Root => Some(value),
        Path::Seq { parent, index } => find(value, parent)?.get(index),
        Path::Map { parent, key } => find(value, parent)?.get(key),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => find(value, parent),
    }
}

/// Writes a path for a message: `prompt.chunks[0].crop`.
fn name(path: &Path<'_>) -> String {
    let inside = |parent: &Path<'_>, own: String| match name(parent) {
        parent if parent.is_empty() => own,
        parent => format!("{parent}.{own}"),
    };
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", name(parent)),
        Path::Map { parent, key } => inside(parent, key.clone()),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => name(parent),
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;
    use crate::op::asample::SampleRequest;
    use crate::op::create_model::CreateModelRequest;
    use crate::op::finish_session::FinishSessionRequest;
    use crate::op::forward;
    use crate::op::forward_backward::ForwardBackwardRequest;
    use crate::op::optim_step::OptimStepRequest;
    use crate::op::retrieve_futures::RetrieveFuturesRequest;
    use serde_json::json;
    use tinkrs_types::session::SessionSearch;

    /// Puts a value into a body, and returns the member that is refused.
    fn refused<T>(
        decode: fn(&[u8]) -> Result<T, DecodeError>,
        body: &Value,
        (place, value): (&str, Value),
    ) -> Option<String> {
        let mut body = body.clone();
        let (parent, name) = place.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[name] = value;
        match decode(body.to_string().as_bytes()) {
            Ok(_) => None,
            Err(DecodeError::Unread { member }) => Some(member),
            Err(error) => panic!("{place}: {error:?}"),
        }
    }

    #[test]
    fn only_members_that_say_something_are_refused() {
        let body = json!({"session_id": "s", "model_seq_id": 0, "base_model": "m",
            "lora_config": {"rank": 8}});
        for nothing in [json!(null), json!(false), json!(0), json!(""), json!([])] {
            let refused = refused(CreateModelRequest::decode_strict, &body, ("/dora", nothing));
            assert_eq!(refused, None);
        }
        let defaults = ("/dora", json!({}));
        let refused_defaults = refused(CreateModelRequest::decode_strict, &body, defaults);
        assert_eq!(refused_defaults.as_deref(), Some("dora"));
        let cases = [
            ("/type", None),
            ("/alpha", Some("alpha")),
            ("/lora_config/alpha", Some("lora_config.alpha")),
            ("/lora_config/type", None),
        ];
        for (place, expected) in cases {
            let refused = refused(CreateModelRequest::decode_strict, &body, (place, json!(16)));
            assert_eq!(refused.as_deref(), expected, "{place}");
        }
        // Beside the nulls of older clients, and in what is the user's own.
        let with_null = json!({"session_id": "s", "model_seq_id": 0, "base_model": "m",
            "lora_config": {"rank": 8, "seed": null}, "user_metadata": null});
        let refused = |place| {
            refused(
                CreateModelRequest::decode_strict,
                &with_null,
                (place, json!({"mine": 1})),
            )
        };
        assert_eq!(refused("/alpha").as_deref(), Some("alpha"));
        assert_eq!(refused("/user_metadata"), None);
    }

    #[test]
    fn members_are_known_at_every_level_of_every_request() {
        let tensor = json!({"data": [1], "dtype": "int64", "shape": [1]});
        let datum = json!({"model_input": {"chunks": [{"tokens": [1], "type": "encoded_text"}]},
            "loss_fn_inputs": {"target_tokens": tensor}});
        let input = json!({"data": [datum, datum], "loss_fn": "ppo",
            "loss_fn_config": {"clip_low_threshold": 0.9}});
        let pass = json!({"forward_backward_input": input, "model_id": "m", "seq_id": 1});
        let name = "forward_backward_input.data[1]";
        for (place, expected) in [
            ("/mask", "mask".to_owned()),
            ("/forward_input", "forward_input".to_owned()),
            (
                "/forward_backward_input/data/1/mask",
                format!("{name}.mask"),
            ),
            (
                "/forward_backward_input/data/1/model_input/chunks/0/crop",
                format!("{name}.model_input.chunks[0].crop"),
            ),
            (
                "/forward_backward_input/data/1/loss_fn_inputs/target_tokens/device",
                format!("{name}.loss_fn_inputs.target_tokens.device"),
            ),
        ] {
            let found = refused(
                ForwardBackwardRequest::decode_json,
                &pass,
                (place, json!("x")),
            );
            assert_eq!(found, Some(expected));
        }
        let pass = json!({"forward_input": input, "model_id": "m", "seq_id": 1});
        let found = refused(forward::decode, &pass, ("/forward_input/mask", json!(1)));
        assert_eq!(found.as_deref(), Some("forward_input.mask"));

        let sample = json!({"base_model": "m", "prompt": {"chunks": [{"tokens": [1]}]},
            "sampling_params": {"max_tokens": 1}});
        for (place, expected) in [
            ("/prompt/chunks/0/crop", "prompt.chunks[0].crop"),
            ("/prompt/crop", "prompt.crop"),
            ("/sampling_params/min_p", "sampling_params.min_p"),
        ] {
            let found = refused(SampleRequest::decode_strict, &sample, (place, json!(1)));
            assert_eq!(found.as_deref(), Some(expected));
        }
        let finish = json!({"reason": {"type": "success"}});
        let found = refused(
            FinishSessionRequest::decode_strict,
            &finish,
            ("/reason/why", json!("x")),
        );
        assert_eq!(found.as_deref(), Some("reason.why"));
        let futures = json!({"target": {"type": "sampling_session", "sampling_session_id": "s"}});
        let found = refused(
            RetrieveFuturesRequest::decode_strict,
            &futures,
            ("/target/run", json!("x")),
        );
        assert_eq!(found.as_deref(), Some("target.run"));
        let search = json!({"owner": {"type": "user", "owner_urns": ["u"]},
            "statuses": [{"type": "client_finished", "reasons": ["success"]}]});
        for (place, expected) in [
            ("/owner/team", "owner.team"),
            ("/statuses/0/since", "statuses[0].since"),
        ] {
            let found = refused(SessionSearch::decode_strict, &search, (place, json!("x")));
            assert_eq!(found.as_deref(), Some(expected));
        }
    }

    #[test]
    fn members_of_an_optimizer_are_known_by_each_of_its_names() {
        let step = |name: &str, params: Value| {
            let mut body = json!({"model_id": "m", "seq_id": 1});
            body[name] = params;
            let read = OptimStepRequest::decode_strict(body.to_string().as_bytes());
            read.err().map(|error| match error {
                DecodeError::Unread { member } => member,
                other => std::error::Error::source(&other).unwrap().to_string(),
            })
        };
        for name in ["adam_params", "optimizer_params", "optim_params"] {
            assert_eq!(
                step(name, json!({"eps": 1, "type": "adamw"})),
                None,
                "{name}"
            );
            assert_eq!(step(name, json!({"eps": 1, "momentum": 0})), None, "{name}");
            let error = step(name, json!({"momentum": 1})).unwrap();
            assert!(error.contains(&format!("{name}.momentum")), "{error}");
        }
        // What this crate does not know is kept as it came, for servers that do.
        assert_eq!(
            step("optimizer_params", json!({"type": "muon", "momentum": 1})),
            None
        );
    }

    #[test]
    fn a_chunk_has_only_what_goes_with_its_type() {
        let sample = |chunk: Value| {
            let body = json!({"base_model": "m", "prompt": {"chunks": [chunk]},
                "sampling_params": {"max_tokens": 1}});
            let error = SampleRequest::decode_strict(body.to_string().as_bytes()).err()?;
            Some(std::error::Error::source(&error).unwrap().to_string())
        };
        assert_eq!(sample(json!({"tokens": [1], "location": null})), None);
        let error = sample(json!({"tokens": [1], "location": "x"})).unwrap();
        assert!(error.contains("`location`"), "{error}");
        let old = json!({"type": "image", "data": "iVBORw==", "format": "png", "height": 2,
            "width": 2, "tokens": 3});
        assert_eq!(sample(old), None);
    }
}
