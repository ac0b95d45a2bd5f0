//! Refusals in the form that the client of an API can read.

use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use tinkrs_wire::anthropic::AnthropicErrorBody;
use tinkrs_wire::endpoint::Dialect;
use tinkrs_wire::openai::OpenAiErrorBody;

use crate::error::{ApiError, Refused};

/// The longest sentence, in bytes.
const LONGEST_DETAIL: usize = 1000;

/// Writes what was refused by any part of the server anew, in the form of the API that the path belongs to.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let mut response = next.run(request).await;
    let Some(Refused(detail)) = response.extensions_mut().remove::<Refused>() else {
        return response;
    };
    let status = response.status().as_u16();
    let body = match dialect {
        Dialect::Tinker => return response,
        Dialect::OpenAi => serde_json::to_vec(&openai_error(status, &detail)),
        Dialect::Anthropic => {
            serde_json::to_vec(&AnthropicErrorBody::new(status, legible(&detail)))
        }
    };
    let body = body.expect("an error is texts");
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
    response
}

/// Writes an error that comes in the middle of a stream.
pub(crate) fn openai_event(error: &ApiError) -> OpenAiErrorBody {
    openai_error(error.status().as_u16(), error.detail())
}

fn openai_error(status: u16, detail: &str) -> OpenAiErrorBody {
    let detail = legible(detail);
    let param = named_member(&detail).map(ToOwned::to_owned);
    OpenAiErrorBody::new(status, detail, param)
}

/// Makes a sentence fit to be read and logged by the client: what it quotes may be a megabyte long, or turn the text around it.
pub(crate) fn legible(detail: &str) -> String {
    let is_shown = |letter: char| {
        let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        !letter.is_control() && !turns
    };
    let end = detail.floor_char_boundary(LONGEST_DETAIL.min(detail.len()));
    let mut text = String::with_capacity(end);
    for letter in detail[..end].chars() {
        if is_shown(letter) {
            text.push(letter);
        } else {
            text.extend(letter.escape_default());
        }
    }
    if end < detail.len() {
        text.push('…');
    }
    text
}

/// Returns the member that a refusal begins with, such as "`model`: there is no such run".
pub(crate) fn named_member(detail: &str) -> Option<&str> {
    let (member, _) = detail.strip_prefix('`')?.split_once('`')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.[]".contains(&byte);
    member.bytes().all(is_name).then_some(member)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_of_bounded_length_and_does_not_turn_the_text_around_it() {
        assert_eq!(
            legible("`stop`: found \u{202e}x\n"),
            "`stop`: found \\u{202e}x\\n"
        );
        let long = legible(&"é".repeat(1 << 20));
        assert!(long.len() < LONGEST_DETAIL + 8 && long.ends_with('…'));
    }

    #[test]
    fn the_member_that_a_refusal_names_is_its_param() {
        let cases = [
            ("`model`: there is no such run", Some("model")),
            (
                "`messages[0].role`: unknown variant",
                Some("messages[0].role"),
            ),
            ("`audio` is not a parameter", Some("audio")),
            ("the body is too large", None),
            ("`X-API-Key` is missing", None),
        ];
        for (detail, member) in cases {
            assert_eq!(named_member(detail), member, "{detail}");
        }
    }
}
