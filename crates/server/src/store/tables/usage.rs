//! The table of usage: tokens by hour, owner, model, session and kind.

use std::ops::Range;

use rusqlite::{Connection, Transaction, named_params};
use tinkrs_types::SessionId;

use super::list;
use crate::auth::Owner;
use crate::store::change::{Usage, UsageKind};

/// What an owner used in an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageRow {
    /// Since 1970.
    pub(crate) hour: i64,
    pub(crate) base_model: String,
    pub(crate) session: String,
    pub(crate) kind: UsageKind,
    pub(crate) tokens: u64,
}

/// Adds tokens to an hour's.
pub(in crate::store) fn add(
    on: &Transaction<'_>,
    hour: i64,
    usage: &Usage,
) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT INTO usage (hour, owner, base_model, session, kind, amount)
         VALUES (:hour, :owner, :base_model, :session, :kind, :amount)
         ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
    )?
    .execute(named_params! {
        ":hour": hour,
        ":owner": usage.owner.to_string(),
        ":base_model": usage.base_model,
        ":session": usage.session.as_ref().map_or("", SessionId::as_str),
        ":kind": usage.kind.name(),
        ":amount": usage.tokens.cast_signed(),
    })?;
    Ok(())
}

/// Returns what an owner used in these hours, by hour and then from much to little.
pub(in crate::store) fn of_owner(
    on: &Connection,
    owner: Owner,
    hours: Range<i64>,
) -> rusqlite::Result<Vec<UsageRow>> {
    let sql = "SELECT hour, base_model, session, kind, amount FROM usage
               WHERE owner = :owner AND hour >= :start AND hour < :end
               ORDER BY hour, amount DESC";
    let owner = owner.to_string();
    let of_owner = named_params! {":owner": owner, ":start": hours.start, ":end": hours.end};
    list(on, sql, of_owner, |row| {
        let kind: String = row.get("kind")?;
        Ok(UsageRow {
            hour: row.get("hour")?,
            base_model: row.get("base_model")?,
            session: row.get("session")?,
            kind: UsageKind::from_name(&kind).ok_or(rusqlite::Error::InvalidQuery)?,
            tokens: row.get::<_, i64>("amount")?.cast_unsigned(),
        })
    })
}
