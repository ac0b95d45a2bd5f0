//! The committed OpenAPI document is what the table of endpoints gives today.

use serde_json::Value;
use std::path::Path;
use tinkrs_wire::{endpoint, openapi};

#[test]
fn the_committed_document_is_what_the_table_gives() {
    let fresh = format!("{:#}\n", openapi::document());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
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
fn every_endpoint_is_in_the_document() {
    let document = openapi::document();
    let mut listed = 0;
    for path in document["paths"].as_object().unwrap().values() {
        listed += path.as_object().unwrap().len();
    }
    assert_eq!(listed, endpoint::ALL.len());
    for endpoint in endpoint::ALL {
        let method = endpoint.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][endpoint.path][&method];
        assert_eq!(operation["operationId"], endpoint.name);
        let parameters = operation["parameters"].as_array();
        let parameters = parameters.map_or(&[][..], Vec::as_slice);
        let names = |place: &str| -> Vec<&str> {
            let inside = parameters.iter().filter(|it| it["in"] == place);
            inside.map(|it| it["name"].as_str().unwrap()).collect()
        };
        assert!(endpoint.parameters().eq(names("path")), "{}", endpoint.name);
        let query = endpoint.query.map_or(&[][..], |query| query.names());
        assert_eq!(names("query"), query, "{}", endpoint.name);
        for parameter in parameters {
            assert!(parameter["schema"].is_object(), "{parameter}");
        }
    }
}

#[test]
fn every_reference_leads_to_something() {
    fn check(value: &Value, document: &Value) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let pointer = reference.strip_prefix('#').expect("inside the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        match value {
            Value::Object(members) => members.values().for_each(|it| check(it, document)),
            Value::Array(items) => items.iter().for_each(|it| check(it, document)),
            _ => {}
        }
    }
    let document = openapi::document();
    check(&document, &document);
}
