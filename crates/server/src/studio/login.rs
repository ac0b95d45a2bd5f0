//! Logging in and out, and links that do it.

use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Extension, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::{SignedDuration, Timestamp};
use tinkrs_types::{InvalidInput, ModelId};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::studio::{CreateLoginLinkRequest, LoginLink, ShareRunRequest, SharedRun};
use tinkrs_wire::query::{LoginForm, LoginQuery, LogoutQuery};

use super::headers::{refresh, tell_own_forms};
use super::origin::{Sender, address, sender};
use super::pages;
use super::visitor::{LOGIN_COOKIE, SHARE_COOKIE, admit_cookies};
use crate::Server;
use crate::api::Plain;
use crate::auth::{Owner, Pass};
use crate::connections::Peer;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath, Json, Parameters};

/// How long a browser stays logged in.
const LIFETIME: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The longest time that a link shows a run for.
const SHARE_HOURS: u64 = 720;
/// Why a link that logs in does not.
const USED_UP: &str = "This link was used before, or is too old. Log in with a key.";

/// Shows the page that logs in, unless the query has something that does.
pub(crate) async fn show(
    State(server): State<Server>,
    headers: HeaderMap,
    Parameters(query): Parameters<LoginQuery>,
) -> Response {
    let next = local_path(query.next.as_deref());
    if let Some(token) = &query.share {
        return match server.auth().admit_cookie(token, Timestamp::now()) {
            Ok(Pass { run: Some(run), .. }) => {
                let mut response = refresh(&endpoint::RUN_PAGE.at(&run));
                // The signed word ends by itself; that of the cookie may be later.
                server.set_cookie(&mut response, &headers, SHARE_COOKIE, token);
                response
            }
            _ => ask(
                Some("This link has ended, or was not made by this server."),
                next,
            ),
        };
    }
    if let Some(token) = &query.token {
        // A page of somebody else could otherwise log its reader in as whom it likes.
        let public = server.shared().settings.public_url.as_deref();
        let owner = match sender(&headers, public) {
            Sender::OtherPage => None,
            _ => server.auth().redeem_once(token, Timestamp::now()),
        };
        return match owner {
            Some(owner) => server.log_in(&headers, owner, next),
            None => ask(Some(USED_UP), next),
        };
    }
    ask(None, next)
}

/// Takes the form of the page that logs in.
pub(crate) async fn log_in(
    State(server): State<Server>,
    peer: Option<Extension<ConnectInfo<Peer>>>,
    headers: HeaderMap,
    Json(form): Json,
) -> Response {
    let public = server.shared().settings.public_url.as_deref();
    if sender(&headers, public) == Sender::OtherPage {
        let why = "this form was sent by a page of another site";
        return ApiError::forbidden(why).into_response();
    }
    let address = peer.map(|Extension(ConnectInfo(peer))| address(peer.ip(), &headers, public));
    let attempts = server.auth().attempts();
    if let Some(wait) = address.and_then(|it| attempts.wait(it, Instant::now())) {
        return too_many(wait, &headers, form_next(&form).as_deref());
    }
    let form = match read_form(&form) {
        Ok(form) => form,
        Err(error) => return error.into_response(),
    };
    let next = local_path(form.next.as_deref());
    let key = form.key.trim();
    match server.auth().admit(key.as_bytes(), Timestamp::now()) {
        Ok(owner) => server.log_in(&headers, owner, next),
        Err(denied) => {
            if let Some(address) = address {
                attempts.failed(address, Instant::now());
            }
            let why = denied.to_string().replace("`X-API-Key`", "The key");
            if !is_person(&headers) {
                return ApiError::unauthorized(why).into_response();
            }
            let mut response = ask(Some(&why), next);
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            response
        }
    }
}

/// Whether somebody reads the answer in a browser.
fn is_person(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    accepted.is_some_and(|it| it.windows(9).any(|part| part == b"text/html"))
}

/// Refuses to look at a login before so much time has passed.
fn too_many(wait: Duration, headers: &HeaderMap, next: Option<&str>) -> Response {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let why = format!(
        "Too many logins from this address have failed. Try again in {seconds} s; this one was not looked at."
    );
    let mut response = if is_person(headers) {
        ask(Some(&why), local_path(next))
    } else {
        ApiError::busy(why).into_response()
    };
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let seconds = HeaderValue::from(seconds);
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    response
}

fn form_next(form: &[u8]) -> Option<String> {
    read_form(form).ok()?.next
}

/// Removes the cookies. A page of another site may do that much, too: there is nothing to gain from it, and a person
/// who wants to log out always can. What ends everywhere is a write like any other.
pub(crate) async fn log_out(
    State(server): State<Server>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    Parameters(query): Parameters<LogoutQuery>,
) -> Response {
    if query.everywhere == Some(true) {
        let ended = admit_cookies(&server, &method, &uri, &headers).and_then(|pass| {
            let pass = pass.ok_or_else(|| ApiError::unauthorized("nobody is logged in here"))?;
            let done = server
                .auth()
                .log_out_everywhere(pass.owner, Timestamp::now());
            done.map_err(|error| {
                ApiError::unavailable(format!("could not write down the logout: {error}"))
            })
        });
        if let Err(error) = ended {
            return error.into_response();
        }
    }
    let mut response = Redirect::to(endpoint::LOGIN_PAGE.path).into_response();
    for name in [LOGIN_COOKIE, SHARE_COOKIE] {
        let attributes = server.attributes(&headers, 0);
        append(&mut response, &format!("{name}=; {attributes}"));
    }
    response
}

/// Makes a path that logs a browser in once.
pub(crate) async fn create_link(
    State(server): State<Server>,
    Caller(owner): Caller,
    _: Decoded<CreateLoginLinkRequest>,
) -> Result<Plain<LoginLink>, ApiError> {
    let path = server.login_path_of(owner);
    let path = path.ok_or_else(|| ApiError::unavailable("the system gives no random numbers"))?;
    Ok(Plain(LoginLink { path }))
}

/// Makes a link that shows a run.
pub(crate) async fn share(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(run): InPath<String>,
    headers: HeaderMap,
    Decoded(request): Decoded<ShareRunRequest>,
) -> Result<Plain<SharedRun>, ApiError> {
    let run = ModelId::new(run);
    server.registry().run(owner, &run)?;
    let hours = i64::try_from(request.hours).unwrap_or(i64::MAX);
    if !(1..=SHARE_HOURS).contains(&request.hours) {
        let allowed = format!("from 1 to {SHARE_HOURS}");
        return Err(InvalidInput::new("hours", request.hours.to_string(), allowed).into());
    }
    let expires = Timestamp::now().saturating_add(SignedDuration::from_hours(hours));
    let expires = expires.unwrap_or(Timestamp::MAX);
    let token = server.auth().issue_cookie(owner, Some(&run), expires);
    let origin = server.public_origin(&headers)?;
    let login = endpoint::LOGIN_PAGE.path;
    Ok(Plain(SharedRun {
        url: format!("{origin}{login}?share={token}"),
    }))
}

impl Server {
    /// Returns a path behind this server's address that logs a browser in once, as the owner of `key`, within
    /// twelve hours and while this process lives. `None` if the key is not taken.
    pub fn login_path(&self, key: &str) -> Option<String> {
        let owner = self.auth().admit(key.as_bytes(), Timestamp::now()).ok()?;
        self.login_path_of(owner)
    }

    fn login_path_of(&self, owner: Owner) -> Option<String> {
        let token = self.auth().issue_once(owner, Timestamp::now())?;
        Some(format!("{}?token={token}", endpoint::LOGIN_PAGE.path))
    }

    /// Sets the cookie of an owner, and goes on to a page.
    fn log_in(&self, headers: &HeaderMap, owner: Owner, next: &str) -> Response {
        let expires = Timestamp::now().saturating_add(LIFETIME);
        let expires = expires.unwrap_or(Timestamp::MAX);
        let value = self.auth().issue_cookie(owner, None, expires);
        let mut response = Redirect::to(next).into_response();
        self.set_cookie(&mut response, headers, LOGIN_COOKIE, &value);
        response
    }

    fn set_cookie(&self, response: &mut Response, headers: &HeaderMap, name: &str, value: &str) {
        let attributes = self.attributes(headers, LIFETIME.as_secs());
        append(response, &format!("{name}={value}; {attributes}"));
        let never = HeaderValue::from_static("no-store");
        response.headers_mut().insert(header::CACHE_CONTROL, never);
    }

    /// Scripts never see a cookie, and no other site's page can have it sent.
    fn attributes(&self, headers: &HeaderMap, seconds: i64) -> String {
        let public = self.shared().settings.public_url.as_deref();
        let by_proxy = headers.get("x-forwarded-proto");
        let is_secure = public.is_some_and(|url| url.starts_with("https://"))
            || by_proxy.is_some_and(|protocol| protocol == "https");
        let secure = if is_secure { "; Secure" } else { "" };
        format!("Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
    }
}

fn ask(why: Option<&str>, next: &str) -> Response {
    let mut response = pages::login(why, next);
    tell_own_forms(&mut response);
    response
}

fn append(response: &mut Response, cookie: &str) {
    // All that is in a cookie is our own text or what was signed, so this never fails.
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

fn read_form(form: &[u8]) -> Result<LoginForm, ApiError> {
    let uri = [b"/?".as_slice(), form].concat();
    let uri = axum::http::Uri::try_from(uri)
        .map_err(|_| ApiError::bad_request("the form cannot be read"))?;
    match axum::extract::Query::<LoginForm>::try_from_uri(&uri) {
        Ok(axum::extract::Query(form)) => Ok(form),
        // The text of the failure may have the key in it.
        Err(_) => Err(ApiError::bad_request(
            "the form must have a `key`, and may have `next`",
        )),
    }
}

/// Returns a path of this server, whatever was asked for: a link to here shall lead nowhere else.
fn local_path(next: Option<&str>) -> &str {
    let is_local = |path: &&str| {
        let rest = path.strip_prefix('/');
        rest.is_some_and(|rest| !rest.starts_with(['/', '\\']))
            && path.bytes().all(|byte| byte.is_ascii_graphic())
    };
    next.filter(is_local).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_one_of_ours() {
        for (next, expected) in [
            (None, "/"),
            (Some("/runs/a?b=1#c"), "/runs/a?b=1#c"),
            (Some("//evil.example"), "/"),
            (Some("/\\evil.example"), "/"),
            (Some("https://evil.example"), "/"),
            (Some("/a\nb"), "/"),
            (Some("javascript:1"), "/"),
            (Some(""), "/"),
        ] {
            assert_eq!(local_path(next), expected, "{next:?}");
        }
    }

    #[test]
    fn a_form_has_a_key() {
        let form = read_form(b"key=tml-a%2Bb&next=%2Fserver").unwrap();
        assert_eq!(
            (form.key.as_str(), form.next.as_deref()),
            ("tml-a+b", Some("/server"))
        );
        assert!(!format!("{form:?}").contains("tml-"));
        for bad in [b"".as_slice(), b"next=/", b"key", b"\xff\n", b"key=a&x=1"] {
            let error = read_form(bad).map(|form| form.key);
            assert!(error.is_err() || error.unwrap().is_empty(), "{bad:?}");
        }
    }
}
