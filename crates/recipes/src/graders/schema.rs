//! Whether a JSON value keeps to a schema.
//!
//! The keywords that say which values are allowed are known; one that is not is refused when the schema is read, not
//! passed over when an answer is graded.

use regex::Regex;
use serde_json::{Map, Value};

const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];
/// Keywords that say nothing about which values are allowed.
const NOTES: [&str; 9] = [
    "$schema",
    "$id",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "$comment",
    "format",
];
const DEEPEST: usize = 64;

/// A schema that can be checked against.
#[derive(Clone, Debug)]
pub struct Schema(Node);

#[derive(Clone, Debug)]
enum Node {
    Any,
    Nothing,
    Rules(Vec<Rule>),
}

#[derive(Clone, Debug)]
enum Rule {
    Types(Vec<String>),
    OneOfValues(Vec<Value>),
    Number(fn(f64, f64) -> bool, f64),
    Length(fn(usize, usize) -> bool, usize),
    Items(fn(usize, usize) -> bool, usize),
    Members(fn(usize, usize) -> bool, usize),
    Pattern(Regex),
    Each(Box<Node>),
    Places(Vec<Node>),
    Unique,
    Required(Vec<String>),
    Properties(Vec<(String, Node)>, Box<Node>),
    All(Vec<Node>),
    AnyOf(Vec<Node>),
    One(Vec<Node>),
    Not(Box<Node>),
}

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// If a keyword is not known or its value cannot be; the error names it.
    pub fn new(schema: &Value) -> Result<Self, String> {
        node(schema, schema, 0).map(Self)
    }

    /// Returns whether a value keeps to it.
    pub fn accepts(&self, value: &Value) -> bool {
        self.0.accepts(value)
    }
}

fn nodes(list: &Value, root: &Value, depth: usize, key: &str) -> Result<Vec<Node>, String> {
    let list = list
        .as_array()
        .ok_or_else(|| format!("`{key}` is not a list"))?;
    list.iter()
        .map(|item| node(item, root, depth + 1))
        .collect()
}

fn texts(list: &Value, key: &str) -> Result<Vec<String>, String> {
    let list = list.as_array().map(Vec::as_slice);
    let list = list.ok_or_else(|| format!("`{key}` is not a list"))?;
    let text = |item: &Value| item.as_str().map(str::to_owned);
    let texts: Option<Vec<_>> = list.iter().map(text).collect();
    texts.ok_or_else(|| format!("`{key}` is not a list of texts"))
}

fn node(schema: &Value, root: &Value, depth: usize) -> Result<Node, String> {
    if depth > DEEPEST {
        return Err(format!(
            "more than {DEEPEST} schemas in each other; recursive ones are not read"
        ));
    }
    let members = match schema {
        Value::Bool(true) => return Ok(Node::Any),
        Value::Bool(false) => return Ok(Node::Nothing),
        Value::Object(members) => members,
        _ => return Err("a schema is an object, `true` or `false`".to_owned()),
    };
    let mut rules = Vec::new();
    for (key, value) in members {
        rules.extend(rule(key, value, members, root, depth)?);
    }
    Ok(Node::Rules(rules))
}

fn rule(
    key: &str,
    value: &Value,
    beside: &Map<String, Value>,
    root: &Value,
    depth: usize,
) -> Result<Option<Rule>, String> {
    let inner = |value: &Value| node(value, root, depth + 1).map(Box::new);
    let count = || {
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| format!("`{key}` is not a whole number"))
    };
    let number = || {
        value
            .as_f64()
            .ok_or_else(|| format!("`{key}` is not a number"))
    };
    Ok(Some(match key {
        _ if NOTES.contains(&key) => return Ok(None),
        // These are read with what refers to them, or stand beside it.
        "$defs" | "definitions" | "additionalProperties" => return Ok(None),
        "$ref" => {
            let path = value.as_str().and_then(|path| path.strip_prefix('#'));
            let found = path.and_then(|path| root.pointer(path));
            let found = found.ok_or_else(|| format!("`$ref`: {value} is not in this schema"))?;
            Rule::All(vec![*inner(found)?])
        }
        "type" => {
            let types = match value {
                Value::String(name) => vec![name.clone()],
                list => texts(list, key)?,
            };
            if let Some(name) = types.iter().find(|name| !TYPES.contains(&name.as_str())) {
                return Err(format!(
                    "`type`: `{name}`, expected one of {}",
                    TYPES.join(", ")
                ));
            }
            Rule::Types(types)
        }
        "enum" => {
            let values = value.as_array().ok_or("`enum` is not a list")?;
            Rule::OneOfValues(values.clone())
        }
        "const" => Rule::OneOfValues(vec![value.clone()]),
        "minimum" => Rule::Number(|found, limit| found >= limit, number()?),
        "maximum" => Rule::Number(|found, limit| found <= limit, number()?),
        "exclusiveMinimum" => Rule::Number(|found, limit| found > limit, number()?),
        "exclusiveMaximum" => Rule::Number(|found, limit| found < limit, number()?),
        "multipleOf" => {
            let step = number()?;
            if step <= 0.0 {
                return Err("`multipleOf` is not more than 0".to_owned());
            }
            Rule::Number(|found, step| (found / step).fract() == 0.0, step)
        }
        "minLength" => Rule::Length(|found, limit| found >= limit, count()?),
        "maxLength" => Rule::Length(|found, limit| found <= limit, count()?),
        "minItems" => Rule::Items(|found, limit| found >= limit, count()?),
        "maxItems" => Rule::Items(|found, limit| found <= limit, count()?),
        "minProperties" => Rule::Members(|found, limit| found >= limit, count()?),
        "maxProperties" => Rule::Members(|found, limit| found <= limit, count()?),
        "pattern" => {
            let pattern = value.as_str().ok_or("`pattern` is not a text")?;
            Rule::Pattern(Regex::new(pattern).map_err(|error| format!("`pattern`: {error}"))?)
        }
        "items" => Rule::Each(inner(value)?),
        "prefixItems" => Rule::Places(nodes(value, root, depth, key)?),
        "uniqueItems" if value == &Value::Bool(true) => Rule::Unique,
        "uniqueItems" => return Ok(None),
        "required" => Rule::Required(texts(value, key)?),
        "properties" => {
            let members = value.as_object().ok_or("`properties` is not an object")?;
            let members = members
                .iter()
                .map(|(name, schema)| Ok((name.clone(), node(schema, root, depth + 1)?)));
            let members = members.collect::<Result<_, String>>()?;
            let others = beside
                .get("additionalProperties")
                .unwrap_or(&Value::Bool(true));
            Rule::Properties(members, inner(others)?)
        }
        "allOf" => Rule::All(nodes(value, root, depth, key)?),
        "anyOf" => Rule::AnyOf(nodes(value, root, depth, key)?),
        "oneOf" => Rule::One(nodes(value, root, depth, key)?),
        "not" => Rule::Not(inner(value)?),
        _ => return Err(format!("the keyword `{key}` is not known")),
    }))
}

impl Node {
    fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Nothing => false,
            Self::Rules(rules) => rules.iter().all(|rule| rule.accepts(value)),
        }
    }
}

impl Rule {
    fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Types(types), value) => types.iter().any(|name| is_type(value, name)),
            (Self::OneOfValues(values), value) => values.contains(value),
            (Self::Number(holds, limit), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| holds(number, *limit))
            }
            (Self::Length(holds, limit), Value::String(text)) => {
                holds(text.chars().count(), *limit)
            }
            (Self::Items(holds, limit), Value::Array(items)) => holds(items.len(), *limit),
            (Self::Members(holds, limit), Value::Object(members)) => holds(members.len(), *limit),
            (Self::Pattern(pattern), Value::String(text)) => pattern.is_match(text),
            (Self::Each(node), Value::Array(items)) => items.iter().all(|item| node.accepts(item)),
            (Self::Places(nodes), Value::Array(items)) => nodes
                .iter()
                .zip(items)
                .all(|(node, item)| node.accepts(item)),
            (Self::Unique, Value::Array(items)) => {
                let seen = |at: usize| items[..at].contains(&items[at]);
                !(0..items.len()).any(seen)
            }
            (Self::Required(names), Value::Object(members)) => {
                names.iter().all(|name| members.contains_key(name))
            }
            (Self::Properties(known, others), Value::Object(members)) => {
                members.iter().all(|(name, value)| {
                    let node = known.iter().find(|(known, _)| known == name);
                    node.map_or(&**others, |(_, node)| node).accepts(value)
                })
            }
            (Self::All(nodes), value) => nodes.iter().all(|node| node.accepts(value)),
            (Self::AnyOf(nodes), value) => nodes.iter().any(|node| node.accepts(value)),
            (Self::One(nodes), value) => {
                nodes.iter().filter(|node| node.accepts(value)).count() == 1
            }
            (Self::Not(node), value) => !node.accepts(value),
            // A rule about one type says nothing about others.
            _ => true,
        }
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    match (name, value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_))
        | ("string", Value::String(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_)) => true,
        ("integer", Value::Number(number)) => {
            number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_accepted_as_the_keywords_say() {
        let schema = json!({
            "$defs": {"age": {"type": "integer", "minimum": 0}},
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
                "age": {"$ref": "#/$defs/age"},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "uniqueItems": true},
                "id": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "additionalProperties": false,
        });
        let schema = Schema::new(&schema).unwrap();
        for good in [
            json!({"name": "Ada"}),
            json!({"name": "Ada", "age": 3.0, "tags": ["a", "b"], "id": 7}),
        ] {
            assert!(schema.accepts(&good), "{good}");
        }
        for bad in [
            json!([]),
            json!({}),
            json!({"name": ""}),
            json!({"name": "ada"}),
            json!({"name": "Ada", "age": -1}),
            json!({"name": "Ada", "age": 1.5}),
            json!({"name": "Ada", "tags": ["c"]}),
            json!({"name": "Ada", "tags": ["a", "a"]}),
            json!({"name": "Ada", "other": 1}),
            json!({"name": "Ada", "id": null}),
        ] {
            assert!(!schema.accepts(&bad), "{bad}");
        }
    }

    #[test]
    fn a_schema_that_would_not_be_checked_is_refused() {
        for (schema, problem) in [
            (json!({"typ": "object"}), "`typ` is not known"),
            (json!({"type": "text"}), "`text`, expected one of null"),
            (json!({"items": {"pattern": "("}}), "`pattern`: "),
            (json!({"$ref": "#/$defs/none"}), "is not in this schema"),
            (
                json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
                "recursive",
            ),
            (json!({"if": true}), "`if` is not known"),
            (json!([1]), "a schema is an object"),
        ] {
            let error = Schema::new(&schema).unwrap_err();
            assert!(error.contains(problem), "{schema}: {error}");
        }
    }
}
