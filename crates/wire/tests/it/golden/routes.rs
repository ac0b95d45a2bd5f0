//! The method and path of each operation, as the table of endpoints has them.

use tinkrs_wire::endpoint::{self, Endpoint, PathIds};

/// The ids that the vectors name: they are all about the same session and model.
struct Ids {
    kind: &'static str,
}

impl PathIds for Ids {
    fn get(&self, name: &str) -> Option<&str> {
        match name {
            "session_id" => Some("session-1"),
            "run_id" => Some("session-1:train:0"),
            "sampler_id" => Some("session-1:sample:0"),
            "kind" => Some(self.kind),
            "name" => Some("step-1"),
            _ => None,
        }
    }
}

/// Returns the endpoint that a vector's request goes to, and its path.
pub(super) fn of(operation: &str, variant: &str) -> (&'static Endpoint, String) {
    let endpoint = endpoint::named(operation)
        .unwrap_or_else(|| panic!("no endpoint is declared for `{operation}`"));
    let kind = match (operation, variant) {
        ("delete_checkpoint", "by_tinker_path") => "sampler_weights",
        ("get_external_weights_urls", _) => "external_weights",
        _ => "weights",
    };
    (endpoint, endpoint.at(&Ids { kind }))
}
