//! What can be done with checkpoints.

use crate::case::{Case, OK, Stop, Verdict, case, ensure, mismatch};
use crate::trial::{Trial, checkpoint_path, is_time, text};
use crate::wire::{Reply, Sent, shown};
use http::Method;
use serde_json::{Value, json};
use tinkrs::external::HttpClient;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::{ModelId, Timestamp};
use tinkrs_wire::{endpoint, header};

pub(super) const CASES: &[Case] = &[
    case!(
        "checkpoints/labels",
        "A checkpoint has the labels that it was saved with.",
        "protocol 11.2, 14.1",
        labels
    )
    .after(&["weights/save"]),
    case!(
        "checkpoints/list",
        "A run lists its checkpoints with type, time and path.",
        "protocol 14.1, 14.3",
        list
    )
    .after(&["weights/save"]),
    case!(
        "checkpoints/delete",
        "A deleted checkpoint is not listed, and cannot be loaded.",
        "protocol 14.3",
        delete
    )
    .after(&["weights/save"]),
    case!(
        "checkpoints/bare-id",
        "An id without a kind is refused.",
        "protocol 14.3",
        bare_id
    )
    .after(&["weights/save"]),
    case!(
        "checkpoints/missing",
        "Deleting what does not exist is refused, with 400 or 404.",
        "protocol 14.3",
        missing
    )
    .after(&["models/create"]),
    case!(
        "checkpoints/ttl",
        "A time to live is set, seen as `expires_at`, and cleared again by null.",
        "protocol 14.3",
        ttl
    )
    .after(&["weights/save", "checkpoints/list"]),
    case!(
        "checkpoints/ttl-at-save",
        "A time to live that is given with a save is seen as `expires_at`.",
        "protocol 11.2, pitfalls",
        ttl_at_save
    )
    .after(&["weights/save", "checkpoints/list"]),
    case!(
        "checkpoints/ttl-range",
        "A time to live under an hour is refused.",
        "protocol 14.3",
        ttl_range
    )
    .after(&["weights/save"]),
    case!(
        "checkpoints/publish",
        "A checkpoint is published and unpublished; doing either twice is 409.",
        "protocol 14.3",
        publish
    )
    .after(&["weights/save"]),
    case!(
        "checkpoints/external",
        "Weights are saved for download, and every link leads to a file.",
        "protocol 11.4, 14.3",
        external
    )
    .after(&["models/create"]),
    case!(
        "checkpoints/copy",
        "A checkpoint is copied, once for each idempotency key.",
        "protocol 10.5, 5.3",
        copy
    )
    .after(&["weights/save"]),
];

async fn call(
    trial: &Trial,
    method: Method,
    path: &str,
    action: &str,
    body: Option<Value>,
) -> Result<Reply, Stop> {
    let Some(place) = checkpoint_path(path) else {
        return Err(mismatch("a path tinker://run/kind/name", shown(path)));
    };
    let mut sent = Sent::new(method, format!("{place}{action}"));
    if let Some(body) = body {
        sent = sent.json(&body);
    }
    trial.wire().send(&sent).await
}

/// Returns how the run lists a checkpoint.
async fn listed(trial: &Trial, run: &str, path: &str) -> Result<Option<Value>, Stop> {
    let at = endpoint::LIST_CHECKPOINTS.at(&ModelId::new(run));
    let found = trial
        .wire()
        .accepted(&Sent::at(&endpoint::LIST_CHECKPOINTS, at))
        .await?
        .object()?;
    let Some(checkpoints) = found["checkpoints"].as_array() else {
        return Err(mismatch("a list `checkpoints`", shown(&found.to_string())));
    };
    Ok(checkpoints
        .iter()
        .find(|item| item["tinker_path"] == path)
        .cloned())
}

async fn found(trial: &Trial, run: &str, path: &str) -> Result<Value, Stop> {
    let item = listed(trial, run, path).await?;
    item.ok_or_else(|| mismatch(format_args!("{path} in the list"), "others only"))
}

async fn list(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let state = run.save(json!({})).await?;
    let sampler = run.save_for_sampler().await?;
    for (path, kind) in [(&state, "training"), (&sampler, "sampler")] {
        let item = found(trial, &run.id, path).await?;
        let seen = shown(&item.to_string());
        ensure(
            item["checkpoint_type"] == kind,
            format_args!("the type `{kind}`"),
            &seen,
        )?;
        text(&item, "checkpoint_id")?;
        let time = text(&item, "time")?;
        ensure(is_time(&time), "a time", shown(&time))?;
    }
    OK
}

async fn labels(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let more = json!({"user_metadata": {"colour": "blue"}});
    let state = run.save(more).await?;
    let item = found(trial, &run.id, &state).await?;
    ensure(
        item["user_metadata"]["colour"] == "blue",
        "the labels of the checkpoint",
        shown(&item.to_string()),
    )?;
    OK
}

async fn delete(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save(json!({})).await?;
    call(trial, Method::DELETE, &path, "", None)
        .await?
        .success()?;
    let item = listed(trial, &run.id, &path).await?;
    ensure(item.is_none(), "it not to be listed", "it still is")?;
    let other = trial.model().await?;
    let more = json!({"path": path, "optimizer": true});
    let sent = other.weights_at(other.seq_id(), &endpoint::LOAD_WEIGHTS, more);
    trial.refused(&sent, RequestType::LoadWeights).await?;
    OK
}

async fn bare_id(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save(json!({})).await?;
    let place = checkpoint_path(&path)
        .unwrap_or_default()
        .replace("/weights/", "/");
    let reply = trial.wire().send(&Sent::new(Method::DELETE, place)).await?;
    ensure(reply.is_refusal(), "a 4xx", &reply)?;
    ensure(
        listed(trial, &run.id, &path).await?.is_some(),
        "the checkpoint to be there still",
        "it is gone",
    )?;
    OK
}

async fn missing(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = format!("tinker://{}/weights/conform-no-such-checkpoint", run.id);
    let reply = call(trial, Method::DELETE, &path, "", None).await?;
    ensure(matches!(reply.status, 400 | 404), "400 or 404", &reply)?;
    OK
}

fn expires(item: &Value) -> Result<Option<Timestamp>, Stop> {
    match &item["expires_at"] {
        Value::Null => Ok(None),
        Value::String(time) => match time.parse() {
            Ok(time) => Ok(Some(time)),
            Err(_) => Err(mismatch("a time `expires_at`", shown(time))),
        },
        other => Err(mismatch("a time `expires_at`", shown(&other.to_string()))),
    }
}

fn is_in(time: Option<Timestamp>, seconds: i64) -> bool {
    time.is_some_and(|time| (time.as_second() - Timestamp::now().as_second() - seconds).abs() < 300)
}

async fn ttl(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save(json!({})).await?;
    call(
        trial,
        Method::PUT,
        &path,
        "/ttl",
        Some(json!({"ttl_seconds": 7200})),
    )
    .await?
    .success()?;
    let item = found(trial, &run.id, &path).await?;
    ensure(
        is_in(expires(&item)?, 7200),
        "`expires_at` in two hours",
        shown(&item.to_string()),
    )?;
    call(
        trial,
        Method::PUT,
        &path,
        "/ttl",
        Some(json!({"ttl_seconds": null})),
    )
    .await?
    .success()?;
    let item = found(trial, &run.id, &path).await?;
    ensure(
        expires(&item)?.is_none(),
        "no `expires_at`",
        shown(&item.to_string()),
    )?;
    OK
}

async fn ttl_at_save(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save(json!({"ttl_seconds": 86400})).await?;
    let item = found(trial, &run.id, &path).await?;
    ensure(
        is_in(expires(&item)?, 86400),
        "`expires_at` in a day",
        shown(&item.to_string()),
    )?;
    OK
}

async fn ttl_range(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save(json!({})).await?;
    let body = json!({"ttl_seconds": 60});
    let reply = call(trial, Method::PUT, &path, "/ttl", Some(body))
        .await?
        .exists()?;
    ensure(reply.is_refusal(), "a 4xx", &reply)?;
    OK
}

async fn publish(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save_for_sampler().await?;
    for (method, public) in [(Method::POST, true), (Method::DELETE, false)] {
        call(trial, method.clone(), &path, "/publish", None)
            .await?
            .success()?;
        let item = found(trial, &run.id, &path).await?;
        let seen = item["public"].as_bool().unwrap_or(false);
        ensure(
            seen == public,
            format_args!("`public` to be {public}"),
            shown(&item.to_string()),
        )?;
        let again = call(trial, method, &path, "/publish", None).await?;
        ensure(again.status == 409, "409 for doing it twice", &again)?;
    }
    OK
}

async fn external(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let body = json!({"path": trial.name()});
    let saved = run
        .weights(
            &endpoint::SAVE_WEIGHTS_EXTERNAL,
            RequestType::SaveWeightsExternal,
            body,
        )
        .await?;
    let path = text(&saved, "path")?;
    trial.remember(&path);
    let links = call(trial, Method::GET, &path, "/external_weights_urls", None)
        .await?
        .object()?;
    text(&links, "expires")?;
    let Some(urls) = links["urls"].as_object().filter(|urls| !urls.is_empty()) else {
        return Err(mismatch("an object `urls`", shown(&links.to_string())));
    };
    let http = HttpClient::new(std::time::Duration::from_secs(30));
    for (name, url) in urls {
        // Without the key: links are signed.
        let response = http.get(url.as_str().unwrap_or_default()).send().await;
        let status = response
            .as_ref()
            .map_or(0, tinkrs::external::HttpResponse::status);
        ensure(
            status == 200,
            format_args!("status 200 for {}", shown(name)),
            status,
        )?;
    }
    OK
}

async fn copy(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save(json!({})).await?;
    // The project of our own session is one that we may write to.
    let session = json!({"session_id": trial.session().await?});
    let project = super::sessions::found_by(trial, session).await.ok();
    let project = project.and_then(|found| text(&found, "project_id").ok());
    let body = json!({"source_path": path, "destination_project_id": project.as_deref().unwrap_or("conform")});
    let key = format!("00000000-0000-4000-8000-{:012x}", fastrand::u64(..1 << 48));
    let sent = Sent::to(&endpoint::COPY_WEIGHTS)
        .json(&body)
        .header(header::IDEMPOTENCY_KEY, key);
    let mut paths = Vec::new();
    for _ in 0..2 {
        let reply = trial.wire().accepted(&sent).await?.exists()?;
        if matches!(reply.status, 400 | 403 | 404) {
            // There is no such project.
            return Err(Stop::NotSupported(reply.to_string()));
        }
        let made = text(&reply.object()?, "tinker_path")?;
        trial.remember(&made);
        paths.push(made);
    }
    ensure(
        paths[0] == paths[1],
        "one copy for one key",
        shown(&paths.join(", ")),
    )?;
    ensure(paths[0] != path, "a path of its own", shown(&paths[0]))?;
    OK
}
