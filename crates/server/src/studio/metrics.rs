//! Metrics of a run: reading them, and taking those that clients report.

use axum::extract::State;
use tinkrs_types::InvalidInput;
use tinkrs_wire::json::Empty;
use tinkrs_wire::op::metrics::{
    LogMetricsRequest, MetricSeries, MetricSource, MetricsQuery, RunMetrics,
};
use tokio::sync::oneshot;

use super::feed::Reported;
use crate::Server;
use crate::api::Plain;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath, Parameters};
use crate::store::Change;
use crate::store::studio::Reading;
use crate::store::tables::metrics::{CurvePoint, SERIES, Source};

/// How many points a series has, unless a request says otherwise, and at most.
const POINTS: u64 = 500;
const MOST: u64 = 5000;
/// How many points an answer has in all.
const ALL_POINTS: usize = 200_000;
/// The longest name, and the most metrics of a request.
const NAME_BYTES: usize = 128;
const METRICS: usize = 64;
/// Steps are numbers that every JSON reader keeps exactly.
const STEPS: u64 = 1 << 53;

pub(crate) async fn get(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(run): InPath<String>,
    Parameters(query): Parameters<MetricsQuery>,
) -> Result<Plain<RunMetrics>, ApiError> {
    let run = server.own_run(owner, &run)?;
    let range = (query.from.unwrap_or(0), query.to.unwrap_or(i64::MAX));
    let points = query.points.unwrap_or(POINTS).clamp(1, MOST).cast_signed();
    let read = move |_: &Server, reading: &Reading<'_>| {
        let mut all = reading.series(&run)?;
        let last_step = all.iter().map(|series| series.last_step).max();
        if let Some(names) = &query.names {
            let names: Vec<_> = names.split(',').collect();
            all.retain(|series| names.contains(&series.name.as_str()));
        }
        let share = (ALL_POINTS / all.len().max(1)) as i64;
        let curve = |series| {
            let mut points = reading.curve(&series, range, points.min(share))?;
            points.iter_mut().for_each(shorten);
            Ok(MetricSeries {
                name: series.name,
                source: series.source.into(),
                count: series.count,
                points,
            })
        };
        let series = all
            .into_iter()
            .map(curve)
            .collect::<Result<_, ApiError>>()?;
        Ok(RunMetrics {
            last_step: last_step.unwrap_or(0),
            series,
        })
    };
    server.read(read).await.map(Plain)
}

/// Rounds what stands for several steps to seven digits, as many as a loss is computed with: half the bytes of an
/// answer would be digits of means. What was measured once stays as it is.
fn shorten((_, mean, low, high, _): &mut CurvePoint) {
    if low < high {
        for value in [mean, low, high] {
            *value = with_digits(*value, 7);
        }
    }
}

/// Rounds to significant digits, as far as powers of ten are exact.
fn with_digits(value: f64, digits: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    match digits - 1 - value.abs().log10().floor() as i32 {
        places @ 0..=22 => {
            let power = 10_f64.powi(places);
            (value * power).round() / power
        }
        places @ -22..0 => {
            let power = 10_f64.powi(-places);
            (value / power).round() * power
        }
        _ => value,
    }
}

pub(crate) async fn log(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(run): InPath<String>,
    Decoded(request): Decoded<LogMetricsRequest>,
) -> Result<Plain<Empty>, ApiError> {
    let run = server.own_run(owner, &run)?;
    check(&request)?;
    let names: Vec<_> = request.metrics.keys().cloned().collect();
    let known = run.clone();
    let read = move |_: &Server, reading: &Reading<'_>| {
        let all = reading.series(&known)?;
        let is_known = |name: &&String| {
            let mut clients = all.iter().filter(|it| it.source == Source::Client);
            clients.any(|series| series.name == **name)
        };
        let new = names.iter().filter(|name| !is_known(name)).count();
        if all.len() + new > SERIES {
            let found = format!("{new} new names beside {}", all.len());
            let allowed = format!("at most {SERIES} of a run");
            return Err(InvalidInput::new("metrics", found, allowed).into());
        }
        Ok(())
    };
    server.read(read).await?;
    let reported = Reported {
        step: request.step.cast_signed(),
        metrics: request.metrics,
    };
    let change = Change::Metrics {
        run: run.clone(),
        step: reported.step,
        values: reported.metrics.clone().into_iter().collect(),
    };
    // Not worth a sync of their own: they are durable with whatever is next.
    let (done, written) = oneshot::channel();
    let mut done = Some(done);
    server.shared().store.keep(change, move |result| {
        if let Some(done) = done.take() {
            let _ = done.send(result);
        }
    });
    let stopped = |_| ApiError::unavailable("the server is stopping");
    written.await.map_err(stopped)??;
    let feeds = server.shared().activity.feeds();
    feeds.report(owner, &run, reported);
    Ok(Plain(Empty {}))
}

impl From<Source> for MetricSource {
    fn from(source: Source) -> Self {
        match source {
            Source::Server => Self::Server,
            Source::Client => Self::Client,
        }
    }
}

fn check(request: &LogMetricsRequest) -> Result<(), InvalidInput> {
    if request.step > STEPS {
        let allowed = format!("at most {STEPS}");
        return Err(InvalidInput::new("step", request.step, allowed));
    }
    if request.metrics.len() > METRICS {
        let found = format!("{} of them", request.metrics.len());
        let allowed = format!("at most {METRICS} in a request");
        return Err(InvalidInput::new("metrics", found, allowed));
    }
    for (name, value) in &request.metrics {
        let is_plain = !name.chars().any(|char| char.is_control() || char == ',');
        if name.is_empty() || name.len() > NAME_BYTES || !is_plain {
            let found = match name.len() {
                0..=NAME_BYTES => format!("the name `{}`", name.escape_debug()),
                bytes => format!("a name of {bytes} bytes"),
            };
            let allowed = format!("1 to {NAME_BYTES} bytes without commas and control characters");
            return Err(InvalidInput::new("metrics", found, allowed));
        }
        if !value.is_finite() {
            let field = format!("metrics.{}", name.escape_debug());
            return Err(InvalidInput::new(field, value, "a finite number"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_short_and_what_was_measured_is_exact() {
        for (value, expected) in [
            (0.0, 0.0),
            (1.0 / 3.0, 0.333_333_3),
            (-2.0 / 3.0, -0.666_666_7),
            (123_456_789.0, 123_456_800.0),
            (1.5e-9, 1.5e-9),
            (1e300 / 3.0, 1e300 / 3.0),
            (f64::MIN_POSITIVE, f64::MIN_POSITIVE),
        ] {
            assert_eq!(with_digits(value, 7), expected, "{value}");
        }
        let mut one = (1, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0);
        shorten(&mut one);
        assert_eq!(one.1, 1.0 / 3.0);
        let mut several = (1, 1.0 / 3.0, 0.1, 0.7, 0);
        shorten(&mut several);
        assert_eq!(several, (1, 0.333_333_3, 0.1, 0.7, 0));
    }
}
