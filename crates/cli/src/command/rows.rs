//! Reports as rows: for a table, and for a spreadsheet.

use serde_json::Value;
use tinkrs::admin::{BillingEvent, StorageUsage};

use crate::table::Table;

/// Rows whose cells may be unknown.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Rows {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
    /// The cells that a table shows as `null`, by row and column.
    null: Vec<(usize, usize)>,
}

impl Rows {
    pub(crate) fn new<C: Into<String>>(columns: impl IntoIterator<Item = C>) -> Self {
        Self {
            columns: columns.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, row: Vec<Option<String>>) {
        self.rows.push(row);
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Writes a header and the rows, with nothing for what is unknown.
    pub(crate) fn csv(&self) -> String {
        let mut text = String::new();
        let header: Vec<_> = self.columns.iter().map(|name| quoted(name)).collect();
        text.push_str(&header.join(","));
        text.push('\n');
        for row in &self.rows {
            let cell = |column: usize| row.get(column).and_then(Option::as_deref);
            let cells = (0..self.columns.len()).map(|column| quoted(cell(column).unwrap_or("")));
            text.push_str(&cells.collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        text
    }

    pub(crate) fn table(&self, title: &str) -> Table {
        let mut table = Table::new(self.columns.iter().map(String::as_str)).title(title);
        for (index, row) in self.rows.iter().enumerate() {
            let cell = |column: usize| match row.get(column).and_then(Option::as_deref) {
                None if self.null.contains(&(index, column)) => "null",
                cell => cell.unwrap_or(""),
            };
            table.row((0..self.columns.len()).map(cell));
        }
        table
    }

    /// Returns the place of a column, adding it if it is new.
    fn column(&mut self, name: &str) -> usize {
        let found = self.columns.iter().position(|column| column == name);
        found.unwrap_or_else(|| {
            self.columns.push(name.to_owned());
            self.columns.len() - 1
        })
    }

    /// Sets a cell of the last row.
    fn set(&mut self, name: &str, value: Option<String>) {
        let column = self.column(name);
        if let Some(row) = self.rows.last_mut() {
            row.resize(row.len().max(column + 1), None);
            row[column] = value;
        }
    }
}

/// Lays out usage, with the details of each event beside what all events have.
///
/// # Errors
/// If an event cannot be written as JSON.
pub(crate) fn usage_rows(events: &[BillingEvent]) -> serde_json::Result<Rows> {
    let mut rows = Rows::default();
    for event in events {
        rows.push(Vec::new());
        let text = |value: &Option<String>| value.clone();
        let number = |value: Option<f64>| value.map(|value| Value::from(value).to_string());
        rows.set("bucket_start", Some(event.bucket_start.to_string()));
        rows.set("bucket_end", Some(event.bucket_end.to_string()));
        rows.set("base_model", text(&event.base_model));
        rows.set("user_id", text(&event.user_id));
        rows.set("user_name", text(&event.user_name));
        rows.set(
            "session_id",
            event.session_id.as_ref().map(ToString::to_string),
        );
        rows.set(
            "project_id",
            event.project_id.as_ref().map(ToString::to_string),
        );
        rows.set("estimated_cost_usd", number(event.estimated_cost_usd));
        let (tokens, storage) = (
            "effective_rate_usd_per_million_tokens",
            "effective_rate_usd_per_gigabyte_month",
        );
        rows.set(tokens, number(event.effective_rate_usd_per_million_tokens));
        rows.set(storage, number(event.effective_rate_usd_per_gigabyte_month));
        let mut rate = None;
        if let Value::Object(details) = serde_json::to_value(&event.event_info)? {
            let kind = details.get("type").and_then(Value::as_str);
            rows.set("type", kind.map(str::to_owned));
            for (name, value) in details.iter().filter(|(name, _)| *name != "type") {
                rows.set(name, plain(value));
            }
            rate = match kind {
                Some("storage") => Some(storage),
                _ if details.contains_key("token_count") => Some(tokens),
                _ => None,
            };
        }
        // A price that should be there is shown to be missing.
        for name in rate
            .into_iter()
            .flat_map(|rate| ["estimated_cost_usd", rate])
        {
            let cell = (rows.len() - 1, rows.column(name));
            rows.null.push(cell);
        }
    }
    Ok(rows)
}

/// Lays out storage, with the price at the start of each row.
pub(crate) fn storage_rows(usage: &StorageUsage) -> Rows {
    let mut rows = Rows::new([
        "effective_rate_usd_per_gigabyte_month",
        "project_id",
        "org_user_urn",
        "user_email",
        "user_name",
        "checkpoint_count",
        "size_bytes",
        "size_gigabytes",
        "estimated_monthly_cost_usd",
    ]);
    let number = |value: f64| Value::from(value).to_string();
    for row in &usage.data {
        rows.push(vec![
            usage.effective_rate_usd_per_gigabyte_month.map(number),
            row.project_id.as_ref().map(ToString::to_string),
            row.org_user_urn.clone(),
            row.user_email.clone(),
            row.user_name.clone(),
            Some(row.checkpoint_count.to_string()),
            Some(row.size_bytes.to_string()),
            Some(number(row.size_gigabytes)),
            row.estimated_monthly_cost_usd.map(number),
        ]);
    }
    rows
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Puts a cell in quotes if it needs them.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(info: Value, cost: Value) -> BillingEvent {
        serde_json::from_value(json!({
            "bucket_start": "2026-01-01T00:00:00Z", "bucket_end": "2026-01-01T01:00:00Z",
            "base_model": "a,b", "estimated_cost_usd": cost, "event_info": info,
        }))
        .unwrap()
    }

    #[test]
    fn events_of_all_kinds_share_one_header() {
        let rows = usage_rows(&[
            event(json!({"type": "training", "token_count": 5}), json!(1.0)),
            event(json!({"type": "checkpoint", "count": 2}), Value::Null),
        ])
        .unwrap();
        let csv = rows.csv();
        let lines: Vec<_> = csv.lines().collect();
        assert!(
            lines[0].ends_with("_per_gigabyte_month,type,token_count,count"),
            "{csv}"
        );
        assert_eq!(
            lines[1],
            "2026-01-01T00:00:00Z,2026-01-01T01:00:00Z,\"a,b\",,,,,1.0,,,training,5,"
        );
        assert!(lines[2].ends_with(",,,checkpoint,,2"), "{csv}");
    }

    #[test]
    fn a_table_shows_that_a_price_is_missing_where_there_should_be_one() {
        let tokens = event(json!({"type": "training", "token_count": 5}), Value::Null);
        let other = event(json!({"type": "checkpoint", "count": 5}), Value::Null);
        let nulls = |event| {
            let table = usage_rows(&[event]).unwrap().table("");
            table.text(None).matches("null").count()
        };
        assert_eq!(nulls(tokens), 2);
        assert_eq!(nulls(other), 0);
    }

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
    }
}
