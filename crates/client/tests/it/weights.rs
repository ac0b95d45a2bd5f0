//! Saving, loading and resuming.

use crate::support::{datums, service, training};
use anyhow::Result;
use std::time::Duration;
use tinkrs::training::OptimizerConfig;
use tinkrs::{AdamParams, Error, UserMetadata};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, ManualClock, status};

#[tokio::test]
async fn checkpoints_are_saved_with_all_their_options() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let labels = UserMetadata::from([("run".to_owned(), "a".to_owned())]);
    let state = client
        .save_state("one")
        .ttl(Duration::from_secs(7_200))
        .user_metadata(labels.clone())
        .await?;
    assert_eq!(
        state.to_string(),
        format!("tinker://{}/weights/one", client.model_id())
    );
    client.save_state("one").await.unwrap_err();
    client.save_state("one").overwrite(true).await?;
    let sampler = client
        .save_weights_for_sampler("two")
        .ttl(Duration::from_secs(7_200))
        .await?;
    assert_eq!(sampler.checkpoint_id(), "sampler_weights/two");
    let external = client.save_weights_external("three").await?;
    assert_eq!(external.path.checkpoint_id(), "external_weights/three");
    assert_eq!(external.size_bytes, Some(100_000));

    let first = server.requests_to("save_weights")[0].json();
    assert_eq!(first["ttl_seconds"], 7_200);
    assert_eq!(first["user_metadata"]["run"], "a");
    assert_eq!(first["overwrite"], false);
    Ok(())
}

#[tokio::test]
async fn a_lifetime_that_no_server_takes_is_refused_here() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    for ttl in [Duration::from_secs(60), Duration::from_millis(7_200_500)] {
        let error = client.save_state("x").ttl(ttl).await.unwrap_err();
        assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    }
    assert!(server.requests_to("save_weights").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_retried_unnamed_save_keeps_its_number() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    server.on("save_weights_for_sampler").executed().reset();
    server.on("save_weights_for_sampler").reply(status(503));
    let save = client.save_weights_and_get_sampling_client().submit();
    let sampler = clock.advance_until(save).await?;
    let tries = server.requests_to("save_weights_for_sampler");
    assert_eq!(tries.len(), 3);
    assert!(tries.iter().all(|request| request.body == tries[0].body));
    assert_eq!(sampler.get_base_model().await?, BASE_MODEL);
    Ok(())
}

#[tokio::test]
async fn a_run_goes_on_from_a_checkpoint_in_one_request_or_in_three() -> Result<()> {
    for one_request in [false, true] {
        let server = ScriptedServer::start().await;
        server.config(|config| config.create_model_via_load_weights = one_request);
        let service = service(&server);
        let first = service
            .create_lora_training_client(BASE_MODEL)
            .rank(4)
            .train_mlp(false)
            .await?;
        let path = first.save_state("s").await?;
        let resumed = service
            .create_training_client_from_state(path.clone())
            .await?;
        let exact = service
            .create_training_client_from_state_with_optimizer(path)
            .await?;
        for client in [&resumed, &exact] {
            assert_eq!(client.get_info().await?.lora_rank, Some(4));
            client.forward_backward(datums([1])).await?;
            client.optim_step(AdamParams::new(0.1)).await?;
            let done = server.executed_in_order(client.model_id());
            assert_eq!(done.last(), Some(&"optim_step"));
            assert_eq!(done.len(), if one_request { 2 } else { 3 });
        }
        let loads = server.requests_to("load_weights");
        let optimizers: Vec<_> = loads
            .iter()
            .map(|r| r.json()["optimizer"].clone())
            .collect();
        assert_eq!(optimizers, [false, true]);
        assert_eq!(
            server.requests_to("create_model").len(),
            if one_request { 1 } else { 3 }
        );
        if !one_request {
            let created = server.requests_to("create_model")[1].json();
            assert_eq!(created["lora_config"]["train_mlp"], false);
        }
    }
    Ok(())
}

#[tokio::test]
async fn another_accounts_checkpoint_is_read_with_that_accounts_token() -> Result<()> {
    let server = ScriptedServer::start().await;
    let path = training(&server).await?.save_state("theirs").await?;
    service(&server)
        .create_training_client_from_state(path)
        .weights_access_token("tml-theirs")
        .await?;
    assert_eq!(
        server.requests_to("weights_info")[0].key(),
        Some("tml-theirs")
    );
    let load = &server.requests_to("load_weights")[0];
    assert_eq!(load.json()["weights_access_token"], "tml-theirs");
    assert_eq!(load.key(), Some("tml-test"));
    Ok(())
}

#[tokio::test]
async fn a_model_is_created_with_all_its_options() -> Result<()> {
    let server = ScriptedServer::start().await;
    let labels = UserMetadata::from([("k".to_owned(), "v".to_owned())]);
    let client = service(&server)
        .create_lora_training_client(BASE_MODEL)
        .rank(16)
        .seed(9)
        .train_attn(false)
        .optimizer(OptimizerConfig::AdamW)
        .user_metadata(labels)
        .await?;
    let body = server.requests_to("create_model")[0].json();
    let expected = serde_json::json!({
        "session_id": client.session_id(), "model_seq_id": 0, "base_model": BASE_MODEL,
        "user_metadata": {"k": "v"},
        "lora_config": {"rank": 16, "seed": 9, "train_unembed": true, "train_mlp": true, "train_attn": false},
        "optimizer_config": {"type": "adamw"}, "type": "create_model",
    });
    assert_eq!(body, expected);
    let error = service(&server)
        .create_lora_training_client(BASE_MODEL)
        .train_attn(false)
        .train_mlp(false)
        .train_unembed(false)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    Ok(())
}
