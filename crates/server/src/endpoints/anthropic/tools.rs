//! Tools of the Anthropic API: what is offered, and what has to be called.

use serde_json::json;
use tinkrs_chat::Json;
use tinkrs_wire::anthropic::{Tool, ToolChoice};

use super::conversation::to_json;
use super::found;
use crate::endpoints::calls::{self, Callable};
use crate::endpoints::missing;
use crate::endpoints::question::AnswerShape;
use crate::error::ApiError;

const LONGEST_NAME: usize = 128;
/// Most tools of a request.
const MOST_TOOLS: usize = 128;

/// What a model is told of tools.
#[derive(Debug)]
pub(super) struct Offer {
    /// The tools, as chat formats write them.
    pub(super) written: Vec<Json>,
    /// The call that an answer has to be, if it has to.
    pub(super) shape: Option<AnswerShape>,
}

/// Reads the tools of a request.
pub(super) fn offer(tools: &[Tool], choice: Option<&ToolChoice>) -> Result<Offer, ApiError> {
    if tools.len() > MOST_TOOLS {
        let count = format!("{} tools", tools.len());
        return Err(found("tools", count, format!("at most {MOST_TOOLS}")));
    }
    for (index, tool) in tools.iter().enumerate() {
        check(tool, &tools[..index], &format!("tools[{index}]"))?;
    }
    let nothing = Offer {
        written: Vec::new(),
        shape: None,
    };
    let kind = choice.map_or("auto", |choice| choice.kind.as_str());
    let name = choice.and_then(|choice| choice.name.as_deref());
    if let Some(name) = name.filter(|_| kind != "tool") {
        let expected = format!("nothing with `{kind}`");
        return Err(found("tool_choice.name", format!("`{name}`"), expected));
    }
    let forced: Vec<&Tool> =
        match kind {
            "none" => return Ok(nothing),
            "auto" => Vec::new(),
            "any" if tools.is_empty() => {
                return Err(found("tool_choice.type", "`any`", "it with `tools` only"));
            }
            "any" => tools.iter().collect(),
            "tool" => {
                let name = name.ok_or_else(|| missing("tool_choice.name"))?;
                let tool = tools.iter().find(|tool| tool.name == name);
                vec![tool.ok_or_else(|| {
                    found("tool_choice.name", format!("`{name}`"), "one of `tools`")
                })?]
            }
            other => {
                let expected = "`auto`, `none`, `any` or `tool`";
                return Err(found("tool_choice.type", format!("`{other}`"), expected));
            }
        };
    // The arguments of a call that has to be made keep to its schema.
    let strict = tools.iter().position(|tool| tool.strict == Some(true));
    if let Some(index) = strict.filter(|_| forced.is_empty()) {
        let expected = "false, or a `tool_choice` that asks for a call";
        return Err(found(&format!("tools[{index}].strict"), true, expected));
    }
    let callables = forced.iter().map(|tool| Callable {
        name: &tool.name,
        parameters: tool.input_schema.as_ref(),
    });
    let shape = match forced.is_empty() {
        true => None,
        false => Some(calls::one_of(&callables.collect::<Vec<_>>())?),
    };
    Ok(Offer {
        written: tools.iter().map(written).collect(),
        shape,
    })
}

fn written(tool: &Tool) -> Json {
    let mut function = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        function["description"] = json!(description);
    }
    function["parameters"] = json!(tool.input_schema);
    to_json(&json!({"type": "function", "function": function}))
}

fn check(tool: &Tool, before: &[Tool], member: &str) -> Result<(), ApiError> {
    let of = |name: &str| format!("{member}.{name}");
    if let Some(kind) = tool.kind.as_deref().filter(|kind| *kind != "custom") {
        let expected = "`custom`: this server runs no tools";
        return Err(found(&of("type"), format!("`{kind}`"), expected));
    }
    let name = &tool.name;
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_letter) {
        let expected = "1 to 128 letters, digits, `_` and `-`";
        return Err(found(&of("name"), format!("`{name}`"), expected));
    }
    if before.iter().any(|other| other.name == *name) {
        let found_name = format!("`{name}` again");
        return Err(found(&of("name"), found_name, "each name once"));
    }
    let Some(schema) = &tool.input_schema else {
        return Err(missing(&of("input_schema")));
    };
    if let Some(kind) = schema.get("type").filter(|kind| *kind != "object") {
        let expected = "`object`: arguments have names";
        return Err(found(&of("input_schema.type"), kind, expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn read(tools: &Value, choice: &Value) -> Result<Offer, ApiError> {
        let tools: Vec<Tool> = serde_json::from_value(tools.clone()).unwrap();
        let choice: Option<ToolChoice> = serde_json::from_value(choice.clone()).unwrap();
        offer(&tools, choice.as_ref())
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "description": "d", "input_schema": {"type": "object"}})
    }

    #[test]
    fn tools_are_offered_as_functions_unless_none_may_be_called() {
        let tools = json!([tool("f")]);
        let offered = read(&tools, &Value::Null).unwrap();
        let expected = json!({"type": "function", "function":
            {"name": "f", "description": "d", "parameters": {"type": "object"}}});
        assert_eq!(
            offered.written[0].to_string(),
            to_json(&expected).to_string()
        );
        assert!(offered.shape.is_none());
        let offered = read(&tools, &json!({"type": "none"})).unwrap();
        assert!(offered.written.is_empty() && offered.shape.is_none());
    }

    #[test]
    fn a_call_that_has_to_be_made_is_of_the_tools_that_were_asked_for() {
        let mut tools = json!([tool("f"), tool("g")]);
        tools[1]["strict"] = true.into();
        let schema = |choice: Value| match read(&tools, &choice).unwrap().shape {
            Some(AnswerShape::Call { schema }) => schema,
            other => panic!("{other:?}"),
        };
        let any = schema(json!({"type": "any"}));
        assert_eq!(any["anyOf"].as_array().unwrap().len(), 2);
        let one = schema(json!({"type": "tool", "name": "g"}));
        assert_eq!(one["properties"]["name"]["const"], "g");
    }

    #[test]
    fn what_is_wrong_is_refused_by_its_name() {
        let with = |change: Value| {
            let mut tool = tool("f");
            let members = tool.as_object_mut().unwrap();
            members.extend(change.as_object().unwrap().clone());
            json!([tool])
        };
        let (plain, none, no_schema) = (json!([tool("f")]), Value::Null, json!([{"name": "a"}]));
        let many: Value = (0..129).map(|index| tool(&format!("f{index}"))).collect();
        let cases = [
            (
                "tools[0].type",
                &with(json!({"type": "web_search_20250305"})),
                none.clone(),
            ),
            ("tools[0].name", &with(json!({"name": "a b"})), none.clone()),
            ("tools[0].name", &with(json!({"name": ""})), none.clone()),
            (
                "tools[1].name",
                &json!([tool("f"), tool("f")]),
                none.clone(),
            ),
            ("tools[0].input_schema", &no_schema, none.clone()),
            (
                "tools[0].input_schema.type",
                &with(json!({"input_schema": {"type": "array"}})),
                none.clone(),
            ),
            (
                "tools[0].strict",
                &with(json!({"strict": true})),
                none.clone(),
            ),
            ("tools", &many, none.clone()),
            ("tool_choice.type", &plain, json!({"type": "all"})),
            ("tool_choice.type", &json!([]), json!({"type": "any"})),
            ("tool_choice.name", &plain, json!({"type": "tool"})),
            (
                "tool_choice.name",
                &plain,
                json!({"type": "tool", "name": "g"}),
            ),
            (
                "tool_choice.name",
                &plain,
                json!({"type": "any", "name": "f"}),
            ),
        ];
        for (member, tools, choice) in cases {
            let error = read(tools, &choice).expect_err(member);
            let begins = format!("`{member}`: ");
            let missing = format!("`{member}` is missing");
            let detail = error.detail();
            assert!(
                detail.starts_with(&begins) || detail == missing,
                "{detail}: {tools}"
            );
        }
    }
}
