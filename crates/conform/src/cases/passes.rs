//! `forward_backward`: its forms, and what comes back.

use crate::case::{Case, OK, Stop, Verdict, case, ensure, measured, mismatch};
use crate::numbers::{OTHER, TEXT, close, datum, datum_with, same};
use crate::run::{Adam, Run, logprobs};
use crate::trial::{Answer, Trial};
use crate::wire::Sent;
use prost::Message;
use serde_json::json;
use std::sync::atomic::Ordering;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::tensor::CsrIndices;
use tinkrs_types::{Datum, LossFn, ModelInput, TensorData};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::proto::{self, tensor::Encoding};
use tinkrs_wire::{compress, endpoint, header};

pub(super) const CASES: &[Case] = &[
    case!("passes/protobuf", "A pass is taken as a protobuf message, the only form that clients since 0.25 send.", "protocol 10.3, pitfalls 2", protobuf).after(&["models/create"]).time(3),
    case!("passes/protobuf-result", "The result of a pass is a protobuf message if the client accepts one.", "protocol 13.3, 20.5", protobuf_result).after(&["models/create"]).time(3),
    case!("passes/outputs",
        "A result has `logprobs` of each datum, in order and in its length.", "protocol 18.1, 20.9", outputs).after(&["models/create"]).time(3),
    case!(
        "passes/metrics",
        "A result has the metric `loss:sum`; names of metrics have one colon.",
        "protocol 18.1, 20.9, pitfalls 4",
        metrics
    )
    .after(&["passes/outputs"]),
    case!("passes/loss", "The cross-entropy is the plain sum of weight times log-probability, weights below zero included.", "protocol 18.2", loss).after(&["passes/metrics"]),
    case!("passes/forward", "A pass without gradients returns the same loss and log-probabilities as one with them.", "protocol 10.3, 18.1", forward).after(&["passes/outputs"]),
    case!("passes/forward-no-gradient", "A pass without gradients leaves nothing for the next step.", "protocol 10.3", forward_no_gradient).after(&["passes/outputs"]),
    case!("passes/batch", "A datum has the same log-probabilities alone and beside others of other lengths.", "protocol 18.1", batch).after(&["passes/outputs"]),
    case!("passes/chunks", "A text in several chunks is the same as in one.", "protocol 17.1", chunks).after(&["passes/outputs"]),
    case!("passes/candidates", "Several target tokens at a position have a log-probability each.", "protocol 18.1", candidates).after(&["passes/outputs"]),
    case!("passes/sparse", "Targets and weights as sparse rows are the same as dense ones.", "protocol 18.1, 17.2", sparse).after(&["passes/candidates"]),
    case!("passes/zstd", "A pass may be compressed, if the config asks for that.", "protocol 4.5", zstd).optional().after(&["passes/protobuf"]),
    case!("passes/no-targets", "A pass without target tokens is refused.", "protocol 18.1", no_targets).after(&["passes/protobuf"]),
    case!("passes/wrong-length", "Targets of another length than the input are refused, not padded.", "protocol 18.1, pitfalls", wrong_length).after(&["passes/protobuf"]),
    case!("passes/out-of-vocabulary", "A target token outside of the vocabulary is refused, not NaN.", "pitfalls", out_of_vocabulary).after(&["passes/outputs"]),
    case!("passes/not-finite", "A weight that is not finite is refused.", "protocol 18.1", not_finite).after(&["passes/outputs"]),
    case!("passes/go-on", "After a pass that failed, the model takes the next operation.", "pitfalls, client-behavior 6", go_on).after(&["passes/outputs"]),
];

async fn protobuf(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let Err(refused) = run.forward_backward(vec![datum(&TEXT, 1.0)]).await else {
        return OK;
    };
    // The other cases can still tell something if the server takes what clients to 0.24 sent.
    trial.shared.json_passes.store(true, Ordering::Relaxed);
    let run = trial.model().await?;
    let older = run.forward_backward(vec![datum(&TEXT, 1.0)]).await;
    let Stop::Failed(reason) = refused else {
        trial
            .shared
            .json_passes
            .store(older.is_ok(), Ordering::Relaxed);
        return Err(refused);
    };
    if older.is_err() {
        trial.shared.json_passes.store(false, Ordering::Relaxed);
        return Err(Stop::Failed(reason));
    }
    Err(Stop::failed(format_args!(
        "JSON alone is taken, as from clients to 0.24: {reason}"
    )))
}

async fn protobuf_result(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let sent = run.pass_at(
        run.seq_id(),
        vec![datum(&TEXT, 1.0)],
        LossFn::CrossEntropy,
        false,
    );
    let promise = run.promise(&sent).await?;
    match trial.result(&promise, RequestType::ForwardBackward).await? {
        Answer::Message(body) => {
            let read = proto::ForwardBackwardOutput::decode(body);
            ensure(
                read.is_ok(),
                "a ForwardBackwardOutput",
                format_args!("{:?}", read.err()),
            )?;
            OK
        }
        Answer::Json(_) => Err(mismatch("a protobuf message", "JSON")),
        Answer::Failed { error, category } => Err(crate::trial::failed(
            RequestType::ForwardBackward,
            &error,
            &category,
        )),
    }
}

async fn outputs(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let data = vec![datum(&TEXT, 1.0), datum(&OTHER[..5], 1.0)];
    let output = run.forward_backward(data).await?;
    ensure(output.datums() == 2, "outputs of 2 datums", output.datums())?;
    for (index, expected) in [(0, TEXT.len() - 1), (1, 4)] {
        let found = logprobs(&output, index)?;
        let length = format!("{expected} log-probabilities of datum {index}");
        ensure(found.len() == expected, length, found.len())?;
        let are_logprobs = found
            .iter()
            .all(|logprob| *logprob <= 1e-3 && logprob.is_finite());
        ensure(are_logprobs, "log-probabilities", format_args!("{found:?}"))?;
    }
    OK
}

async fn metrics(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let output = run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    ensure(
        output.metrics.contains_key("loss:sum"),
        "`loss:sum`",
        format_args!("{:?}", output.metrics.keys()),
    )?;
    for name in output.metrics.keys() {
        ensure(
            name.matches(':').count() == 1,
            "one colon in the name of a metric",
            format_args!("`{name}`"),
        )?;
    }
    OK
}

async fn loss(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let weights: Vec<f32> = (0..TEXT.len() - 1)
        .map(|i| [1.0, 0.0, 0.5, -2.0][i % 4])
        .collect();
    let output = run
        .forward_backward(vec![datum_with(&TEXT, &weights), datum(&OTHER, 3.0)])
        .await?;
    let (first, second) = (logprobs(&output, 0)?, logprobs(&output, 1)?);
    let weighted = first.iter().zip(&weights).map(|(lp, w)| f64::from(lp * w));
    let expected =
        -weighted.sum::<f64>() - 3.0 * second.iter().map(|lp| f64::from(*lp)).sum::<f64>();
    close("`loss:sum`", expected, output.loss().unwrap_or(f64::NAN))?;
    OK
}

async fn forward(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let forward = run
        .pass(vec![datum(&TEXT, 1.0)], LossFn::CrossEntropy, true)
        .await?;
    let backward = run.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
    let distance = same(
        "the same log-probabilities",
        &logprobs(&forward, 0)?,
        &logprobs(&backward, 0)?,
    )?;
    if let (Some(forward), Some(backward)) = (forward.loss(), backward.loss()) {
        close("the same loss,", forward, backward)?;
    }
    measured(format_args!("largest difference {distance:.1e}"))
}

async fn forward_no_gradient(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let before = run.logprobs(&TEXT).await?;
    // A server may refuse a step without gradients, or make one that changes nothing.
    let step = run
        .promise(&run.step_at(run.seq_id(), Adam::new(0.02)))
        .await?;
    trial.result(&step, RequestType::OptimStep).await?;
    same(
        "unchanged log-probabilities",
        &before,
        &run.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn batch(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let alone = run.logprobs(&OTHER[..7]).await?;
    let data = vec![
        datum(&TEXT, 1.0),
        datum(&OTHER[..7], 1.0),
        datum(&TEXT[..3], 1.0),
    ];
    let together = run.pass(data, LossFn::CrossEntropy, true).await?;
    same(
        "the same log-probabilities",
        &alone,
        &logprobs(&together, 1)?,
    )?;
    OK
}

async fn chunks(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let whole = run.logprobs(&TEXT).await?;
    let input = &TEXT[..TEXT.len() - 1];
    let parts: Vec<_> = input
        .chunks(4)
        .map(|part| tinkrs_types::input::Chunk::from(part.to_vec()))
        .collect();
    let targets: Vec<i64> = TEXT[1..].iter().map(|token| i64::from(*token)).collect();
    let datum = Datum::supervised(
        ModelInput::from_chunks(parts),
        targets,
        vec![1.0; input.len()],
    );
    let datum = datum.expect("lengths are equal");
    let output = run.pass(vec![datum], LossFn::CrossEntropy, true).await?;
    same("the same log-probabilities", &whole, &logprobs(&output, 0)?)?;
    OK
}

/// A datum with three candidates at each position: the token itself, and two others.
fn candidate_rows() -> (Vec<u32>, Vec<Vec<i64>>, Vec<Vec<f32>>) {
    let input = TEXT[..TEXT.len() - 1].to_vec();
    let targets = TEXT[1..]
        .iter()
        .zip(&OTHER)
        .map(|(token, other)| vec![i64::from(*token), i64::from(*other), 0]);
    let weights = input.iter().map(|_| vec![1.0, 0.5, 0.0]);
    let (targets, weights) = (targets.collect(), weights.collect());
    (input, targets, weights)
}

fn candidate_datum(input: Vec<u32>, targets: TensorData, weights: TensorData) -> Datum {
    let inputs = [
        ("target_tokens".to_owned(), targets),
        ("weights".to_owned(), weights),
    ];
    Datum::new(input, inputs.into()).expect("rows have the length of the input")
}

async fn candidate_pass(run: &Run<'_>, datum: Datum) -> Result<(Vec<f32>, f64), Stop> {
    let sent = run.pass_at(run.seq_id(), vec![datum], LossFn::CrossEntropy, true);
    let reply = run.trial.wire().accepted(&sent).await?;
    if reply.is_refusal() {
        return Err(Stop::NotSupported(reply.to_string()));
    }
    let output = run.output(&reply.object()?).await?;
    Ok((logprobs(&output, 0)?, output.loss().unwrap_or(f64::NAN)))
}

async fn candidates(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let plain = run.logprobs(&TEXT).await?;
    let (input, targets, weights) = candidate_rows();
    let targets = TensorData::from_rows(&targets).expect("rows are equally long");
    let weights = TensorData::from_rows(&weights).expect("rows are equally long");
    let (found, loss) = candidate_pass(&run, candidate_datum(input, targets, weights)).await?;
    let expected = format!("{} log-probabilities, 3 for each position", plain.len() * 3);
    ensure(found.len() == plain.len() * 3, expected, found.len())?;
    let firsts: Vec<f32> = found.chunks(3).map(|row| row[0]).collect();
    same(
        "the log-probabilities of the first candidates",
        &plain,
        &firsts,
    )?;
    let sum: f64 = found
        .chunks(3)
        .map(|row| f64::from(row[0]) + 0.5 * f64::from(row[1]))
        .sum();
    if !loss.is_nan() {
        close("`loss:sum` over both axes", -sum, loss)?;
    }
    OK
}

async fn sparse(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let (input, targets, weights) = candidate_rows();
    let n = input.len();
    let dense = candidate_datum(
        input.clone(),
        TensorData::from_rows(&targets).expect("rows are equally long"),
        TensorData::from_rows(&weights).expect("rows are equally long"),
    );
    let (_, expected) = candidate_pass(&run, dense).await?;
    let indices = || CsrIndices {
        crow: (0..=n as i64).map(|row| row * 2).collect(),
        col: (0..n).flat_map(|_| [0, 1]).collect(),
    };
    let stored: Vec<i64> = targets.iter().flat_map(|row| [row[0], row[1]]).collect();
    let kept: Vec<f32> = weights.iter().flat_map(|row| [row[0], row[1]]).collect();
    let targets = TensorData::sparse(stored, indices(), [n, 3]).expect("indices fit");
    let weights = TensorData::sparse(kept, indices(), [n, 3]).expect("indices fit");
    let (_, seen) = candidate_pass(&run, candidate_datum(input, targets, weights)).await?;
    close("the loss of dense rows,", expected, seen)?;
    OK
}

async fn zstd(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let plain = run.logprobs(&TEXT).await?;
    let request = ForwardBackwardRequest {
        model_id: run.id.as_str().into(),
        seq_id: run.seq_id(),
        data: vec![datum(&TEXT, 1.0)],
        loss_fn: LossFn::CrossEntropy,
        forward_only: true,
    };
    let body = compress::compress(&request.encode().expect("cases send text"));
    let sent = Sent::to(&endpoint::FORWARD_BACKWARD)
        .bytes(header::PROTOBUF, body)
        .header("content-encoding", "zstd");
    let reply = trial.wire().accepted(&sent).await?;
    if !trial.shared.config.proto_compress_fwdbwd && !reply.is_success() {
        return Err(Stop::NotSupported(format!(
            "the config does not ask for it; {reply}"
        )));
    }
    let output = run.output(&reply.object()?).await?;
    same("the same log-probabilities", &plain, &logprobs(&output, 0)?)?;
    OK
}

/// A pass whose tensors the SDK's types would not let through.
fn unchecked(run: &Run<'_>, targets: Option<&[i64]>, weights: &[f32]) -> Sent {
    let tokens: Vec<u8> = TEXT[..8]
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    let text = proto::EncodedTextChunk {
        tokens: tokens.into(),
    };
    let mut datum = proto::Datum {
        model_input: vec![proto::Chunk {
            chunk: Some(proto::chunk::Chunk::EncodedText(text)),
        }],
        ..Default::default()
    };
    let mut add = |name: &str, dtype: proto::DType, count: usize, bytes: Vec<u8>| {
        let tensor = proto::Tensor {
            dtype: dtype.into(),
            shape: vec![count as i64],
            encoding: Some(Encoding::Dense(bytes.into())),
        };
        datum.loss_fn_inputs.insert(name.to_owned(), tensor);
    };
    if let Some(targets) = targets {
        let bytes = targets
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect();
        add(
            "target_tokens",
            proto::DType::DtypeInt64,
            targets.len(),
            bytes,
        );
    }
    let bytes = weights
        .iter()
        .flat_map(|weight| weight.to_le_bytes())
        .collect();
    add("weights", proto::DType::DtypeFloat32, weights.len(), bytes);
    let message = proto::ForwardBackwardRequest {
        model_id: run.id.clone(),
        seq_id: run.seq_id(),
        data: vec![datum],
        loss_fn: "cross_entropy".to_owned(),
        ..Default::default()
    };
    Sent::to(&endpoint::FORWARD_BACKWARD).bytes(header::PROTOBUF, message.encode_to_vec())
}

async fn no_targets(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    trial
        .refused(
            &unchecked(&run, None, &[1.0; 8]),
            RequestType::ForwardBackward,
        )
        .await?;
    OK
}

async fn wrong_length(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let sent = unchecked(&run, Some(&[70, 71, 72, 73, 74]), &[1.0; 5]);
    trial.refused(&sent, RequestType::ForwardBackward).await?;
    OK
}

async fn out_of_vocabulary(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let mut text = TEXT;
    text[5] = 2_000_000_000;
    let sent = run.pass_at(
        run.seq_id(),
        vec![datum(&text, 1.0)],
        LossFn::CrossEntropy,
        false,
    );
    trial.refused(&sent, RequestType::ForwardBackward).await?;
    OK
}

async fn not_finite(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let sent = unchecked_or_json(&run);
    trial.refused(&sent, RequestType::ForwardBackward).await?;
    OK
}

fn unchecked_or_json(run: &Run<'_>) -> Sent {
    if !run.trial.shared.json_passes.load(Ordering::Relaxed) {
        let targets: Vec<i64> = TEXT[1..9].iter().map(|token| i64::from(*token)).collect();
        let mut weights = [1.0; 8];
        weights[3] = f32::NAN;
        return unchecked(run, Some(&targets), &weights);
    }
    // JSON has no NaN; what overflows comes closest.
    let tokens = &TEXT[..8];
    let datum = json!({"model_input": {"chunks": [{"tokens": tokens, "type": "encoded_text"}]},
        "loss_fn_inputs": {"target_tokens": {"data": &TEXT[1..9], "dtype": "int64", "shape": [8]},
            "weights": {"data": [1.0, 1.0, 1.0, 1e300, 1.0, 1.0, 1.0, 1.0], "dtype": "float32", "shape": [8]}}});
    let body = json!({"model_id": run.id, "seq_id": run.seq_id(),
        "forward_backward_input": {"data": [datum], "loss_fn": "cross_entropy"}});
    Sent::to(&endpoint::FORWARD_BACKWARD).json(&body)
}

async fn go_on(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let loss = LossFn::Other {
        name: "conform_no_such_loss".into(),
        config: Default::default(),
    };
    let bad = run.pass_at(run.seq_id(), vec![datum(&TEXT, 1.0)], loss, false);
    let reply = trial.wire().accepted(&bad).await?;
    if reply.is_success() {
        trial
            .result(&reply.object()?, RequestType::ForwardBackward)
            .await?;
        run.logprobs(&TEXT).await?;
        return OK;
    }
    // It was refused at the door, so its number may be free or taken: the client goes on with the next one, and a server that
    // waits for the missing one would wait for good. Both are tried.
    let pass = |seq_id| run.pass_at(seq_id, vec![datum(&TEXT, 1.0)], LossFn::CrossEntropy, true);
    let next = run.promise(&pass(run.seq_id())).await?;
    let same_number = run.promise(&pass(1)).await;
    run.output(&next).await?;
    drop(same_number);
    OK
}
