//! What a hostile, broken or absent server cannot do: keep the client waiting for ever, or fill its memory.

use crate::support::{builder, datums, service, training};
use anyhow::Result;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tinkrs::admin::AuditEventType;
use tinkrs::{AdamParams, Error, ServiceClient};
use tinkrs_testkit::scripted::{ANY, ManualClock, Reply, refuse, status};
use tinkrs_testkit::{Gate, ScriptedServer};
use tokio::time::Instant;

/// The longest that a server which never answers may be waited for.
const FIRST_CONTACT: Duration = Duration::from_secs(25);

/// Asks a server for its models, and returns how that failed, after how long, and what the user was told.
async fn ask(clock: &ManualClock, url: &str) -> (Error, Duration, Vec<String>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let notices = Arc::clone(&told);
    let service = ServiceClient::builder()
        .base_url(url)
        .api_key("tml-test")
        .telemetry(false)
        .on_retry(move |notice| notices.lock().unwrap().push(notice.to_string()))
        .build();
    let start = Instant::now();
    let asked = clock.advance_until(service.get_server_capabilities()).await;
    let told = told.lock().unwrap().clone();
    (asked.unwrap_err(), start.elapsed(), told)
}

#[tokio::test]
async fn a_closed_port_is_an_error_with_its_cause_and_told_at_the_first_failure() -> Result<()> {
    let clock = ManualClock::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    drop(listener);
    let (error, after, told) = ask(&clock, &url).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let cause = cause.to_string();
    assert!(cause.contains("refused"), "{cause}");
    assert!(after <= FIRST_CONTACT, "{after:?}");
    let [notice] = &told[..] else {
        panic!("told once: {told:?}");
    };
    let expected = format!("could not reach {url}: Connection refused");
    assert!(notice.starts_with(&expected), "{notice}");
    assert!(notice.ends_with("; retrying for 15 s"), "{notice}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_an_error_within_half_a_minute() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    server.on(ANY).always().stall_until(&Gate::closed());
    let (error, after, told) = ask(&clock, &server.url()).await;
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(after <= FIRST_CONTACT, "{after:?}");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("within 10 s"), "{told:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_answered_before_is_waited_for() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = clock.advance_until(training(&server)).await?;
    // Longer than a first contact would take.
    let start = Instant::now();
    let down = move |_: &_| start.elapsed() < Duration::from_secs(120);
    server.on("optim_step").when(down).always().reset();
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    clock.leap_until(step).await?;
    assert!(start.elapsed() >= Duration::from_secs(120));
    Ok(())
}

#[tokio::test]
async fn retries_end_when_the_users_patience_does() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    server
        .on("get_server_capabilities")
        .always()
        .reply(status(503));
    let service = builder(&server)
        .max_retry_time(Duration::from_secs(3))
        .build();
    let start = Instant::now();
    let asked = service.get_server_capabilities();
    let error = clock.advance_until(asked).await.unwrap_err();
    assert_eq!(error.status(), Some(503));
    assert!(start.elapsed() < Duration::from_secs(5));
    Ok(())
}

#[tokio::test]
async fn a_response_that_does_not_fit_the_call_is_refused_once_and_for_all() -> Result<()> {
    let server = ScriptedServer::start().await;
    let long = Reply::json(&json!({"supported_models": [], "more": "x".repeat(33 << 20)}));
    server.on("get_server_capabilities").always().reply(long);
    let error = service(&server)
        .get_server_capabilities()
        .await
        .unwrap_err();
    let Error::Answer { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(source.to_string().contains("33554432 bytes"), "{source}");
    assert_eq!(server.requests_to("get_server_capabilities").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_result_that_does_not_fit_the_request_is_refused() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let long = Reply::json(&json!({"metrics": {"x".repeat(17 << 20): 1.0}}));
    server
        .on("retrieve_future")
        .for_request_type("OptimStep")
        .reply(long);
    client.forward_backward(datums([5])).await?;
    let error = client.optim_step(AdamParams::new(0.1)).await.unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error:?}");
    // Nor is one that says so itself waited for.
    let large = json!({"status": "complete_metadata", "response_payload_size": u64::MAX});
    server
        .on("retrieve_future")
        .for_request_type("ForwardBackward")
        .reply(Reply::json(&large));
    let error = client.forward_backward(datums([5])).await.unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_redirect_that_leads_to_itself_ends() -> Result<()> {
    let server = ScriptedServer::start().await;
    let here = refuse(307, "again").header("location", "/api/v1/audit");
    server.on("get_audit_log").always().reply(here);
    let admin = service(&server).create_admin_client();
    let asked = admin.get_audit_log(AuditEventType::All, None).await;
    let error = asked.unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error:?}");
    assert_eq!(server.requests_to("get_audit_log").len(), 11);
    Ok(())
}
