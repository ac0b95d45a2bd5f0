//! Refusals in the form that the client of an API can read.

use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use tinkrs_wire::anthropic::AnthropicErrorBody;
use tinkrs_wire::endpoint::Dialect;
use tinkrs_wire::openai::OpenAiErrorBody;

use crate::error::{ApiError, Refused};

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
        Dialect::OpenAi => serde_json::to_vec(&openai_error(status, detail)),
        Dialect::Anthropic => serde_json::to_vec(&AnthropicErrorBody::new(status, detail)),
    };
    let body = body.expect("an error is texts");
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
    response
}

/// Writes an error that comes in the middle of a stream.
pub(crate) fn openai_event(error: &ApiError) -> OpenAiErrorBody {
    openai_error(error.status().as_u16(), error.detail().to_owned())
}

fn openai_error(status: u16, detail: String) -> OpenAiErrorBody {
    let param = named_member(&detail).map(ToOwned::to_owned);
    OpenAiErrorBody::new(status, detail, param)
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
