//! From the cookies of a request to what its sender may do.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use tinkrs_types::ModelId;
use tinkrs_wire::endpoint::{self, Endpoint};
use tinkrs_wire::header as names;

use super::headers::refresh;
use super::origin::{Sender, sender};
use crate::Server;
use crate::auth::{Auth, Owner, Pass};
use crate::error::ApiError;

/// The cookie of whoever logged in.
pub(crate) const LOGIN_COOKIE: &str = "tinkrs_studio";
/// The cookie of whoever followed a link to one run. Following it does not log anybody out.
pub(crate) const SHARE_COOKIE: &str = "tinkrs_share";

/// What the cookies of a request allow, if there is one that is still good.
///
/// # Errors
///
/// When the request is a write that may come from another site, or nothing that the cookie allows.
pub(crate) fn admit_cookies(
    server: &Server,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<Pass>, ApiError> {
    let Some(pass) = pass_for(server.auth(), method, uri, headers) else {
        return Ok(None);
    };
    let is_read = [Method::GET, Method::HEAD].contains(method);
    if let Some(run) = &pass.run
        && (!is_read || !is_shared(run, method, uri.path()))
    {
        return Err(ApiError::forbidden(format!(
            "this link reads the run {run} and nothing else"
        )));
    }
    let public = server.shared().settings.public_url.as_deref();
    let sender = sender(headers, public);
    if sender == Sender::OtherPage {
        return Err(ApiError::forbidden(
            "this request was sent by a page of another site",
        ));
    }
    if !is_read {
        let marked = headers.get(names::STUDIO).is_some_and(|value| value == "1");
        if sender != Sender::OurPage || !marked {
            return Err(ApiError::forbidden(
                "a write with a cookie needs the header `X-Tinkrs-Studio: 1`, and `Origin` or `Sec-Fetch-Site` of \
                 this server's own pages",
            ));
        }
    }
    Ok(Some(pass))
}

/// Picks the cookie to use: that of a run for what is about the run, unless its owner logged in.
fn pass_for(auth: &Auth, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Pass> {
    let now = Timestamp::now();
    let admitted = |name| cookie(headers, name).and_then(|it| auth.admit_cookie(it, now).ok());
    let login = admitted(LOGIN_COOKIE);
    let shared = admitted(SHARE_COOKIE);
    match (login, shared) {
        (Some(login), Some(shared)) => {
            let is_other = login.owner != shared.owner;
            let is_about = |run| is_shared(run, method, uri.path()) && names_run(uri.path());
            let is_meant = shared.run.as_ref().is_some_and(is_about);
            Some(if is_other && is_meant { shared } else { login })
        }
        (login, shared) => login.or(shared),
    }
}

/// Returns the value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).into_iter();
    let pairs = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    let mut values = pairs.filter_map(|pair| pair.trim().split_once('='));
    values.find(|(found, _)| *found == name).map(|(_, it)| it)
}

/// Decides whether a link to a run reads this path.
fn is_shared(run: &ModelId, method: &Method, path: &str) -> bool {
    let read = |endpoint: &&&Endpoint| endpoint.shared && endpoint.method == *method;
    let method_matches = endpoint::ALL.iter().filter(read);
    let mut found = method_matches.filter_map(|endpoint| Some((endpoint, endpoint.ids(path)?)));
    found.any(|(endpoint, ids)| {
        let place = endpoint.parameters().position(|name| name == "run_id");
        place.is_none_or(|place| without_escapes(ids[place]) == run.as_str())
    })
}

/// Whether a path is of an endpoint that names a run.
fn names_run(path: &str) -> bool {
    endpoint::ALL.iter().any(|endpoint| {
        endpoint.parameters().any(|name| name == "run_id") && endpoint.ids(path).is_some()
    })
}

/// Ids of runs have colons, which some clients escape.
fn without_escapes(id: &str) -> String {
    id.replace("%3A", ":").replace("%3a", ":")
}

/// Whoever reads a page.
#[derive(Clone, Debug)]
pub(crate) struct Visitor(pub(crate) Pass);

impl Visitor {
    /// Returns whose things are shown.
    pub(crate) fn owner(&self) -> Owner {
        self.0.owner
    }

    /// Returns the one run that is shown, for somebody who followed a link to it.
    pub(crate) fn shared_run(&self) -> Option<&ModelId> {
        self.0.run.as_ref()
    }
}

impl FromRequestParts<Server> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, server: &Server) -> Result<Self, Response> {
        if let Some(key) = credential(&parts.headers) {
            return match server.auth().admit(&key, Timestamp::now()) {
                Ok(owner) => Ok(Self(Pass::of_key(owner))),
                Err(_) => Err(ask_for_key()),
            };
        }
        let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
        // The pages change nothing, so where a link to them is does not matter.
        let pass = pass_for(server.auth(), method, uri, headers);
        let pass = pass.filter(|pass| {
            let run = pass.run.as_ref();
            run.is_none_or(|run| is_shared(run, method, uri.path()))
        });
        pass.map(Self).ok_or_else(|| {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            // A browser keeps the cookie from a link on another site, and has it when it asks again by itself.
            let site = headers.get("sec-fetch-site");
            if site.is_some_and(|site| site == "cross-site" || site == "same-site") {
                return refresh(path);
            }
            let next = if path == "/" {
                String::new()
            } else {
                format!("?next={}", escaped(path))
            };
            let login = endpoint::LOGIN_PAGE.path;
            Redirect::to(&format!("{login}{next}")).into_response()
        })
    }
}

/// The key of a program, or of HTTP's own dialogue.
fn credential(headers: &HeaderMap) -> Option<Vec<u8>> {
    if let Some(key) = headers.get(names::API_KEY).filter(|key| !key.is_empty()) {
        return Some(key.as_bytes().to_vec());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let pair = value.strip_prefix(b"Basic ").map(<[u8]>::trim_ascii);
    let pair = pair.and_then(|pair| BASE64.decode(pair).ok());
    let key = pair.and_then(|pair| {
        let colon = pair.iter().position(|byte| *byte == b':')?;
        Some(pair[colon + 1..].to_vec())
    });
    // What cannot be read is no key, and is refused as one.
    Some(key.unwrap_or_default())
}

fn ask_for_key() -> Response {
    let ask = [(
        header::WWW_AUTHENTICATE,
        "Basic realm=\"tinkrs: your API key is the password\", charset=\"UTF-8\"",
    )];
    let why = "log in with any name, and your API key as the password";
    (StatusCode::UNAUTHORIZED, ask, why).into_response()
}

/// Writes a path as the value of a query's parameter.
fn escaped(path: &str) -> String {
    use std::fmt::Write;

    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/:-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        let lines = ["a=1; tinkrs_share=x", "b; tinkrs_studio=y=z ;c=3"];
        for line in lines {
            headers.append(header::COOKIE, line.parse().unwrap());
        }
        assert_eq!(cookie(&headers, SHARE_COOKIE), Some("x"));
        assert_eq!(cookie(&headers, LOGIN_COOKIE), Some("y=z"));
        assert_eq!(cookie(&headers, "b"), None);
    }

    #[test]
    fn a_link_to_a_run_reads_that_run_only() {
        let run = ModelId::new("s:train:0");
        let is = |method: Method, path: &str| is_shared(&run, &method, path);
        for path in ["/runs/s:train:0", "/runs/s%3Atrain%3a0"] {
            assert!(is(Method::GET, path), "{path}");
            assert!(!is(Method::POST, path), "{path}");
        }
        for path in [
            "/",
            "/runs/s:train:1",
            "/runs/",
            "/sessions",
            "/api/v1/training_runs",
            "/api/v1/sessions/s",
            "/api/v1/training_runs/s:train:0/share",
        ] {
            assert!(!is(Method::GET, path), "{path}");
        }
    }

    #[test]
    fn a_path_survives_as_a_parameter() {
        assert_eq!(
            escaped("/runs/a:b?x=1&y#é"),
            "/runs/a:b%3Fx%3D1%26y%23%C3%A9"
        );
    }
}
