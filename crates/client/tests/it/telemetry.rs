//! What is reported, and for whom.

use crate::support::{builder, datums, sample};
use anyhow::Result;
use serde_json::Value;
use tinkrs::{FinishReason, SamplingClient, ServiceClient, Severity};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, Reply, refuse};

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
