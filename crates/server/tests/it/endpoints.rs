//! Tests that go through all endpoints have to cover them: an endpoint that is declared without a case
//! in such a test makes it fail.

use std::collections::BTreeSet;

use tinkrs_wire::endpoint::{ALL, Endpoint};

/// Fails unless these are the names of all endpoints that `is_meant` picks.
pub(crate) fn assert_covers(covered: &BTreeSet<&str>, is_meant: impl Fn(&Endpoint) -> bool) {
    let meant = ALL.iter().filter(|endpoint| is_meant(endpoint));
    let meant: BTreeSet<&str> = meant.map(|endpoint| endpoint.name).collect();
    let missing: Vec<_> = meant.difference(covered).collect();
    assert!(missing.is_empty(), "not covered by this test: {missing:?}");
    let unknown: Vec<_> = covered.difference(&meant).collect();
    assert!(unknown.is_empty(), "not declared: {unknown:?}");
}
