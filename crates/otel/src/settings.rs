//! Where telemetry goes, and how this process is called there.

use std::fmt;
use std::time::Duration;

use http::Uri;
use http::header::{HeaderName, HeaderValue};

use crate::Error;

/// Where telemetry goes. The headers may hold a key: `Debug` leaves their values out.
#[derive(Clone, PartialEq)]
pub struct Settings {
    pub(crate) endpoint: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) resource: Vec<(String, String)>,
    /// Whether spans are exported.
    pub traces: bool,
    /// Whether metrics are exported.
    pub metrics: bool,
    /// How long spans are collected before they are sent.
    pub span_interval: Duration,
    /// How often metrics are sent.
    pub metric_interval: Duration,
}

impl Settings {
    /// Exports to a collector, such as `http://127.0.0.1:4318`; `/v1/traces` and `/v1/metrics` are added to it.
    ///
    /// # Errors
    /// If that is no address with `http` or `https`.
    pub fn new(endpoint: &str, service: &str) -> Result<Self, Error> {
        let uri: Option<Uri> = endpoint.parse().ok();
        let known =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if !uri.as_ref().is_some_and(known) || uri.is_some_and(|uri| uri.query().is_some()) {
            let problem = format!(
                "`{endpoint}` is not an address: expected one such as http://127.0.0.1:4318"
            );
            return Err(Error::Setting {
                name: ENDPOINT,
                problem,
            });
        }
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            headers: Vec::new(),
            resource: vec![("service.name".to_owned(), service.to_owned())],
            traces: true,
            metrics: true,
            span_interval: Duration::from_secs(5),
            metric_interval: Duration::from_secs(60),
        })
    }

    /// Adds a header to every request, such as a key of the collector's.
    ///
    /// # Errors
    /// If it cannot be one.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Error> {
        // The value is not shown: it may be a key.
        let bad = |what: &str| Error::Setting {
            name: HEADERS,
            problem: format!("{what} of `{name}` cannot be in a header"),
        };
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("the name"))?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad("the value"))?;
        value.set_sensitive(true);
        self.headers.push((header, value));
        Ok(self)
    }

    /// Describes this process further; a name that is there already is replaced.
    #[must_use]
    pub fn resource(mut self, name: &str, value: &str) -> Self {
        self.resource.retain(|(known, _)| known != name);
        self.resource.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Reads the variables of the OpenTelemetry specification, or returns `None` if they name no endpoint or turn it off.
    ///
    /// # Errors
    /// If a variable has a value that cannot be used. It is named.
    pub fn from_env(service: &str) -> Result<Option<Self>, Error> {
        Self::from_variables(service, |name| std::env::var(name).ok())
    }

    fn from_variables(
        service: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Error> {
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_off =
            given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let Some(endpoint) = given(ENDPOINT).filter(|_| !is_off) else {
            return Ok(None);
        };
        let protocol = given(PROTOCOL).unwrap_or_else(|| "http/json".to_owned());
        // Who takes OTLP as protobuf over HTTP takes JSON at the same address.
        if !["http/json", "http/protobuf"].contains(&protocol.as_str()) {
            let problem = format!(
                "`{protocol}` is not spoken here: expected http/json, at port 4318 of most collectors"
            );
            return Err(Error::Setting {
                name: PROTOCOL,
                problem,
            });
        }
        let mut settings = Self::new(
            &endpoint,
            &given("OTEL_SERVICE_NAME").unwrap_or_else(|| service.to_owned()),
        )?;
        for (name, value) in pairs(HEADERS, given(HEADERS))? {
            settings = settings.header(&name, &value)?;
        }
        for (name, value) in pairs(RESOURCE, given(RESOURCE))? {
            let is_named = name == "service.name" && given("OTEL_SERVICE_NAME").is_some();
            settings = if is_named {
                settings
            } else {
                settings.resource(&name, &value)
            };
        }
        for (name, switch) in [
            ("OTEL_TRACES_EXPORTER", &mut settings.traces),
            ("OTEL_METRICS_EXPORTER", &mut settings.metrics),
        ] {
            *switch = given(name).is_none_or(|value| value != "none");
        }
        for (name, interval) in [
            ("OTEL_BSP_SCHEDULE_DELAY", &mut settings.span_interval),
            ("OTEL_METRIC_EXPORT_INTERVAL", &mut settings.metric_interval),
        ] {
            if let Some(value) = given(name) {
                let problem = format!("`{value}` is not a number of milliseconds from 1 on");
                let milliseconds = value.parse().ok().filter(|it| *it > 0);
                *interval =
                    Duration::from_millis(milliseconds.ok_or(Error::Setting { name, problem })?);
            }
        }
        Ok(Some(settings))
    }
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Reads `a=b,c=d`.
fn pairs(name: &'static str, text: Option<String>) -> Result<Vec<(String, String)>, Error> {
    let text = text.unwrap_or_default();
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    let pair = |part: &str| match part.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Error::Setting {
            name,
            problem: "expected NAME=VALUE,NAME=VALUE".to_owned(),
        }),
    };
    parts.map(pair).collect()
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("headers", &names)
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, Error> {
        Settings::from_variables("tinkrs", |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        assert_eq!(read(&[]).unwrap(), None);
        let off = [
            (ENDPOINT, "http://127.0.0.1:4318"),
            ("OTEL_SDK_DISABLED", "true"),
        ];
        assert_eq!(read(&off).unwrap(), None);
    }

    #[test]
    fn the_variables_of_the_specification_are_read_and_a_key_is_not_shown() {
        let settings = read(&[
            (ENDPOINT, "http://127.0.0.1:4318/"),
            (HEADERS, "x-key=secret, x-team = a"),
            (RESOURCE, "deployment.environment=ci,service.name=ignored"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.endpoint, "http://127.0.0.1:4318");
        assert_eq!(settings.headers[1].1, "a");
        let named = ("service.name".to_owned(), "mine".to_owned());
        assert!(settings.resource.contains(&named) && settings.resource.len() == 2);
        assert!(settings.traces && !settings.metrics);
        assert_eq!(settings.span_interval, Duration::from_millis(100));
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named() {
        let endpoint = (ENDPOINT, "http://127.0.0.1:4318");
        for (variables, expected) in [
            (
                vec![(ENDPOINT, "127.0.0.1")],
                "OTEL_EXPORTER_OTLP_ENDPOINT: `127.0.0.1`",
            ),
            (
                vec![(ENDPOINT, "ftp://host")],
                "OTEL_EXPORTER_OTLP_ENDPOINT: `ftp://host`",
            ),
            (
                vec![endpoint, (PROTOCOL, "grpc")],
                "OTEL_EXPORTER_OTLP_PROTOCOL: `grpc`",
            ),
            (
                vec![endpoint, (HEADERS, "key")],
                "OTEL_EXPORTER_OTLP_HEADERS: expected",
            ),
            (
                vec![endpoint, (HEADERS, "a b=c")],
                "OTEL_EXPORTER_OTLP_HEADERS: the name of `a b`",
            ),
            (
                vec![endpoint, ("OTEL_METRIC_EXPORT_INTERVAL", "0")],
                "OTEL_METRIC_EXPORT_INTERVAL: `0`",
            ),
        ] {
            let error = read(&variables).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
