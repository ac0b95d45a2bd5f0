//! Whose manners an endpoint has.

/// An API with its own form of errors.
///
/// Which one a request means is known from its path alone, so a path that there is no endpoint for gets an error
/// that its client can read, too.
///
/// ```
/// use tinkrs_wire::endpoint::Dialect;
///
/// assert_eq!(Dialect::of_path("/api/v1/asample"), Dialect::Tinker);
/// assert_eq!(Dialect::of_path("/v1/chat/completions"), Dialect::OpenAi);
/// assert_eq!(Dialect::of_path("/oai/api/v1/models"), Dialect::OpenAi);
/// assert_eq!(Dialect::of_path("/anthropic/api/v1/messages"), Dialect::Anthropic);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The Tinker API, and what this server has besides.
    Tinker,
    /// The OpenAI API.
    OpenAi,
    /// The Anthropic API.
    Anthropic,
}

impl Dialect {
    /// Returns what the hosted service has before the paths of this API. Here they are at `/v1`, too.
    pub const fn hosted_prefix(self) -> &'static str {
        match self {
            Self::Tinker => "",
            Self::OpenAi => "/oai/api",
            Self::Anthropic => "/anthropic/api",
        }
    }

    /// Returns the API that a path belongs to.
    pub fn of_path(path: &str) -> Self {
        let is_in = |prefix: &str| {
            let rest = path.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_in("/v1/messages") || is_in(Self::Anthropic.hosted_prefix()) {
            Self::Anthropic
        } else if is_in("/v1") || is_in(Self::OpenAi.hosted_prefix()) {
            Self::OpenAi
        } else {
            Self::Tinker
        }
    }
}
