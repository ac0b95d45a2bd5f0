//! The tables of metrics: a run's progress, its series by name, and their points by step.
//!
//! A series has at most [`ROWS`] points. When it has more, neighbours become one point with their mean, least and
//! greatest value: as many as it takes for half of that, and the same number everywhere, so that the curve keeps its
//! shape. What came since is by step again.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params};
use tinkrs_types::ModelId;

use super::{list, to_json};
use crate::studio::measure::{PassSums, Progress};

/// The most points of a series.
pub(crate) const ROWS: i64 = 4096;
/// The most series of a run.
pub(crate) const SERIES: usize = 1000;

/// Who computed a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Server,
    Client,
}

impl Source {
    fn number(self) -> i64 {
        match self {
            Self::Server => 0,
            Self::Client => 1,
        }
    }

    fn of_number(number: i64) -> Self {
        match number {
            0 => Self::Server,
            _ => Self::Client,
        }
    }
}

/// A series, without its points.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) count: u64,
    pub(crate) last_step: i64,
    pub(crate) last_value: f64,
}

/// A point of a curve: step, mean, least, greatest, and the time in milliseconds.
pub(crate) type CurvePoint = (i64, f64, f64, f64, i64);

/// Returns how far a run has come.
pub(in crate::store) fn progress(on: &Connection, run: &str) -> rusqlite::Result<Progress> {
    let sql = "SELECT steps, tokens, busy, passes FROM progress WHERE run = ?";
    let found = on.prepare_cached(sql)?.query_row([run], |row| {
        let passes: Option<String> = row.get("passes")?;
        // Sums of another version of this program are those of one step, and not worth a failure.
        let passes = passes.and_then(|text| serde_json::from_str::<PassSums>(&text).ok());
        Ok(Progress {
            steps: row.get("steps")?,
            tokens: row.get::<_, i64>("tokens")?.cast_unsigned(),
            busy_ms: row.get("busy")?,
            passes: passes.unwrap_or_default(),
        })
    });
    Ok(found.optional()?.unwrap_or_default())
}

pub(in crate::store) fn set_progress(
    on: &Transaction<'_>,
    run: &ModelId,
    progress: &Progress,
) -> rusqlite::Result<()> {
    let is_empty = progress.passes == PassSums::default();
    on.prepare_cached(
        "INSERT OR REPLACE INTO progress (run, steps, tokens, busy, passes)
         VALUES (:run, :steps, :tokens, :busy, :passes)",
    )?
    .execute(named_params! {
        ":run": run.as_str(),
        ":steps": progress.steps,
        ":tokens": progress.tokens.cast_signed(),
        ":busy": progress.busy_ms,
        ":passes": (!is_empty).then(|| to_json(&progress.passes)),
    })?;
    Ok(())
}

/// Sets the values of a step. Those that are not finite, and new series of a run that has too many, are left out.
pub(in crate::store) fn set(
    on: &Transaction<'_>,
    run: &str,
    source: Source,
    (step, time): (i64, i64),
    values: &[(&str, f64)],
) -> rusqlite::Result<()> {
    for (name, value) in values {
        if value.is_finite()
            && let Some(series) = find_or_add(on, run, name, source)?
        {
            set_point(on, series, step, *value, time)?;
        }
    }
    Ok(())
}

fn find_or_add(
    on: &Transaction<'_>,
    run: &str,
    name: &str,
    source: Source,
) -> rusqlite::Result<Option<i64>> {
    let key = named_params! {":run": run, ":name": name, ":source": source.number()};
    let found = on
        .prepare_cached(
            "SELECT id FROM series WHERE run = :run AND name = :name AND source = :source",
        )?
        .query_row(key, |row| row.get(0))
        .optional()?;
    if found.is_some() {
        return Ok(found);
    }
    let count: i64 = on
        .prepare_cached("SELECT count(*) FROM series WHERE run = ?")?
        .query_row([run], |row| row.get(0))?;
    if count >= SERIES as i64 {
        return Ok(None);
    }
    on.prepare_cached(
        "INSERT INTO series (run, name, source, count, rows, stride, last_step, last_value)
         VALUES (:run, :name, :source, 0, 0, 1, -1, 0)",
    )?
    .execute(key)?;
    Ok(Some(on.last_insert_rowid()))
}

fn set_point(
    on: &Transaction<'_>,
    series: i64,
    step: i64,
    value: f64,
    time: i64,
) -> rusqlite::Result<()> {
    let point = named_params! {":series": series, ":step": step, ":value": value, ":time": time};
    let added = on
        .prepare_cached(
            "INSERT OR IGNORE INTO points (series, step, value, count, time)
             VALUES (:series, :step, :value, 1, :time)",
        )?
        .execute(point)?;
    if added == 0 {
        // One that stands for several steps has no place for one of them alone.
        on.prepare_cached(
            "UPDATE points SET value = :value, time = :time
             WHERE series = :series AND step = :step AND count = 1",
        )?
        .execute(point)?;
    }
    let rows: i64 = on
        .prepare_cached(
            "UPDATE series SET count = count + :added, rows = rows + :added,
                 last_value = iif(:step >= last_step, :value, last_value),
                 last_step = max(:step, last_step)
             WHERE id = :series RETURNING rows",
        )?
        .query_row(
            named_params! {":series": series, ":step": step, ":value": value, ":added": added as i64},
            |row| row.get(0),
        )?;
    if rows > ROWS {
        thin(on, series)?;
    }
    Ok(())
}

/// Joins neighbours until a series has half of the points that it may have.
fn thin(on: &Transaction<'_>, series: i64) -> rusqlite::Result<()> {
    let stride: i64 = on
        .prepare_cached("SELECT stride FROM series WHERE id = ?")?
        .query_row([series], |row| row.get(0))?;
    let mut stride = stride.max(1);
    let points = loop {
        let sql = "SELECT max(step), sum(value * count) / sum(count), min(coalesce(low, value)),
                       max(coalesce(high, value)), sum(count), max(time)
                   FROM points WHERE series = :series GROUP BY step / :stride ORDER BY 1";
        let of = named_params! {":series": series, ":stride": stride};
        let points = list(on, sql, of, |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
            ))
        })?;
        if points.len() as i64 <= ROWS / 2 {
            break points;
        }
        stride = stride.saturating_mul(2);
    };
    on.prepare_cached("DELETE FROM points WHERE series = ?")?
        .execute([series])?;
    let mut insert = on.prepare_cached(
        "INSERT INTO points (series, step, value, low, high, count, time)
         VALUES (?1, ?2, ?3, iif(?6 > 1, ?4, NULL), iif(?6 > 1, ?5, NULL), ?6, ?7)",
    )?;
    for (step, value, low, high, count, time) in &points {
        let (step, count, time): (&i64, &i64, &i64) = (step, count, time);
        let (value, low, high): (&f64, &f64, &f64) = (value, low, high);
        insert.execute((series, step, value, low, high, count, time))?;
    }
    on.prepare_cached("UPDATE series SET rows = ?2, stride = ?3 WHERE id = ?1")?
        .execute((series, points.len() as i64, stride))?;
    Ok(())
}

/// Lists the series of a run by their names.
pub(in crate::store) fn series(on: &Connection, run: &str) -> rusqlite::Result<Vec<Series>> {
    let sql = "SELECT id, name, source, count, last_step, last_value FROM series
               WHERE run = ? ORDER BY name, source";
    list(on, sql, [run], read_series)
}

fn read_series(row: &Row<'_>) -> rusqlite::Result<Series> {
    Ok(Series {
        id: row.get("id")?,
        name: row.get("name")?,
        source: Source::of_number(row.get("source")?),
        count: row.get::<_, i64>("count")?.cast_unsigned(),
        last_step: row.get("last_step")?,
        last_value: row.get("last_value")?,
    })
}

/// Returns the curve of a series between two steps, with at most about this many points.
pub(in crate::store) fn curve(
    on: &Connection,
    series: i64,
    (from, to): (i64, i64),
    most: i64,
) -> rusqlite::Result<Vec<CurvePoint>> {
    let range = on
        .prepare_cached(
            "SELECT min(step), max(step) FROM points
             WHERE series = ?1 AND step BETWEEN ?2 AND ?3",
        )?
        .query_row((series, from, to), |row| {
            Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?))
        })?;
    let (Some(first), Some(last)) = range else {
        return Ok(Vec::new());
    };
    let steps = last.saturating_sub(first).saturating_add(1);
    let width = steps.saturating_add(most - 1) / most.max(1);
    let sql = "SELECT max(step), sum(value * count) / sum(count), min(coalesce(low, value)),
                   max(coalesce(high, value)), max(time)
               FROM points WHERE series = ?1 AND step BETWEEN ?2 AND ?3
               GROUP BY (step - ?2) / ?4 ORDER BY 1";
    let of = (series, first, last, width.max(1));
    list(on, sql, of, |row| {
        Ok((
            row.get(0)?,
            row.get(1)?,
            row.get(2)?,
            row.get(3)?,
            row.get(4)?,
        ))
    })
}

/// A point of a run, with the series that it is of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewPoint {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) step: i64,
    pub(crate) value: f64,
}

/// Returns the points of a run behind one step and up to another, by step: those of the server, or all.
pub(in crate::store) fn between(
    on: &Connection,
    run: &str,
    (since, until): (i64, i64),
    with_clients: bool,
    most: usize,
) -> rusqlite::Result<Vec<NewPoint>> {
    let sql =
        "SELECT s.name, s.source, p.step, p.value FROM series s JOIN points p ON p.series = s.id
               WHERE s.run = ?1 AND s.last_step > ?2 AND p.step > ?2 AND p.step <= ?3
               AND (s.source = 0 OR ?5)
               ORDER BY p.step, s.name LIMIT ?4";
    list(
        on,
        sql,
        (run, since, until, most as i64, with_clients),
        |row| {
            Ok(NewPoint {
                name: row.get("name")?,
                source: Source::of_number(row.get("source")?),
                step: row.get("step")?,
                value: row.get("value")?,
            })
        },
    )
}

#[cfg(test)]
mod tests;
