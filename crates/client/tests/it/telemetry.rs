//! What is reported, and for whom.

use crate::support::{builder, datums, sample};
use anyhow::Result;
use serde_json::Value;
use tinkrs::{AdamParams, FinishReason, SamplingClient, ServiceClient, Severity};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, ManualClock, Reply, refuse};

/// Waits for a report of this kind and returns the session that it is about.
async fn reported(server: &ScriptedServer, event: &str, detail: &str) -> String {
    for count in 1.. {
        server.received("telemetry", count).await;
        for report in server.requests_to("telemetry") {
            let batch: Value = serde_json::from_slice(&report.body).expect("a report is JSON");
            let text = batch["events"].to_string();
            if text.contains(event) && text.contains(detail) {
                let session = batch["session_id"].as_str();
                return session.expect("a report names a session").to_owned();
            }
        }
    }
    unreachable!("the counts do not end")
}

/// Waits for a report with an event of this name whose data has this member, and returns the event.
async fn event(server: &ScriptedServer, name: &str, (key, value): (&str, Value)) -> Value {
    for count in 1.. {
        server.received("telemetry", count).await;
        for report in server.requests_to("telemetry") {
            let batch: Value = serde_json::from_slice(&report.body).expect("a report is JSON");
            let events = batch["events"].as_array().expect("a report has events");
            let is_it =
                |event: &&Value| event["event_name"] == name && event["event_data"][key] == value;
            if let Some(found) = events.iter().find(is_it) {
                return found.clone();
            }
        }
    }
    unreachable!("the counts do not end")
}

#[tokio::test]
async fn failed_polls_have_the_official_names_kinds_and_severities() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let service = builder(&server).telemetry(true).build();
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let status_error = "APIFuture.result_async.api_status_error";
    for (status, kind, severity, with_exchange) in [
        (408, "retry", "WARNING", false),
        (503, "retry", "WARNING", false),
        (400, "retry_if_budget", "ERROR", true),
        (403, "fatal", "ERROR", true),
    ] {
        server
            .on("retrieve_future")
            .for_request_type("OptimStep")
            .reply(refuse(status, "for a reason"));
        let step = training.optim_step(AdamParams::new(0.1)).submit();
        let step = clock.advance_until(step).await;
        assert_eq!(step.is_err(), kind == "fatal", "{status}");
        let found = event(&server, status_error, ("status_code", status.into()));
        let event = clock.leap_until(found).await;
        let data = &event["event_data"];
        assert_eq!(data["kind"], kind, "{status}");
        assert_eq!(event["severity"], severity, "{status}");
        assert_eq!(data["should_retry"], kind != "fatal", "{status}");
        assert_eq!(data["is_user_error"], matches!(status, 400 | 403));
        assert_eq!(data["bad_request_retries"], 0, "before this one");
        let exchange = ["request_headers", "response_headers", "response_body"];
        for member in exchange {
            assert_eq!(data.get(member).is_some(), with_exchange, "{status}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn failures_of_requests_and_samples_have_the_official_members() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = builder(&server).telemetry(true).build();
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    server
        .on("optim_step")
        .fail_result("not finite", tinkrs::ErrorCategory::User);
    let step = training.optim_step(AdamParams::new(0.1)).await;
    assert!(step.is_err());
    let name = "APIFuture.result_async.application_error";
    let found = event(&server, name, ("error_category", "User".into())).await;
    assert_eq!(found["severity"], "WARNING");
    assert_eq!(found["event_data"]["error"], "not finite");

    let busy = refuse(503, "busy").header("retry-after-ms", "1");
    server.on("optim_step").reply(busy);
    server
        .on("optim_step")
        .reply(refuse(422, "no such optimizer"));
    assert!(training.optim_step(AdamParams::new(0.1)).await.is_err());
    let name = "InternalClientHolder.execute_with_retries.exception";
    for (count, status, is_retryable) in [(0, 503, true), (1, 422, false)] {
        let found = event(&server, name, ("status_code", status.into())).await;
        assert_eq!(found["severity"], "WARNING", "{status}");
        let data = &found["event_data"];
        assert_eq!(data["attempt_count"], count, "{status}");
        assert_eq!(data["is_retryable"], is_retryable, "{status}");
        assert_eq!(data["is_user_error"], !is_retryable, "{status}");
    }

    server
        .on("retrieve_future")
        .for_request_type("SaveWeights")
        .reply(Reply::json(&serde_json::json!({"path": 3})));
    assert!(training.save_state("a").await.is_err());
    let name = "APIFuture.result_async.validation_error";
    let found = event(&server, name, ("request_type", "SaveWeights".into())).await;
    assert_eq!(found["severity"], "ERROR");
    assert_eq!(found["event_data"]["exception_stack"], Value::Null);

    let sampler = service.create_sampling_client(BASE_MODEL).await?;
    server.on("asample").reply(refuse(422, "no such option"));
    assert!(sample(&sampler).await.is_err());
    let name = "RetryHandler.execute.exception";
    let found = event(&server, name, ("should_retry", false.into())).await;
    assert_eq!(found["severity"], "WARNING", "the user's");
    assert_eq!(found["event_data"]["attempt_count"], 1);
    Ok(())
}

#[tokio::test]
async fn errors_that_reach_the_user_are_reported_whoever_met_them() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = builder(&server).telemetry(true).build();
    server
        .on("get_server_capabilities")
        .reply(refuse(404, "looked for it"));
    assert!(service.get_server_capabilities().await.is_err());
    let about = reported(&server, "user_error", "looked for it").await;
    assert!(about.starts_with("sessionless-"), "{about}");

    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let session = training.session_id().to_string();
    server
        .on("forward_backward")
        .reply(refuse(422, "no such loss"));
    assert!(training.forward_backward(datums([1])).await.is_err());
    let about = reported(&server, "user_error", "no such loss").await;
    assert_eq!(about, session);
    Ok(())
}

#[tokio::test]
async fn a_result_that_cannot_be_parsed_is_reported_with_its_length() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = builder(&server).telemetry(true).build();
    let training = service.create_lora_training_client(BASE_MODEL).await?;
    let broken = || Reply::message(vec![0xff; 7]);
    server
        .on("retrieve_future")
        .for_request_type("ForwardBackward")
        .reply(broken());
    assert!(training.forward_backward(datums([1])).await.is_err());
    let event = "APIFuture.result_async.proto_deserialization_error";
    let detail = r#""proto_bytes_len":7"#;
    reported(&server, event, detail).await;

    let sampler = service.create_sampling_client(BASE_MODEL).await?;
    server
        .on("retrieve_future")
        .for_request_type("Sample")
        .reply(broken());
    assert!(sample(&sampler).await.is_err());
    reported(&server, event, r#""request_type":"Sample""#).await;
    Ok(())
}

#[tokio::test]
async fn a_users_own_events_are_reported_without_credentials() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = builder(&server).telemetry(true).build();
    let event = |service: &ServiceClient| {
        let data = [
            ("step".into(), 3.into()),
            ("note".into(), "tml-secret".into()),
        ];
        service.report_event("evaluated", Severity::Info, data.into_iter().collect())
    };
    assert!(!event(&service), "it has not connected yet");
    service.create_lora_training_client(BASE_MODEL).await?;
    assert!(event(&service));
    service.close(FinishReason::Success, None).await?;
    reported(&server, "evaluated", r#""step":3"#).await;
    let reports = server.requests_to("telemetry");
    let texts = reports
        .iter()
        .map(|report| String::from_utf8_lossy(&report.body));
    assert!(!texts.collect::<String>().contains("secret"));

    let silent = builder(&server).telemetry(false).build();
    silent.get_server_capabilities().await?;
    assert!(!event(&silent));
    Ok(())
}

#[tokio::test]
async fn the_taker_of_a_handle_reports_about_its_session_too() -> Result<()> {
    let server = ScriptedServer::start().await;
    let original = builder(&server).build();
    let original = original.create_sampling_client(BASE_MODEL).await?;
    let settings = builder(&server).telemetry(true);
    let taker = SamplingClient::from_handle_with(&original.to_handle(), settings).await?;
    server.on("asample").reply(refuse(422, "no such sampler"));
    assert!(sample(&taker).await.is_err());
    let about = reported(&server, "user_error", "no such sampler").await;
    assert_eq!(about, original.session_id().to_string());
    Ok(())
}
