//! A real server behind the scripted one.

use super::Recorded;
use super::reply::{Reply, refuse};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Headers that are about one connection, or that follow from the body.
const OF_A_CONNECTION: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// Sends a request on as it came, on a connection of its own, and returns the whole answer.
pub(super) async fn forward(authority: &str, request: &Recorded) -> Reply {
    match exchange(authority, request).await {
        Ok(reply) => reply,
        Err(error) => refuse(502, &format!("the server behind: {error}")),
    }
}

async fn exchange(
    authority: &str,
    request: &Recorded,
) -> Result<Reply, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut forwarded = Request::builder()
        .method(request.method.clone())
        .uri(request.uri.clone());
    for (name, value) in &request.headers {
        if !OF_A_CONNECTION.contains(&name.as_str()) {
            forwarded = forwarded.header(name, value);
        }
    }
    let forwarded = forwarded.body(Full::new(request.body.clone()))?;
    let (head, body) = sender.send_request(forwarded).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    connection.abort();
    let headers = head.headers.iter();
    let headers = headers.filter(|(name, _)| !OF_A_CONNECTION.contains(&name.as_str()));
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Ok(Reply {
        status: head.status.as_u16(),
        headers: headers
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
        body,
    })
}
