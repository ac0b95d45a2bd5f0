//! Tool calls as `<function=name>` with `<parameter=…>` blocks, as Qwen3.5 and Nemotron 3 write them.

use super::turns::{json_or_text, members, python_text, text_or_json};
use crate::response::{TOOL_CALL, TOOL_CALL_END};
use crate::{Json, Script, ToolCall};

/// How values are written that are neither texts nor lists nor objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalars {
    /// `True` and `None`.
    Python,
    /// `true` and `null`.
    Json,
}

/// Writes a call.
pub(super) fn write(script: &mut Script<'_>, call: &ToolCall, scalars: Scalars) {
    script.tag(TOOL_CALL);
    script.text("\n<function=").text(&call.name).text(">\n");
    for (name, value) in members(&call.arguments) {
        let value = match scalars {
            Scalars::Python => python_text(value),
            Scalars::Json => text_or_json(value),
        };
        script.text("<parameter=").text(name).text(">\n");
        script.text(&value).text("\n</parameter>\n");
    }
    script.text("</function>\n").tag(TOOL_CALL_END);
}

/// Reads the inside of a block: such a call, or one in JSON, as older models write them.
pub(super) fn read(block: &str) -> Option<Vec<ToolCall>> {
    let block = block.trim();
    let Some(function) = block.strip_prefix("<function=") else {
        return crate::response::json_call(block);
    };
    let (name, rest) = function.split_once('>')?;
    let (mut rest, after) = rest.rsplit_once("</function>")?;
    let mut arguments = Vec::new();
    while let Some(parameter) = rest.trim_start().strip_prefix("<parameter=") {
        let (name, inside) = parameter.split_once('>')?;
        let (value, after) = inside.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.push((name.trim().to_owned(), json_or_text(value)));
        rest = after;
    }
    let named = !name.trim().is_empty() && arguments.iter().all(|(name, _)| !name.is_empty());
    let whole = rest.trim().is_empty() && after.trim().is_empty();
    (named && whole).then(|| vec![ToolCall::new(name.trim(), Json::Object(arguments))])
}

// The words that these models were trained with; any others would be a different prompt.
pub(super) const TOOLS_BEFORE: &str =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>\n";
pub(super) const TOOLS_AFTER: &str = "\n</tools>\n\nIf you choose to call a function ONLY reply in \
    the following format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n\
    <parameter=example_parameter_1>\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\nThis is \
    the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n\
    </tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an \
    inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n\
    - Required parameters MUST be specified\n- You may provide optional reasoning for your function \
    call in natural language BEFORE the function call, but NOT after\n- If there is no function call \
    available, answer the question like normal with your current knowledge and do not tell the user \
    about function calls\n</IMPORTANT>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_if_nothing_else_is_in_the_block() {
        let call = read(
            "\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n</parameter>\n</function>\n",
        );
        let call = call.unwrap().remove(0);
        assert_eq!(
            (call.name.as_str(), call.arguments.to_string().as_str()),
            ("add", r#"{"a": 1, "b": "x\ny"}"#)
        );
        assert_eq!(read("<function=now>\n</function>").unwrap()[0].name, "now");
        assert_eq!(
            read(r#"{"name": "add", "arguments": {}}"#).unwrap()[0].name,
            "add"
        );
        for malformed in [
            "<function=>\n</function>",
            "<function=add>",
            "<function=add>\n<parameter=a>\n1\n</function>",
            "<function=add>\nwords\n</function>",
            "<function=add>\n</function>\nwords",
            "<function=add>\n<parameter=>\n1\n</parameter>\n</function>",
        ] {
            assert_eq!(read(malformed), None, "{malformed}");
        }
    }
}
