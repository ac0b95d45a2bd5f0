//! The order of calls is the order of execution.

use crate::support::{batch, datum, service, training};
use tinkrs::AdamParams;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, Gate, refuse};

#[tokio::test]
async fn awaiting_out_of_order_changes_nothing() {
    let server = ScriptedServer::start().await;
    let client = training(&server).await;
    let first = client.forward_backward(vec![datum(1)]).submit();
    let update = client.optim_step(AdamParams::new(1e-2)).submit();
    let second = client.forward(vec![datum(2)]).submit();
    let saved = client.save_state("last").submit();

    saved.await.unwrap();
    second.await.unwrap();
    first.await.unwrap();
    update.await.unwrap();
    assert_eq!(
        server.executed_in_order(client.model_id()),
        ["forward_backward", "optim_step", "forward", "save_weights"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_from_many_tasks_arrive_in_call_order() {
    let server = ScriptedServer::start().await;
    let client = training(&server).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        tasks.spawn(async move {
            let pending: Vec<_> = (0..25)
                .map(|step| client.forward_backward(vec![datum(step)]).submit())
                .collect();
            for pass in pending {
                pass.await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let sent: Vec<i64> = server
        .requests_to("forward_backward")
        .iter()
        .map(|request| request.seq_id().unwrap())
        .collect();
    assert_eq!(sent, (1..=200).collect::<Vec<i64>>());
    assert_eq!(server.executed_in_order(client.model_id()).len(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_racing_passes_never_interleave_chunks() {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    let client = training(&server).await;
    let race = |first_target: i64| {
        let client = client.clone();
        let data: Vec<_> = (0..10).map(|n| datum(first_target + n)).collect();
        tokio::spawn(async move { client.forward_backward(data).await.unwrap() })
    };
    let (one, other) = tokio::join!(race(0), race(100));
    assert_eq!(one.unwrap().datums(), 10);
    assert_eq!(other.unwrap().datums(), 10);

    let mut by_number: Vec<(i64, bool)> = server
        .requests_to("forward_backward")
        .iter()
        .map(|request| {
            let target = request.pass().data[0]
                .target_tokens()
                .unwrap()
                .as_i64()
                .unwrap()[0];
            (request.seq_id().unwrap(), target >= 100)
        })
        .collect();
    by_number.sort();
    let passes: Vec<bool> = by_number.iter().map(|(_, other)| *other).collect();
    assert!(
        passes[..5].iter().all(|pass| *pass == passes[0]),
        "{passes:?}"
    );
    assert!(
        passes[5..].iter().all(|pass| *pass != passes[0]),
        "{passes:?}"
    );
}

#[tokio::test]
async fn the_first_chunk_is_sent_last_and_results_come_in_order() {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 1);
    let client = training(&server).await;
    let output = client.forward_backward(batch(4)).await.unwrap();
    let sent: Vec<i64> = server
        .requests_to("forward_backward")
        .iter()
        .map(|request| request.seq_id().unwrap())
        .collect();
    assert_eq!(sent.last(), Some(&1), "{sent:?}");
    for (index, logprob) in [0.0, -0.1, -0.2, -0.3].into_iter().enumerate() {
        assert_eq!(output.logprobs(index), Some(&[logprob][..]));
    }
    assert!((output.loss().unwrap() - 0.6).abs() < 1e-6);
}

#[tokio::test]
async fn a_step_goes_out_before_the_pass_before_it_is_done() {
    let server = ScriptedServer::start().await;
    let gate = Gate::closed();
    server.on("forward_backward").hold_result(&gate);
    let client = training(&server).await;
    let pass = client.forward_backward(vec![datum(1)]).submit();
    let step = client.optim_step(AdamParams::default()).submit();
    server.received("optim_step", 1).await;
    gate.open();
    pass.await.unwrap();
    step.await.unwrap();
}

#[tokio::test]
async fn a_refused_submission_leaves_the_client_usable() {
    let server = ScriptedServer::start().await;
    server.skip_gaps_after(std::time::Duration::ZERO);
    let client = training(&server).await;
    server
        .on("forward_backward")
        .reply(refuse(400, "too many cats"));
    let refused = client.forward_backward(vec![datum(1)]).submit();
    let step = client.optim_step(AdamParams::default()).submit();

    let error = refused.await.unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert!(error.to_string().contains("too many cats"), "{error}");
    assert!(error.is_user_error() && !error.is_retryable());
    step.await.unwrap();
    client.forward_backward(vec![datum(2)]).await.unwrap();
}

#[tokio::test]
async fn a_refused_chunk_is_an_error_of_its_pass_and_later_operations_go_out() {
    let server = ScriptedServer::start().await;
    server.skip_gaps_after(std::time::Duration::ZERO);
    server.config(|config| config.fwdbwd_max_chunk_len = 1);
    let client = training(&server).await;
    server
        .on("forward_backward")
        .seq(3)
        .reply(refuse(422, "chunk three"));
    let refused = client.forward_backward(batch(4)).submit();
    let step = client.optim_step(AdamParams::default()).submit();

    assert_eq!(refused.await.unwrap_err().status(), Some(422));
    step.await.unwrap();
    let steps = server.requests_to("optim_step");
    assert_eq!(
        steps[0].seq_id(),
        Some(5),
        "the pass keeps its four numbers"
    );
}

#[tokio::test]
async fn dropping_a_pending_pass_lets_it_run() {
    let server = ScriptedServer::start().await;
    let client = training(&server).await;
    drop(client.forward_backward(vec![datum(1)]).submit());
    client.optim_step(AdamParams::default()).await.unwrap();
    assert_eq!(
        server.executed_in_order(client.model_id()),
        ["forward_backward", "optim_step"]
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_batch_is_found_before_anything_is_sent() {
    let server = ScriptedServer::start().await;
    let client = training(&server).await;
    let before = server.requests().len();
    let empty = client.forward_backward(vec![]).await.unwrap_err();
    assert_eq!(
        empty.to_string(),
        "`batch`: found no data, expected at least one datum"
    );
    let nothing = tinkrs::Datum::new(vec![], tinkrs::LossInputs::new()).unwrap();
    let error = client
        .forward_backward(vec![datum(1), nothing])
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("datum 1: `model_input`"),
        "{error}"
    );
    let params = AdamParams {
        beta1: 2.0,
        ..AdamParams::default()
    };
    assert!(client.optim_step(params).await.unwrap_err().is_user_error());
    assert_eq!(server.requests().len(), before);

    client.optim_step(AdamParams::default()).await.unwrap();
    assert_eq!(
        server.requests_to("optim_step")[0].seq_id(),
        Some(1),
        "no number was used up"
    );
}

#[tokio::test]
async fn models_of_one_session_are_numbered() {
    let server = ScriptedServer::start().await;
    let service = service(&server);
    let first = service
        .create_lora_training_client(BASE_MODEL)
        .await
        .unwrap();
    let second = service
        .create_lora_training_client(BASE_MODEL)
        .await
        .unwrap();
    assert_eq!(first.session_id(), second.session_id());
    assert_ne!(first.model_id(), second.model_id());
    assert_eq!(server.requests_to("create_session").len(), 1);
}
