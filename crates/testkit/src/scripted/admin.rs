//! The audit log, bills, and files behind signed URLs.

use super::reply::{Reply, refuse};
use super::rest::{OWNER, checkpoint_path};
use super::weights::SIZE_BYTES;
use super::{Recorded, Shared};
use bytes::Bytes;
use serde_json::json;
use std::collections::BTreeMap;
use tinkrs_types::admin::{StorageUsage, StorageUsageRow};
use tinkrs_types::rest::ExternalWeightsUrls;
use tinkrs_types::{CheckpointKind, Timestamp};

/// What storage costs, in dollars for a gigabyte and a month.
const STORAGE_RATE: f64 = 0.1;

/// The files of external weights that were not given others.
pub(super) fn default_files() -> BTreeMap<String, Bytes> {
    let config = Bytes::from_static(b"{\"peft_type\": \"LORA\"}");
    let weights: Vec<u8> = (config.len()..SIZE_BYTES as usize)
        .map(|position| (position % 251) as u8)
        .collect();
    BTreeMap::from([
        ("adapter_config.json".to_owned(), config),
        ("adapter_model.safetensors".to_owned(), weights.into()),
    ])
}

/// `external_weights_urls`
pub(super) fn external_weights_urls(shared: &Shared, request: &Recorded) -> Reply {
    let path = match checkpoint_path(request) {
        Ok(path) if path.kind() == CheckpointKind::External => path,
        Ok(_) => return refuse(400, "not external weights"),
        Err(reply) => return reply,
    };
    let mut state = shared.state();
    if state.stored(&path).is_none() {
        return refuse(404, "no such checkpoint");
    }
    let files = state.files.get(&path).cloned();
    let files = files.unwrap_or_else(default_files);
    // The names in URLs are numbers, since a file's own may be anything.
    let urls = files.into_iter().map(|(name, content)| {
        let number = state.served.len();
        state.served.push(content);
        let url = format!(
            "http://{}/files/weights/{number}?signature=s",
            shared.address
        );
        (name, url)
    });
    let urls = urls.collect();
    Reply::json(&ExternalWeightsUrls::new(urls, state.now()))
}

/// `file`: needs no credential.
pub(super) fn file(shared: &Shared, request: &Recorded) -> Reply {
    let [folder, name] = &request.ids[..] else {
        return refuse(404, "no such file");
    };
    let content = match folder.as_str() {
        "audit" => return audit_entries(request),
        "traces" => Bytes::from_static(b"trace"),
        _ => {
            let number = name.parse::<usize>().unwrap_or(usize::MAX);
            match shared.state().served.get(number) {
                Some(content) => content.clone(),
                None => return refuse(404, "no such file"),
            }
        }
    };
    part(content, request.header("range"))
}

/// Answers with the part of a file that a `Range` header asks for, or with all of it.
fn part(content: Bytes, range: Option<&str>) -> Reply {
    let whole = Reply::message(content.clone())
        .header("content-type", "application/octet-stream")
        .header("accept-ranges", "bytes")
        .header("etag", "\"v1\"");
    let Some((first, last)) = range
        .and_then(|range| range.strip_prefix("bytes="))
        .and_then(|range| range.split_once('-'))
    else {
        return whole;
    };
    let end = last.parse().map_or(content.len(), |last: usize| last + 1);
    let (Ok(first), end) = (first.parse::<usize>(), end.min(content.len())) else {
        return whole;
    };
    if first >= end {
        return refuse(416, "no such part")
            .header("content-range", &format!("bytes */{}", content.len()));
    }
    let place = format!("bytes {first}-{}/{}", end - 1, content.len());
    let mut reply = whole.header("content-range", &place);
    reply.body = content.slice(first..end);
    reply.status = 206;
    reply
}

/// `audit`, here or at another place
pub(super) fn audit(shared: &Shared, request: &Recorded) -> Reply {
    match &shared.state().audit_redirect {
        Some(origin) => {
            let query = request.uri.query().unwrap_or("");
            let mut reply = refuse(307, "over there");
            reply = reply.header("location", &format!("{origin}/files/audit/log?{query}"));
            reply
        }
        None => audit_entries(request),
    }
}

fn audit_entries(request: &Recorded) -> Reply {
    let query = request.query();
    let day = query.get("day").map_or("2026-01-01", String::as_str);
    let entries = [
        ("checkpoints", "checkpoint_read"),
        ("projects", "project_create"),
    ];
    let kind = query.get("event_type").map_or("all", String::as_str);
    let entries = entries
        .iter()
        .filter(|(of, _)| kind == "all" || kind == *of);
    let entries: Vec<_> = entries
        .map(|(_, event)| json!({"timestamp": format!("{day}T10:00:00Z"), "event": event}))
        .collect();
    Reply::json(&json!({ "entries": entries }))
}

/// `billing_usage`: one hour of training.
pub(super) fn billing_usage(request: &Recorded) -> Reply {
    let query = request.query();
    let hour = |name: &str| -> Option<Timestamp> {
        let time: Timestamp = query.get(name)?.parse().ok()?;
        (time.as_second() % 3_600 == 0 && time.subsec_nanosecond() == 0).then_some(time)
    };
    let (Some(start), Some(end)) = (hour("starting_on"), hour("ending_before")) else {
        return refuse(400, "starting_on and ending_before must be whole hours");
    };
    let length = end.as_second() - start.as_second();
    if !(1..=14 * 24 * 3_600).contains(&length) {
        return refuse(400, "at most 14 days, and not backwards");
    }
    let end_of_hour = start + jiff::SignedDuration::from_hours(1);
    Reply::json(&json!({
        "data": [{
            "bucket_start": start.to_string(), "bucket_end": end_of_hour.to_string(),
            "base_model": super::BASE_MODEL, "user_id": OWNER, "session_id": "session-0",
            "estimated_cost_usd": 0.002, "effective_rate_usd_per_million_tokens": 2.0,
            "event_info": {"type": "training", "token_count": 1_000},
        }],
        "sessions": {"session-0": {"user_metadata": null}},
        "cost_data_through": start.to_string(),
    }))
}

/// `storage_usage`: what the checkpoints that there are need.
pub(super) fn storage_usage(shared: &Shared, request: &Recorded) -> Reply {
    let (state, query) = (shared.state(), request.query());
    let project = query.get("project_id");
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    for stored in &state.checkpoints {
        let of = state.project_of(stored.checkpoint.tinker_path.run());
        let of = of.unwrap_or_else(|| "default".to_owned());
        if project.is_none_or(|project| *project == of) {
            *rows.entry(of).or_default() += 1;
        }
    }
    let row = |(project, count): (String, u64)| {
        let size_bytes = count * SIZE_BYTES;
        let size_gigabytes = size_bytes as f64 / 1e9;
        let mut row = StorageUsageRow::default();
        row.project_id = Some(project.into());
        row.org_user_urn = Some(OWNER.to_owned());
        row.user_email = Some("tester@example.com".to_owned());
        row.checkpoint_count = count;
        row.size_bytes = size_bytes;
        row.size_gigabytes = size_gigabytes;
        row.estimated_monthly_cost_usd = Some(size_gigabytes * STORAGE_RATE);
        row
    };
    let mut usage = StorageUsage::default();
    usage.effective_rate_usd_per_gigabyte_month = Some(STORAGE_RATE);
    usage.data = rows.into_iter().map(row).collect();
    Reply::json(&usage)
}
