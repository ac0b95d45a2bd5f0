//! Pages for people, at the addresses that the hosted service's console has: what this server knows of
//! a session, a run or a checkpoint.
//!
//! They show what the API shows to the holder of the key, and change nothing.

use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{CheckpointKind, ModelId, SessionId, TinkerPath};
use tinkrs_wire::endpoint;

use crate::Server;
use crate::error::ApiError;
use crate::extract::InPath;
use crate::studio::visitor::Visitor;

/// How many sessions the page of all of them shows.
const NEWEST: usize = 200;

pub(crate) async fn sessions(
    State(server): State<Server>,
    visitor: Visitor,
) -> Result<Page, ApiError> {
    let owner = visitor.owner();
    let all = server.sessions(owner)?;
    let content = html! {
        table {
            tr { th { "Session" } th { "Name" } th { "Status" } th { "Created" } }
            @for session in all.iter().take(NEWEST) {
                tr {
                    td { (session_link(&session.id)) }
                    td { (session.display_name.as_deref().unwrap_or_default()) }
                    td { (status(&session.status)) }
                    td { (session.created_at.to_string()) }
                }
            }
        }
        @if all.len() > NEWEST {
            p { "The newest " (NEWEST) " of " (all.len()) "." }
        }
    };
    Ok(Page::new("Sessions", content))
}

pub(crate) async fn session(
    State(server): State<Server>,
    visitor: Visitor,
    InPath(id): InPath<String>,
) -> Result<Page, ApiError> {
    let owner = visitor.owner();
    let id = SessionId::new(id);
    let info = server.session_info(owner, &id)?;
    let record = server.registry().session(owner, &id)?.record.clone();
    let content = html! {
        table {
            (row("Name", record.display_name.as_deref().unwrap_or_default()))
            (row("Status", status(&record.status)))
            (row("Created", record.created_at.to_string()))
            (row("Client", &record.sdk_version))
            @for (name, value) in &record.user_metadata {
                (row(name, value))
            }
            @for run in &info.training_run_ids {
                (row("Run", run_link(run)))
            }
            @for sampler in &info.sampler_ids {
                (row("Sampler", sampler.as_str()))
            }
        }
    };
    Ok(Page::new(&format!("Session {id}"), content))
}

pub(crate) async fn run(
    State(server): State<Server>,
    visitor: Visitor,
    InPath(id): InPath<String>,
) -> Result<Page, ApiError> {
    let owner = visitor.owner();
    let id = ModelId::new(id);
    let (record, time) = {
        let mut registry = server.registry();
        let run = registry.run(owner, &id)?;
        (run.record.clone(), run.last_request)
    };
    let state = match (&record.closed, record.corrupted) {
        (_, true) => "failed".to_owned(),
        (Some(why), _) => format!("closed: {why}"),
        (None, _) => "open".to_owned(),
    };
    let checkpoints = server.shared().checkpoints.list(owner, Some(&id));
    let content = html! {
        table {
            (row("Session", session_link(&record.session)))
            (row("Base model", &record.base_model))
            (row("Rank", record.lora.rank))
            (row("State", state))
            (row("Last request", time.to_string()))
        }
        table {
            tr { th { "Checkpoint" } th { "Bytes" } th { "Saved" } }
            @for checkpoint in &checkpoints {
                @let name = &checkpoint.checkpoint_id;
                tr {
                    td { a href=(format!("/checkpoints/{id}/{}", name.replace('/', "%2F"))) { (name) } }
                    td { (checkpoint.size_bytes.unwrap_or_default()) }
                    td { (checkpoint.time.to_string()) }
                }
            }
        }
    };
    Ok(Page::new(&format!("Training run {id}"), content))
}

pub(crate) async fn checkpoint(
    State(server): State<Server>,
    visitor: Visitor,
    InPath((run, id)): InPath<(String, String)>,
) -> Result<Page, ApiError> {
    let owner = visitor.owner();
    let missing = || ApiError::not_found(format!("there is no checkpoint `{id}`"));
    let (kind, name) = id.split_once('/').ok_or_else(missing)?;
    let kind = CheckpointKind::from_segment(kind).ok_or_else(missing)?;
    let path = TinkerPath::new(ModelId::new(run), kind, name)?;
    let saved = server.checkpoint(owner, &path)?;
    let (checkpoint, info) = (&saved.checkpoint, &saved.info);
    let expires = checkpoint.expires_at.map(|time| time.to_string());
    let content = html! {
        table {
            (row("Run", run_link(path.run())))
            (row("Path", path.to_string()))
            (row("Base model", &info.base_model))
            (row("Rank", info.lora_rank.unwrap_or_default()))
            (row("Bytes", checkpoint.size_bytes.unwrap_or_default()))
            (row("Public", if checkpoint.public { "yes" } else { "no" }))
            (row("Saved", checkpoint.time.to_string()))
            (row("Expires", expires.as_deref().unwrap_or("never")))
        }
    };
    Ok(Page::new(&format!("Checkpoint {path}"), content))
}

/// What became of a session, in words.
fn status(status: &SessionStatus) -> String {
    let (state, detail) = match status {
        SessionStatus::Active => ("active", None),
        SessionStatus::Cancelled { detail } => ("cancelled", detail.as_deref()),
        SessionStatus::ClientFinished { reason, detail } => match reason.name() {
            "success" => ("finished", detail.as_deref()),
            other => (other, detail.as_deref()),
        },
        SessionStatus::Failed { message, .. } => ("failed", Some(message.as_str())),
        _ => ("unknown", None),
    };
    match detail {
        Some(detail) => format!("{state}: {detail}"),
        None => state.to_owned(),
    }
}

fn row(name: &str, value: impl Render) -> Markup {
    html! { tr { th { (name) } td { (value) } } }
}

fn session_link(id: &SessionId) -> Markup {
    html! { a href=(endpoint::SESSION_PAGE.at(id)) { (id.as_str()) } }
}

fn run_link(id: &ModelId) -> Markup {
    html! { a href=(endpoint::TRAINING_RUN_PAGE.at(id)) { (id.as_str()) } }
}

/// A whole page.
pub(crate) struct Page(Markup);

impl Page {
    fn new(title: &str, content: Markup) -> Self {
        Self(html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    title { (title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    p { a href=(endpoint::SESSIONS_PAGE.path) { "Sessions" } }
                    h1 { (title) }
                    (content)
                }
            }
        })
    }
}

const STYLE: &str =
    "body{font:15px sans-serif;margin:2em}td,th{text-align:left;padding:.2em 1em .2em 0}";

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let headers = [
            (
                header::CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'unsafe-inline'",
            ),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (headers, Html(self.0.into_string())).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_text_in_elements_and_in_addresses() {
        let id = SessionId::new("a\"><b>&");
        let link = session_link(&id).into_string();
        assert_eq!(
            link,
            "<a href=\"/sessions/a&quot;&gt;&lt;b&gt;&amp;\">a&quot;&gt;&lt;b&gt;&amp;</a>"
        );
        let page = Page::new("<i>", row("<u>", "</table>")).0.into_string();
        assert!(page.contains("<title>&lt;i&gt;</title>"), "{page}");
        assert!(
            page.contains("<th>&lt;u&gt;</th><td>&lt;/table&gt;</td>"),
            "{page}"
        );
    }

    #[test]
    fn a_status_is_a_word_with_its_reason() {
        assert_eq!(status(&SessionStatus::Active), "active");
        let cancelled = SessionStatus::Cancelled {
            detail: Some("too long".to_owned()),
        };
        assert_eq!(status(&cancelled), "cancelled: too long");
    }
}
