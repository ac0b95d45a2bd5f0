//! The settings of a server.
//!
//! With the feature `clap` they are arguments of a command line, too: doc comments are the help, and the
//! id of an option is the name of its field. Defaults are in [`Settings::new`] alone.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tinkrs_types::InvalidInput;
use tinkrs_types::protocol::ClientConfig;

use crate::memory::{self, Plan};
use crate::units::{bytes, duration};

/// More would cost a step of one sample as much as a prompt.
const MAX_DRAFT_TOKENS: usize = 64;

/// How a server works.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[non_exhaustive]
pub struct Settings {
    /// Folder for everything that survives the server, created if it does not exist.
    #[cfg_attr(
        feature = "clap",
        arg(id = "data", long = "data-dir", value_name = "DIR")
    )]
    pub data: PathBuf,
    /// File of accepted API keys, one on a line, each with an optional name behind it. Without one, any
    /// well-formed key is accepted and is an owner of its own.
    #[cfg_attr(
        feature = "clap",
        arg(id = "key_file", long = "api-key-file", value_name = "FILE")
    )]
    pub key_file: Option<PathBuf>,
    /// File of keys that may change the injected faults of a running server, in the form of the API keys.
    /// Without one, nobody can.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub admin_key_file: Option<PathBuf>,
    /// File of faults to inject, for testing clients.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub faults: Option<PathBuf>,
    /// Address under which clients reach the server, such as `https://train.example.org` behind a TLS proxy.
    /// Links to files begin with it; by default with http:// and the host of the request. Requests whose
    /// `Host` is neither its name nor a loopback name or an address of this server are refused.
    #[cfg_attr(feature = "clap", arg(long, value_name = "URL"))]
    pub public_url: Option<String>,
    /// Origin of web pages that may call the endpoints of the OpenAI and Anthropic APIs, such as
    /// `http://localhost:3000`; may be repeated. By default no page may.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "ORIGIN"))]
    pub cors_origin: Vec<String>,
    /// Memory that the server may use for models, training, sampling and requests. What does not fit is
    /// refused. By default three quarters of what the machine or its control group has available, or half of
    /// what is left of a limit on addresses (`ulimit -v`), whichever is least.
    #[serde(with = "bytes::optional")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "SIZE", value_parser = bytes::parse, help_heading = "Limits")
    )]
    pub memory: Option<u64>,
    /// How long a run that has nothing to do stays in memory. It goes on from its snapshot when it is used
    /// again; when memory is short, runs leave earlier.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub keep_idle_runs: Duration,
    /// How long weights that were saved for sampling without a name are kept after they were last used, once
    /// there are newer ones of the same run. The newest of each run stay.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub keep_unnamed: Duration,
    /// Most bytes that such older weights take together; those that were not used for longest go first, but
    /// none within a minute of its last use.
    #[serde(with = "bytes")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "SIZE", value_parser = bytes::parse, help_heading = "Limits")
    )]
    pub unnamed_bytes: u64,
    /// Tokens that a step of sampling guesses from what a sample and its prompt have said before. Right guesses save
    /// steps; results are the same, bit for bit. Samples that run together share them, so that this helps where few do.
    #[serde(default)]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", help_heading = "Numbers")
    )]
    pub draft_tokens: usize,
    /// Connections that may be open. Beyond that, the one that has been idle for longest is closed for a new
    /// one; if none is, the new one is told to come back, except for health checks. It is also limited by what
    /// the system lets the process open (`ulimit -n`, which the server raises as far as it may).
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Limits"))]
    pub connections: usize,
    /// How long the head of a request may take.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub header_timeout: Duration,
    /// How long the server waits for the next part of a body, and how long in all, with another second for each
    /// KiB that came.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub body_timeout: Duration,
    /// How long the server waits for a client to take the next part of a response, and how long in all, with
    /// another second for each KiB that it took.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub write_timeout: Duration,
    /// How long a connection is kept open for its next request.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub idle_timeout: Duration,
    /// Sessions that one owner may have open at a time. A session whose client is silent for `session_timeout` ends.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Limits"))]
    pub open_sessions: usize,
    /// Models that one owner may have open at a time: created, and neither unloaded nor of a session that has
    /// ended. Each may have its weights in the data folder.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Limits"))]
    pub open_models: usize,
    /// Training operations of one owner that may wait in the queue of a base model. All owners together have
    /// eight times as many places, of which half are for those who have few or none.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Limits"))]
    pub queued_operations: usize,
    /// Sampling requests of one owner that may wait in the queue of a base model. All owners together have
    /// eight times as many places, of which half are for those who have few or none.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Limits"))]
    pub queued_samples: usize,
    /// How long operations wait for one with a lower sequence number. Clients retry a submission for five
    /// minutes.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub gap_timeout: Duration,
    /// How long a poll waits for a result. Clients hang up after 45 seconds.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub poll_timeout: Duration,
    /// How long a session lives without a heartbeat of its client.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub session_timeout: Duration,
    /// How long a result is kept after it was fetched.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub keep_fetched: Duration,
    /// How long a result is kept that was never fetched.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub keep_unfetched: Duration,
    /// Larger results are announced before they are sent, to clients that ask for that.
    #[serde(with = "bytes")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "SIZE", value_parser = bytes::parse, help_heading = "Limits")
    )]
    pub inline_bytes: u64,
    /// Save a run's state when its operations since the last snapshot took this long: what a restart has to
    /// repeat.
    #[serde(with = "duration")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = duration::parse, help_heading = "Limits")
    )]
    pub snapshot_interval: Duration,
    /// Save a run's state also after this many operations.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Limits"))]
    pub snapshot_operations: u32,
    /// What clients are told to do. By default they exchange their keys for tokens, and do the rest as they
    /// do by themselves.
    #[cfg_attr(feature = "clap", arg(skip = default_client()))]
    pub client: ClientConfig,
}

impl Settings {
    /// Makes the default settings with this data folder.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self {
            data: data.as_ref().to_owned(),
            key_file: None,
            admin_key_file: None,
            faults: None,
            public_url: None,
            cors_origin: Vec::new(),
            memory: None,
            keep_idle_runs: Duration::from_secs(300),
            keep_unnamed: Duration::from_secs(600),
            unnamed_bytes: 1 << 30,
            draft_tokens: 0,
            connections: 4096,
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            open_sessions: 1024,
            open_models: 1024,
            queued_operations: 1024,
            queued_samples: 4096,
            gap_timeout: Duration::from_secs(330),
            poll_timeout: Duration::from_secs(30),
            session_timeout: Duration::from_secs(300),
            keep_fetched: Duration::from_secs(300),
            keep_unfetched: Duration::from_secs(24 * 3600),
            inline_bytes: 1 << 20,
            snapshot_interval: Duration::from_secs(5),
            snapshot_operations: 64,
            client: default_client(),
        }
    }

    /// Returns the memory that a server with these settings may use.
    #[must_use]
    pub fn memory_limit(&self) -> u64 {
        self.memory.unwrap_or_else(memory::default_limit)
    }

    /// Checks that base models whose weights take this many bytes fit the memory, before they are loaded.
    ///
    /// # Errors
    /// If they do not; the error has the numbers.
    pub fn check_weights(&self, bytes: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        Plan::new(self.memory_limit(), bytes, 1)?;
        Ok(())
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If there is no room for sessions, models or requests, a session or a connection no time to live, or `public_url` is not an address; the error names
    /// the setting.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let counts = [
            ("connections", self.connections),
            ("open_sessions", self.open_sessions),
            ("open_models", self.open_models),
            ("queued_operations", self.queued_operations),
            ("queued_samples", self.queued_samples),
        ];
        for (name, count) in counts {
            if count == 0 {
                return Err(InvalidInput::new(name, count, "1 or more"));
            }
        }
        if self.draft_tokens > MAX_DRAFT_TOKENS {
            let allowed = format!("at most {MAX_DRAFT_TOKENS}");
            return Err(InvalidInput::new(
                "draft_tokens",
                self.draft_tokens,
                allowed,
            ));
        }
        let times = [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
            ("idle_timeout", self.idle_timeout),
            ("gap_timeout", self.gap_timeout),
            ("session_timeout", self.session_timeout),
        ];
        for (name, time) in times {
            if time.is_zero() {
                let found = duration::format(time);
                return Err(InvalidInput::new(name, found, "more than no time"));
            }
        }
        self.cors_origin
            .iter()
            .try_for_each(|origin| check_origin(origin))?;
        self.public_url.as_deref().map_or(Ok(()), check_public_url)
    }
}

fn check_origin(origin: &str) -> Result<(), InvalidInput> {
    let rest = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_host)) {
        return Ok(());
    }
    let allowed = "the origin of a page, such as http://localhost:3000, without a path";
    Err(InvalidInput::new("cors_origin", origin, allowed))
}

fn check_public_url(url: &str) -> Result<(), InvalidInput> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let is_plain = |rest: &str| {
        let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"?#\"<>".contains(&byte);
        !rest.is_empty() && !rest.starts_with('/') && rest.bytes().all(is_visible)
    };
    if rest.is_some_and(is_plain) {
        return Ok(());
    }
    let allowed = "an address such as https://train.example.org, without a query";
    Err(InvalidInput::new("public_url", url, allowed))
}

fn default_client() -> ClientConfig {
    let mut client = ClientConfig::default();
    client.pjwt_auth_enabled = true;
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        let check = |origin: &str| {
            let mut settings = Settings::new("data");
            settings.cors_origin = vec![origin.to_owned()];
            settings.check()
        };
        for good in ["http://localhost:3000", "https://chat.example.org"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "*",
            "null",
            "localhost",
            "https://",
            "https://a/",
            "https://a b",
        ] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.contains("cors_origin"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_public_url_is_an_address_and_nothing_behind_it() {
        let check = |url: &str| {
            let mut settings = Settings::new("data");
            settings.public_url = Some(url.to_owned());
            settings.check()
        };
        for good in [
            "https://train.example.org",
            "http://[::1]:8000",
            "https://a.b/tinker/",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "train.example.org",
            "https://",
            "https:///x",
            "https://a b",
            "https://a?b",
        ] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.contains("public_url"), "{bad}: {error}");
        }
    }
}
