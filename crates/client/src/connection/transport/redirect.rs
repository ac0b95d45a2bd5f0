//! Redirects.
//!
//! Within the server's origin the same request is made again. On other hosts only reading makes sense,
//! and without the credential, which must not be sent to them.

use http::header::LOCATION;
use http::{HeaderMap, Method, StatusCode};
use url::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// At another path of the server.
    Within(String),
    /// On another host.
    External(Url),
}

/// Returns where a response from `url` redirects to, if it does.
pub(crate) fn redirect(
    method: &Method,
    url: &Url,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<Redirect> {
    let reads = method == Method::GET;
    let points = match status.as_u16() {
        307 | 308 => true,
        301..=303 => reads,
        _ => false,
    };
    let location = headers.get(LOCATION).filter(|_| points)?;
    let target = url.join(location.to_str().ok()?).ok()?;
    if target.origin() != url.origin() {
        return reads.then_some(Redirect::External(target));
    }
    let query = target.query().map(|query| format!("?{query}"));
    let path = format!("{}{}", target.path(), query.unwrap_or_default());
    Some(Redirect::Within(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stay_on_the_server_and_reads_go_where_the_answer_is() {
        let within = |path: &str| Some(Redirect::Within(path.to_owned()));
        let external = |url: &str| Some(Redirect::External(url.parse().unwrap()));
        let cases = [
            ("GET", 200, "/b", None),
            ("GET", 302, "/b?c=d", within("/b?c=d")),
            ("GET", 302, "b", within("/base/b")),
            ("GET", 307, "http://a.test/b", within("/b")),
            ("GET", 302, "https://a.test/b", external("https://a.test/b")),
            ("GET", 302, "//b.test/c", external("http://b.test/c")),
            ("GET", 304, "/b", None),
            ("POST", 308, "/b", within("/b")),
            ("POST", 302, "/b", None),
            ("POST", 307, "http://b.test/c", None),
            ("GET", 302, "http://[", None),
        ];
        let url = "http://a.test/base/a".parse().unwrap();
        for (method, status, location, expected) in cases {
            let headers = HeaderMap::from_iter([(LOCATION, location.parse().unwrap())]);
            let status = StatusCode::from_u16(status).unwrap();
            let found = redirect(&method.parse().unwrap(), &url, status, &headers);
            assert_eq!(found, expected, "{method} {status} {location}");
        }
    }
}
