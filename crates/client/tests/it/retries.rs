//! What is tried again, when, and for how long.

use crate::support::{RealServer, builder, datums, service, settle, training};
use anyhow::Result;
use std::time::Duration;
use tinkrs::{AdamParams, Error};
use tinkrs_testkit::scripted::{ManualClock, Reply, refuse, status};
use tinkrs_testkit::{Gate, ScriptedServer};

/// A reply that asks to be left alone for a millisecond only, so that tests are quick.
fn brief(reply: Reply) -> Reply {
    reply.header("retry-after-ms", "1")
}

#[tokio::test]
async fn every_retryable_status_is_retried_and_every_other_is_not() -> Result<()> {
    for code in (400..=429).chain(500..=511) {
        let server = ScriptedServer::start().await;
        let client = training(&server).await?;
        let retried = server
            .on("optim_step")
            .times(2)
            .reply(brief(refuse(code, "no")));
        let result = client.optim_step(AdamParams::new(0.1));
        if code == 402 {
            continue; // billing has a test of its own
        }
        let result = result.await;
        if matches!(code, 408 | 409 | 429 | 500..) {
            assert!(result.is_ok(), "status {code}: {:?}", result.err());
            assert_eq!(retried.hits(), 2);
        } else {
            assert_eq!(result.unwrap_err().status(), Some(code));
            assert_eq!(retried.hits(), 1, "status {code}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_server_can_overrule_the_status() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = service(&server);
    let on = || server.on("get_server_capabilities");
    on().reply(brief(status(404)).header("x-should-retry", "true"));
    service.get_server_capabilities().await?;
    on().reply(status(503).header("x-should-retry", "false"));
    let error = service.get_server_capabilities().await.unwrap_err();
    assert_eq!(error.status(), Some(503));
    Ok(())
}

#[tokio::test]
async fn a_retry_is_the_same_call_counted_up() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    server.on("optim_step").times(2).reply(brief(status(503)));
    client.optim_step(AdamParams::new(0.1)).await?;
    let tries = server.requests_to("optim_step");
    let counts: Vec<_> = tries
        .iter()
        .map(|request| request.header("x-stainless-retry-count").unwrap())
        .collect();
    assert_eq!(counts, ["0", "1", "2"]);
    for again in &tries[1..] {
        assert_eq!(again.body, tries[0].body);
        let key = |request: &tinkrs_testkit::scripted::Recorded| {
            request.header("x-idempotency-key").unwrap().to_owned()
        };
        assert_eq!(key(again), key(&tries[0]));
    }
    Ok(())
}

/// Returns how long the client waits after a 503 with these headers.
async fn delay_after(headers: &[(&str, &str)]) -> Result<Duration> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let reply = |reply: Reply, (name, value): &(&str, &str)| reply.header(name, value);
    let refused = headers.iter().fold(status(503), reply);
    let rule = server.on("optim_step").reply(refused);
    let start = tokio::time::Instant::now();
    let pending = client.optim_step(AdamParams::new(0.1)).submit();
    rule.hit(1).await;
    settle().await;
    clock.advance_until(pending).await?;
    let delay = start.elapsed();
    drop(clock);
    tokio::time::resume();
    Ok(delay)
}

#[tokio::test]
async fn retry_after_is_honoured_in_seconds_milliseconds_and_as_a_date() -> Result<()> {
    let date = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(30);
    let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let seconds = Duration::from_secs;
    let cases: [(&[(&str, &str)], _, _); 5] = [
        (&[("retry-after", "7")], seconds(7), seconds(8)),
        (
            &[("retry-after-ms", "2500")],
            Duration::from_millis(2500),
            seconds(3),
        ),
        (&[("retry-after", &date)], seconds(25), seconds(32)),
        (&[("retry-after", "9999")], Duration::ZERO, seconds(1)),
        (&[], Duration::from_millis(350), seconds(1)),
    ];
    for (headers, least, most) in cases {
        let delay = delay_after(headers).await?;
        assert!(delay >= least && delay < most, "{headers:?}: {delay:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_matters_is_retried_for_five_minutes() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    server.on("optim_step").always().reply(status(503));
    let start = tokio::time::Instant::now();
    let pending = client.optim_step(AdamParams::new(0.1)).submit();
    let later = client.get_info();
    let error = clock.leap_until(pending).await.unwrap_err();
    assert_eq!(error.status(), Some(503));
    let took = start.elapsed().as_secs();
    assert!((300..330).contains(&took), "{took} s");
    later.await?;
    Ok(())
}

#[tokio::test]
async fn connections_that_break_are_made_again() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    server.reset_connections(3);
    let service = service(&server);
    clock
        .advance_until(service.get_server_capabilities())
        .await?;
    server.on("get_server_capabilities").reset();
    server.on("get_server_capabilities").truncate(10);
    clock
        .advance_until(service.get_server_capabilities())
        .await?;
    assert!(service.stats().retries >= 5, "{:?}", service.stats());
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_that_says_so() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let url = server.url();
    drop(server);
    let service = tinkrs::ServiceClient::builder()
        .base_url(&url)
        .api_key("tml-secret-key")
        .build();
    let error = clock
        .leap_until(service.get_server_capabilities())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&url), "{error}");
    assert!(error.is_retryable());
    assert!(!format!("{error:?} {service:?}").contains("secret"));
    Ok(())
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_asked_for_again() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = builder(&server)
        .http_timeout(Duration::from_millis(100))
        .build();
    let client = service.create_lora_training_client("test/model").await?;
    let never = Gate::closed();
    server.on("forward_backward").executed().stall_until(&never);
    server.on("optim_step").stall_until(&never);
    let pass = client.forward_backward(datums([1])).submit();
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    pass.await?;
    step.await?;
    assert_eq!(server.requests_to("forward_backward").len(), 2);
    assert_eq!(
        server.executed_in_order(client.model_id()),
        ["forward_backward", "optim_step"]
    );
    Ok(())
}

#[tokio::test]
async fn an_empty_400_is_a_broken_connection_and_another_400_is_not() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    server.on("optim_step").times(3).reply(status(400).body(""));
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    clock.advance_until(step).await?;
    server.on("optim_step").reply(refuse(400, "bad"));
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    assert_eq!(
        clock.advance_until(step).await.unwrap_err().status(),
        Some(400)
    );
    Ok(())
}

#[tokio::test]
async fn publishing_twice_is_refused_at_once() -> Result<()> {
    let server = RealServer::start().await?;
    let path = training(&server).await?.save_state("one").await?;
    let rest = service(&server).create_rest_client();
    rest.publish_checkpoint(&path).await?;
    let error = rest.publish_checkpoint(&path).await.unwrap_err();
    assert_eq!(error.status(), Some(409));
    assert_eq!(server.requests_to("publish_checkpoint").len(), 2);
    Ok(())
}

#[tokio::test]
async fn an_error_status_gives_its_body_and_headers_without_credentials() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.on("get_server_capabilities").reply(
        status(403)
            .header("x-request-id", "r7")
            .header("x-echo", "tml-secret"),
    );
    let error = service(&server)
        .get_server_capabilities()
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(403));
    assert!(error.body().is_some(), "{error:?}");
    assert_eq!(error.header("X-Request-Id"), Some("r7"));
    assert_eq!(error.header("x-echo"), Some("[redacted]"));
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    Ok(())
}
