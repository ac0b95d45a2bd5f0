//! How an endpoint is declared.

use super::content::Documented;
use super::{Content, Endpoint};
use crate::Body;
use http::Method;

/// Any JSON object.
pub(super) type Object = serde_json::Map<String, serde_json::Value>;

pub(super) const fn json<T: Documented>() -> Content {
    Content::json::<T>()
}

pub(super) const fn body<T: Documented + Body>() -> Content {
    Content::body::<T>()
}

pub(super) const fn get(path: &'static str) -> Endpoint {
    Endpoint::new(Method::GET, path)
}

pub(super) const fn post(path: &'static str) -> Endpoint {
    Endpoint::new(Method::POST, path)
}

pub(super) const fn put(path: &'static str) -> Endpoint {
    Endpoint::new(Method::PUT, path)
}

pub(super) const fn delete(path: &'static str) -> Endpoint {
    Endpoint::new(Method::DELETE, path)
}

pub(super) const fn lower_case<const N: usize>(text: &str) -> [u8; N] {
    let mut lower = [0; N];
    let mut index = 0;
    while index < N {
        lower[index] = text.as_bytes()[index].to_ascii_lowercase();
        index += 1;
    }
    lower
}

pub(super) const fn text(bytes: &'static [u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("the name of a constant is text"),
    }
}
