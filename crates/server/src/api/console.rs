//! Pages for people, at the addresses that the hosted service's console has: what this server knows of
//! a session, a run or a checkpoint.
//!
//! They show to whoever has the key what the API shows, and change nothing. A browser has no way to
//! send `X-API-Key`, and a key has no place in an address, so it may come as the password of HTTP's
//! own dialogue.

use std::fmt::Write as _;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use tinkrs_types::{CheckpointKind, ModelId, SessionId, TinkerPath};
use tinkrs_wire::header as names;

use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::InPath;

/// How many sessions the page of all of them shows.
const NEWEST: usize = 200;

/// Whoever reads a page.
pub(crate) struct Reader(Owner);

impl FromRequestParts<Server> for Reader {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, server: &Server) -> Result<Self, Response> {
        let key = credential(&parts.headers);
        let admitted = key.and_then(|key| server.auth().admit(&key, Timestamp::now()).ok());
        admitted.map(Self).ok_or_else(|| {
            let ask = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"tinkrs: your API key is the password\", charset=\"UTF-8\"",
            )];
            let why = "log in with any name, and your API key as the password";
            (StatusCode::UNAUTHORIZED, ask, why).into_response()
        })
    }
}

fn credential(headers: &HeaderMap) -> Option<Vec<u8>> {
    if let Some(key) = headers.get(names::API_KEY).filter(|key| !key.is_empty()) {
        return Some(key.as_bytes().to_vec());
    }
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let pair = BASE64.decode(value.strip_prefix("Basic ")?.trim()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

pub(crate) async fn sessions(
    State(server): State<Server>,
    Reader(owner): Reader,
) -> Result<Page, ApiError> {
    let mut page = Page::new("Sessions");
    let all = server.sessions(owner)?;
    let rows = all.iter().take(NEWEST).map(|session| {
        [
            link("/sessions", session.id.as_str()),
            escape(session.display_name.as_deref().unwrap_or_default()),
            escape(&format!("{:?}", session.status)),
            escape(&session.created_at.to_string()),
        ]
    });
    page.table(["Session", "Name", "Status", "Created"], rows);
    if all.len() > NEWEST {
        page.line(&format!("The newest {NEWEST} of {}.", all.len()));
    }
    Ok(page)
}

pub(crate) async fn session(
    State(server): State<Server>,
    Reader(owner): Reader,
    InPath(id): InPath<String>,
) -> Result<Page, ApiError> {
    let id = SessionId::new(id);
    let info = server.session_info(owner, &id)?;
    let record = server.registry().session(owner, &id)?.record.clone();
    let mut page = Page::new(&format!("Session {id}"));
    let mut rows = vec![
        [
            "Name".to_owned(),
            escape(record.display_name.as_deref().unwrap_or_default()),
        ],
        ["Status".to_owned(), escape(&format!("{:?}", record.status))],
        ["Created".to_owned(), escape(&record.created_at.to_string())],
        ["Client".to_owned(), escape(&record.sdk_version)],
    ];
    let labels = record.user_metadata.iter();
    rows.extend(labels.map(|(name, value)| [escape(name), escape(value)]));
    let runs = info.training_run_ids.iter();
    rows.extend(runs.map(|run| ["Run".to_owned(), link("/training_runs", run.as_str())]));
    let samplers = info.sampler_ids.iter();
    rows.extend(samplers.map(|sampler| ["Sampler".to_owned(), escape(sampler.as_str())]));
    page.table(["", ""], rows.into_iter());
    Ok(page)
}

pub(crate) async fn run(
    State(server): State<Server>,
    Reader(owner): Reader,
    InPath(id): InPath<String>,
) -> Result<Page, ApiError> {
    let id = ModelId::new(id);
    let (record, time) = {
        let mut registry = server.registry();
        let run = registry.run(owner, &id)?;
        (run.record.clone(), run.last_request)
    };
    let mut page = Page::new(&format!("Training run {id}"));
    let state = match (&record.closed, record.corrupted) {
        (_, true) => "failed".to_owned(),
        (Some(why), _) => format!("closed: {why}"),
        (None, _) => "open".to_owned(),
    };
    let rows = [
        ["Session", &link("/sessions", record.session.as_str())],
        ["Base model", &escape(&record.base_model)],
        ["Rank", &record.lora.rank.to_string()],
        ["State", &escape(&state)],
        ["Last request", &escape(&time.to_string())],
    ];
    page.table(["", ""], rows.map(|row| row.map(str::to_owned)).into_iter());
    let checkpoints = server.shared().checkpoints.list(owner, Some(&id));
    let rows = checkpoints.iter().map(|checkpoint| {
        let name = &checkpoint.checkpoint_id;
        let address = format!("/checkpoints/{id}/{}", name.replace('/', "%2F"));
        [
            anchor(&address, name),
            checkpoint.size_bytes.unwrap_or_default().to_string(),
            escape(&checkpoint.time.to_string()),
        ]
    });
    page.table(["Checkpoint", "Bytes", "Saved"], rows);
    Ok(page)
}

pub(crate) async fn checkpoint(
    State(server): State<Server>,
    Reader(owner): Reader,
    InPath((run, id)): InPath<(String, String)>,
) -> Result<Page, ApiError> {
    let missing = || ApiError::not_found(format!("there is no checkpoint `{id}`"));
    let (kind, name) = id.split_once('/').ok_or_else(missing)?;
    let kind = CheckpointKind::from_segment(kind).ok_or_else(missing)?;
    let path = TinkerPath::new(ModelId::new(run), kind, name)?;
    let saved = server.checkpoint(owner, &path)?;
    let mut page = Page::new(&format!("Checkpoint {path}"));
    let expires = saved.checkpoint.expires_at;
    let rows = [
        ["Run", &link("/training_runs", path.run().as_str())],
        ["Path", &escape(&path.to_string())],
        ["Base model", &escape(&saved.info.base_model)],
        [
            "Rank",
            &saved.info.lora_rank.unwrap_or_default().to_string(),
        ],
        [
            "Bytes",
            &saved.checkpoint.size_bytes.unwrap_or_default().to_string(),
        ],
        ["Public", if saved.checkpoint.public { "yes" } else { "no" }],
        ["Saved", &escape(&saved.checkpoint.time.to_string())],
        [
            "Expires",
            &expires.map_or_else(|| "never".to_owned(), |time| time.to_string()),
        ],
    ];
    page.table(["", ""], rows.map(|row| row.map(str::to_owned)).into_iter());
    Ok(page)
}

/// A page under way. What goes into it is HTML; whatever comes from elsewhere is escaped first.
pub(crate) struct Page(String);

impl Page {
    fn new(title: &str) -> Self {
        let title = escape(title);
        Self(format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
             <style>body{{font:15px sans-serif;margin:2em}}td,th{{text-align:left;padding:.2em 1em .2em 0}}\
             </style><p><a href=\"/sessions\">Sessions</a><h1>{title}</h1>"
        ))
    }

    fn line(&mut self, text: &str) {
        let _ = write!(self.0, "<p>{}", escape(text));
    }

    fn table<const N: usize>(&mut self, head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
        self.0.push_str("<table><tr>");
        for title in head {
            let _ = write!(self.0, "<th>{title}");
        }
        for row in rows {
            self.0.push_str("<tr>");
            for cell in row {
                let _ = write!(self.0, "<td>{cell}");
            }
        }
        self.0.push_str("</table>");
    }
}

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
        (headers, Html(self.0)).into_response()
    }
}

fn link(folder: &str, id: &str) -> String {
    anchor(&format!("{folder}/{id}"), id)
}

fn anchor(address: &str, text: &str) -> String {
    format!("<a href=\"{}\">{}</a>", escape(address), escape(text))
}

/// Writes a text so that HTML shows it as it is, in elements and in attributes.
///
/// The reports of `tinkrs-recipes` have one of their own, by the same rules: all that the two crates
/// have in common are the types of the API, and those know nothing of pages.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            // Control characters are not allowed in a page at all.
            control if control.is_control() => escaped.push('\u{FFFD}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_more_than_text() {
        let text = "<b a='1'>&\"\0\u{1b}[31m\u{85}\n\tü";
        let shown = "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{FFFD}\u{FFFD}[31m\u{FFFD}\n\tü";
        assert_eq!(escape(text), shown);
        assert_eq!(
            anchor("/a\"/b", "<b>"),
            "<a href=\"/a&quot;/b\">&lt;b&gt;</a>"
        );
    }
}
