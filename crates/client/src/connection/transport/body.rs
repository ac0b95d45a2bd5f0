//! Reading the bodies of responses: slowly if need be, but not without end.

use super::{AttemptError, BoxError};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use hyper::body::Body;
use std::future::poll_fn;
use std::io::Read;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tinkrs_wire::compress;

/// The encodings that [`decode`] knows, as a request names them.
pub(crate) const ACCEPTED_ENCODINGS: &str = "gzip, deflate, zstd";

/// Waits for the next part of a response. A long response takes as long as it takes, so it is the
/// silence that is bounded.
pub(super) async fn within<T, E: Into<BoxError>>(
    silence: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, AttemptError> {
    let mut answer = pin!(answer);
    // Most of what is waited for is there already, and needs no clock.
    let there = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
    let answer = match there {
        Poll::Ready(answer) => answer,
        Poll::Pending => tokio::time::timeout(silence, answer)
            .await
            .map_err(|_| AttemptError::Timeout)?,
    };
    answer.map_err(|error| AttemptError::Connection(error.into()))
}

/// Reads a body to its end.
pub(super) async fn read<B>(
    mut body: B,
    silence: Duration,
    max_bytes: usize,
) -> Result<Bytes, AttemptError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    // Most responses are one chunk, which is not copied.
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let Some(frame) = within(silence, async { next.await.transpose() }).await? else {
            break;
        };
        // Trailers, which nothing here needs, are not data.
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        if first.len() + all.len() + chunk.len() > max_bytes {
            return Err(AttemptError::TooLong);
        }
        if first.is_empty() && all.is_empty() {
            first = chunk;
            continue;
        }
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&chunk);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Undoes the compression of a body. The headers then describe what is left.
pub(super) fn decode(
    headers: &mut HeaderMap,
    body: Bytes,
    max_bytes: usize,
) -> Result<Bytes, AttemptError> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Ok(body);
    };
    let plain = match encoding.as_bytes() {
        b"gzip" => inflate(flate2::read::MultiGzDecoder::new(&*body), max_bytes)?,
        b"deflate" => inflate(flate2::read::ZlibDecoder::new(&*body), max_bytes)?,
        b"zstd" => compress::decompress(&body, max_bytes).map_err(|error| match error {
            tinkrs_wire::DecodeError::TooLarge { .. } => AttemptError::TooLong,
            error => AttemptError::Connection(error.into()),
        })?,
        _ => return Ok(body),
    };
    headers.remove(CONTENT_ENCODING);
    headers.remove(CONTENT_LENGTH);
    Ok(plain)
}

fn inflate(decoder: impl Read, max_bytes: usize) -> Result<Bytes, AttemptError> {
    let mut plain = Vec::new();
    let read = decoder
        .take(max_bytes as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| AttemptError::Connection(error.into()))?;
    if read > max_bytes {
        return Err(AttemptError::TooLong);
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    #[tokio::test(start_paused = true)]
    async fn a_long_answer_may_take_its_time_but_not_fall_silent() {
        let drip = |pause| {
            let chunks = futures_util::stream::unfold(0, move |n| async move {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                let chunk = Frame::data(Bytes::from_static(b"ab"));
                (n < 5).then_some((Ok::<_, BoxError>(chunk), n + 1))
            });
            StreamBody::new(Box::pin(chunks))
        };
        let read = |pause, max| read(drip(pause), Duration::from_secs(45), max);
        assert_eq!(read(40, 10).await.unwrap(), "ababababab");
        assert!(matches!(read(50, 10).await, Err(AttemptError::Timeout)));
        assert!(matches!(read(1, 9).await, Err(AttemptError::TooLong)));
    }

    #[test]
    fn compressed_answers_are_read_up_to_the_limit() {
        let plain = vec![b'x'; 1_000];
        let bodies = [
            ("gzip", {
                let mut encoder = flate2::read::GzEncoder::new(&*plain, Compression::fast());
                let mut body = Vec::new();
                encoder.read_to_end(&mut body).unwrap();
                body
            }),
            ("deflate", {
                let mut encoder = flate2::read::ZlibEncoder::new(&*plain, Compression::fast());
                let mut body = Vec::new();
                encoder.read_to_end(&mut body).unwrap();
                body
            }),
            ("zstd", compress::compress(&plain)),
            ("identity", plain.clone()),
        ];
        for (encoding, body) in bodies {
            let headers = || HeaderMap::from_iter([(CONTENT_ENCODING, encoding.parse().unwrap())]);
            let body = Bytes::from(body);
            let decoded = decode(&mut headers(), body.clone(), 1_000);
            assert_eq!(decoded.unwrap(), plain, "{encoding}");
            if encoding != "identity" {
                let short = decode(&mut headers(), body.slice(..body.len() / 2), 1_000);
                assert!(
                    matches!(short, Err(AttemptError::Connection(_))),
                    "{encoding}"
                );
                let long = decode(&mut headers(), body, 999);
                assert!(matches!(long, Err(AttemptError::TooLong)), "{encoding}");
            }
        }
    }
}
