use super::named::{
    CallFailed, Content, Exchange, PollFailed, PollKind, RequestFailed, ResultUnreadable,
};
use super::sender::{BATCH, DRAIN, FLUSH_EVERY, QUEUE, RETRY_AFTER};
use super::*;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// A server that takes batches, or fails as its script says.
struct Server {
    telemetry: Telemetry,
    batches: mpsc::UnboundedReceiver<(Instant, TelemetryBatch)>,
}

impl Server {
    fn start(session: Option<&str>, script: Vec<Result<(), Error>>) -> Self {
        let (arrived, batches) = mpsc::unbounded_channel();
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let send = move |batch: TelemetryBatch| {
            let _ = arrived.send((Instant::now(), batch));
            let answer = script.lock().unwrap().pop_front();
            std::future::ready(answer.unwrap_or(Ok(())))
        };
        let session = session.map(SessionId::from);
        Self {
            telemetry: Telemetry::start(session.as_ref(), send),
            batches,
        }
    }

    /// Waits for a batch, and returns when it came and what is in it.
    async fn batch(&mut self) -> (Instant, TelemetryBatch) {
        self.batches.recv().await.expect("a batch comes")
    }

    /// Returns how many batches come until nothing more can.
    async fn rest(mut self) -> usize {
        drop(self.telemetry);
        let mut count = 0;
        while self.batches.recv().await.is_some() {
            count += 1;
        }
        count
    }
}

fn status(code: u16) -> Error {
    Error::Status {
        operation: "telemetry",
        status: code,
        message: "no, tml-hidden".to_owned(),
        response: Box::default(),
    }
}

fn note(telemetry: &Telemetry, count: usize) {
    for _ in 0..count {
        telemetry.event("note", Severity::Debug, Map::new());
    }
}

fn indices(batch: &TelemetryBatch) -> Vec<u64> {
    let index = |event: &TelemetryEvent| event.event_session_index;
    batch.events.iter().map(index).collect()
}

fn data(batch: &TelemetryBatch, at: usize) -> (&str, &Map<String, Value>) {
    match &batch.events[at].kind {
        TelemetryEventKind::GenericEvent {
            event_name,
            event_data,
        } => (event_name, event_data),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_starts_with_its_event_and_is_flushed_every_ten_seconds() {
    let start = Instant::now();
    let mut server = Server::start(Some("s-1"), vec![]);
    note(&server.telemetry, 1);
    let (when, batch) = server.batch().await;
    assert_eq!(when - start, FLUSH_EVERY);
    assert_eq!(batch.session_id, "s-1");
    assert_eq!(batch.sdk_version, SDK_VERSION);
    assert_eq!(batch.process_uuid, process_uuid());
    assert_eq!(batch.events[0].kind, TelemetryEventKind::SessionStart);
    assert_eq!(indices(&batch), [0, 1]);

    note(&server.telemetry, 1);
    let (when, batch) = server.batch().await;
    assert_eq!(when - start, 2 * FLUSH_EVERY);
    assert_eq!(indices(&batch), [2]);
    assert_eq!(
        server.rest().await,
        0,
        "nothing is sent when nothing happened"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_session_has_no_session_events() {
    let mut server = Server::start(None, vec![]);
    note(&server.telemetry, 1);
    let (_, batch) = server.batch().await;
    let id = batch.session_id.strip_prefix("sessionless-").unwrap();
    assert_eq!(id.len(), 36);
    assert_eq!(batch.events.len(), 1);
    assert_eq!(data(&batch, 0).0, "note");
}

#[tokio::test(start_paused = true)]
async fn many_events_go_out_in_batches_in_order() {
    let mut server = Server::start(None, vec![]);
    note(&server.telemetry, 2 * BATCH + 1);
    server.telemetry.flush();
    let start = Instant::now();
    let mut seen = Vec::new();
    for size in [BATCH, BATCH, 1] {
        let (when, batch) = server.batch().await;
        assert_eq!((when - start, batch.events.len()), (Duration::ZERO, size));
        seen.extend(indices(&batch));
    }
    assert!(seen.iter().copied().eq(0..=2 * BATCH as u64));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_events_and_goes_on() {
    let mut server = Server::start(None, vec![]);
    note(&server.telemetry, QUEUE + 5);
    server.telemetry.flush();
    for _ in 0..QUEUE / BATCH {
        assert_eq!(server.batch().await.1.events.len(), BATCH);
    }
    note(&server.telemetry, 1);
    server.telemetry.flush();
    let (_, batch) = server.batch().await;
    assert_eq!(
        indices(&batch),
        [QUEUE as u64],
        "dropped events have no number"
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_again_every_second_until_it_arrives() {
    let script = vec![Err(status(503)), Err(status(429)), Ok(())];
    let mut server = Server::start(None, script);
    note(&server.telemetry, 1);
    server.telemetry.flush();
    let start = Instant::now();
    let (_, first) = server.batch().await;
    for expected in [RETRY_AFTER, 2 * RETRY_AFTER] {
        let (when, again) = server.batch().await;
        assert_eq!(when - start, expected);
        assert_eq!(again, first);
    }
    assert_eq!(server.rest().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_a_report_gets_no_more() {
    let mut server = Server::start(None, vec![Err(status(404))]);
    note(&server.telemetry, BATCH + 1);
    server.telemetry.flush();
    server.batch().await;
    note(&server.telemetry, 1);
    server.telemetry.flush();
    server.telemetry.close().await;
    assert_eq!(server.rest().await, 0);
}

#[tokio::test(start_paused = true)]
async fn closing_sends_what_is_queued_and_takes_no_more() {
    let mut server = Server::start(None, vec![Err(status(503))]);
    note(&server.telemetry, 1);
    let start = Instant::now();
    server.telemetry.close().await;
    assert_eq!(start.elapsed(), RETRY_AFTER);
    note(&server.telemetry, 1);
    server.telemetry.close().await;
    assert_eq!(
        start.elapsed(),
        RETRY_AFTER,
        "the second time there is nothing to do"
    );
    assert_eq!(indices(&server.batch().await.1), [0]);
    assert_eq!(indices(&server.batch().await.1), [0], "sent again");
    assert_eq!(server.rest().await, 0);
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_half_a_minute_at_most() {
    let script = (0..1_000).map(|_| Err(status(503))).collect();
    let server = Server::start(None, script);
    note(&server.telemetry, 1);
    let start = Instant::now();
    server.telemetry.close().await;
    assert_eq!(start.elapsed(), DRAIN);
    server.rest().await;
    assert_eq!(start.elapsed(), DRAIN, "the task ended");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_clone_sends_once() {
    for script in [vec![], vec![Err(status(503))]] {
        let server = Server::start(None, script);
        note(&server.telemetry, 1);
        let clone = server.telemetry.clone();
        drop(clone);
        let start = Instant::now();
        assert_eq!(server.rest().await, 1);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn errors_are_sent_at_once_and_nobody_waits_for_them() {
    let mut server = Server::start(None, vec![]);
    let start = Instant::now();
    server.telemetry.error(&status(400));
    server.telemetry.error(&Error::Unreachable {
        operation: "optim_step",
        url: "http://localhost".to_owned(),
        attempts: 3,
        source: "connection refused for tml-hidden".into(),
    });
    let (when, batch) = server.batch().await;
    assert_eq!(when, start);

    let (name, fields) = data(&batch, 0);
    assert_eq!(
        (name, batch.events[0].severity),
        ("user_error", Severity::Warning)
    );
    assert_eq!(fields["error_type"], "Status");
    assert_eq!(fields["status_code"], 400);
    assert_eq!(fields["body"], "no, [redacted]");
    let expected = TelemetryEventKind::UnhandledException {
        error_type: "Unreachable".to_owned(),
        error_message: "optim_step: could not reach http://localhost (3 attempts): \
                        connection refused for [redacted]"
            .to_owned(),
        traceback: None,
    };
    assert_eq!(batch.events[1].kind, expected);
    assert_eq!(batch.events[1].severity, Severity::Error);
}

#[tokio::test(start_paused = true)]
async fn an_ended_session_says_how_long_it_was() {
    let mut server = Server::start(Some("s"), vec![]);
    tokio::time::advance(Duration::from_millis(62_500)).await;
    server.telemetry.ended();
    let mut events = server.batch().await.1.events;
    if let Ok((_, more)) = timeout(FLUSH_EVERY, server.batch()).await {
        events.extend(more.events);
    }
    let TelemetryEventKind::SessionEnd { duration } = &events.last().unwrap().kind else {
        panic!("{events:?}")
    };
    assert_eq!(duration, "0:01:02.500000");
}

#[test]
fn an_elapsed_time_is_written_as_python_does() {
    for (millis, expected) in [
        (0, "0:00:00"),
        (62_345, "0:01:02.345000"),
        (36_000_000, "10:00:00"),
        (86_400_000, "1 day, 0:00:00"),
        (180_000_001, "2 days, 2:00:00.001000"),
    ] {
        assert_eq!(elapsed_text(Duration::from_millis(millis)), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn named_events_have_the_members_that_the_service_knows() {
    let mut server = Server::start(None, vec![]);
    let headers = [("x-api-key", "hidden"), ("accept", "*/*")];
    let headers: http::header::HeaderMap = headers
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect::<Vec<(http::header::HeaderName, _)>>()
        .into_iter()
        .collect();
    let poll = PollFailed {
        request_id: "r",
        request_type: "Sample",
        status_code: 400,
        detail: String::new(),
        kind: PollKind::RetryIfBudget,
        should_retry: true,
        is_user_error: true,
        exception: String::new(),
        exception_type: String::new(),
        iteration: 3,
        elapsed_time: 0.5,
        bad_request_retries: 1,
        connection_error_retries: 0,
        exchange: Some(Exchange {
            request_headers: redact::headers(&headers),
            response_headers: Map::new(),
            response_body: "who is tml-hidden?".to_owned(),
        }),
    };
    server.telemetry.named(&poll);
    server.telemetry.named(&PollFailed {
        status_code: 0,
        exchange: None,
        is_user_error: false,
        kind: PollKind::RetryWithBackoff,
        ..poll
    });
    server.telemetry.named(&CallFailed {
        func: "save_weights",
        is_user_error: true,
        ..CallFailed::default()
    });
    server.telemetry.named(&RequestFailed {
        request_id: "r",
        request_type: "Sample",
        error: "out of memory".to_owned(),
        error_category: "Server",
        is_user_error: false,
        iteration: 0,
        elapsed_time: 1.0,
    });
    server.telemetry.named(&ResultUnreadable {
        request_id: "r",
        request_type: "Sample",
        exception: String::new(),
        exception_type: String::new(),
        content: Content::Proto { proto_bytes_len: 9 },
        model_cls: "SampleResponse",
        iteration: 0,
        elapsed_time: 1.0,
    });
    let (_, batch) = server.batch().await;

    let names: Vec<_> = (0..5).map(|at| data(&batch, at).0).collect();
    let expected = [
        "APIFuture.result_async.api_status_error",
        "APIFuture.result_async.connection_error",
        "InternalClientHolder.execute_with_retries.exception",
        "APIFuture.result_async.application_error",
        "APIFuture.result_async.proto_deserialization_error",
    ];
    assert_eq!(names, expected);
    let severities: Vec<_> = batch.events.iter().map(|event| event.severity).collect();
    use Severity::{Error as Failure, Warning};
    assert_eq!(severities, [Failure, Warning, Warning, Failure, Failure]);

    let fields = data(&batch, 0).1;
    assert_eq!(fields["kind"], "retry_if_budget");
    assert_eq!(fields["request_headers"]["accept"], "*/*");
    assert_eq!(fields["request_headers"]["x-api-key"], "[redacted]");
    assert_eq!(fields["response_body"], "who is [redacted]?");
    assert!(!data(&batch, 1).1.contains_key("request_headers"));
    assert_eq!(data(&batch, 1).1["status_code"], 0);
    assert_eq!(data(&batch, 4).1["proto_bytes_len"], 9);
    assert_eq!(data(&batch, 2).1["status_code"], Value::Null);
}
