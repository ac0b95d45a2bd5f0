//! Waiting for samples through the batched feed.

use crate::support::{sample, sampling, settle};
use anyhow::Result;
use std::collections::BTreeSet;
use tinkrs::{ErrorCategory, SamplingClient};
use tinkrs_testkit::scripted::{ManualClock, status};
use tinkrs_testkit::{Gate, ScriptedServer};

async fn server_with_feed() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.config(|config| config.sample_use_retrieve_futures = true);
    server
}

#[tokio::test]
async fn samples_are_fetched_once_the_feed_tells_of_them() -> Result<()> {
    let server = server_with_feed().await;
    let gate = Gate::closed();
    server.on("asample").always().hold_result(&gate);
    let client = sampling(&server).await?;
    let pending: Vec<_> = (0..20).map(|_| sample(&client)).collect();
    server.received("asample", 20).await;
    settle().await;
    assert!(server.requests_to("retrieve_future").is_empty());
    gate.open();
    for sample in pending {
        assert_eq!(sample.await?.sequences[0].tokens, [7, 8, 9]);
    }
    let fetched = server.requests_to("retrieve_future");
    assert_eq!(fetched.len(), 20, "each result is fetched once");
    for request in fetched {
        assert_eq!(
            request.json()["allow_metadata_only"],
            false,
            "the size is known"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_feed_goes_on_at_its_cursor_and_tells_what_was_fetched() -> Result<()> {
    let server = server_with_feed().await;
    let client = sampling(&server).await?;
    for _ in 0..5 {
        sample(&client).await?;
    }
    // The last acknowledgement goes out on its own.
    let gate = Gate::closed();
    server.on("asample").hold_result(&gate);
    let last = sample(&client);
    while server.acknowledged().len() < 5 {
        tokio::task::yield_now().await;
    }
    gate.open();
    last.await?;
    let acknowledged: BTreeSet<_> = server.acknowledged().into_iter().collect();
    let fetched = server.requests_to("retrieve_future");
    for request in &fetched[..5] {
        let id = request.json()["request_id"].as_str().unwrap().into();
        assert!(acknowledged.contains(&id), "{id}");
    }
    let polls = server.requests_to("retrieve_futures");
    let cursors: Vec<u64> = polls
        .iter()
        .map(|request| request.json()["prev_cursor"].as_u64().unwrap())
        .collect();
    assert!(cursors.is_sorted(), "{cursors:?}");
    assert_eq!(polls[0].json()["target"]["cloned_sampler_id"], 0);
    Ok(())
}

#[tokio::test]
async fn a_failed_sample_is_fetched_too() -> Result<()> {
    let server = server_with_feed().await;
    server
        .on("asample")
        .fail_result("PromptTooLong", ErrorCategory::User);
    let client = sampling(&server).await?;
    let error = sample(&client).await.unwrap_err();
    assert_eq!(error.category(), Some(ErrorCategory::User));
    sample(&client).await?;
    Ok(())
}

#[tokio::test]
async fn trouble_with_the_feed_is_waited_out() -> Result<()> {
    let clock = ManualClock::start();
    let server = server_with_feed().await;
    server.on("retrieve_futures").times(2).reply(status(503));
    server.on("retrieve_futures").times(3).reply(status(400));
    server.on("retrieve_futures").reset();
    server.on("retrieve_futures").truncate(4);
    let client = sampling(&server).await?;
    clock.advance_until(sample(&client)).await?;
    Ok(())
}

#[tokio::test]
async fn a_feed_that_the_server_does_not_have_fails_the_samples() -> Result<()> {
    let server = server_with_feed().await;
    server.on("retrieve_futures").always().reply(status(404));
    let client = sampling(&server).await?;
    assert!(sample(&client).await.is_err());
    assert!(sample(&client).await.is_err(), "later ones do not hang");
    Ok(())
}

#[tokio::test]
async fn five_thousand_samples_in_flight_complete() -> Result<()> {
    let server = server_with_feed().await;
    let gate = Gate::closed();
    server.on("asample").always().hold_result(&gate);
    let client = sampling(&server).await?;
    let pending: Vec<_> = (0..5_000).map(|_| sample(&client)).collect();
    server.received("asample", 5_000).await;
    gate.open();
    let mut ids = BTreeSet::new();
    for sample in pending {
        let output = sample.await?;
        assert_eq!(output.sequences[0].tokens, [7, 8, 9]);
        ids.insert(output.sequences[0].id.clone().unwrap());
    }
    assert_eq!(ids.len(), 5_000, "each has a sequence of its own");
    assert_eq!(server.requests_to("asample").len(), 5_000);
    Ok(())
}

#[tokio::test]
async fn two_clients_of_a_sampler_have_feeds_of_their_own() -> Result<()> {
    let server = server_with_feed().await;
    server.config(|config| config.sample_join_sampling_session = true);
    let client = sampling(&server).await?;
    let settings = crate::support::builder(&server);
    let clone = SamplingClient::from_handle_with(&client.to_handle(), settings).await?;
    sample(&clone).await?;
    sample(&client).await?;
    let polls = server.requests_to("retrieve_futures");
    let targets: BTreeSet<_> = polls
        .iter()
        .map(|request| request.json()["target"]["cloned_sampler_id"].as_u64())
        .collect();
    assert_eq!(targets, BTreeSet::from([Some(0), Some(1)]));
    Ok(())
}
