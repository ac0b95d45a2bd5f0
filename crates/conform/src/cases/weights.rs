//! Saving and loading: what is in a checkpoint, and what is not touched by it.

use crate::case::{Case, OK, Stop, Verdict, case, ensure, measured};
use crate::numbers::{OTHER, TEXT, datum, differ, same};
use crate::run::{Adam, Run};
use crate::trial::{Trial, text};
use crate::wire::{Sent, shown};
use serde_json::{Value, json};
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::endpoint;

pub(super) const CASES: &[Case] = &[
    case!("weights/save", "A saved state has the path `tinker://<run>/weights/<name>`.", "protocol 11.2, 7.3", save).after(&["models/create"]),
    case!("weights/load", "A new model with a loaded state has the log-probabilities of the one that was saved.", "protocol 11.1", load).after(&["weights/save", "optimizer/changes"]),
    case!("weights/continue", "Training goes on after saving and loading with the optimizer as if it had not stopped.", "protocol 11.1, pitfalls", go_on).after(&["weights/load"]),
    case!("weights/fresh-optimizer", "Loading without the optimizer starts it afresh.", "protocol 11.1", fresh_optimizer).after(&["weights/continue"]),
    case!("weights/create-via-load", "A model is created from a checkpoint in one request, under the id that the client makes.", "protocol 11.1", create_via_load).optional().after(&["weights/load"]),
    case!("weights/sampler-path", "Weights saved for sampling have the path `tinker://<run>/sampler_weights/<name>`.", "protocol 11.3", sampler_path).after(&["models/create"]),
    case!("weights/unnamed", "Weights saved without a name have a sampling session and no path.", "protocol 11.3", unnamed).after(&["models/create"]),
    case!("weights/sampler-learned", "After training, saved weights sample differently from the base model.", "protocol 11.3", sampler_learned).after(&["optimizer/changes"]),
    case!("weights/sampler-stays", "A sampler of saved weights stays as it was while training goes on, and training as it was while it is sampled.", "pitfalls", sampler_stays).after(&["weights/sampler-learned"]),
    case!("weights/sampler-from-state", "A saved state for training can be sampled from, or that is refused.", "protocol 9.8", sampler_from_state).after(&["weights/load"]),
    case!("weights/kinds", "Weights saved for sampling are not loaded as a training state.", "protocol 11.1, pitfalls", kinds).after(&["models/create"]),
    case!("weights/overwrite", "A name that is taken is refused, and replaced with `overwrite`.", "protocol 11.2, 6.3", overwrite).after(&["weights/load"]),
    case!("weights/info", "`weights_info` tells the base model and the rank of a checkpoint.", "protocol 11.5", info).after(&["weights/save"]),
];

async fn save(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let name = trial.name();
    let path = run.save(json!({"path": name})).await?;
    let expected = format!("tinker://{}/weights/{name}", run.id);
    ensure(path == expected, &expected, shown(&path))?;
    OK
}

async fn loaded<'a>(trial: &'a Trial, path: &str, optimizer: bool) -> Result<Run<'a>, Stop> {
    // Another seed, so that what is equal afterwards was loaded.
    let run = trial.model_with(json!({"rank": 8, "seed": 99})).await?;
    run.load(path, optimizer).await?;
    Ok(run)
}

async fn load(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(3).await?;
    let path = run.save(json!({})).await?;
    let copy = loaded(trial, &path, true).await?;
    let apart = same(
        "the log-probabilities of the saved model",
        &run.logprobs(&TEXT).await?,
        &copy.logprobs(&TEXT).await?,
    )?;
    measured(format_args!("largest difference {apart:.1e}"))
}

/// One more step of training, on another text, at a rate at which the moments of the optimizer show.
async fn one_more(run: &Run<'_>) -> Result<Vec<f32>, Stop> {
    run.forward_backward(vec![datum(&OTHER, 0.05)]).await?;
    run.step(Adam::new(0.02)).await?;
    run.logprobs(&TEXT).await
}

async fn go_on(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(3).await?;
    let path = run.save(json!({})).await?;
    let copy = loaded(trial, &path, true).await?;
    let apart = same(
        "training as if it had not stopped",
        &one_more(&run).await?,
        &one_more(&copy).await?,
    )?;
    measured(format_args!("largest difference {apart:.1e}"))
}

async fn fresh_optimizer(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(3).await?;
    let path = run.save(json!({})).await?;
    let (kept, fresh) = (
        loaded(trial, &path, true).await?,
        loaded(trial, &path, false).await?,
    );
    same(
        "the saved weights without the optimizer",
        &kept.logprobs(&TEXT).await?,
        &fresh.logprobs(&TEXT).await?,
    )?;
    let what = "a step of a fresh optimizer to differ";
    differ(what, &one_more(&kept).await?, &one_more(&fresh).await?)?;
    OK
}

async fn create_via_load(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(2).await?;
    let path = run.save(json!({})).await?;
    let number = trial.number();
    let body = json!({"session_id": trial.session().await?, "model_seq_id": number, "path": path,
        "optimizer": true, "type": "load_weights"});
    let sent = Sent::to(&endpoint::LOAD_WEIGHTS).json(&body);
    let reply = trial.wire().accepted(&sent).await?;
    if !trial.shared.config.create_model_via_load_weights && !reply.is_success() {
        return Err(Stop::NotSupported(format!(
            "the config does not ask for it; {reply}"
        )));
    }
    trial
        .json_result(&reply.object()?, RequestType::LoadWeights)
        .await?;
    let copy = Run::new(trial, format!("{}:train:{number}", trial.session().await?));
    trial.remember_model(&copy.id);
    same(
        "the log-probabilities of the saved model",
        &run.logprobs(&TEXT).await?,
        &copy.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn sampler_path(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save_for_sampler().await?;
    let start = format!("tinker://{}/sampler_weights/conform-", run.id);
    ensure(
        path.starts_with(&start),
        format_args!("{start}…"),
        shown(&path),
    )?;
    OK
}

async fn unnamed(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let body = json!({"sampling_session_seq_id": trial.number()});
    let kind = RequestType::SaveWeightsForSampler;
    let saved = run
        .weights(&endpoint::SAVE_WEIGHTS_FOR_SAMPLER, kind, body)
        .await?;
    text(&saved, "sampling_session_id")?;
    let path = saved.get("path").unwrap_or(&Value::Null);
    ensure(path.is_null(), "no path", shown(&saved.to_string()))?;
    OK
}

async fn sampler_learned(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(4).await?;
    let path = run.save_for_sampler().await?;
    let learned = trial.sampler_of(json!({"model_path": path})).await?;
    let base = trial.base_sampler().await?;
    let (learned, base) = (learned.score(&TEXT).await?, base.score(&TEXT).await?);
    differ(
        "saved weights to differ from the base model",
        &base,
        &learned,
    )?;
    same(
        "the trainer's log-probabilities",
        &run.logprobs(&TEXT).await?,
        &learned,
    )?;
    OK
}

async fn sampler_stays(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(2).await?;
    let sampler = run.sampler().await?;
    let before = sampler.score(&TEXT).await?;
    run.train(3).await?;
    let trained = run.logprobs(&TEXT).await?;
    let after = sampler.score(&TEXT).await?;
    same("an old sampler to stay as it was", &before, &after)?;
    same(
        "training to stay as it was",
        &trained,
        &run.logprobs(&TEXT).await?,
    )?;
    differ(
        "a sampler from before the last steps to differ from the trainer",
        &after,
        &trained,
    )?;
    OK
}

async fn sampler_from_state(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    run.train(3).await?;
    let path = run.save(json!({})).await?;
    let body = json!({"session_id": trial.session().await?, "sampling_session_seq_id": trial.number(),
        "model_path": path, "type": "create_sampling_session"});
    let sent = Sent::to(&endpoint::CREATE_SAMPLING_SESSION).json(&body);
    let reply = trial.wire().accepted(&sent).await?;
    if reply.is_refusal() && !reply.body.is_empty() {
        return OK;
    }
    let id = text(&reply.object()?, "sampling_session_id")?;
    let sampler = crate::sampler::Sampler::new(trial, id);
    same(
        "the trainer's log-probabilities",
        &run.logprobs(&TEXT).await?,
        &sampler.score(&TEXT).await?,
    )?;
    OK
}

async fn kinds(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let path = run.save_for_sampler().await?;
    let other = trial.model().await?;
    let more = json!({"path": path, "optimizer": true});
    let sent = other.weights_at(other.seq_id(), &endpoint::LOAD_WEIGHTS, more);
    trial.refused(&sent, RequestType::LoadWeights).await?;
    OK
}

async fn overwrite(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let name = trial.name();
    run.save(json!({"path": name})).await?;
    run.train(3).await?;
    let more = json!({"path": name, "overwrite": false});
    let again = run.weights_at(run.seq_id(), &endpoint::SAVE_WEIGHTS, more);
    trial.refused(&again, RequestType::SaveWeights).await?;
    let more = json!({"path": name, "overwrite": true});
    let path = run.save(more).await?;
    let copy = loaded(trial, &path, true).await?;
    same(
        "the newer weights",
        &run.logprobs(&TEXT).await?,
        &copy.logprobs(&TEXT).await?,
    )?;
    OK
}

async fn info(trial: &Trial) -> Verdict {
    let run = trial.model_with(json!({"rank": 4})).await?;
    let path = run.save(json!({})).await?;
    let found = trial
        .wire()
        .post(&endpoint::WEIGHTS_INFO, &json!({"tinker_path": path}))
        .await?;
    let is_right = found["base_model"] == trial.shared.model.as_str() && found["is_lora"] == true;
    ensure(
        is_right,
        "the base model, and `is_lora`",
        shown(&found.to_string()),
    )?;
    let rank = &found["lora_rank"];
    ensure(
        rank.is_null() || *rank == 4,
        "`lora_rank` 4",
        shown(&found.to_string()),
    )?;
    OK
}
