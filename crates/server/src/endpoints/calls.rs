//! Calls that have to be made: what an answer then is.

use serde_json::{Map, Value, json};

use super::found;
use super::question::AnswerShape;
use crate::error::ApiError;

/// Something that may be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callable<'a> {
    pub(crate) name: &'a str,
    /// A JSON schema of its arguments, which are an object whatever it says.
    pub(crate) parameters: Option<&'a Map<String, Value>>,
}

/// Lets an answer be a call of one of these. What their own schemas define is at the top of the whole one, where
/// references look for it.
pub(crate) fn one_of(callables: &[Callable<'_>]) -> Result<AnswerShape, ApiError> {
    let mut definitions = Map::new();
    let mut calls = Vec::new();
    for callable in callables {
        let mut arguments = callable.parameters.cloned().unwrap_or_default();
        arguments.entry("type").or_insert_with(|| "object".into());
        if let Some(Value::Object(own)) = arguments.remove("$defs") {
            for (name, definition) in own {
                let known = definitions.insert(name.clone(), definition);
                if known.is_some_and(|known| known != definitions[&name]) {
                    let expected = "one definition of a name where any tool may be called";
                    return Err(found("tools", format!("two of `{name}`"), expected));
                }
            }
        }
        calls.push(json!({
            "type": "object",
            "properties": {"name": {"const": callable.name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }));
    }
    let mut schema = match calls.len() {
        1 => calls.remove(0),
        _ => json!({"anyOf": calls}),
    };
    if !definitions.is_empty() {
        schema["$defs"] = definitions.into();
    }
    Ok(AnswerShape::Call { schema })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema_of(parameters: &[Value]) -> Result<Value, ApiError> {
        let callables = parameters.iter().map(|parameters| Callable {
            name: "f",
            parameters: parameters.as_object(),
        });
        match one_of(&callables.collect::<Vec<_>>())? {
            AnswerShape::Call { schema } => Ok(schema),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn definitions_of_arguments_move_to_where_references_look_for_them() {
        let parameters =
            json!({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"const": 1}}});
        let schema = schema_of(&[parameters.clone(), parameters]).unwrap();
        assert_eq!(schema["$defs"], json!({"A": {"const": 1}}));
        for call in schema["anyOf"].as_array().unwrap() {
            let arguments = &call["properties"]["arguments"];
            assert_eq!(arguments["type"], "object");
            assert!(arguments.get("$defs").is_none());
        }
    }

    #[test]
    fn two_definitions_of_a_name_are_refused() {
        let defines = |value: u32| json!({"$defs": {"A": {"const": value}}});
        let error = schema_of(&[defines(1), defines(2)]).unwrap_err();
        assert!(error.detail().starts_with("`tools`: found two of `A`"));
    }
}
