//! An HTTP server that keeps the protocol's promises, or breaks them on script.
//!
//! Left alone it is a correct Tinker server with a trivial model (see
//! [`arithmetic`](crate::arithmetic)): it executes the requests of a model in the order of their
//! sequence numbers, each once however often it is sent, and logs each execution. Rules make it
//! misbehave, and everything that it is sent is recorded:
//!
//! ```
//! use tinkrs_testkit::scripted::{Gate, ScriptedServer, status, try_again};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let server = ScriptedServer::start().await; // stops when dropped
//! server.config(|config| config.sample_use_retrieve_futures = true);
//!
//! // The second and third pass are answered "unavailable"; the fourth is as usual.
//! server.on("forward_backward").nth(2).times(2).reply(status(503).header("retry-after", "1"));
//! // The optimizer step is executed, but its answer is lost.
//! server.on("optim_step").executed().reset();
//! // The first poll for a sample says that there is no capacity.
//! server.on("retrieve_future").for_request_type("Sample").reply(try_again("paused_capacity", "busy"));
//! // All samples are taken, but none is done before the gate opens.
//! let gate = Gate::closed();
//! server.on("asample").always().hold_result(&gate);
//! # }
//! ```
//!
//! Operations have the names of their [endpoints](tinkrs_wire::endpoint): `forward_backward`,
//! `retrieve_future`, `publish_checkpoint`. Whatever is not below the API's path is a `file`.
//!
//! Of the API it knows sessions, training, sampling and futures. For the rest there is a real
//! server: a scripted one [in front of it](ScriptedServer::in_front_of) records what passes and
//! applies its rules, and leaves the answers to the other.
//!
//! A server that has reason to complain about its client (a body that it cannot read, two
//! payloads under one sequence number) or that panics makes the test fail when it is dropped.
//!
//! # Time
//!
//! Sockets are real, so time should be too: tokio's paused clock jumps to the next timer
//! whenever all tasks wait, and a task that waits for a socket waits. A client's timeouts would
//! fire at random. Three ways out, best first: test rules about time as pure functions; give
//! the client short times; or hold the clock with [`ManualClock`], which stands still until the
//! test moves it.

mod clock;
mod futures;
mod gate;
mod http;
mod record;
mod reply;
mod route;
mod sampling;
mod script;
mod service;
mod shared;
mod state;
mod training;
mod upstream;
mod weights;

pub use clock::ManualClock;
pub use gate::Gate;
pub use record::Recorded;
pub use reply::{Reply, failed, not_yet, refuse, status, try_again};
pub use script::{On, Rules};
pub use training::Execution;

use shared::Shared;
use state::State;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig};
use tinkrs_types::{ForwardBackwardOutput, ModelId, RequestId};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// A rule with this name is about every operation.
pub const ANY: &str = "*";

/// A key that the server accepts. It accepts all others that look like one, too.
pub const API_KEY: &str = "tml-test";

/// The base model that the server offers.
pub const BASE_MODEL: &str = "test/model";

/// A Tinker server in the test's process, on a free port of 127.0.0.1.
///
/// Dropping it closes all connections.
#[derive(Debug)]
pub struct ScriptedServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: AbortHandle,
}

impl ScriptedServer {
    /// Starts a server as a task of this runtime.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Starts a server that leaves all answers to another, at a URL: it records and applies rules.
    pub async fn in_front_of(url: &str) -> Self {
        let authority = url.strip_prefix("http://").expect("a URL without TLS");
        Self::start_with(Some(authority.to_owned())).await
    }

    async fn start_with(upstream: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port can be bound");
        let address = listener
            .local_addr()
            .expect("a bound listener has an address");
        let shared = Arc::new(Shared::new(upstream));
        let running = tokio::spawn(http::serve(listener, Arc::clone(&shared))).abort_handle();
        Self {
            shared,
            address,
            running,
        }
    }

    /// Starts a server on a thread of its own, for tests that block theirs.
    pub fn start_on_thread() -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be built");
            runtime.block_on(async {
                let server = Self::start().await;
                let stopped = Arc::clone(&server.shared);
                if send.send(server).is_ok() {
                    stopped.stopped().await;
                }
            });
        });
        receive.recv().expect("the thread sends its server")
    }

    /// Returns the base URL, without the path of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes what the server answers to `client/config`.
    pub fn config(&self, change: impl FnOnce(&mut ClientConfig)) {
        change(&mut self.shared.state().config);
    }

    /// Changes what the server answers to `client/dynamic_config`.
    pub fn dynamic_config(&self, change: impl FnOnce(&mut DynamicConfig)) {
        change(&mut self.shared.state().dynamic_config);
    }

    /// Begins a rule about an operation, or about [`ANY`].
    ///
    /// # Panics
    /// If there is no such operation.
    pub fn on(&self, endpoint: &'static str) -> On<'_> {
        assert!(
            endpoint == ANY || route::is_endpoint(endpoint),
            "no operation is called {endpoint}"
        );
        On::new(&self.shared, endpoint)
    }

    /// Resets the next connections as soon as they are made.
    pub fn reset_connections(&self, count: usize) {
        self.shared.state().connections_to_reset = count;
    }

    /// Holds a poll for at most so long. The default is 25 s.
    pub fn long_poll(&self, time: Duration) {
        self.shared.state().long_poll = time;
    }

    /// Sends results larger than this only to who asks twice. The default is 256 KiB.
    pub fn inline_limit(&self, bytes: usize) {
        self.shared.state().inline_limit_bytes = bytes;
    }

    /// Sends all results as JSON, as servers for clients to 0.24 do.
    pub fn json_results(&self) {
        self.shared.state().json_results = true;
    }

    /// Takes passes as JSON alone, as servers for clients to 0.24 do, and has this answer to messages.
    pub fn json_passes(&self, answer_to_messages: Reply) {
        self.shared.state().json_passes = Some(answer_to_messages);
    }

    /// Leaves `sample_sequence_ids` out of promises, as servers for clients to 0.25 do.
    pub fn no_sequence_ids(&self) {
        self.shared.state().sequence_ids = false;
    }

    /// Goes on without a missing sequence number after a while. By default it waits for ever.
    pub fn skip_gaps_after(&self, time: Duration) {
        self.shared.state().skip_gaps_after = Some(time);
    }

    /// Lets a function change the output of each pass, to add metrics for example.
    pub fn edit_passes(
        &self,
        edit: impl Fn(&ForwardBackwardRequest, &mut ForwardBackwardOutput) + Send + 'static,
    ) {
        self.shared.state().edit_pass = Some(Box::new(edit));
    }

    /// Gives tokens that are valid for so long. The default is an hour.
    pub fn token_lifetime(&self, time: Duration) {
        self.shared.state().token_lifetime = time;
    }

    /// Returns everything that the server was sent, in the order of arrival.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests()
    }

    /// Returns what the server was sent for one operation.
    pub fn requests_to(&self, endpoint: &str) -> Vec<Recorded> {
        self.shared.requests_to(endpoint)
    }

    /// Waits until so many requests for an operation have come, and returns them.
    pub async fn received(&self, endpoint: &str, count: usize) -> Vec<Recorded> {
        let mut arrivals = self.shared.arrivals();
        loop {
            arrivals.mark_unchanged();
            if self.shared.count(endpoint) >= count {
                return self.requests_to(endpoint);
            }
            arrivals
                .changed()
                .await
                .expect("the server outlives its borrow");
        }
    }

    /// Returns what the server executed, in order.
    pub fn executions(&self) -> Vec<Execution> {
        self.shared.state().executions.clone()
    }

    /// Returns the names of the operations that a model executed, in order.
    ///
    /// # Panics
    /// If their sequence numbers are not 1, 2, 3 and so on.
    pub fn executed_in_order(&self, model: &ModelId) -> Vec<&'static str> {
        let mut executions = self.executions();
        executions.retain(|execution| execution.model_id == *model);
        let numbers: Vec<i64> = executions.iter().map(|e| e.seq_id).collect();
        let expected: Vec<i64> = (1..=numbers.len() as i64).collect();
        assert_eq!(numbers, expected, "sequence numbers in order of execution");
        executions.iter().map(|e| e.operation).collect()
    }

    /// Returns the requests that were cancelled, in order.
    pub fn cancelled(&self) -> Vec<RequestId> {
        self.shared.state().cancelled.clone()
    }

    /// Returns the results that pollers of the batched feed said they fetched, in order.
    pub fn acknowledged(&self) -> Vec<RequestId> {
        self.shared.state().acknowledged.clone()
    }

    /// Takes what the server would complain about when dropped.
    pub fn take_complaints(&self) -> Vec<String> {
        self.shared.take_complaints()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.running.abort();
        self.shared.stop();
        let complaints = self.shared.take_complaints();
        if !complaints.is_empty() && !std::thread::panicking() {
            panic!("the scripted server complains: {complaints:#?}");
        }
    }
}
