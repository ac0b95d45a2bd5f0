//! `docs/http-api.md`, the OpenAPI document for people to read, is what the table of endpoints gives today.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value};
use tinkrs_wire::openapi;

const HEAD: &str = "# HTTP API

Every endpoint of `tinkrs serve`, with what it takes and what it answers. [openapi.json](openapi.json) has the same for programs, and a server shows it at
`GET /openapi.json`. Both are written from the table of endpoints that server and client are made from:
`TINKRS_BLESS=1 cargo test -p tinkrs-wire --features schema openapi`.

A key is sent as `X-API-Key` or `Authorization: Bearer`. Training and sampling answer with a promise; its result is fetched from
`/api/v1/retrieve_future`. Numbers after a refusal are HTTP's: 4xx is the caller's, 5xx is the server's and worth a retry.
";

/// Whether a path is in a group.
type Belongs = fn(&str) -> bool;

/// The groups of endpoints, in the order of the page: a heading, and which paths are in it.
const GROUPS: [(&str, Belongs); 4] = [
    ("The Tinker API", |path| path.starts_with("/api/")),
    ("The OpenAI API", |path| {
        (path.starts_with("/v1/") || path.starts_with("/oai/")) && !path.contains("/messages")
    }),
    ("The Anthropic API", |path| path.contains("/messages")),
    ("About the server", |_| true),
];

#[test]
fn the_committed_page_is_what_the_table_gives() {
    let fresh = page(&openapi::document());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-api.md");
    if std::env::var_os("TINKRS_BLESS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == fresh,
        "out of date: TINKRS_BLESS=1 cargo test -p tinkrs-wire --features schema openapi"
    );
}

#[test]
fn every_endpoint_and_type_has_its_place_on_the_page() {
    let document = openapi::document();
    let page = page(&document);
    for (path, methods) in object(&document["paths"]) {
        for method in object(methods).keys() {
            let heading = format!("### `{} {path}`\n", method.to_uppercase());
            assert_eq!(page.matches(&heading).count(), 1, "{heading}");
        }
    }
    for name in object(&document["components"]["schemas"]).keys() {
        assert!(page.contains(&format!("\n### {name}\n")), "{name}");
    }
}

fn object(value: &Value) -> &Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.as_object().unwrap_or(&EMPTY)
}

fn page(document: &Value) -> String {
    let mut page = HEAD.to_owned();
    let mut left: Vec<_> = object(&document["paths"]).iter().collect();
    for (title, belongs) in GROUPS {
        let (here, others) = left.into_iter().partition(|(path, _)| belongs(path));
        left = others;
        write!(page, "\n## {title}\n").unwrap();
        let here: Vec<(&String, &Value)> = here;
        for (path, methods) in here {
            for (method, operation) in object(methods) {
                page += &endpoint(path, method, operation);
            }
        }
    }
    page += "\n## Types\n";
    for (name, schema) in object(&document["components"]["schemas"]) {
        write!(page, "\n### {name}\n\n{}", definition(schema)).unwrap();
    }
    page
}

fn endpoint(path: &str, method: &str, operation: &Value) -> String {
    let summary = sentence(&operation["summary"]);
    let mut text = format!("\n### `{} {path}`\n\n{summary}\n", method.to_uppercase());
    if let Some(parameters) = operation["parameters"].as_array() {
        text += "\n| parameter | in | type | |\n|---|---|---|---|\n";
        for parameter in parameters {
            let name = parameter["name"].as_str().unwrap();
            let place = parameter["in"].as_str().unwrap();
            let kind = kind(&parameter["schema"]);
            let about = sentence(&parameter["description"]);
            writeln!(text, "| `{name}` | {place} | {kind} | {about} |").unwrap();
        }
    }
    let mut facts = Vec::new();
    if let Some(body) = bodies(&operation["requestBody"]["content"]) {
        facts.push(format!("takes {body}"));
    }
    for (status, response) in object(&operation["responses"]) {
        let Some(body) = bodies(&response["content"]) else {
            continue;
        };
        facts.push(format!("answers {status} with {body}"));
    }
    if operation["security"].as_array().is_none_or(Vec::is_empty) {
        facts.push("needs no key".to_owned());
    }
    if let Some(first) = facts.first_mut() {
        first.replace_range(..1, &first[..1].to_uppercase());
        writeln!(text, "\n{}.", facts.join("; ")).unwrap();
    }
    text
}

/// The forms of a body: a type, and its media type where that is not JSON.
fn bodies(content: &Value) -> Option<String> {
    let forms: Vec<_> = object(content)
        .iter()
        .map(|(media, body)| match media.as_str() {
            "application/json" => kind(&body["schema"]),
            media if body["schema"].get("$ref").is_some() => {
                format!("{} as `{media}`", kind(&body["schema"]))
            }
            media => format!("`{media}`"),
        })
        .collect();
    (!forms.is_empty()).then(|| forms.join(" or "))
}

fn definition(schema: &Value) -> String {
    let mut text = String::new();
    let about = sentence(&schema["description"]);
    if !about.is_empty() {
        writeln!(text, "{about}\n").unwrap();
    }
    text += &members(schema);
    for either in ["oneOf", "anyOf"] {
        for choice in schema[either].as_array().into_iter().flatten() {
            let about = sentence(&choice["description"]);
            let name = match choice.get("const") {
                Some(value) => format!("`{value}`"),
                None => kind(choice),
            };
            let inner = members(choice).replace('\n', "\n  ");
            write!(text, "- {name}: {about}\n\n  {}", inner.trim_end()).unwrap();
            text = format!("{}\n", text.trim_end().trim_end_matches(':'));
        }
    }
    if schema.get("properties").is_none()
        && schema.get("oneOf").is_none()
        && schema.get("anyOf").is_none()
    {
        writeln!(text, "Is {}.", kind(schema)).unwrap();
    }
    text
}

/// The members of an object as a table, or nothing.
fn members(schema: &Value) -> String {
    let properties = object(&schema["properties"]);
    if properties.is_empty() {
        return String::new();
    }
    let required: Vec<_> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let mut text = "| member | type | default | |\n|---|---|---|---|\n".to_owned();
    for (name, property) in properties {
        let default = match property.get("default") {
            _ if required.iter().any(|it| *it == name) => "required".to_owned(),
            None | Some(Value::Null) => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let (kind, about) = (kind(property), sentence(&property["description"]));
        writeln!(text, "| `{name}` | {kind} | {default} | {about} |").unwrap();
    }
    text
}

/// A type in a few words, with a link if it has a name.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    for either in ["anyOf", "oneOf", "allOf"] {
        if let Some(choices) = schema[either].as_array() {
            let kinds: Vec<_> = choices.iter().map(kind).collect();
            return kinds.join(" or ");
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(" or ");
    }
    let name = |name: &str| match name {
        "array" if schema["items"].is_object() => format!("list of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", kind(&schema["additionalProperties"]))
        }
        name => match schema["format"].as_str() {
            Some(format) if name != "number" => format!("{name} ({format})"),
            _ => name.to_owned(),
        },
    };
    match &schema["type"] {
        Value::String(kind) => name(kind),
        Value::Array(kinds) => {
            let kinds: Vec<_> = kinds.iter().filter_map(Value::as_str).map(name).collect();
            kinds.join(" or ")
        }
        _ => "any JSON".to_owned(),
    }
}

/// The text of a description without its example, as one line that can stand in a table.
fn sentence(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    let prose = text.split("\n```").next().unwrap_or_default();
    let mut line = prose.split_whitespace().collect::<Vec<_>>().join(" ");
    // A link to another item of the Rust code is of no use here.
    while let Some(start) = line.find("[`") {
        let Some(end) = line[start..].find("`]").map(|end| start + end) else {
            break;
        };
        let name = line[start + 1..=end].to_owned();
        let mut rest = end + 2;
        if line[rest..].starts_with('(') {
            rest += line[rest..].find(')').map_or(0, |close| close + 1);
        }
        line.replace_range(start..rest, &name);
    }
    line.replace('|', "\\|").replace('<', "&lt;")
}
