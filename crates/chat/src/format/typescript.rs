//! Tool definitions as TypeScript, which gpt-oss and Kimi K2.5 are given them in, each in its own style.

use super::turns::{function, members, python_text, text_member};
use crate::{Error, Json};

/// Returns tools in the style of harmony.
pub(super) fn harmony_tools(tools: &[Json]) -> String {
    let tools: Vec<String> = tools
        .iter()
        .map(|tool| harmony_tool(function(tool)))
        .collect();
    let tools = tools.join("\n\n");
    format!(
        "# Tools\n\n## functions\n\nnamespace functions {{\n\n{tools}\n\n}} // namespace functions"
    )
}

fn harmony_tool(tool: &Json) -> String {
    let described = text_member(tool, "description").unwrap_or_default();
    let mut text = String::new();
    if !described.is_empty() {
        text += &format!("// {described}\n");
    }
    let name = text_member(tool, "name").unwrap_or_default();
    let parameters = harmony_parameters(tool.get("parameters").unwrap_or(&Json::Null));
    text + &format!("type {name} = {parameters} => any;")
}

fn harmony_parameters(schema: &Json) -> String {
    let properties = schema.get("properties").map_or(&[][..], members);
    if text_member(schema, "type") != Some("object") || properties.is_empty() {
        return "()".to_owned();
    }
    let mut lines = vec!["(_:".to_owned()];
    if let Some(described) = text_member(schema, "description") {
        lines[0] += &format!(" // {described}");
    }
    lines.push("{".to_owned());
    for (name, property) in properties {
        let comments = harmony_comments(property);
        lines.extend(comments.iter().map(|comment| format!("// {comment}")));
        let optional = if is_required(schema, name) { "" } else { "?" };
        let default = property.get("default");
        let default = default.map_or(String::new(), |value| format!(" // default: {value}"));
        let kind = harmony_type(property);
        lines.push(format!("{name}{optional}: {kind},{default}"));
    }
    lines.push("})".to_owned());
    lines.join("\n")
}

fn harmony_comments(schema: &Json) -> Vec<String> {
    let mut comments = Vec::new();
    if let Some(title) = text_member(schema, "title") {
        comments.extend([title.to_owned(), String::new()]);
    }
    if let Some(described) = text_member(schema, "description") {
        comments.push(described.to_owned());
    }
    if let Some(Json::List(examples)) = schema.get("examples") {
        comments.push("Examples:".to_owned());
        comments.extend(examples.iter().map(|example| format!("- {example}")));
    }
    comments
}

fn harmony_type(schema: &Json) -> String {
    for choice in ["oneOf", "anyOf"] {
        if let Some(Json::List(kinds)) = schema.get(choice) {
            return joined(kinds.iter().map(harmony_type));
        }
    }
    let kind = match schema.get("type") {
        Some(Json::List(kinds)) => {
            let one = |kind: &Json| harmony_type(&Json::object([("type", kind.clone())]));
            return joined(kinds.iter().map(one));
        }
        kind => kind.and_then(Json::as_str),
    };
    let text = match kind {
        Some("string") => match schema.get("enum") {
            Some(Json::List(values)) => return joined(values.iter().map(ToString::to_string)),
            _ => "string".to_owned(),
        },
        Some("number" | "integer") => "number".to_owned(),
        Some("boolean") => "boolean".to_owned(),
        Some("array") => {
            let items = schema.get("items").unwrap_or(&Json::Null);
            format!("{}[]", harmony_type(items))
        }
        Some("object") => {
            let properties = schema.get("properties").map_or(&[][..], members).iter();
            let properties = properties.map(|(name, property)| {
                let optional = if is_required(schema, name) { "" } else { "?" };
                format!("{name}{optional}: {}", harmony_type(property))
            });
            let properties: Vec<String> = properties.collect();
            format!("{{ {} }}", properties.join(", "))
        }
        _ => "any".to_owned(),
    };
    match schema.get("nullable") {
        Some(Json::Bool(true)) => format!("{text} | null"),
        _ => text,
    }
}

/// Returns tools in the style of Kimi K2.5.
///
/// # Errors
/// If a schema refers to a definition that is not there.
pub(super) fn kimi_tools(tools: &[Json]) -> Result<String, Error> {
    let tools: Result<Vec<String>, Error> =
        tools.iter().map(|tool| kimi_tool(function(tool))).collect();
    Ok(format!(
        "# Tools\n\n## functions\nnamespace functions {{\n{}\n}}\n",
        tools?.join("\n")
    ))
}

fn kimi_tool(tool: &Json) -> Result<String, Error> {
    let none = Json::Object(Vec::new());
    let parameters = tool.get("parameters").unwrap_or(&none);
    let definitions = parameters.get("$defs").map_or(&[][..], members);
    let kimi = Kimi { definitions };
    let mut lines = Vec::new();
    let refers_to_itself = mentions_itself(parameters);
    if refers_to_itself {
        lines.push(format!(
            "interface parameters {}",
            kimi.object(parameters, "", false)?
        ));
    }
    for (name, schema) in definitions {
        let described = text_member(schema, "description").unwrap_or_default();
        let described = commented(described, "");
        lines.push(format!(
            "{described}interface {name} {}",
            kimi.kind(schema, "")?
        ));
    }
    let described = text_member(tool, "description").unwrap_or_default();
    if !described.is_empty() {
        lines.push(commented(described, "").trim_end_matches('\n').to_owned());
    }
    let name = text_member(tool, "name").unwrap_or("function");
    let shape = if refers_to_itself {
        "parameters".to_owned()
    } else {
        kimi.object(parameters, "", true)?
    };
    lines.push(format!("type {name} = (_: {shape}) => any;"));
    Ok(lines.join("\n"))
}

const INDENT: &str = "  ";

/// Writes schemas in the style of Kimi K2.5.
struct Kimi<'j> {
    definitions: &'j [(String, Json)],
}

impl Kimi<'_> {
    fn kind(&self, schema: &Json, indent: &str) -> Result<String, Error> {
        if let Some(reference) = text_member(schema, "$ref") {
            return self.reference(reference);
        }
        if let Some(Json::List(kinds)) = schema.get("anyOf") {
            let kinds: Result<Vec<String>, Error> =
                kinds.iter().map(|kind| self.kind(kind, indent)).collect();
            return Ok(kinds?.join(" | "));
        }
        if let Some(Json::List(values)) = schema.get("enum") {
            return Ok(joined(values.iter().map(|value| match value {
                Json::Text(text) => format!("\"{text}\""),
                other => python_text(other),
            })));
        }
        Ok(match (schema, schema.get("type")) {
            (Json::Bool(false), _) => "null".to_owned(),
            (_, Some(Json::List(kinds))) => joined(kinds.iter().map(|kind| {
                match kind.as_str().unwrap_or_default() {
                    "integer" => "number",
                    "object" => "{}",
                    "array" => "Array<any>",
                    other => other,
                }
                .to_owned()
            })),
            (_, Some(Json::Text(kind))) => match kind.as_str() {
                "object" => self.object(schema, indent, true)?,
                "array" => self.array(schema, indent)?,
                "integer" => "number".to_owned(),
                other => other.to_owned(),
            },
            _ => "any".to_owned(),
        })
    }

    fn reference(&self, reference: &str) -> Result<String, Error> {
        if reference == "#" {
            return Ok("parameters".to_owned());
        }
        let name = reference.strip_prefix("#/$defs/").unwrap_or_default();
        if self.definitions.iter().any(|(known, _)| known == name) {
            return Ok(name.to_owned());
        }
        Err(Error::Conversation {
            problem: format!(
                "has a tool whose parameters refer to `{reference}`, which is not in its `$defs`"
            ),
        })
    }

    fn array(&self, schema: &Json, indent: &str) -> Result<String, Error> {
        let none = Json::Object(Vec::new());
        let items = schema.get("items").unwrap_or(&none);
        let deeper = format!("{indent}{INDENT}");
        let comments = comments(items, &deeper);
        if comments.is_empty() {
            return Ok(format!("Array<{}>", self.kind(items, indent)?));
        }
        let items = self.kind(items, &deeper)?;
        Ok(format!("Array<\n{comments}{deeper}{items}\n{indent}>"))
    }

    /// Writes an object; `sorted` puts what is required first, and each part by name.
    fn object(&self, schema: &Json, indent: &str, sorted: bool) -> Result<String, Error> {
        let properties = schema.get("properties").map_or(&[][..], members);
        let mut properties: Vec<&(String, Json)> = properties.iter().collect();
        if sorted {
            properties.sort_by_key(|(name, _)| (!is_required(schema, name), name.clone()));
        }
        let deeper = format!("{indent}{INDENT}");
        let mut fields = Vec::new();
        for (name, property) in properties {
            let optional = if is_required(schema, name) { "" } else { "?" };
            let mut comments = comments(property, &deeper);
            if let Some(default) = property
                .get("default")
                .filter(|value| **value != Json::Null)
            {
                let default = match default {
                    Json::Bool(_) => python_text(default),
                    other => other.to_string(),
                };
                comments += &format!("{deeper}// Default: {default}\n");
            }
            let kind = self.kind(property, &deeper)?;
            fields.push(format!("{comments}{deeper}{name}{optional}: {kind}"));
        }
        if let Some(others) = schema.get("additionalProperties") {
            let kind = match others {
                Json::Bool(false) => "never".to_owned(),
                Json::Object(_) => self.kind(others, &deeper)?,
                _ => "any".to_owned(),
            };
            fields.push(format!("{deeper}[k: string]: {kind}"));
        }
        if fields.is_empty() {
            return Ok("{}".to_owned());
        }
        Ok(format!("{{\n{}\n{indent}}}", fields.join(",\n")))
    }
}

/// Returns the comments about a schema, a line each.
fn comments(schema: &Json, indent: &str) -> String {
    let described = text_member(schema, "description").unwrap_or_default();
    let mut text = commented(described, indent);
    let plain = ["$ref", "anyOf", "enum"]
        .iter()
        .all(|other| schema.get(other).is_none());
    let limits: &[&str] = match text_member(schema, "type") {
        _ if !plain => &[],
        Some("string") => &["maxLength", "minLength", "pattern"],
        Some("number" | "integer") => &["maximum", "minimum"],
        Some("array") => &["maxItems", "minItems"],
        _ => &[],
    };
    let limits = limits.iter().filter_map(|limit| {
        let value = schema.get(limit)?;
        Some(format!("{limit}: {}", python_text(value)))
    });
    let limits: Vec<String> = limits.collect();
    if !limits.is_empty() {
        text += &format!("{indent}// {}\n", limits.join(", "));
    }
    text
}

fn commented(text: &str, indent: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let lines = text.split('\n').map(|line| match line {
        "" => "\n".to_owned(),
        line => format!("{indent}// {line}\n"),
    });
    lines.collect()
}

fn mentions_itself(schema: &Json) -> bool {
    match schema {
        Json::Object(members) => members.iter().any(|(name, value)| {
            (name == "$ref" && value.as_str() == Some("#")) || mentions_itself(value)
        }),
        Json::List(items) => items.iter().any(mentions_itself),
        _ => false,
    }
}

fn is_required(schema: &Json, name: &str) -> bool {
    let Some(Json::List(required)) = schema.get("required") else {
        return false;
    };
    required.iter().any(|known| known.as_str() == Some(name))
}

fn joined(kinds: impl Iterator<Item = String>) -> String {
    kinds.collect::<Vec<_>>().join(" | ")
}
