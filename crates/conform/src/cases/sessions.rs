//! Sessions: their life, and what can be found out about them.

use crate::case::{Case, OK, Stop, Verdict, case, ensure, mismatch};
use crate::trial::{Trial, is_time, text};
use crate::wire::{Reply, Sent, shown};
use serde_json::{Value, json};
use tinkrs_types::SessionId;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!(
        "sessions/create",
        "A session is created and has an id that is a text.",
        "protocol 9.5",
        create
    ),
    case!(
        "sessions/heartbeat",
        "The heartbeat of a session is answered.",
        "protocol 9.6",
        heartbeat
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/finish",
        "After a session is finished, its heartbeat is answered by 410, so the client stops.",
        "protocol 9.7, 20.11",
        finish
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/finished-is-closed",
        "A finished session takes no new model.",
        "protocol 9.7",
        finished_is_closed
    )
    .after(&["sessions/finish"]),
    case!(
        "sessions/first-reason-wins",
        "A second finish does not replace the reason of the first.",
        "protocol 9.7, 14.4",
        first_reason_wins
    )
    .after(&["sessions/finish"]),
    case!(
        "sessions/labels",
        "A session has the name and the labels that it was created with.",
        "protocol 9.5, 14.4",
        labels
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/get",
        "A session lists its training runs and samplers.",
        "protocol 14.4",
        get
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/list",
        "The list of sessions has a new one, in pages as asked for.",
        "protocol 14.4",
        list
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/search",
        "A search by id, name or label finds a session with its required members.",
        "protocol 14.4",
        search
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/project",
        "A session is assigned to a project, or that is refused with 400, 403 or 404.",
        "protocol 14.4",
        project
    )
    .after(&["sessions/create"]),
    case!(
        "sessions/trace",
        "A trace export is pending, ready with a link, or failed.",
        "protocol 14.4",
        trace
    )
    .after(&["sessions/create"]),
];

async fn create(trial: &Trial) -> Verdict {
    let session = trial.session().await?;
    let expected = "an id that can stand in a path";
    let is_plain = session
        .chars()
        .all(|c| c.is_ascii_graphic() && !"/?#".contains(c));
    ensure(is_plain, expected, shown(session))?;
    OK
}

async fn beat(trial: &Trial, session: &str) -> Result<Reply, Stop> {
    let body = json!({"session_id": session, "type": "session_heartbeat"});
    let sent = Sent::to(&endpoint::SESSION_HEARTBEAT).json(&body);
    trial.wire().send(&sent).await
}

async fn heartbeat(trial: &Trial) -> Verdict {
    beat(trial, trial.session().await?).await?.object()?;
    OK
}

async fn finish_as(trial: &Trial, session: &str, reason: &str) -> Result<Reply, Stop> {
    let path = endpoint::FINISH_SESSION.at(&SessionId::new(session));
    let body = json!({"reason": {"type": reason}, "detail": null});
    let sent = Sent::at(&endpoint::FINISH_SESSION, path).json(&body);
    trial.wire().send(&sent).await
}

async fn finish(trial: &Trial) -> Verdict {
    let session = trial.session().await?;
    finish_as(trial, session, "success").await?.success()?;
    let reply = beat(trial, session).await?;
    ensure(reply.status == 410, "status 410", &reply)?;
    OK
}

async fn finished_is_closed(trial: &Trial) -> Verdict {
    let session = trial.session().await?;
    finish_as(trial, session, "success").await?.success()?;
    let body = trial.model_body(trial.number(), json!({"rank": 8})).await?;
    let sent = Sent::to(&endpoint::CREATE_MODEL).json(&body);
    trial.refused(&sent, RequestType::CreateModel).await?;
    OK
}

async fn first_reason_wins(trial: &Trial) -> Verdict {
    let session = trial.session().await?;
    finish_as(trial, session, "interrupted").await?.success()?;
    // Whatever it answers.
    finish_as(trial, session, "success").await?;
    let found = found_by(trial, json!({"session_id": session})).await?;
    let reason = &found["status"]["reason"]["type"];
    ensure(
        reason == "interrupted",
        "the reason `interrupted`",
        shown(&found.to_string()),
    )?;
    OK
}

async fn info(trial: &Trial, session: &str) -> Result<Value, Stop> {
    let path = endpoint::GET_SESSION.at(&SessionId::new(session));
    let sent = Sent::at(&endpoint::GET_SESSION, path).query("access_scope=owned");
    trial.wire().accepted(&sent).await?.object()
}

async fn labels(trial: &Trial) -> Verdict {
    let labels = json!({"display_name": "conform name", "user_metadata": {"colour": "blue"}});
    let labelled = info(trial, &trial.new_session(labels).await?).await?;
    ensure(
        labelled["display_name"] == "conform name" && labelled["user_metadata"]["colour"] == "blue",
        "the name and the labels of the session",
        shown(&labelled.to_string()),
    )?;
    OK
}

async fn get(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let sampler = trial.base_sampler().await?;
    let found = info(trial, trial.session().await?).await?;
    let has = |list: &str, id: &str| {
        let list = found[list].as_array();
        list.is_some_and(|list| list.iter().any(|item| item == id))
    };
    ensure(
        has("training_run_ids", &run.id),
        "the run in `training_run_ids`",
        shown(&found.to_string()),
    )?;
    ensure(
        has("sampler_ids", &sampler.id),
        "the sampler in `sampler_ids`",
        shown(&found.to_string()),
    )?;
    OK
}

async fn list(trial: &Trial) -> Verdict {
    const PAGE: usize = 20;
    let session = trial.session().await?;
    for page in 0..50 {
        let query = format!("limit={PAGE}&offset={}&access_scope=owned", page * PAGE);
        let sent = Sent::to(&endpoint::LIST_SESSIONS).query(&query);
        let found = trial.wire().accepted(&sent).await?.object()?;
        let Some(sessions) = found["sessions"].as_array() else {
            return Err(mismatch("a list `sessions`", shown(&found.to_string())));
        };
        ensure(
            sessions.len() <= PAGE,
            format_args!("at most {PAGE} sessions"),
            sessions.len(),
        )?;
        if sessions.iter().any(|item| item == session) {
            return OK;
        }
        if sessions.len() < PAGE {
            break;
        }
    }
    Err(mismatch("the new session in the list", "others only"))
}

/// Returns the first session that a search finds.
pub(super) async fn found_by(trial: &Trial, what: Value) -> Result<Value, Stop> {
    let mut body = json!({"user_metadata": {}, "owner": {"type": "own"}, "limit": 50});
    for (name, value) in what.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let found = trial.wire().post(&endpoint::SEARCH_SESSIONS, &body).await?;
    let Some([first, ..]) = found["sessions"].as_array().map(Vec::as_slice) else {
        return Err(mismatch(
            "a session that was searched for",
            shown(&found.to_string()),
        ));
    };
    Ok(first.clone())
}

async fn search(trial: &Trial) -> Verdict {
    let label = trial.name();
    let labels =
        json!({"display_name": format!("Conform {label}"), "user_metadata": {"label": label}});
    let session = trial.new_session(labels).await?;
    for (what, query) in [
        ("id", json!({"session_id": session})),
        ("name", json!({"display_name": label.to_uppercase()})),
        ("label", json!({"user_metadata": {"label": label}})),
        (
            "label and status",
            json!({"user_metadata": {"label": label}, "statuses": [{"type": "active"}]}),
        ),
    ] {
        let found = found_by(trial, query).await?;
        let expected = format!("the session by its {what}");
        ensure(
            found["session_id"] == session.as_str(),
            expected,
            shown(&found.to_string()),
        )?;
        for name in ["owner", "project_id"] {
            text(&found, name)?;
        }
        let created = text(&found, "created_at")?;
        ensure(is_time(&created), "a time `created_at`", shown(&created))?;
        let count = &found["checkpoints_count"];
        ensure(
            count.is_u64(),
            "a number `checkpoints_count`",
            shown(&found.to_string()),
        )?;
    }
    let none = json!({"user_metadata": {"label": label}, "owner": {"type": "own"}, "limit": 50,
        "statuses": [{"type": "cancelled"}]});
    let found = trial.wire().post(&endpoint::SEARCH_SESSIONS, &none).await?;
    let is_empty = found["sessions"].as_array().is_some_and(Vec::is_empty);
    ensure(is_empty, "no cancelled session", shown(&found.to_string()))?;
    OK
}

async fn project(trial: &Trial) -> Verdict {
    let session = trial.session().await?;
    let path = endpoint::ASSIGN_SESSION_PROJECT.at(&SessionId::new(session));
    let sent =
        Sent::at(&endpoint::ASSIGN_SESSION_PROJECT, path).json(&json!({"project_id": "conform"}));
    let reply = trial.wire().send(&sent).await?.exists()?;
    let is_documented = reply.is_success() || matches!(reply.status, 400 | 403 | 404);
    ensure(is_documented, "2xx, 400, 403 or 404", &reply)?;
    OK
}

async fn trace(trial: &Trial) -> Verdict {
    let session = trial.session().await?;
    let path = endpoint::EXPORT_SESSION_TRACE.at(&SessionId::new(session));
    let sent = Sent::at(&endpoint::EXPORT_SESSION_TRACE, path);
    let found = trial.wire().send(&sent).await?.object()?;
    match found["status"].as_str() {
        Some("pending" | "failed") => OK,
        Some("ready") => text(&found, "url").and(OK),
        _ => Err(mismatch(
            "a status pending, ready or failed",
            shown(&found.to_string()),
        )),
    }
}
