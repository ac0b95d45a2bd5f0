//! Pages for people, at the addresses that the hosted service's console has: what this server knows of
//! a session, a run or a checkpoint.
//!
//! They show what the API shows to the holder of the key, and change nothing.

use axum::extract::State;
use axum::response::Response;
use maud::html;
use tinkrs_studio::pages::{self, Fact};
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{CheckpointKind, ModelId, SessionId, TinkerPath};
use tinkrs_wire::endpoint;

use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::InPath;
use crate::studio::headers;
use crate::studio::pages::missing;
use crate::studio::visitor::Visitor;

/// How many sessions the page of all of them shows.
const NEWEST: usize = 200;

pub(crate) async fn sessions(
    State(server): State<Server>,
    visitor: Visitor,
) -> Result<Response, ApiError> {
    let all = server.sessions(visitor.owner())?;
    let newest = all.iter().take(NEWEST);
    let rows = newest.map(|session| {
        let name = session.display_name.as_deref().unwrap_or_default();
        let time = session.created_at.to_string();
        vec![
            html! { a href=(endpoint::SESSION_PAGE.at(&session.id)) { (session.id.as_str()) } },
            html! { bdi { (name) } },
            html! { bdi { (status(&session.status)) } },
            html! { time datetime=(time) { (time) } },
        ]
    });
    let rows: Vec<_> = rows.collect();
    let below = if all.len() > NEWEST {
        format!("the newest {NEWEST} of {}", all.len())
    } else {
        String::new()
    };
    let columns = ["Session", "Name", "Status", "Created"];
    let empty = "No sessions yet: a client makes one when it connects.";
    let page = pages::listing("Sessions", &columns, &rows, &below, empty);
    Ok(headers::page(page))
}

pub(crate) async fn session(
    State(server): State<Server>,
    visitor: Visitor,
    InPath(id): InPath<String>,
) -> Response {
    let words = format!("There is no session `{id}` of yours.");
    let page = server.session_page(visitor.owner(), &SessionId::new(id));
    page.unwrap_or_else(|error| missing(error, &words))
}

pub(crate) async fn run(
    State(server): State<Server>,
    visitor: Visitor,
    InPath(id): InPath<String>,
) -> Response {
    let words = format!("There is no run `{id}` of yours.");
    let page = server.run_page(visitor.owner(), &ModelId::new(id));
    page.unwrap_or_else(|error| missing(error, &words))
}

pub(crate) async fn checkpoint(
    State(server): State<Server>,
    visitor: Visitor,
    InPath((run, id)): InPath<(String, String)>,
) -> Response {
    let words = format!("There is no checkpoint `{id}` of yours.");
    let page = server.checkpoint_page(visitor.owner(), &run, &id);
    page.unwrap_or_else(|error| missing(error, &words))
}

impl Server {
    fn session_page(&self, owner: Owner, id: &SessionId) -> Result<Response, ApiError> {
        let info = self.session_info(owner, id)?;
        let record = self.registry().session(owner, id)?.record.clone();
        let mut about = vec![
            Fact::new("Name", record.display_name.as_deref().unwrap_or_default()),
            Fact::new("Status", status(&record.status)),
            Fact::time("Created", &record.created_at.to_string()),
            Fact::new("Client", &record.sdk_version),
        ];
        let labels = record.user_metadata.iter();
        about.extend(labels.map(|(name, value)| Fact::new(name, value)));
        let runs = info.training_run_ids.iter();
        let runs = runs.map(|run| Fact::link("Run", &endpoint::RUN_PAGE.at(run), run.as_str()));
        let samplers = info.sampler_ids.iter();
        let samplers = samplers.map(|sampler| Fact::new("Sampler", sampler.as_str()));
        let groups = [
            ("Session", about),
            ("Runs", runs.collect()),
            ("Samplers", samplers.collect()),
        ];
        Ok(headers::page(pages::facts(
            &format!("Session {id}"),
            &groups,
        )))
    }

    fn run_page(&self, owner: Owner, id: &ModelId) -> Result<Response, ApiError> {
        let (record, time) = {
            let mut registry = self.registry();
            let run = registry.run(owner, id)?;
            (run.record.clone(), run.last_request)
        };
        let state = match (&record.closed, record.corrupted) {
            (_, true) => "failed".to_owned(),
            (Some(why), _) => format!("closed: {why}"),
            (None, _) => "open".to_owned(),
        };
        let session = &record.session;
        let about = vec![
            Fact::link(
                "Curves and data",
                &endpoint::RUN_PAGE.at(id),
                "Open in the studio",
            ),
            Fact::link(
                "Session",
                &endpoint::SESSION_PAGE.at(session),
                session.as_str(),
            ),
            Fact::new("Base model", &record.base_model),
            Fact::new("Rank", record.lora.rank),
            Fact::new("State", state),
            Fact::time("Last request", &time.to_string()),
        ];
        let checkpoints = self.shared().checkpoints.list(owner, Some(id));
        let saved = checkpoints.iter().map(|checkpoint| {
            let name = &checkpoint.checkpoint_id;
            let path = format!("/checkpoints/{id}/{}", name.replace('/', "%2F"));
            Fact::link(&checkpoint.time.to_string(), &path, name)
        });
        let groups = [("Run", about), ("Checkpoints", saved.collect())];
        Ok(headers::page(pages::facts(
            &format!("Training run {id}"),
            &groups,
        )))
    }

    fn checkpoint_page(&self, owner: Owner, run: &str, id: &str) -> Result<Response, ApiError> {
        let missing = || ApiError::not_found(format!("there is no checkpoint `{id}`"));
        let (kind, name) = id.split_once('/').ok_or_else(missing)?;
        let kind = CheckpointKind::from_segment(kind).ok_or_else(missing)?;
        let path = TinkerPath::new(ModelId::new(run), kind, name)?;
        let saved = self.checkpoint(owner, &path)?;
        let (checkpoint, info) = (&saved.checkpoint, &saved.info);
        let expires = match checkpoint.expires_at {
            Some(time) => Fact::time("Expires", &time.to_string()),
            None => Fact::new("Expires", "never"),
        };
        let about = vec![
            Fact::link(
                "Run",
                &endpoint::RUN_PAGE.at(path.run()),
                path.run().as_str(),
            ),
            Fact::new("Path", path.to_string()),
            Fact::new("Base model", &info.base_model),
            Fact::new("Rank", info.lora_rank.unwrap_or_default()),
            Fact::new("Bytes", checkpoint.size_bytes.unwrap_or_default()),
            Fact::new("Public", if checkpoint.public { "yes" } else { "no" }),
            Fact::time("Saved", &checkpoint.time.to_string()),
            expires,
        ];
        let mut commands = vec![
            Fact::command(
                "Export",
                &format!("tinkrs export {path} --format merged --to merged"),
            ),
            Fact::command("Describe", &format!("tinkrs checkpoint info {path}")),
        ];
        if kind == CheckpointKind::Sampler {
            let chat = format!("tinkrs chat --checkpoint {path}");
            commands.insert(0, Fact::command("Chat", &chat));
        }
        let groups = [("Checkpoint", about), ("Commands", commands)];
        Ok(headers::page(pages::facts(
            &format!("Checkpoint {path}"),
            &groups,
        )))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_word_with_its_reason() {
        assert_eq!(status(&SessionStatus::Active), "active");
        let cancelled = SessionStatus::Cancelled {
            detail: Some("too long".to_owned()),
        };
        assert_eq!(status(&cancelled), "cancelled: too long");
    }
}
