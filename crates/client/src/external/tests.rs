use super::*;
use crate::auth::Secret;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io::Write;
use std::sync::Mutex;
use tokio::net::TcpListener;

const SILENCE: Duration = Duration::from_secs(10);

/// What a host was asked: method, path, authorization, x-secret, length of the body.
type Asked = Arc<Mutex<Vec<String>>>;

/// Starts a host that answers each path with this function.
async fn host(
    respond: impl Fn(&str) -> http::Response<String> + Send + Sync + 'static,
) -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Asked::default();
    let (respond, log) = (Arc::new(respond), Arc::clone(&asked));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (respond, log) = (Arc::clone(&respond), Arc::clone(&log));
            let service = service_fn(move |request: Request<Incoming>| {
                let (respond, log) = (Arc::clone(&respond), Arc::clone(&log));
                async move {
                    let header = |name: &str| {
                        let value = request.headers().get(name);
                        value.map_or("-".to_owned(), |value| value.to_str().unwrap().to_owned())
                    };
                    let length = request.body().size_hint().exact();
                    log.lock().unwrap().push(format!(
                        "{} {} {} {} {length:?}",
                        request.method(),
                        request.uri(),
                        header("authorization"),
                        header("x-secret"),
                    ));
                    let path = request.uri().path().to_owned();
                    // The whole body is read before the response.
                    use http_body_util::BodyExt;
                    request.into_body().collect().await.unwrap();
                    Ok::<_, Infallible>(respond(&path))
                }
            });
            tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, asked)
}

fn redirect_to(status: u16, url: &str) -> http::Response<String> {
    let response = http::Response::builder().status(status);
    response
        .header("location", url)
        .body(String::new())
        .unwrap()
}

#[tokio::test]
async fn secrets_stay_with_the_host_that_they_were_meant_for() {
    let (other, seen) = host(|_| http::Response::new("here".to_owned())).await;
    let (first, asked) = host(move |path| match path {
        "/a" => redirect_to(302, "/b?c=d"),
        _ => redirect_to(307, &format!("{other}/e")),
    })
    .await;
    let client = HttpClient::new(SILENCE);
    let request = client.get(&format!("{first}/a"));
    let request = request.bearer_token(&Secret::from("token"));
    let request = request.secret_header("x-secret", &Secret::from("key"));
    let response = request.send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "here");
    let expected = [
        "GET /a Bearer token key Some(0)",
        "GET /b?c=d Bearer token key Some(0)",
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
    assert_eq!(*seen.lock().unwrap(), ["GET /e - - Some(0)"]);
}

#[tokio::test]
async fn what_is_sent_is_sent_again_where_a_redirect_keeps_the_method() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![7; 3_000_000]).unwrap();
    let (url, asked) = host(|path| match path {
        "/a" => redirect_to(308, "/b"),
        "/b" => http::Response::new("\"stored\"".to_owned()),
        _ => redirect_to(302, "/b"),
    })
    .await;
    let client = HttpClient::new(SILENCE);
    let response = client.put(&format!("{url}/a")).file(file.path()).send();
    let stored: String = response.await.unwrap().json().await.unwrap();
    assert_eq!(stored, "stored");
    let moved = client.post(&format!("{url}/c")).json(&1).send().await;
    assert_eq!(
        moved.unwrap().status(),
        302,
        "it would become another request"
    );
    let expected = [
        "PUT /a - - Some(3000000)",
        "PUT /b - - Some(3000000)",
        "POST /c - - Some(1)",
    ];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test]
async fn redirects_in_a_circle_and_to_other_schemes_end_in_an_error() {
    let (url, asked) = host(|path| match path {
        "/a" => redirect_to(302, "/a"),
        _ => redirect_to(302, "file:///etc/passwd"),
    })
    .await;
    let client = HttpClient::new(SILENCE);
    let circle = client.get(&format!("{url}/a")).send().await;
    assert!(
        matches!(circle, Err(HttpError::TooManyRedirects)),
        "{circle:?}"
    );
    assert_eq!(asked.lock().unwrap().len(), 11);
    let file = client.get(&format!("{url}/b")).send().await;
    assert!(matches!(file, Err(HttpError::InvalidUrl)), "{file:?}");
    for url in ["localhost:8000", "ftp://x", "http://"] {
        let refused = client.get(url).send().await;
        assert!(matches!(refused, Err(HttpError::InvalidUrl)), "{url}");
    }
    let header = client.get(&url).header("x", "a\nb").send().await;
    assert!(
        matches!(header, Err(HttpError::InvalidHeader { .. })),
        "{header:?}"
    );
}

#[tokio::test]
async fn a_host_that_says_nothing_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/signed?secret", listener.local_addr().unwrap());
    let client = HttpClient::new(Duration::from_millis(100));
    let error = client.get(&url).send().await.unwrap_err();
    assert!(matches!(error, HttpError::Timeout(_)), "{error:?}");
    drop(listener);
    let error = client.get(&url).send().await.unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("secret"), "{shown}");
}
