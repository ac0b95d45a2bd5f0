//! Every endpoint of the API, declared once.
//!
//! [`ALL`] is the whole list, and each declaration also has a name of its own, such as
//! [`CREATE_SESSION`]. Everything else that knows about endpoints is derived from it: the client's
//! methods and paths, the server's router and its refusal of queries that no handler reads, the
//! scripted server's routes, the tests that go through all endpoints, and the OpenAPI document.
//!
//! To add an endpoint, declare it in `endpoint/table.rs`, attach a handler to it in the server's
//! router, and call it from a method of the client.
//!
//! ```
//! use tinkrs_types::SessionId;
//! use tinkrs_wire::endpoint;
//!
//! let id = SessionId::new("s-1");
//! assert_eq!(endpoint::FINISH_SESSION.method, "POST");
//! assert_eq!(endpoint::FINISH_SESSION.at(&id), "/api/v1/sessions/s-1/finish");
//! ```

mod content;
mod declare;
mod dialect;
mod query;
mod table;

pub use content::{Content, JsonType};
pub use dialect::Dialect;
pub use query::Query;
pub use table::*;

use http::Method;
use tinkrs_types::{ModelId, SamplingSessionId, SessionId, TinkerPath};

/// What the path of every endpoint of the API starts with, behind the base URL. Endpoints for people
/// and for monitoring are outside of it.
pub const PREFIX: &str = "/api/v1";

/// One method at one path.
#[derive(Debug)]
pub struct Endpoint {
    /// The name of the operation, as in errors, logs and the OpenAPI document.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub doc: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The whole path behind the base URL. Ids stand in it by name, such as `{session_id}`.
    pub path: &'static str,
    /// Who may call it.
    pub auth: Auth,
    /// The parameters of its query. Without any, a query is refused.
    pub query: Option<Query>,
    /// The body of the request.
    pub request: Content,
    /// The answer, if all goes well.
    pub response: Response,
    /// What each server-sent event holds, for requests that ask for a stream of them.
    pub events: Option<JsonType>,
    /// Which clients call it.
    pub clients: Clients,
    /// Whether a link that shows one run may read it, as far as it is about that run.
    pub shared: bool,
}

/// Who may call an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Everyone.
    Public,
    /// Holders of an API key or a token, in the header `X-API-Key`.
    Key,
    /// Callers on the server's own machine with an admin key, in the header `X-API-Key`.
    Admin,
    /// Everyone who has a signed link, until it expires.
    SignedLink,
    /// People with a browser: holders of the cookie that logging in sets, or of an API key, which may also come as
    /// the password of HTTP Basic. Others are sent to the page that logs in.
    Login,
}

/// How an endpoint answers a request that it accepts.
#[derive(Clone, Copy, Debug)]
pub enum Response {
    /// With the result.
    Result(Content),
    /// With a [promise](tinkrs_types::protocol::Promise) of a result, which is fetched by [`RETRIEVE_FUTURE`].
    Promise(Content),
    /// With the result of an earlier request that was answered by a promise, or with news of it.
    Future,
    /// With a redirect to a signed link, whose target this is.
    Redirect(Content),
}

/// Which clients call an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// The official SDK, in its current releases.
    Official,
    /// Older releases of the official SDK only.
    Older,
    /// None but ours: it is not part of the official API.
    Ours,
    /// Those of other APIs, which it is a part of.
    Others,
}

impl Endpoint {
    const fn new(method: Method, path: &'static str) -> Self {
        Self {
            name: "",
            doc: "",
            method,
            path,
            auth: Auth::Key,
            query: None,
            request: Content::None,
            response: Response::Result(Content::None),
            events: None,
            clients: Clients::Official,
            shared: false,
        }
    }

    const fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    const fn query(mut self, query: Query) -> Self {
        self.query = Some(query);
        self
    }

    const fn takes(mut self, request: Content) -> Self {
        self.request = request;
        self
    }

    const fn returns(mut self, result: Content) -> Self {
        self.response = Response::Result(result);
        self
    }

    const fn streams(mut self, events: JsonType) -> Self {
        self.events = Some(events);
        self
    }

    const fn promises(mut self, result: Content) -> Self {
        self.response = Response::Promise(result);
        self
    }

    const fn retrieves(mut self) -> Self {
        self.response = Response::Future;
        self
    }

    const fn redirects(mut self, target: Content) -> Self {
        self.response = Response::Redirect(target);
        self
    }

    const fn clients(mut self, clients: Clients) -> Self {
        self.clients = clients;
        self
    }

    const fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    const fn named(mut self, name: &'static str, doc: &'static str) -> Self {
        self.name = name;
        self.doc = doc;
        self
    }

    /// Returns the API that it is a part of.
    pub fn dialect(&self) -> Dialect {
        Dialect::of_path(self.path)
    }

    /// Returns the path with ids in the place of their names.
    ///
    /// Ids go in as they are: they may contain `:`, and a checkpoint id is two segments.
    pub fn at(&self, ids: &impl PathIds) -> String {
        let value = |segment: &'static str| match parameter(segment) {
            Some(name) => {
                let id = ids.get(name);
                debug_assert!(id.is_some(), "{}: no id for `{name}`", self.name);
                id.unwrap_or(segment)
            }
            None => segment,
        };
        let segments: Vec<_> = self.path.split('/').map(value).collect();
        segments.join("/")
    }

    /// Returns the names of the ids in the path.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(parameter)
    }

    /// Returns the ids in a path, in their order, if it is one of this endpoint.
    pub fn ids<'a>(&self, path: &'a str) -> Option<Vec<&'a str>> {
        let mut ids = Vec::new();
        let mut found = path.split('/');
        for expected in self.path.split('/') {
            let segment = found.next()?;
            match parameter(expected) {
                Some(_) => ids.push(segment),
                None if segment != expected => return None,
                None => {}
            }
        }
        found.next().is_none().then_some(ids)
    }
}

/// Finds an endpoint by the name of its operation.
pub fn named(name: &str) -> Option<&'static Endpoint> {
    ALL.iter().copied().find(|endpoint| endpoint.name == name)
}

/// Returns the name of the id that a segment of a path stands for, if it does.
fn parameter(segment: &'static str) -> Option<&'static str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

/// An id that goes into paths, or several.
pub trait PathIds {
    /// Returns the id of this name, such as `session_id`.
    fn get(&self, name: &str) -> Option<&str>;
}

impl PathIds for SessionId {
    fn get(&self, name: &str) -> Option<&str> {
        (name == "session_id").then_some(self.as_str())
    }
}

impl PathIds for ModelId {
    fn get(&self, name: &str) -> Option<&str> {
        (name == "run_id").then_some(self.as_str())
    }
}

impl PathIds for SamplingSessionId {
    fn get(&self, name: &str) -> Option<&str> {
        (name == "sampler_id").then_some(self.as_str())
    }
}

impl PathIds for TinkerPath {
    fn get(&self, name: &str) -> Option<&str> {
        match name {
            "run_id" => Some(self.run().as_str()),
            "kind" => Some(self.kind().segment()),
            "name" => Some(self.name()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_go_into_paths_as_they_are() {
        let path: TinkerPath = "tinker://u-1:train:0/weights/step-1".parse().unwrap();
        assert_eq!(
            PUBLISH_CHECKPOINT.at(&path),
            "/api/v1/training_runs/u-1:train:0/checkpoints/weights/step-1/publish"
        );
        let sampler = SamplingSessionId::new("s:sample:3");
        assert_eq!(GET_SAMPLER.at(&sampler), "/api/v1/samplers/s:sample:3");
    }

    #[test]
    fn an_id_that_looks_like_a_placeholder_stays_as_it_is() {
        let path: TinkerPath = "tinker://{name}/weights/{run_id}".parse().unwrap();
        assert_eq!(
            DELETE_CHECKPOINT.at(&path),
            "/api/v1/training_runs/{name}/checkpoints/weights/{run_id}"
        );
    }

    #[test]
    fn ids_are_found_in_the_paths_of_their_endpoint_only() {
        let ids = SET_CHECKPOINT_TTL.ids("/api/v1/training_runs/r/checkpoints/weights/a/ttl");
        assert_eq!(ids, Some(vec!["r", "weights", "a"]));
        assert_eq!(CREATE_SESSION.ids("/api/v1/create_session"), Some(vec![]));
        for other in [
            "/api/v1/sessions",
            "/api/v1/sessions/s/finish",
            "/sessions/s",
        ] {
            assert_eq!(GET_SESSION.ids(other), None, "{other}");
        }
    }

    #[test]
    fn every_declaration_is_complete_and_unlike_the_others() {
        let mut names = BTreeSet::new();
        let mut places = BTreeSet::new();
        for endpoint in ALL {
            let name = endpoint.name;
            assert!(names.insert(name), "{name} is declared twice");
            let place = format!("{} {}", endpoint.method, endpoint.path);
            assert!(places.insert(place.clone()), "{place} is declared twice");
            assert!(
                endpoint.doc.starts_with(char::is_uppercase) && endpoint.doc.ends_with('.'),
                "{name}: {:?} is not a sentence",
                endpoint.doc
            );
            let is_api = endpoint.path.starts_with(&format!("{PREFIX}/"));
            assert!(
                is_api || matches!(endpoint.clients, Clients::Ours | Clients::Others),
                "{name} is not under {PREFIX}"
            );
            assert_eq!(
                endpoint.dialect() == Dialect::Tinker,
                endpoint.clients != Clients::Others,
                "{name}"
            );
            let ids: BTreeSet<_> = endpoint.parameters().collect();
            assert_eq!(ids.len(), endpoint.parameters().count(), "{name}");
            if endpoint.method == Method::GET {
                assert!(matches!(endpoint.request, Content::None), "{name}");
            }
            if let Some(query) = &endpoint.query {
                assert!(!query.names().is_empty(), "{name}");
            }
        }
        assert_eq!(named("create_session").unwrap().path, CREATE_SESSION.path);
        assert!(named("nothing").is_none());
    }
}
