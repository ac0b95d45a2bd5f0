//! The messages of OTLP as JSON: ids in hexadecimal, 64-bit numbers as texts, enums as numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use crate::openmetrics::{Family, Point, Reading};
use crate::span::{Kind, Record, Value};

/// Sums since the start of the process, as OTLP numbers them.
const CUMULATIVE: u8 = 2;

/// Writes an `ExportTraceServiceRequest`.
pub(crate) fn spans(resource: &[(String, String)], spans: &[Record]) -> Vec<u8> {
    let spans: Vec<_> = spans.iter().map(span).collect();
    let scopes = json!([{"scope": scope(), "spans": spans}]);
    json!({"resourceSpans": [{"resource": described(resource), "scopeSpans": scopes}]})
        .to_string()
        .into_bytes()
}

/// Writes an `ExportMetricsServiceRequest`.
pub(crate) fn metrics(
    resource: &[(String, String)],
    families: &[Family],
    started: SystemTime,
) -> Vec<u8> {
    let now = SystemTime::now();
    let metrics: Vec<_> = families
        .iter()
        .map(|family| metric(family, started, now))
        .collect();
    let scopes = json!([{"scope": scope(), "metrics": metrics}]);
    json!({"resourceMetrics": [{"resource": described(resource), "scopeMetrics": scopes}]})
        .to_string()
        .into_bytes()
}

fn scope() -> Json {
    json!({"name": "tinkrs", "version": env!("CARGO_PKG_VERSION")})
}

fn described(resource: &[(String, String)]) -> Json {
    let attributes: Vec<_> = resource
        .iter()
        .map(|(key, value)| text(key, value))
        .collect();
    json!({"attributes": attributes})
}

fn text(key: &str, value: &str) -> Json {
    json!({"key": key, "value": {"stringValue": value}})
}

fn nanoseconds(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

fn span(record: &Record) -> Json {
    let kind = match record.kind {
        Kind::Internal => 1,
        Kind::Server => 2,
        Kind::Client => 3,
    };
    let attribute = |(key, value): &(&'static str, Value)| match value {
        Value::Text(value) => text(key, value),
        Value::Integer(value) => json!({"key": key, "value": {"intValue": value.to_string()}}),
    };
    let mut span = json!({
        "traceId": format!("{:032x}", record.context.trace),
        "spanId": format!("{:016x}", record.context.span),
        "name": record.name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(record.start),
        "endTimeUnixNano": nanoseconds(record.end),
        "attributes": record.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    if let Some(parent) = record.parent {
        span["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(failure) = &record.failure {
        span["status"] = json!({"code": 2, "message": failure});
    }
    span
}

fn metric(family: &Family, started: SystemTime, now: SystemTime) -> Json {
    let points: Vec<_> = family
        .points
        .iter()
        .map(|it| point(it, started, now))
        .collect();
    let mut metric = json!({"name": family.name, "description": family.help, "unit": family.unit});
    match family.points.first().map(|point| &point.reading) {
        Some(Reading::Counter(_)) => {
            metric["sum"] = json!({"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true});
        }
        Some(Reading::Histogram { .. }) => {
            metric["histogram"] =
                json!({"dataPoints": points, "aggregationTemporality": CUMULATIVE});
        }
        Some(Reading::Gauge(_)) | None => metric["gauge"] = json!({"dataPoints": points}),
    }
    metric
}

fn point(point: &Point, started: SystemTime, now: SystemTime) -> Json {
    let attributes: Vec<_> = point
        .labels
        .iter()
        .map(|(key, value)| text(key, value))
        .collect();
    let mut json = json!({
        "attributes": attributes,
        "startTimeUnixNano": nanoseconds(started),
        "timeUnixNano": nanoseconds(now),
    });
    match &point.reading {
        Reading::Counter(value) | Reading::Gauge(value) => json["asDouble"] = (*value).into(),
        Reading::Histogram {
            bounds,
            counts,
            sum,
        } => {
            // OpenMetrics adds the buckets up, OTLP does not.
            let mut before = 0;
            let own: Vec<_> = counts
                .iter()
                .map(|count| {
                    let own = count.saturating_sub(before);
                    before = *count;
                    own.to_string()
                })
                .collect();
            json["count"] = before.to_string().into();
            json["sum"] = (*sum).into();
            json["bucketCounts"] = own.into();
            json["explicitBounds"] = bounds.clone().into();
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::TraceContext;
    use std::time::Duration;

    #[test]
    fn a_span_has_the_form_of_the_specification() {
        let start = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001);
        let record = Record {
            context: TraceContext {
                trace: 0xabc,
                span: 0x12,
                sampled: true,
            },
            parent: Some(0x34),
            name: "POST /x".to_owned(),
            kind: Kind::Server,
            start,
            end: start + Duration::from_nanos(5),
            attributes: vec![
                ("http.route", "/x".into()),
                ("http.response.status_code", 200.into()),
            ],
            failure: Some("500".to_owned()),
        };
        let resource = [("service.name".to_owned(), "tinkrs".to_owned())];
        let request: Json = serde_json::from_slice(&spans(&resource, &[record])).unwrap();
        let resource = &request["resourceSpans"][0]["resource"]["attributes"][0];
        assert_eq!(resource["value"]["stringValue"], "tinkrs");
        let span = &request["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "00000000000000000000000000000abc");
        assert_eq!(span["spanId"], "0000000000000012");
        assert_eq!(span["parentSpanId"], "0000000000000034");
        assert_eq!(span["kind"], 2);
        assert_eq!(span["startTimeUnixNano"], "1700000000000000001");
        assert_eq!(span["endTimeUnixNano"], "1700000000000000006");
        assert_eq!(span["attributes"][1]["value"]["intValue"], "200");
        assert_eq!(span["status"], json!({"code": 2, "message": "500"}));
    }
}
