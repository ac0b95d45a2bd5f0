//! Operations of a model run in the order of the calls, whatever else happens.

use crate::support::{datum, datums, executed_tags, loss_of, settle, tags, training};
use anyhow::Result;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tinkrs::AdamParams;
use tinkrs_testkit::scripted::{Recorded, refuse, status};
use tinkrs_testkit::{Gate, ScriptedServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_from_many_tasks_arrive_in_call_order() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    // The lock makes the order of the calls known; it says nothing about what follows them.
    let calls = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (client, calls) = (client.clone(), Arc::clone(&calls));
            tokio::spawn(async move {
                let pending = {
                    let mut calls = calls.lock().unwrap();
                    *calls += 1;
                    client.forward_backward(datums([*calls])).submit()
                };
                pending.await.map(drop)
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let expected: Vec<Vec<u32>> = (1..=64).map(|tag| vec![tag]).collect();
    assert_eq!(executed_tags(&server), expected);
    assert_eq!(server.executed_in_order(client.model_id()).len(), 64);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_racing_forward_backward_calls_never_interleave_chunks() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    let client = training(&server).await?;
    let race = |tag: u32| {
        let client = client.clone();
        tokio::spawn(async move { client.forward_backward(datums([tag; 10])).await })
    };
    let rivals: Vec<_> = (1..=8).map(race).collect();
    for rival in rivals {
        assert_eq!(rival.await??.datums(), 10);
    }
    let executed = executed_tags(&server);
    assert_eq!(executed.len(), 8 * 5);
    let calls: Vec<u32> = executed.iter().map(|tags| tags[0]).collect();
    for call in calls.chunks(5) {
        assert!(call.iter().all(|tag| *tag == call[0]), "{calls:?}");
    }
    server.executed_in_order(client.model_id());
    Ok(())
}

#[tokio::test]
async fn results_may_be_awaited_in_any_order() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let first = client.forward_backward(datums([3])).submit();
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    let second = client.forward(datums([5])).submit();
    assert_eq!(second.await?.loss(), Some(loss_of(5)));
    assert_eq!(first.await?.loss(), Some(loss_of(3)));
    assert_eq!(step.await?.metrics.unwrap()["passes"], 1.0);
    assert_eq!(
        server.executed_in_order(client.model_id()),
        ["forward_backward", "optim_step", "forward"]
    );
    Ok(())
}

#[tokio::test]
async fn a_step_goes_out_before_the_pass_before_it_is_done() -> Result<()> {
    let server = ScriptedServer::start().await;
    let gate = Gate::closed();
    server.on("forward_backward").hold_result(&gate);
    let client = training(&server).await?;
    let pass = client.forward_backward(datums([1])).submit();
    let step = client.optim_step(AdamParams::new(0.1)).submit();
    server.received("optim_step", 1).await;
    assert!(!gate.is_open());
    gate.open();
    pass.await?;
    step.await?;
    Ok(())
}

#[tokio::test]
async fn submitting_needs_no_poll_and_dropping_loses_nothing() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    drop(client.forward_backward(datums([1])).submit());
    drop(client.optim_step(AdamParams::new(0.1)).submit());
    client.forward(datums([2])).await?;
    assert_eq!(
        server.executed_in_order(client.model_id()),
        ["forward_backward", "optim_step", "forward"]
    );
    Ok(())
}

#[tokio::test]
async fn of_several_chunks_the_first_goes_last_and_results_keep_their_order() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    let client = training(&server).await?;
    let output = client.forward_backward(datums(1..=7)).await?;

    let sent: Vec<Option<i64>> = server
        .requests_to("forward_backward")
        .iter()
        .map(|request| request.seq_id())
        .collect();
    assert_eq!(sent.len(), 4);
    assert_eq!(sent.last(), Some(&Some(1)));
    assert_eq!(
        executed_tags(&server),
        [vec![1, 2], vec![3, 4], vec![5, 6], vec![7]]
    );
    for (index, tag) in (1..=7).enumerate() {
        let logprobs = output.logprobs(index).unwrap();
        assert_eq!(-f64::from(logprobs[1]), loss_of(tag), "datum {index}");
    }
    let total: f64 = (1..=7).map(loss_of).sum();
    assert!((output.loss().unwrap() - total).abs() < 1e-6);
    Ok(())
}

#[tokio::test]
async fn chunks_go_one_by_one_if_the_server_wants_it() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| {
        config.fwdbwd_max_chunk_len = 1;
        config.parallel_fwdbwd_chunks = false;
    });
    let client = training(&server).await?;
    client.forward_backward(datums(1..=5)).await?;
    let requests = server.requests_to("forward_backward");
    let sent: Vec<Vec<u32>> = requests.iter().map(tags).collect();
    assert_eq!(sent, [[1], [2], [3], [4], [5]]);
    Ok(())
}

#[tokio::test]
async fn batches_are_also_cut_by_size() -> Result<()> {
    let server = ScriptedServer::start().await;
    // Two tokens of 4 bytes, two targets of 8 and two weights of 4 make 32 bytes.
    server.config(|config| config.fwdbwd_max_chunk_bytes_count = 70);
    let client = training(&server).await?;
    client.forward_backward(datums(1..=5)).await?;
    assert_eq!(executed_tags(&server), [vec![1, 2], vec![3, 4], vec![5]]);
    Ok(())
}

#[tokio::test]
async fn bodies_are_compressed_if_the_server_wants_it() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.proto_compress_fwdbwd = true);
    let client = training(&server).await?;
    let output = client.forward_backward(datums([3])).await?;
    assert_eq!(output.loss(), Some(loss_of(3)));
    let request = &server.requests_to("forward_backward")[0];
    assert_eq!(request.header("content-encoding"), Some("zstd"));
    Ok(())
}

#[tokio::test]
async fn a_refused_submission_leaves_the_client_usable() -> Result<()> {
    let server = ScriptedServer::start().await;
    server
        .on("forward_backward")
        .nth(2)
        .reply(refuse(400, "no such loss"));
    let client = training(&server).await?;
    let first = client.forward_backward(datums([1])).submit();
    let refused = client.forward_backward(datums([2])).submit();
    let third = client.forward_backward(datums([3])).submit();
    let step = client.optim_step(AdamParams::new(0.1)).submit();

    first.await?;
    let error = refused.await.unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert!(error.to_string().contains("no such loss"), "{error}");
    third.await?;
    assert_eq!(step.await?.metrics.unwrap()["passes"], 2.0);
    assert_eq!(executed_tags(&server), [[1], [3]]);
    Ok(())
}

#[tokio::test]
async fn a_refused_chunk_leaves_no_gap_that_the_server_would_wait_for() -> Result<()> {
    for (refused_seq, parallel, step_seq) in [
        (1, true, 5),
        (2, true, 5), // number 1 goes out with something else
        (3, true, 5),
        (1, false, 3), // numbers 2 and 3 are used again
        (2, false, 4),
        (3, false, 5),
    ] {
        let server = ScriptedServer::start().await;
        server.config(|config| {
            config.fwdbwd_max_chunk_len = 1;
            config.parallel_fwdbwd_chunks = parallel;
        });
        server
            .on("forward_backward")
            .seq(refused_seq)
            .reply(status(422));
        let client = training(&server).await?;
        let refused = client.forward_backward(datums([1, 2, 3])).submit();
        let later = client.forward_backward(datums([4])).submit();
        let step = client.optim_step(AdamParams::new(0.1)).submit();
        assert_eq!(refused.await.unwrap_err().status(), Some(422));
        let case = format!("chunk {refused_seq}, parallel {parallel}");
        assert_eq!(later.await?.loss(), Some(loss_of(4)), "{case}");
        step.await?;
        let step = &server.requests_to("optim_step")[0];
        assert_eq!(step.seq_id(), Some(step_seq), "{case}");
    }
    Ok(())
}

#[tokio::test]
async fn a_failed_request_fails_alone() -> Result<()> {
    let server = ScriptedServer::start().await;
    server
        .on("forward_backward")
        .fail_result("NonFiniteInTensor", tinkrs::ErrorCategory::User);
    let client = training(&server).await?;
    let failed = client.forward_backward(datums([1])).submit();
    let later = client.forward_backward(datums([2])).submit();
    let error = failed.await.unwrap_err();
    assert_eq!(error.category(), Some(tinkrs::ErrorCategory::User));
    assert!(error.is_user_error() && !error.is_retryable());
    assert!(error.request_id().is_some());
    assert!(error.to_string().contains("NonFiniteInTensor"), "{error}");
    later.await?;
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_the_arguments_is_found_before_anything_is_sent() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let before = server.requests().len();
    let empty = client.forward_backward([]).await.unwrap_err();
    assert_eq!(
        empty.to_string(),
        "`batch`: found no data, expected at least one datum"
    );
    let nothing = tinkrs::Datum::new(vec![], tinkrs::training::LossInputs::new())?;
    let error = client
        .forward_backward([datum(1), nothing])
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("datum 1: `model_input`"), "{text}");
    let params = AdamParams {
        beta1: 2.0,
        ..AdamParams::default()
    };
    assert!(client.optim_step(params).await.unwrap_err().is_user_error());
    settle().await;
    assert_eq!(server.requests().len(), before);

    client.optim_step(AdamParams::default()).await?;
    let step = &server.requests_to("optim_step")[0];
    assert_eq!(step.seq_id(), Some(1), "no number was used up");
    Ok(())
}

#[tokio::test]
async fn a_token_that_no_message_can_hold_fails_its_own_pass_only() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let large = tinkrs::Datum::supervised(vec![u32::MAX], [1], [1.0])?;
    let error = client
        .forward_backward([datum(1), large])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("datum 1"), "{error}");
    assert!(server.requests_to("forward_backward").is_empty());
    client.forward_backward(datums([2])).await?;
    Ok(())
}

#[tokio::test]
async fn two_models_do_not_wait_for_each_other() -> Result<()> {
    let server = ScriptedServer::start().await;
    let service = crate::support::service(&server);
    let create = || service.create_lora_training_client("test/model");
    let (one, two) = tokio::try_join!(create().into_future(), create().into_future())?;
    assert_ne!(one.model_id(), two.model_id());
    assert_eq!(one.session_id(), two.session_id());
    let gate = Gate::closed();
    let stalled = server.on("forward_backward").stall_until(&gate);
    let slow = one.forward_backward(datums([1])).submit();
    stalled.hit(1).await;
    two.forward_backward(datums([2])).await?;
    two.optim_step(AdamParams::new(0.1)).await?;
    gate.open();
    slow.await?;
    Ok(())
}

#[tokio::test]
async fn requests_of_a_model_share_no_connection_with_anything_else() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    // One after the other, so that a connection is free for each if it may be used.
    for name in ["a", "b"] {
        client.forward_backward(datums([1])).await?;
        client.optim_step(AdamParams::new(0.1)).await?;
        client.get_info().await?;
        client.save_weights_for_sampler(name).await?;
        let path = client.save_state(name).await?;
        training(&server).await?.load_state(path).await?;
    }
    let of_model = [
        "create_model",
        "forward_backward",
        "optim_step",
        "get_info",
        "save_weights",
        "load_weights",
        "save_weights_for_sampler",
    ];
    let requests = server.requests();
    let is_own = |request: &&Recorded| of_model.contains(&request.endpoint);
    let (own, others): (Vec<_>, Vec<_>) = requests.iter().partition(is_own);
    assert_eq!(own.len(), 1 + 2 * 7);
    let others: BTreeSet<_> = others.iter().map(|request| request.connection).collect();
    for request in own {
        let shared = others.contains(&request.connection);
        assert!(!shared, "{}", request.endpoint);
    }
    Ok(())
}
