//! Losses of the caller's own.

use crate::support::{datum, datums, loss_of, settle, training};
use anyhow::Result;
use tinkrs::training::CustomLoss;
use tinkrs::{BoxError, Datum, Error};
use tinkrs_testkit::ScriptedServer;
use tinkrs_types::protocol::key;

/// Cross-entropy, written by hand: the loss is −Σ w·lp, its gradient −w.
fn cross_entropy(data: &[Datum], logprobs: &[&[f32]]) -> Result<CustomLoss, BoxError> {
    let mut loss = 0.0;
    let mut gradients = vec![];
    for (datum, logprobs) in data.iter().zip(logprobs) {
        let weights = datum
            .weights()
            .and_then(|w| w.as_f32())
            .ok_or("no weights")?;
        let terms = weights.iter().zip(*logprobs);
        loss -= terms
            .map(|(w, lp)| f64::from(*w) * f64::from(*lp))
            .sum::<f64>();
        gradients.push(weights.iter().map(|w| -w).collect());
    }
    Ok(CustomLoss::new(loss, gradients).metric("mine:sum", 7.0))
}

#[tokio::test]
async fn a_custom_cross_entropy_equals_the_built_in_one() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.config(|config| config.fwdbwd_max_chunk_len = 2);
    let client = training(&server).await?;
    let built_in = client.forward_backward(datums(1..=5)).await?;
    let custom = client
        .forward_backward_custom(datums(1..=5), cross_entropy)
        .await?;
    let (expected, found) = (built_in.loss().unwrap(), custom.loss().unwrap());
    assert!((expected - found).abs() < 1e-6, "{expected} and {found}");
    assert!((custom.metrics["surrogate_loss:sum"] - found).abs() < 1e-6);
    assert_eq!(custom.metrics["mine:sum"], 7.0);
    for index in 0..5 {
        assert_eq!(custom.logprobs(index), built_in.logprobs(index));
    }

    // What the server differentiates is the same as well: the weights of both.
    let passes: Vec<_> = server
        .requests_to("forward_backward")
        .iter()
        .map(|request| request.pass())
        .filter(|pass| !pass.forward_only)
        .collect();
    let weights = |seqs: std::ops::RangeInclusive<i32>| {
        let mut chunks: Vec<_> = passes.iter().filter(|p| seqs.contains(&p.seq_id)).collect();
        chunks.sort_by_key(|pass| pass.seq_id);
        let data = chunks.into_iter().flat_map(|pass| &pass.data);
        data.map(|datum| datum.weights().cloned())
            .collect::<Vec<_>>()
    };
    assert_eq!(weights(1..=3), weights(7..=9));
    Ok(())
}

#[tokio::test]
async fn a_server_that_reports_no_loss_trains_with_a_custom_one() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.edit_passes(|_, output| output.metrics.clear());
    let client = training(&server).await?;
    let custom = client.forward_backward_custom(datums([3, 5]), cross_entropy);
    let custom = custom.await?;
    let expected = loss_of(3) + loss_of(5);
    assert!((custom.loss().unwrap() - expected).abs() < 1e-6);
    assert!((custom.metrics["surrogate_loss:sum"] - expected).abs() < 1e-6);
    Ok(())
}

#[tokio::test]
async fn a_pairwise_preference_loss_trains_both_sides() -> Result<()> {
    // DPO without a reference: −log σ(β (chosen − rejected)).
    const BETA: f64 = 0.5;
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let output = client
        .forward_backward_custom(datums([3, 5]), |_, logprobs| {
            let sum = |lps: &[f32]| lps.iter().map(|lp| f64::from(*lp)).sum::<f64>();
            let margin = BETA * (sum(logprobs[0]) - sum(logprobs[1]));
            let loss = (-margin).exp().ln_1p();
            let slope = (-BETA / (1.0 + margin.exp())) as f32;
            let gradients = vec![
                vec![slope; logprobs[0].len()],
                vec![-slope; logprobs[1].len()],
            ];
            Ok::<_, BoxError>(CustomLoss::new(loss, gradients))
        })
        .await?;
    let margin = BETA * (loss_of(5) - loss_of(3));
    let expected = (-margin).exp().ln_1p();
    assert!((output.loss().unwrap() - expected).abs() < 1e-6);
    let pass = server.requests_to("forward_backward").pop().unwrap().pass();
    let weights = |index: usize| pass.data[index].weights().unwrap().as_f32().unwrap()[0];
    let slope = (BETA / (1.0 + margin.exp())) as f32;
    assert!((weights(0) - slope).abs() < 1e-6, "the chosen one goes up");
    assert!(
        (weights(1) + slope).abs() < 1e-6,
        "the rejected one goes down"
    );
    Ok(())
}

#[tokio::test]
async fn tensors_of_the_custom_loss_stay_here() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let own = datum(3).with_input("my_scores", vec![1.0, 2.0])?;
    let seen = client.forward_backward_custom([own], |data, logprobs| {
        let scores = data[0].loss_fn_inputs()["my_scores"].as_f32().unwrap();
        let loss = scores
            .iter()
            .zip(logprobs[0])
            .map(|(s, lp)| f64::from(s * lp))
            .sum();
        Ok::<_, BoxError>(CustomLoss::new(loss, vec![scores.to_vec()]))
    });
    seen.await?;
    for request in server.requests_to("forward_backward") {
        let pass = request.pass();
        let names: Vec<_> = pass.data[0].loss_fn_inputs().keys().collect();
        assert_eq!(names, [key::TARGET_TOKENS, key::WEIGHTS]);
    }
    Ok(())
}

#[tokio::test]
async fn nothing_comes_between_the_two_passes() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let custom = client
        .forward_backward_custom(datums([1]), cross_entropy)
        .submit();
    let step = client.optim_step(tinkrs::AdamParams::new(0.1)).submit();
    step.await?;
    custom.await?;
    assert_eq!(
        server.executed_in_order(client.model_id()),
        ["forward", "forward_backward", "optim_step"]
    );
    Ok(())
}

#[tokio::test]
async fn a_loss_that_fails_or_panics_is_an_error_of_its_own_call() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let failing = client.forward_backward_custom(datums([1]), |_, _| Err("no loss today"));
    let error = failing.await.unwrap_err();
    assert!(matches!(error, Error::CustomLoss(_)), "{error}");
    let panicking = client.forward_backward_custom(datums([1]), |data, _| {
        assert!(data.is_empty(), "never");
        Ok::<_, BoxError>(CustomLoss::default())
    });
    let error = panicking.await.unwrap_err();
    assert!(matches!(error, Error::CustomLoss(_)), "{error}");
    let short = client.forward_backward_custom(datums([1]), |_, _| {
        Ok::<_, BoxError>(CustomLoss::new(0.0, vec![vec![1.0]]))
    });
    assert!(short.await.unwrap_err().to_string().contains("datum 0"));
    client.forward_backward(datums([2])).await?;
    Ok(())
}

#[tokio::test]
async fn data_without_targets_is_refused_before_anything_is_sent() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let bare = Datum::new(vec![1, 2], tinkrs::training::LossInputs::new())?;
    let batch = vec![datum(1), bare];
    let error = client
        .forward_backward_custom(batch, cross_entropy)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("datum 1"), "{error}");
    settle().await;
    assert!(server.requests_to("forward_backward").is_empty());
    Ok(())
}

#[cfg(feature = "autodiff")]
mod traced {
    use super::*;
    use crate::support::service;
    use tinkrs::autodiff::TracedLoss;
    use tinkrs_testkit::scripted::BASE_MODEL;

    /// Cross-entropy, as an expression.
    fn nll() -> TracedLoss {
        let traced = TracedLoss::trace("nll", [("logprobs", 1), ("weights", 1)], |[lp, w]| {
            (-(lp * w).sum(), vec![])
        });
        traced.expect("the expression can be traced")
    }

    #[tokio::test]
    async fn creating_the_same_loss_again_gives_the_first_handle() -> Result<()> {
        let server = ScriptedServer::start().await;
        server.config(|config| config.custom_loss_server_side = true);
        let service = service(&server);
        let create = || service.create_custom_loss(nll()).into_future();
        let (first, at_once) = tokio::try_join!(create(), create())?;
        let later = create().await?;
        assert!(first.loss_id().is_some());
        for again in [at_once, later] {
            assert_eq!(again.loss_id(), first.loss_id());
            assert_eq!(again.loss().key(), first.loss().key());
        }
        assert_eq!(server.requests_to("create_custom_loss").len(), 1);
        Ok(())
    }

    #[tokio::test]
    async fn a_handle_belongs_to_its_session() -> Result<()> {
        let server = ScriptedServer::start().await;
        let service = service(&server);
        let client = service.create_lora_training_client(BASE_MODEL).await?;
        let loss = service.create_custom_loss(nll()).await?;
        assert_eq!(loss.session_id(), client.session_id());
        let built_in = client.forward_backward(datums(1..=3)).await?;
        let traced = client.forward_backward_traced(datums(1..=3), &loss).await?;
        let (expected, found) = (built_in.loss().unwrap(), traced.loss().unwrap());
        assert!((expected - found).abs() < 1e-6, "{expected} and {found}");

        let stranger = training(&server).await?;
        let before = server.requests_to("forward_backward").len();
        let refused = stranger.forward_backward_traced(datums([1]), &loss).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(loss.session_id().as_str()), "{text}");
        assert_eq!(server.requests_to("forward_backward").len(), before);
        Ok(())
    }
}
