//! Lists of runs and checkpoints, and what belongs to an account.

use crate::case::{Case, OK, Stop, Verdict, case, ensure, mismatch};
use crate::trial::{Trial, is_time, text};
use crate::wire::{Sent, shown};
use serde_json::{Value, json};
use tinkrs_types::{ModelId, Timestamp};
use tinkrs_wire::endpoint::{self, Endpoint};

pub(super) const CASES: &[Case] = &[
    case!(
        "listings/run",
        "A training run has its base model, owner, adapter, time and last checkpoints.",
        "protocol 14.1, 14.2",
        run
    )
    .after(&["weights/save"]),
    case!(
        "listings/runs",
        "The list of training runs has a new one, in pages with a cursor.",
        "protocol 14.2",
        runs
    )
    .after(&["models/create"]),
    case!(
        "listings/checkpoints",
        "The list of all checkpoints is newest first, in pages with a cursor.",
        "protocol 14.3",
        checkpoints
    )
    .after(&["weights/save"]),
    case!(
        "listings/unknown-run",
        "A training run that does not exist is 404.",
        "protocol 6.3",
        unknown_run
    ),
    case!(
        "listings/audit",
        "The audit log is a list of events with a time and a name.",
        "protocol 15.1",
        audit
    )
    .optional(),
    case!(
        "listings/usage",
        "The usage of an hour is a list of events.",
        "protocol 15.2",
        usage
    )
    .optional(),
    case!(
        "listings/storage",
        "The storage of checkpoints is a list of counts and sizes.",
        "protocol 15.3",
        storage
    )
    .optional(),
    case!(
        "listings/key",
        "A key can be asked whose it is.",
        "protocol 3.8",
        key
    )
    .optional(),
];

async fn run_of(trial: &Trial, id: &str) -> Result<crate::wire::Reply, Stop> {
    let path = endpoint::GET_TRAINING_RUN.at(&ModelId::new(id));
    let sent = Sent::at(&endpoint::GET_TRAINING_RUN, path).query("access_scope=owned");
    trial.wire().accepted(&sent).await
}

async fn run(trial: &Trial) -> Verdict {
    let model = trial.model().await?;
    let path = model.save(json!({})).await?;
    let found = run_of(trial, &model.id).await?.object()?;
    let seen = shown(&found.to_string());
    ensure(
        found["training_run_id"] == model.id.as_str(),
        "the id of the run",
        &seen,
    )?;
    ensure(
        found["base_model"] == trial.shared.model.as_str(),
        "its base model",
        &seen,
    )?;
    ensure(found["is_lora"].is_boolean(), "`is_lora`", &seen)?;
    text(&found, "model_owner")?;
    let time = text(&found, "last_request_time")?;
    ensure(is_time(&time), "a time `last_request_time`", shown(&time))?;
    let last = &found["last_checkpoint"]["tinker_path"];
    ensure(
        *last == path.as_str(),
        "the last checkpoint",
        shown(&found["last_checkpoint"].to_string()),
    )?;
    OK
}

/// Asks for a page of a list, and checks its cursor.
async fn page(
    trial: &Trial,
    endpoint: &Endpoint,
    list: &str,
    limit: usize,
    offset: usize,
) -> Result<Vec<Value>, Stop> {
    let mut query = format!("limit={limit}&offset={offset}");
    if endpoint.name == endpoint::LIST_TRAINING_RUNS.name {
        query.push_str("&access_scope=owned");
    }
    let found = trial
        .wire()
        .accepted(&Sent::to(endpoint).query(&query))
        .await?
        .object()?;
    let cursor = &found["cursor"];
    let is_cursor = ["offset", "limit", "total_count"]
        .iter()
        .all(|name| cursor[name].is_u64());
    ensure(
        is_cursor,
        "a cursor with offset, limit and total_count",
        shown(&cursor.to_string()),
    )?;
    match found[list].as_array() {
        Some(items) if items.len() <= limit => Ok(items.clone()),
        Some(items) => Err(mismatch(format_args!("at most {limit}"), items.len())),
        None => Err(mismatch(
            format_args!("a list `{list}`"),
            shown(&found.to_string()),
        )),
    }
}

async fn runs(trial: &Trial) -> Verdict {
    let model = trial.model().await?;
    let endpoint = &endpoint::LIST_TRAINING_RUNS;
    let one = page(trial, endpoint, "training_runs", 1, 0).await?;
    ensure(one.len() == 1, "one run", one.len())?;
    for number in 0..50 {
        let items = page(trial, endpoint, "training_runs", 20, number * 20).await?;
        if items
            .iter()
            .any(|item| item["training_run_id"] == model.id.as_str())
        {
            return OK;
        }
        if items.len() < 20 {
            break;
        }
    }
    Err(mismatch("the new run in the list", "others only"))
}

async fn checkpoints(trial: &Trial) -> Verdict {
    let model = trial.model().await?;
    let mut paths = Vec::new();
    for _ in 0..3 {
        paths.push(model.save(json!({})).await?);
        // Times may be in whole seconds.
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    }
    paths.reverse();
    let endpoint = &endpoint::LIST_USER_CHECKPOINTS;
    let items = page(trial, endpoint, "checkpoints", 100, 0).await?;
    let listed = |items: &[Value]| -> Vec<String> {
        let found = items.iter().filter_map(|item| item["tinker_path"].as_str());
        found
            .filter(|path| paths.iter().any(|own| own == path))
            .map(str::to_owned)
            .collect()
    };
    ensure(
        listed(&items) == paths,
        "the three new ones, newest first",
        shown(&listed(&items).join(", ")),
    )?;
    let (first, second) = (
        page(trial, endpoint, "checkpoints", 1, 0).await?,
        page(trial, endpoint, "checkpoints", 1, 1).await?,
    );
    let differ = first.len() == 1 && second.len() == 1 && first != second;
    ensure(
        differ,
        "two pages of one each",
        format_args!("{} and {}", first.len(), second.len()),
    )?;
    OK
}

async fn unknown_run(trial: &Trial) -> Verdict {
    let reply = run_of(trial, "00000000-0000-4000-8000-00000000c0f0:train:0").await?;
    ensure(reply.status == 404, "404", &reply)?;
    OK
}

/// Asks for something that accounts of an organization have; others may be told that they may not.
async fn account(trial: &Trial, sent: &Sent) -> Result<Value, Stop> {
    let reply = trial.wire().accepted(sent).await?;
    if matches!(reply.status, 401 | 403) {
        return Err(Stop::NotSupported(reply.to_string()));
    }
    reply.object()
}

fn list_of<'a>(found: &'a Value, name: &str) -> Result<&'a Vec<Value>, Stop> {
    let list = found[name].as_array();
    list.ok_or_else(|| mismatch(format_args!("a list `{name}`"), shown(&found.to_string())))
}

async fn audit(trial: &Trial) -> Verdict {
    let found = account(
        trial,
        &Sent::to(&endpoint::GET_AUDIT_LOG).query("event_type=all"),
    )
    .await?;
    for entry in list_of(&found, "entries")? {
        text(entry, "timestamp")?;
        text(entry, "event")?;
    }
    OK
}

async fn usage(trial: &Trial) -> Verdict {
    const HOUR: i64 = 3600;
    let now = Timestamp::now().as_second() / HOUR * HOUR;
    let at = |second: i64| {
        Timestamp::from_second(second)
            .map(|time| time.to_string())
            .unwrap_or_default()
    };
    let query = format!(
        "starting_on={}&ending_before={}",
        at(now - HOUR),
        at(now + HOUR)
    )
    .replace(':', "%3A");
    let found = account(trial, &Sent::to(&endpoint::GET_BILLING_USAGE).query(&query)).await?;
    for event in list_of(&found, "data")? {
        text(event, "bucket_start")?;
        text(event, "bucket_end")?;
        text(&event["event_info"], "type")?;
    }
    OK
}

async fn storage(trial: &Trial) -> Verdict {
    let found = account(
        trial,
        &Sent::to(&endpoint::GET_CURRENT_CHECKPOINT_STORAGE_USAGE),
    )
    .await?;
    for item in list_of(&found, "data")? {
        let is_counted = item["checkpoint_count"].is_u64() && item["size_bytes"].is_u64();
        ensure(
            is_counted,
            "`checkpoint_count` and `size_bytes`",
            shown(&item.to_string()),
        )?;
    }
    OK
}

async fn key(trial: &Trial) -> Verdict {
    let found = account(trial, &Sent::to(&endpoint::GET_API_KEY)).await?;
    ensure(
        found["key_id"].is_i64(),
        "a number `key_id`",
        shown(&found.to_string()),
    )?;
    text(&found, "name")?;
    text(&found["details"]["org_details"], "name")?;
    text(&found["details"]["user_details"], "email")?;
    OK
}
