//! Holding back when the server says so.

use crate::support::{builder, datums, sample, sampling, service, settle, training};
use anyhow::Result;
use std::time::Duration;
use tinkrs::{AdamParams, BackpressureScope, ModelInput, SamplingClient, SamplingParams};
use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL, ManualClock, not_yet, status, try_again};
use tinkrs_testkit::{Gate, ScriptedServer};

const SECOND: Duration = Duration::from_secs(1);

async fn sampler_with_key(server: &ScriptedServer, key: &str) -> Result<SamplingClient> {
    let service = builder(server).api_key(key).build();
    Ok(service.create_sampling_client(BASE_MODEL).await?)
}

fn samples_from(server: &ScriptedServer, key: &str) -> usize {
    let samples = server.requests_to("asample");
    samples
        .iter()
        .filter(|request| request.key() == Some(key))
        .count()
}

#[tokio::test]
async fn one_429_pauses_all_samplers_of_the_key_and_none_of_another_key() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let refused = server.on("asample").from_key(API_KEY).reply(status(429));
    let (one, two) = (sampling(&server).await?, sampling(&server).await?);
    let other = sampler_with_key(&server, "tml-other").await?;

    let first = sample(&one);
    refused.hit(1).await;
    settle().await;
    let second = sample(&two);
    sample(&other).await?;
    settle().await;
    assert_eq!(samples_from(&server, API_KEY), 1, "both wait");

    clock.advance(SECOND).await;
    clock.advance_until(first).await?;
    clock.advance_until(second).await?;
    assert_eq!(samples_from(&server, API_KEY), 3);
    let mut samples = server.requests_to("asample");
    let sampler = serde_json::json!(one.sampling_session_id());
    samples.retain(|request| request.json()["sampling_session_id"] == sampler);
    assert_eq!(samples.len(), 2);
    assert_eq!(samples[0].body, samples[1].body, "it keeps its number");
    Ok(())
}

#[tokio::test]
async fn a_client_scope_keeps_a_pause_to_itself() -> Result<()> {
    let _clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let refused = server.on("asample").reply(status(429));
    let alone = builder(&server).backpressure(BackpressureScope::Client);
    let alone = alone.build().create_sampling_client(BASE_MODEL).await?;
    let other = sampling(&server).await?;
    let _waiting = sample(&alone);
    refused.hit(1).await;
    settle().await;
    sample(&other).await?;
    Ok(())
}

#[tokio::test]
async fn a_paused_poll_pauses_samples_and_not_training() -> Result<()> {
    for paused in [
        try_again("paused_capacity", "busy"),
        not_yet("paused_rate_limit", "busy"),
    ] {
        let clock = ManualClock::start();
        let server = ScriptedServer::start().await;
        let (sampler, trainer) = (sampling(&server).await?, training(&server).await?);
        let seen = server
            .on("retrieve_future")
            .for_request_type("Sample")
            .reply(paused);
        let first = sample(&sampler);
        seen.hit(1).await;
        settle().await;
        let second = sample(&sampler);
        let pass = trainer.forward_backward(datums([1])).submit();
        // The clock stands still meanwhile.
        pass.await?;
        assert_eq!(server.requests_to("asample").len(), 1);

        clock.advance_until(first).await?;
        clock.advance_until(second).await?;
        drop(clock);
        tokio::time::resume();
    }
    Ok(())
}

#[tokio::test]
async fn listeners_hear_why_nothing_happens() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let (send, heard) = std::sync::mpsc::channel();
    let service = builder(&server)
        .on_queue_state(move |notice| drop(send.send(notice.clone())))
        .build();
    let sampler = service.create_sampling_client(BASE_MODEL).await?;
    let polls = server
        .on("retrieve_future")
        .for_request_type("Sample")
        .times(2);
    polls.reply(not_yet("paused_capacity", "no machines"));
    clock.advance_until(sample(&sampler)).await?;
    let notices: Vec<_> = heard.try_iter().collect();
    assert_eq!(notices.len(), 2);
    assert_eq!(notices[0].reason, "no machines");
    assert_eq!(notices[0].state, tinkrs::QueueState::PausedCapacity);
    assert_eq!(notices[0].object, sampler.sampling_session_id().as_str());
    Ok(())
}

#[tokio::test]
async fn after_a_pause_submissions_go_out_ten_at_a_time() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let sampler = sampling(&server).await?;
    let refused = server.on("asample").reply(status(429));
    let first = sample(&sampler);
    refused.hit(1).await;
    settle().await;
    clock.advance(SECOND).await;
    clock.advance_until(first).await?;

    let gate = Gate::closed();
    let stalled = server.on("asample").always().stall_until(&gate);
    let pending: Vec<_> = (0..30).map(|_| sample(&sampler)).collect();
    stalled.hit(10).await;
    settle().await;
    assert_eq!(stalled.hits(), 10);
    gate.open();
    for sample in pending {
        clock.advance_until(sample).await?;
    }
    Ok(())
}

#[tokio::test]
async fn at_most_400_samples_are_submitted_at_a_time() -> Result<()> {
    let server = ScriptedServer::start().await;
    let sampler = sampling(&server).await?;
    let gate = Gate::closed();
    let stalled = server.on("asample").always().stall_until(&gate);
    let pending: Vec<_> = (0..450).map(|_| sample(&sampler)).collect();
    stalled.hit(400).await;
    settle().await;
    assert_eq!(stalled.hits(), 400);
    gate.open();
    for sample in pending {
        sample.await?;
    }
    Ok(())
}

#[tokio::test]
async fn samples_under_way_are_bounded_as_the_server_says() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_max_concurrent_requests = 3);
    let gate = Gate::closed();
    server.on("asample").always().hold_result(&gate);
    let sampler = sampling(&server).await?;
    let pending: Vec<_> = (0..10).map(|_| sample(&sampler)).collect();
    server.received("retrieve_future", 3).await;
    settle().await;
    assert_eq!(server.requests_to("asample").len(), 3);
    gate.open();
    for sample in pending {
        sample.await?;
    }
    Ok(())
}

#[tokio::test]
async fn large_prompts_wait_for_the_byte_budget() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_dispatch_bytes_semaphore_size = 1_000);
    let sampler = sampling(&server).await?;
    let gate = Gate::closed();
    let stalled = server.on("asample").always().stall_until(&gate);
    // Ten bytes a token: each of these overdraws the budget on its own.
    let prompt = ModelInput::from_tokens(vec![7; 200]);
    let ask = || {
        sampler
            .sample(prompt.clone(), SamplingParams::new(1))
            .submit()
    };
    let pending = [ask(), ask(), ask()];
    stalled.hit(1).await;
    settle().await;
    assert_eq!(stalled.hits(), 1);
    gate.open();
    for sample in pending {
        sample.await?;
    }
    Ok(())
}

#[tokio::test]
async fn large_results_are_downloaded_within_the_byte_budget() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.inflight_response_bytes_semaphore_size = 10);
    let client = training(&server).await?;
    server.inline_limit(20);
    let gate = Gate::closed();
    let downloads = server
        .on("retrieve_future")
        .always()
        .for_request_type("ForwardBackward")
        .when(|request| request.json()["allow_metadata_only"] == false)
        .stall_until(&gate);
    let pending = [1, 2, 3].map(|tag| client.forward_backward(datums([tag])).submit());
    downloads.hit(1).await;
    settle().await;
    assert_eq!(downloads.hits(), 1, "one overdraws the budget");
    gate.open();
    for pass in pending {
        pass.await?;
    }
    assert_eq!(downloads.hits(), 3);
    Ok(())
}

#[tokio::test]
async fn a_billing_block_is_waited_out() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let blocked = server.on("optim_step").times(2).reply(status(402));
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    blocked.hit(1).await;
    settle().await;
    assert_eq!(server.requests_to("optim_step").len(), 1, "it waits");
    clock.advance(5 * SECOND).await;
    blocked.hit(2).await;
    clock.advance_until(step).await?;

    server
        .on("get_server_capabilities")
        .always()
        .reply(status(402));
    let error = service(&server).check_access().await.unwrap_err();
    assert_eq!(error.status(), Some(402), "a check does not wait");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_made_in_a_race_share_one_limiter() -> Result<()> {
    let server = ScriptedServer::start().await;
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let service = service(&server);
            tokio::spawn(async move { service.create_sampling_client(BASE_MODEL).await })
        })
        .collect();
    let mut samplers = vec![];
    for client in clients {
        samplers.push(client.await??);
    }
    // The limit of submissions is the account's, not each client's.
    let gate = Gate::closed();
    let stalled = server.on("asample").always().stall_until(&gate);
    let pending: Vec<_> = samplers
        .iter()
        .flat_map(|sampler| (0..30).map(|_| sample(sampler)).collect::<Vec<_>>())
        .collect();
    stalled.hit(400).await;
    settle().await;
    assert_eq!(stalled.hits(), 400);
    gate.open();
    for sample in pending {
        sample.await?;
    }
    Ok(())
}
