//! What an owner did and used.

use std::collections::BTreeMap;

use axum::extract::State;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tinkrs_types::SessionId;
use tinkrs_types::admin::{
    AuditEntry, AuditEventType, AuditLog, BillingEvent, BillingEventInfo, BillingSession,
    BillingUsage, StorageUsage, StorageUsageRow,
};
use tinkrs_wire::query::{AuditQuery, StorageQuery, UsageQuery};

use super::{PROJECT, Plain, check_project};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Parameters};
use crate::store::{Change, UsageKind, UsageRow};

/// The longest time that a report of usage covers, in hours.
const USAGE_HOURS: i64 = 14 * 24;

pub(crate) async fn audit(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(query): Parameters<AuditQuery>,
) -> Result<Plain<AuditLog>, ApiError> {
    // What was done before the question is in the answer.
    server.shared().store.write(Change::Nothing).await?;
    server.audit_log(owner, &query).map(Plain)
}

pub(crate) async fn usage(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(query): Parameters<UsageQuery>,
) -> Result<Plain<BillingUsage>, ApiError> {
    server.usage(owner, &query).map(Plain)
}

pub(crate) async fn storage(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(query): Parameters<StorageQuery>,
) -> Result<Plain<StorageUsage>, ApiError> {
    query.project_id.as_deref().map(check_project).transpose()?;
    Ok(Plain(server.storage(owner)))
}

impl Server {
    fn audit_log(&self, owner: Owner, query: &AuditQuery) -> Result<AuditLog, ApiError> {
        let today = || Timestamp::now().to_zoned(TimeZone::UTC).date();
        let day = query.day.unwrap_or_else(today);
        let midnight = |date: Date| date.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp());
        let range = midnight(day).and_then(|start| Ok(start..midnight(day.checked_add(1.day())?)?));
        let range = range.map_err(|error| ApiError::bad_request(format!("`day`: {error}")))?;
        let prefix = match query.event_type.unwrap_or_default() {
            AuditEventType::All => "",
            AuditEventType::Checkpoints => "checkpoint_",
            AuditEventType::Projects => "project_",
            AuditEventType::Teams => "team_",
            AuditEventType::Organizations => "organization_",
        };
        let rows = self.shared().store.audit(owner, range)?;
        let rows = rows
            .into_iter()
            .filter(|(_, event, _)| event.starts_with(prefix));
        let entry = |(timestamp, event, event_details): (_, String, serde_json::Map<_, _>)| {
            let text = |name: &str| Some(event_details.get(name)?.as_str()?.to_owned());
            let (model_id, tinker_path) = (text("model_id"), text("tinker_path"));
            let mut entry = AuditEntry::new(timestamp, event, event_details);
            entry.model_id = model_id;
            entry.tinker_path = tinker_path;
            entry
        };
        Ok(AuditLog::new(rows.map(entry).collect()))
    }

    fn usage(&self, owner: Owner, query: &UsageQuery) -> Result<BillingUsage, ApiError> {
        let hour = |name: &str, time: Timestamp| match time.as_second() % 3600 {
            0 if time.subsec_nanosecond() == 0 => Ok(time.as_second() / 3600),
            _ => Err(ApiError::bad_request(format!(
                "`{name}`: found {time}, expected a full hour"
            ))),
        };
        let hours =
            hour("starting_on", query.starting_on)?..hour("ending_before", query.ending_before)?;
        if query.starting_on > Timestamp::now() {
            return Err(ApiError::bad_request(
                "`starting_on`: it lies in the future",
            ));
        }
        if hours.start >= hours.end || hours.end - hours.start > USAGE_HOURS {
            return Err(ApiError::bad_request(
                "`ending_before`: expected a time after `starting_on`, at most 14 days later",
            ));
        }
        let rows = self.shared().store.usage(owner, hours)?;
        let mut sessions = BTreeMap::new();
        let mut registry = self.registry();
        for row in rows.iter().filter(|row| !row.session.is_empty()) {
            let id = SessionId::new(row.session.as_str());
            let labels = registry.session(owner, &id);
            let user_metadata = labels
                .ok()
                .map(|session| session.record.user_metadata.clone());
            sessions.insert(id, BillingSession::new(user_metadata));
        }
        let event = |row: UsageRow| event(owner, row);
        let data = rows.into_iter().filter_map(event).collect();
        Ok(BillingUsage::new(data, sessions))
    }

    fn storage(&self, owner: Owner) -> StorageUsage {
        let (checkpoint_count, size_bytes) = self.shared().checkpoints.totals(owner);
        let mut row = StorageUsageRow::default();
        row.project_id = Some(PROJECT.into());
        row.org_user_urn = Some(owner.to_string());
        row.user_email = Some(owner.email());
        row.checkpoint_count = checkpoint_count;
        row.size_bytes = size_bytes;
        row.size_gigabytes = size_bytes as f64 / 1e9;
        let mut usage = StorageUsage::default();
        usage.data.push(row);
        usage
    }
}

/// Describes what was used in an hour. It costs nothing, so it has no price.
fn event(owner: Owner, row: UsageRow) -> Option<BillingEvent> {
    let bucket_start = Timestamp::from_second(row.hour.checked_mul(3600)?).ok()?;
    let token_count = row.tokens;
    let bucket_end = bucket_start.checked_add(1.hour()).ok()?;
    let info = match row.kind {
        UsageKind::Training => BillingEventInfo::Training { token_count },
        UsageKind::Prefill => BillingEventInfo::SamplingPrefill {
            cached: false,
            token_count,
        },
        UsageKind::CachedPrefill => BillingEventInfo::SamplingPrefill {
            cached: true,
            token_count,
        },
        UsageKind::Sampling => BillingEventInfo::SamplingSample { token_count },
    };
    let mut event = BillingEvent::new(bucket_start, bucket_end, info);
    event.base_model = Some(row.base_model);
    event.user_id = Some(owner.to_string());
    event.session_id = (!row.session.is_empty()).then(|| SessionId::new(row.session));
    event.project_id = Some(PROJECT.into());
    Some(event)
}
