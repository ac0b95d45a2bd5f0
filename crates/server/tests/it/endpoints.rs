//! The endpoints that the server has, read from its router.

use std::collections::BTreeSet;

/// Lists every route as its method and the name of its path, such as `POST CREATE_MODEL`.
///
/// A router cannot be asked what is in it, so this reads its source: tests that go through all
/// endpoints fail when somebody adds one and not a line for it.
pub(crate) fn all() -> BTreeSet<String> {
    let source = include_str!("../../src/router.rs");
    let mut found = BTreeSet::new();
    for route in source.split(".route(").skip(1) {
        let end = route.find(".route(").unwrap_or(route.len());
        let (path, handlers) = route[..end].split_once(',').expect("a path and handlers");
        let name = path.trim().trim_start_matches("route::");
        // What follows the last route is not part of it.
        let handlers = handlers.split(".fallback").next().unwrap_or_default();
        let handlers = handlers.split(".merge").next().unwrap_or_default();
        for method in ["get", "post", "put", "delete"] {
            if handlers.contains(&format!("{method}(")) {
                found.insert(format!("{} {name}", method.to_uppercase()));
            }
        }
    }
    // `/admin/faults` is put together elsewhere.
    for method in ["GET", "PUT", "DELETE"] {
        found.insert(format!("{method} faults::PATH"));
    }
    found
}

/// Fails unless these are all endpoints that `is_meant` picks.
pub(crate) fn assert_covers(covered: &BTreeSet<String>, is_meant: impl Fn(&str) -> bool) {
    let meant: BTreeSet<String> = all().into_iter().filter(|name| is_meant(name)).collect();
    let missing: Vec<_> = meant.difference(covered).collect();
    assert!(missing.is_empty(), "not covered by this test: {missing:?}");
    let unknown: Vec<_> = covered.difference(&meant).collect();
    assert!(unknown.is_empty(), "not in the router: {unknown:?}");
}

#[test]
fn the_router_is_read_as_it_is() {
    let all = all();
    for name in [
        "POST CREATE_MODEL",
        "GET SESSIONS",
        "PUT CHECKPOINT_TTL",
        "POST CHECKPOINT_PUBLISH",
        "DELETE CHECKPOINT_PUBLISH",
        "GET API_KEY_ME",
        "DELETE API_KEY_ME",
        "GET downloads::FILE",
        "GET HEALTHZ",
    ] {
        assert!(all.contains(name), "{name} in {all:?}");
    }
    assert!(!all.contains("POST SESSIONS") && all.len() > 45, "{all:?}");
}
