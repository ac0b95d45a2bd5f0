//! Request lines and headers: our endpoints, header names and content types are the SDK's.

use super::{folder, routes};
use serde_json::Value;
use std::collections::BTreeSet;
use tinkrs_types::admin::AuditEventType;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::session::AccessScope;
use tinkrs_wire::endpoint::{Clients, Content};
use tinkrs_wire::{SDK_VERSION, header};

fn requests() -> (Value, Vec<Value>) {
    let file = std::fs::read(folder("http/requests.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&file).unwrap();
    let Value::Array(requests) = json["requests"].take() else {
        panic!("no requests")
    };
    assert!(!requests.is_empty(), "no requests");
    (json["common_headers"].take(), requests)
}

fn text<'a>(request: &'a Value, member: &str) -> &'a str {
    request[member].as_str().unwrap()
}

#[test]
fn every_request_line_of_the_sdk_is_that_of_an_endpoint() {
    for request in requests().1 {
        let (operation, variant) = (text(&request, "operation"), text(&request, "variant"));
        let target = text(&request, "target");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (endpoint, expected) = routes::of(operation, variant);
        let found = (text(&request, "method"), path);
        let expected = (endpoint.method.as_str(), expected.as_str());
        assert_eq!(found, expected, "{operation}.{variant}");
        let declared = endpoint.query.map_or(&[][..], |query| query.names());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap();
            assert!(declared.contains(&name), "{operation}.{variant}: {name}");
        }
        assert_eq!(endpoint.clients, Clients::Official, "{operation}");
    }
}

#[test]
fn every_choice_in_a_query_has_the_name_that_we_give_it() {
    let scopes = [AccessScope::Owned, AccessScope::Accessible].map(AccessScope::name);
    let events = [
        AuditEventType::All,
        AuditEventType::Checkpoints,
        AuditEventType::Projects,
        AuditEventType::Teams,
        AuditEventType::Organizations,
    ]
    .map(AuditEventType::name);
    let mut seen = BTreeSet::new();
    for request in requests().1 {
        let query = text(&request, "target").split_once('?').map_or("", |t| t.1);
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("access_scope", scope)) => assert!(scopes.contains(&scope), "{pair}"),
                Some(("event_type", event)) => assert!(events.contains(&event), "{pair}"),
                _ => continue,
            }
            seen.insert(pair.to_owned());
        }
    }
    assert!(seen.contains("access_scope=accessible"), "{seen:?}");
    assert!(seen.contains("event_type=checkpoints"), "{seen:?}");
}

/// Headers without a constant: HTTP libraries write them, or no server needs them.
const NOT_NAMED: [&str; 10] = [
    "accept",
    "accept-encoding",
    "content-encoding",
    "content-type",
    "user-agent",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-os",
    "x-stainless-raw-response",
    "x-stainless-runtime",
];

/// Headers of requests that have a constant.
const NAMED: [&str; 12] = [
    header::API_KEY,
    header::CREATE_PROMISE_ROUNDTRIP_TIME,
    header::IDEMPOTENCY_KEY,
    header::PACKAGE_VERSION,
    header::READ_TIMEOUT,
    header::REQUEST_ITERATION,
    header::REQUEST_TYPE,
    header::RETRY_COUNT,
    header::SAMPLING_BACKPRESSURE,
    header::SDK_METHOD,
    header::SDK_VERSION,
    header::WEIGHTS_ACCESS_TOKEN,
];

#[test]
fn every_header_of_the_sdk_has_the_name_that_we_give_it() {
    let (common, requests) = requests();
    let requests = requests.iter().map(|request| &request["headers"]);
    let names: BTreeSet<&str> = requests
        .chain([&common])
        .flat_map(|headers| headers.as_object().unwrap().keys().map(String::as_str))
        .filter(|name| !NOT_NAMED.iter().any(|known| name.starts_with(known)))
        .collect();
    assert_eq!(names, BTreeSet::from(NAMED));
    assert_eq!(common[header::PACKAGE_VERSION], SDK_VERSION);
}

#[test]
fn bodies_and_results_have_the_content_types_that_we_name() {
    for request in requests().1 {
        let name = text(&request, "operation");
        let headers = &request["headers"];
        let sent = match text(&request, "body") {
            "protobuf" => Some(header::PROTOBUF),
            "json" => Some(header::JSON),
            _ => None,
        };
        if let Some(sent) = sent {
            assert_eq!(headers["content-type"], sent, "{name}");
        }
        let declared = match routes::of(name, text(&request, "variant")).0.request {
            Content::Message { .. } => Some(header::PROTOBUF),
            Content::Json(_) => Some(header::JSON),
            _ => None,
        };
        assert_eq!(sent, declared, "{name}");
        let is_message = ["Forward", "ForwardBackward", "Sample"];
        let kind = headers[header::REQUEST_TYPE].as_str();
        let wanted = if kind.is_some_and(|kind| is_message.contains(&kind)) {
            header::PROTOBUF
        } else {
            header::JSON
        };
        let plain = request["without_common_headers"] == true;
        assert_eq!(
            headers["accept"],
            if plain { "*/*" } else { wanted },
            "{name}"
        );
    }
}

#[test]
fn every_request_type_has_the_name_that_the_sdk_sends() {
    let ours = [
        RequestType::CreateModel,
        RequestType::Forward,
        RequestType::ForwardBackward,
        RequestType::OptimStep,
        RequestType::SaveWeights,
        RequestType::LoadWeights,
        RequestType::SaveWeightsForSampler,
        RequestType::SaveWeightsExternal,
        RequestType::Sample,
        RequestType::CreateCustomLoss,
    ];
    let (_, requests) = requests();
    let sent: BTreeSet<&str> = requests
        .iter()
        .filter_map(|request| request["headers"][header::REQUEST_TYPE].as_str())
        .collect();
    assert_eq!(sent, BTreeSet::from(ours.map(RequestType::name)));
}
