//! One server's "slow down" holds back everybody whom it concerns, and nobody else.

use crate::support::{builder, service};
use std::time::{Duration, Instant};
use tinkrs::{BackpressureScope, ModelInput, SamplingClient, SamplingParams, ServiceClient};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, not_yet, status};

async fn sampler(service: &ServiceClient) -> SamplingClient {
    service.create_sampling_client(BASE_MODEL).await.unwrap()
}

async fn sample_time(sampler: &SamplingClient) -> Duration {
    let start = Instant::now();
    let prompt = ModelInput::from_tokens([1]);
    sampler
        .sample(prompt, SamplingParams::new(1))
        .await
        .unwrap();
    start.elapsed()
}

/// A 429 pauses for a second; an unpaused sample on loopback takes milliseconds.
const PAUSED: Duration = Duration::from_millis(600);

#[tokio::test]
async fn one_429_pauses_all_samplers_of_the_key_and_none_of_another_key() {
    let server = ScriptedServer::start().await;
    let key = "tml-one";
    let one = sampler(&builder(&server).api_key(key).build()).await;
    let same_key = sampler(&builder(&server).api_key(key).build()).await;
    let other_key = sampler(&builder(&server).api_key("tml-other").build()).await;
    let alone = builder(&server)
        .api_key(key)
        .backpressure(BackpressureScope::Client);
    let alone = sampler(&alone.build()).await;

    let refused = server.on("asample").from_key(key).reply(status(429));
    let first = tokio::spawn(async move { sample_time(&one).await });
    refused.hit(1).await;
    // The answer is on its way to the client; the pause begins when it arrives.
    let (same, other, alone) = loop {
        let times = tokio::join!(
            sample_time(&same_key),
            sample_time(&other_key),
            sample_time(&alone)
        );
        if times.0 >= PAUSED || first.is_finished() {
            break times;
        }
    };
    assert!(same >= PAUSED, "the same key waits: {same:?}");
    assert!(other < PAUSED, "another key does not: {other:?}");
    assert!(
        alone < PAUSED,
        "nor a client that asked to be alone: {alone:?}"
    );
    assert!(first.await.unwrap() >= PAUSED);
}

#[tokio::test]
async fn a_paused_poll_pauses_submissions() {
    let server = ScriptedServer::start().await;
    let notices = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = std::sync::Arc::clone(&notices);
    let service = builder(&server)
        .api_key("tml-paused-poll")
        .on_queue_state(move |notice| heard.lock().unwrap().push(notice.clone()))
        .build();
    let sampler = sampler(&service).await;
    server
        .on("retrieve_future")
        .for_request_type("Sample")
        .reply(not_yet("paused_capacity", "no machines"));
    sample_time(&sampler).await;

    assert!(
        sample_time(&sampler).await >= Duration::from_secs(2),
        "the next one is held back"
    );
    let notices = notices.lock().unwrap();
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].reason, "no machines");
    assert!(service.stats().paused >= Duration::from_secs(2));
}

#[tokio::test]
async fn five_thousand_samples_in_flight_complete() {
    let server = ScriptedServer::start().await;
    let sampler = sampler(&service(&server)).await;
    let pending: Vec<_> = (0..5_000)
        .map(|n| {
            sampler
                .sample(vec![n % 100], SamplingParams::new(1))
                .submit()
        })
        .collect();
    for (n, sample) in pending.into_iter().enumerate() {
        let output = sample.await.unwrap();
        assert_eq!(output.sequences[0].tokens, [n as u32 % 100 + 1]);
    }
    let mut numbers: Vec<i64> = server
        .requests_to("asample")
        .iter()
        .map(|request| request.seq_id().unwrap())
        .collect();
    numbers.sort();
    assert_eq!(numbers, (0..5_000).collect::<Vec<i64>>());
}
