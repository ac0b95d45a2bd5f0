//! Tests that go through all endpoints have to cover them: an endpoint that is declared without a case
//! in such a test makes it fail.

use std::collections::BTreeSet;

use http::Method;
use tinkrs_wire::endpoint::{ALL, Endpoint, OPENAPI};
use tinkrs_wire::openapi;

use crate::caller::TestServer;

/// Fails unless these are the names of all endpoints that `is_meant` picks.
pub(crate) fn assert_covers(covered: &BTreeSet<&str>, is_meant: impl Fn(&Endpoint) -> bool) {
    let meant = ALL.iter().filter(|endpoint| is_meant(endpoint));
    let meant: BTreeSet<&str> = meant.map(|endpoint| endpoint.name).collect();
    let missing: Vec<_> = meant.difference(covered).collect();
    assert!(missing.is_empty(), "not covered by this test: {missing:?}");
    let unknown: Vec<_> = covered.difference(&meant).collect();
    assert!(unknown.is_empty(), "not declared: {unknown:?}");
}

#[tokio::test]
async fn the_openapi_document_is_for_everyone() {
    let server = TestServer::start().await;
    let without_key = [("x-api-key", "")];
    let answer = server.try_send(Method::GET, OPENAPI.path, &without_key, "");
    let answer = answer.await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.json(), openapi::document());
}
