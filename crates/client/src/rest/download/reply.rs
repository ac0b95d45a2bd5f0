//! What a response means for a download that may already have a part of the file.
//!
//! [`judge`] is a pure function of the response's status and headers, so that every wrong response
//! is a line in a table.

use crate::retry::{self, Caller, FailureKind, Reaction, reaction};
use http::StatusCode;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, LAST_MODIFIED,
};
use jiff::Timestamp;
use std::time::Duration;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The body goes behind the part that is there.
    Append { total: Option<u64> },
    /// The body is the whole file: drop the part that is there.
    Restart { total: Option<u64> },
    /// The part that is there is the whole file.
    Complete,
    /// Drop the part that is there and ask again, without a range.
    StartOver(&'static str),
    /// Ask for a new link, then again.
    RenewLink(StatusCode),
    /// Ask again later.
    Retry {
        status: StatusCode,
        after: Option<Duration>,
    },
    /// There is no point in asking again.
    Refuse(StatusCode),
}

/// Decides what a response means when `offset` bytes were there and the rest was asked for.
///
/// `total` is the file's size if an earlier response gave it.
pub(super) fn judge(
    status: StatusCode,
    headers: &HeaderMap,
    offset: u64,
    total: Option<u64>,
) -> Next {
    match status.as_u16() {
        200 if is_encoded(headers) => Next::StartOver("the file is compressed on the way"),
        200 => Next::Restart {
            total: number(headers, CONTENT_LENGTH),
        },
        206 => match content_range(headers) {
            _ if is_encoded(headers) => Next::StartOver("the file is compressed on the way"),
            Some(Range {
                bytes: Some((first, last)),
                total: told,
            }) => {
                if first != offset || last < first || told.is_some_and(|told| last >= told) {
                    Next::StartOver("the answer is for another part of the file")
                } else if total.is_some() && told.is_some() && total != told {
                    Next::StartOver("the file's size changed")
                } else {
                    Next::Append {
                        total: told.or(total),
                    }
                }
            }
            _ => Next::StartOver("the answer does not say which part of the file it is"),
        },
        // The range begins at the end of the file, so nothing is missing; or behind it, so this
        // is not the file that was begun.
        416 => match content_range(headers).and_then(|range| range.total) {
            Some(told) if told == offset && total.is_none_or(|total| total == told) => {
                Next::Complete
            }
            _ => Next::StartOver("the file's size changed"),
        },
        code => match reaction(Caller::Download, FailureKind::of_status(code)) {
            Reaction::RenewLink => Next::RenewLink(status),
            Reaction::Retry => Next::Retry {
                status,
                after: retry::retry_after(headers, Timestamp::now()),
            },
            Reaction::RetryAFewTimes
            | Reaction::WaitForBilling
            | Reaction::Lost
            | Reaction::Fail => Next::Refuse(status),
        },
    }
}

/// Returns what names this version of the file, so that no other is appended to it.
///
/// A weak entity tag will not do: equal ones do not promise equal bytes.
pub(super) fn version(headers: &HeaderMap) -> Option<String> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::to_owned);
    text(ETAG)
        .filter(|tag| tag.starts_with('"'))
        .or_else(|| text(LAST_MODIFIED))
}

#[derive(Debug, PartialEq, Eq)]
struct Range {
    /// The first and the last byte, or `None` if the range could not be satisfied.
    bytes: Option<(u64, u64)>,
    /// The size of the file, if the server knows it.
    total: Option<u64>,
}

/// Reads `bytes 5-9/10`, `bytes 5-9/*` or `bytes */10`.
fn content_range(headers: &HeaderMap) -> Option<Range> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (bytes, total) = text.strip_prefix("bytes ")?.trim().split_once('/')?;
    let bytes = match bytes {
        "*" => None,
        bytes => {
            let (first, last) = bytes.split_once('-')?;
            Some((digits(first)?, digits(last)?))
        }
    };
    let total = match total {
        "*" => None,
        total => Some(digits(total)?),
    };
    Some(Range { bytes, total })
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let encoding = headers.get(CONTENT_ENCODING);
    encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn number(headers: &HeaderMap, name: HeaderName) -> Option<u64> {
    digits(headers.get(name)?.to_str().ok()?.trim())
}

/// Unlike `parse`, takes no sign.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::RETRY_AFTER;

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let line = |(name, value): &(HeaderName, &str)| (name.clone(), value.parse().unwrap());
        lines.iter().map(line).collect()
    }

    #[test]
    fn each_answer_has_one_meaning() {
        let append = |total| Next::Append { total };
        let changed = || Next::StartOver("the file's size changed");
        let other = || Next::StartOver("the answer is for another part of the file");
        let silent = || Next::StartOver("the answer does not say which part of the file it is");
        // Status, `Content-Range`, bytes that are there, total so far.
        let cases = [
            (206, "bytes 5-9/10", 5, None, append(Some(10))),
            (206, "bytes 5-9/10", 5, Some(10), append(Some(10))),
            (206, "bytes 5-7/10", 5, Some(10), append(Some(10))),
            (206, "bytes 5-9/*", 5, Some(10), append(Some(10))),
            (206, "bytes 5-9/*", 5, None, append(None)),
            (206, "bytes 5-19/20", 5, Some(10), changed()),
            (206, "bytes 0-9/10", 5, Some(10), other()),
            (206, "bytes 5-9/9", 5, None, other()),
            (206, "bytes 5-4/10", 5, None, other()),
            (206, "bytes +5-9/10", 5, None, silent()),
            (206, "items 5-9/10", 5, None, silent()),
            (206, "", 5, None, silent()),
            (416, "bytes */10", 10, Some(10), Next::Complete),
            (416, "bytes */10", 10, None, Next::Complete),
            (416, "bytes */10", 10, Some(20), changed()),
            (416, "bytes */8", 10, None, changed()),
            (416, "", 10, Some(10), changed()),
            (200, "", 5, Some(10), Next::Restart { total: None }),
        ];
        for (status, range, offset, total, expected) in cases {
            let status = StatusCode::from_u16(status).unwrap();
            let headers = headers(&[(CONTENT_RANGE, range)]);
            let next = judge(status, &headers, offset, total);
            assert_eq!(
                next, expected,
                "{status} {range:?} at {offset} of {total:?}"
            );
        }
    }

    #[test]
    fn a_status_says_whether_to_renew_the_link_to_retry_or_to_give_up() {
        let retry = |status, after| Next::Retry { status, after };
        for code in [
            400, 401, 403, 410, 408, 425, 429, 500, 503, 404, 418, 204, 302,
        ] {
            let status = StatusCode::from_u16(code).unwrap();
            let expected = match code {
                400 | 401 | 403 | 410 => Next::RenewLink(status),
                408 | 425 | 429 | 500 | 503 => retry(status, None),
                _ => Next::Refuse(status),
            };
            let next = judge(status, &HeaderMap::new(), 0, None);
            assert_eq!(next, expected, "{code}");
        }
        for (text, seconds) in [("7", Some(7)), ("61", None), ("soon", None), ("-1", None)] {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let next = judge(status, &headers(&[(RETRY_AFTER, text)]), 0, None);
            assert_eq!(
                next,
                retry(status, seconds.map(Duration::from_secs)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_body_that_is_compressed_on_the_way_is_not_the_file() {
        let gzip = headers(&[(CONTENT_ENCODING, "gzip")]);
        let next = judge(StatusCode::OK, &gzip, 0, None);
        assert!(matches!(next, Next::StartOver(_)), "{next:?}");
        let identity = headers(&[(CONTENT_ENCODING, "identity"), (CONTENT_LENGTH, "3")]);
        let next = judge(StatusCode::OK, &identity, 0, None);
        assert_eq!(next, Next::Restart { total: Some(3) });
    }

    #[test]
    fn only_a_strong_tag_or_a_date_names_a_version() {
        let cases = [
            (
                vec![(ETAG, r#""a""#), (LAST_MODIFIED, "then")],
                Some(r#""a""#),
            ),
            (
                vec![(ETAG, r#"W/"a""#), (LAST_MODIFIED, "then")],
                Some("then"),
            ),
            (vec![(ETAG, r#"W/"a""#)], None),
            (vec![], None),
        ];
        for (lines, expected) in cases {
            assert_eq!(version(&headers(&lines)).as_deref(), expected, "{lines:?}");
        }
    }
}
