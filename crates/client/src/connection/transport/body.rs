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
use tokio::time::Instant;

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

/// How fast a body has to arrive, on average, beyond the time for which it may be silent: somebody who
/// sends a byte a second would never end.
const MIN_BYTES_PER_SECOND: f64 = 1024.0;

/// How long a response may take and how long it may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    /// How long the server may be silent at a time.
    pub(crate) silence: Duration,
    pub(crate) max_bytes: usize,
}

impl ReadLimits {
    fn too_long(self) -> AttemptError {
        AttemptError::TooLong {
            limit_bytes: self.max_bytes,
        }
    }

    /// Returns how long the first so many bytes of a body may take.
    fn time_for(self, bytes: usize) -> Duration {
        self.silence + Duration::from_secs_f64(bytes as f64 / MIN_BYTES_PER_SECOND)
    }
}

/// Reads a body to its end.
pub(crate) async fn read<B>(mut body: B, limits: ReadLimits) -> Result<Bytes, AttemptError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > limits.max_bytes as u64 {
        return Err(limits.too_long());
    }
    // Most responses are one chunk, which is not copied, and needs no clock.
    let mut start = None;
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let Some(frame) = within(limits.silence, async { next.await.transpose() }).await? else {
            break;
        };
        // Trailers, which nothing here needs, are not data.
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        let received = first.len() + all.len() + chunk.len();
        if received > limits.max_bytes {
            return Err(limits.too_long());
        }
        let start = *start.get_or_insert_with(Instant::now);
        if start.elapsed() > limits.time_for(received) {
            return Err(AttemptError::Timeout);
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
    limits: ReadLimits,
) -> Result<Bytes, AttemptError> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Ok(body);
    };
    let plain = match encoding.as_bytes() {
        b"gzip" => inflate(flate2::read::MultiGzDecoder::new(&*body), limits)?,
        b"deflate" => inflate(flate2::read::ZlibDecoder::new(&*body), limits)?,
        b"zstd" => compress::decompress(&body, limits.max_bytes).map_err(|error| match error {
            tinkrs_wire::DecodeError::TooLarge { .. } => limits.too_long(),
            error => AttemptError::Connection(error.into()),
        })?,
        _ => return Ok(body),
    };
    headers.remove(CONTENT_ENCODING);
    headers.remove(CONTENT_LENGTH);
    Ok(plain)
}

fn inflate(decoder: impl Read, limits: ReadLimits) -> Result<Bytes, AttemptError> {
    let mut plain = Vec::new();
    let read = decoder
        .take(limits.max_bytes as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| AttemptError::Connection(error.into()))?;
    if read > limits.max_bytes {
        return Err(limits.too_long());
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
        let drip = |pause, chunk_bytes| {
            let chunks = futures_util::stream::unfold(0, move |n| async move {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                let chunk = Frame::data(vec![b'a'; chunk_bytes].into());
                (n < 5).then_some((Ok::<_, BoxError>(chunk), n + 1))
            });
            StreamBody::new(Box::pin(chunks))
        };
        let read = |pause, chunk_bytes, max| read(drip(pause, chunk_bytes), limits(max));
        let large = 64 << 10;
        assert_eq!(read(40, large, 5 * large).await.unwrap().len(), 5 * large);
        let silent = read(50, large, 5 * large).await;
        assert!(matches!(silent, Err(AttemptError::Timeout)));
        let slow = read(40, 2, 10).await;
        assert!(matches!(slow, Err(AttemptError::Timeout)), "{slow:?}");
        assert_eq!(read(1, 2, 10).await.unwrap(), "aaaaaaaaaa");
        let long = read(1, 2, 9).await;
        assert!(matches!(
            long,
            Err(AttemptError::TooLong { limit_bytes: 9 })
        ));
    }

    #[tokio::test]
    async fn a_body_whose_announced_length_is_too_long_is_not_read() {
        let announced = http_body_util::Full::new(Bytes::from_static(b"0123456789"));
        let long = read(announced, limits(9)).await;
        assert!(matches!(
            long,
            Err(AttemptError::TooLong { limit_bytes: 9 })
        ));
    }

    fn limits(max_bytes: usize) -> ReadLimits {
        ReadLimits {
            silence: Duration::from_secs(45),
            max_bytes,
        }
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
            let decoded = decode(&mut headers(), body.clone(), limits(1_000));
            assert_eq!(decoded.unwrap(), plain, "{encoding}");
            if encoding != "identity" {
                let short = decode(&mut headers(), body.slice(..body.len() / 2), limits(1_000));
                assert!(
                    matches!(short, Err(AttemptError::Connection(_))),
                    "{encoding}"
                );
                let long = decode(&mut headers(), body, limits(999));
                assert!(
                    matches!(long, Err(AttemptError::TooLong { .. })),
                    "{encoding}"
                );
            }
        }
    }
}
