//! Sessions, credentials and settings.

use crate::support::{builder, datums, sample, sampling, service, settle};
use anyhow::Result;
use std::time::Duration;
use tinkrs::{AdamParams, Error, FinishReason, ServiceClient, UserMetadata};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, ManualClock, refuse, status};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_client_connects_when_it_is_first_used() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = builder(&server)
        .display_name("a run")
        .project_id("p1")
        .tags(["t".to_owned()])
        .user_metadata(UserMetadata::from([("k".to_owned(), "v".to_owned())]))
        .build();
    settle().await;
    assert!(server.requests().is_empty());
    assert_eq!(service.session_id(), None);

    service.create_sampling_client(BASE_MODEL).await?;
    let names: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.endpoint)
        .collect();
    assert_eq!(
        names,
        [
            "client_config",
            "client_dynamic_config",
            "create_session",
            "create_sampling_session"
        ]
    );
    let expected = serde_json::json!({
        "tags": ["t"], "user_metadata": {"k": "v"}, "sdk_version": "0.36.0",
        "project_id": "p1", "display_name": "a run", "type": "create_session",
    });
    assert_eq!(server.requests_to("create_session")[0].json(), expected);
    assert!(service.session_id().is_some());
    Ok(())
}

#[tokio::test]
async fn many_first_uses_start_one_session() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = service(&server);
    let create = || service.create_sampling_client(BASE_MODEL).into_future();
    tokio::try_join!(create(), create(), create(), create())?;
    assert_eq!(server.requests_to("create_session").len(), 1);
    assert_eq!(server.requests_to("client_config").len(), 1);
    Ok(())
}

#[tokio::test]
async fn metadata_needs_no_session() -> Result<()> {
    let server = ScriptedServer::start().await;
    service(&server).get_server_capabilities().await?;
    assert!(server.requests_to("create_session").is_empty());
    Ok(())
}

#[tokio::test]
async fn heartbeats_come_every_ten_seconds_until_the_session_is_over() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = sampling(&server).await?;
    for beats in 1..=3 {
        clock.advance(10 * SECOND).await;
        server.received("session_heartbeat", beats).await;
        settle().await;
    }
    server.on("session_heartbeat").reply(status(500));
    clock.advance(10 * SECOND).await;
    server.received("session_heartbeat", 4).await;
    settle().await;
    server.on("session_heartbeat").reply(status(410));
    clock.advance(10 * SECOND).await;
    server.received("session_heartbeat", 5).await;
    settle().await;
    for _ in 0..5 {
        clock.advance(10 * SECOND).await;
        settle().await;
    }
    assert_eq!(server.requests_to("session_heartbeat").len(), 5);
    drop(client);
    Ok(())
}

#[tokio::test]
async fn what_the_service_says_reaches_a_listener() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let service = builder(&server)
        .on_message(move |message| drop(sender.send(message.to_string())))
        .build();
    let old = status(404)
        .header("x-deprecation-note", "update")
        .header("x-deprecation-level", "error");
    server.on("client_dynamic_config").reply(old);
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let deprecated = "error: client_dynamic_config is deprecated: update";
    assert_eq!(heard.recv().await.as_deref(), Some(deprecated));

    // A moment of it is nothing unusual, and a long wait is.
    let busy = |seconds: &str| refuse(429, "too many tokens").header("retry-after", seconds);
    server.on("optim_step").reply(busy("1"));
    server.on("optim_step").reply(busy("30"));
    server.on("optim_step").reply(refuse(402, "no credit left"));
    let step = training.optim_step(AdamParams::new(1e-4)).submit();
    for (tries, wait) in [(1, 2), (2, 40), (3, 5)] {
        server.received("optim_step", tries).await;
        settle().await;
        clock.advance(wait * SECOND).await;
    }
    step.await?;
    let limited = "too many requests, optim_step waits: too many tokens";
    assert_eq!(heard.recv().await.as_deref(), Some(limited));
    let blocked = heard.recv().await.unwrap();
    let billing = "billing is blocked: no credit left; waiting up to ";
    assert!(blocked.starts_with(billing), "{blocked}");

    let beats = server.requests_to("session_heartbeat").len();
    server.on("session_heartbeat").times(14).reply(status(500));
    for beat in 1..=14 {
        clock.advance(10 * SECOND).await;
        server.received("session_heartbeat", beats + beat).await;
        settle().await;
    }
    let silent = heard.recv().await.unwrap();
    let no_heartbeat = "the server has had no heartbeat for 1";
    assert!(silent.starts_with(no_heartbeat), "{silent}");
    server.on("session_heartbeat").reply(status(410));
    clock.advance(10 * SECOND).await;
    server.received("session_heartbeat", beats + 15).await;
    let ended = "the server has ended the session";
    while heard.recv().await.as_deref() != Some(ended) {}
    Ok(())
}

#[tokio::test]
async fn heartbeats_stop_with_the_last_client() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    drop(sampling(&server).await?);
    settle().await;
    for _ in 0..3 {
        clock.advance(10 * SECOND).await;
        settle().await;
    }
    assert!(server.requests_to("session_heartbeat").is_empty());
    assert!(server.requests_to("finish_session").is_empty());
    Ok(())
}

#[tokio::test]
async fn closing_finishes_the_session_once_and_ends_all_work() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = service(&server);
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let sampling = service.create_sampling_client(BASE_MODEL).await?;
    service.close(FinishReason::Errored, Some("why")).await?;
    service.close(FinishReason::Success, None).await?;
    let finishes = server.requests_to("finish_session");
    assert_eq!(finishes.len(), 1);
    let expected = serde_json::json!({"reason": {"type": "errored"}, "detail": "why"});
    assert_eq!(finishes[0].json(), expected);

    let closed = |error: Error| assert!(matches!(error, Error::Closed { .. }), "{error}");
    closed(training.forward_backward(datums([1])).await.unwrap_err());
    closed(sample(&sampling).await.unwrap_err());
    closed(
        service
            .create_sampling_client(BASE_MODEL)
            .await
            .unwrap_err(),
    );
    closed(service.get_server_capabilities().await.unwrap_err());
    Ok(())
}

#[tokio::test]
async fn a_detail_that_is_not_given_is_written_as_null() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = service(&server);
    service.create_sampling_client(BASE_MODEL).await?;
    service.close(FinishReason::Success, None).await?;
    let body = server.requests_to("finish_session")[0].json();
    assert_eq!(
        body,
        serde_json::json!({"reason": {"type": "success"}, "detail": null})
    );
    Ok(())
}

#[tokio::test]
async fn closing_an_unused_client_sends_nothing() -> Result<()> {
    let server = ScriptedServer::start().await;
    service(&server).close(FinishReason::Success, None).await?;
    assert!(server.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn settings_are_read_again_and_old_ones_kept_if_that_fails() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    server.dynamic_config(|config| config.refresh_interval_sec = 1);
    let client = sampling(&server).await?;
    server.on("client_dynamic_config").reply(status(500));
    server.dynamic_config(|config| config.sample_cancel_enabled = true);
    for reads in 2..=3 {
        clock.advance(10 * SECOND).await; // ten seconds are the least
        server.received("client_dynamic_config", reads).await;
        settle().await;
    }
    server
        .on("asample")
        .hold_result(&tinkrs_testkit::Gate::closed());
    let pending = sample(&client);
    server.received("retrieve_future", 1).await;
    drop(pending);
    server.received("cancel_future", 1).await;
    Ok(())
}

#[tokio::test]
async fn a_server_without_dynamic_settings_will_do() -> Result<()> {
    let server = ScriptedServer::start().await;
    server
        .on("client_dynamic_config")
        .always()
        .reply(status(404));
    sample(&sampling(&server).await?).await?;
    Ok(())
}

#[tokio::test]
async fn a_credential_is_exchanged_for_tokens_that_are_renewed() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.pjwt_auth_enabled = true);
    // A token that is about to expire is exchanged before each use.
    server.token_lifetime(Duration::from_secs(30));
    let service = service(&server);
    service.get_server_capabilities().await?;
    service.get_server_capabilities().await?;
    let keys: Vec<_> = server
        .requests_to("get_server_capabilities")
        .iter()
        .map(|request| request.key().unwrap().to_owned())
        .collect();
    assert!(keys[0].starts_with("eyJ") && keys[1].starts_with("eyJ"));
    assert_ne!(keys[0], keys[1]);
    assert_eq!(server.requests_to("auth_token")[0].key(), Some("tml-test"));
    let me = service.whoami().await?;
    assert_eq!(me.email.as_deref(), Some("tester@example.com"));
    assert_eq!(me.org_urn, "tml:organization:test-org");
    Ok(())
}

#[tokio::test]
async fn a_token_that_lasts_is_exchanged_once() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.pjwt_auth_enabled = true);
    let client = sampling(&server).await?;
    let pending: Vec<_> = (0..50).map(|_| sample(&client)).collect();
    for sample in pending {
        sample.await?;
    }
    assert_eq!(server.requests_to("auth_token").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_bad_key_is_an_error_before_and_after_the_network() -> Result<()> {
    let server = ScriptedServer::start().await;
    let bad = ServiceClient::builder()
        .base_url(server.url())
        .api_key("sk-wrong");
    let error = bad.build().get_server_capabilities().await.unwrap_err();
    assert!(matches!(error, Error::Credential(_)), "{error}");
    assert!(server.requests().is_empty());

    server.on("get_server_capabilities").reply(status(401));
    let error = service(&server)
        .get_server_capabilities()
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(401));
    assert_eq!(server.requests_to("get_server_capabilities").len(), 1);
    Ok(())
}

#[tokio::test]
async fn keys_appear_in_no_debug_output_or_error() -> Result<()> {
    let server = ScriptedServer::start().await;
    let builder = builder(&server)
        .api_key("tml-secret-123")
        .header("x-own", "secret-456");
    let service = builder.clone().build();
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let sampling = service.create_sampling_client(BASE_MODEL).await?;
    server.on("get_info").reply(status(403));
    let error = training.get_info().await.unwrap_err();
    let text = format!(
        "{builder:?} {service:?} {training:?} {sampling:?} {error:?} {error} {}",
        sampling.to_handle()
    );
    assert!(!text.contains("secret-"), "{text}");
    let sent = &server.requests_to("get_info")[0];
    assert_eq!(sent.key(), Some("tml-secret-123"));
    assert_eq!(sent.header("x-own"), Some("secret-456"));
    Ok(())
}

#[tokio::test]
async fn every_request_says_who_asks() -> Result<()> {
    let server = ScriptedServer::start().await;
    sample(&sampling(&server).await?).await?;
    for request in server.requests() {
        let agent = request.header("user-agent").unwrap_or_default();
        assert!(agent.starts_with("tinkrs/"), "{}", request.endpoint);
        assert_eq!(
            request.header("x-stainless-package-version"),
            Some("0.36.0")
        );
        assert_eq!(request.key(), Some("tml-test"));
    }
    Ok(())
}
