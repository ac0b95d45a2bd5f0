//! Sampling: what is drawn.

use crate::case::{Case, OK, Verdict, case, ensure, measured, mismatch};
use crate::numbers::{TEXT, same};
use crate::trial::{Answer, Trial, text};
use crate::wire::{Sent, shown};
use prost::Message;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use tinkrs_types::SamplingSessionId;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::sampling::StopReason;
use tinkrs_wire::{endpoint, proto};

pub(super) const CASES: &[Case] = &[
    case!(
        "sampling/official",
        "Samples are drawn by the request that the official client sends, with all of its members.",
        "protocol 12.1, appendix A",
        official
    )
    .after(&["sessions/create"])
    .time(3),
    case!("sampling/session", "A sampler of the base model is created, and describes itself.", "protocol 9.8, 12.2", session).after(&["sessions/create"]),
    case!("sampling/sequence-ids", "The promise of a sample has an id for each sequence, all different.", "protocol 12.1, pitfalls 1", sequence_ids).after(&["sampling/session"]).time(3),
    case!("sampling/protobuf-result", "The result of a sample is a protobuf message if the client accepts one.", "protocol 13.3, 20.5", protobuf_result).after(&["sampling/session"]).time(3),
    case!("sampling/sequences", "There are as many sequences as asked for, each with tokens, a log-probability for each, and a stop reason.", "protocol 12.1", sequences).after(&["sampling/session"]).time(3),
    case!("sampling/max-tokens", "With `stop: []` a sample has exactly `max_tokens` tokens, and the reason `length`.", "protocol 17.3, pitfalls 10", max_tokens).after(&["sampling/sequences"]),
    case!("sampling/greedy", "Temperature 0 draws the same tokens each time.", "protocol 17.4", greedy).after(&["sampling/sequences"]),
    case!("sampling/seed", "The same seed draws the same tokens, another one others.", "protocol 17.4, pitfalls", seed).after(&["sampling/sequences"]),
    case!("sampling/samples-differ", "The samples of one request differ from each other, with a seed and without.", "pitfalls", samples_differ).after(&["sampling/sequences"]),
    case!("sampling/stop-token", "A sample ends at a token of `stop`, with the reason `stop`.", "protocol 17.3", stop_token).after(&["sampling/greedy", "sampling/max-tokens"]),
    case!("sampling/stop-text", "A text in `stop` that does not occur changes nothing.", "protocol 17.3", stop_text).after(&["sampling/greedy"]),
    case!("sampling/top-k", "With `top_k` 1 the likeliest token is drawn at any temperature.", "protocol 17.4", top_k).after(&["sampling/greedy", "sampling/max-tokens"]),
    case!("sampling/top-p", "With a `top_p` near zero the likeliest token is drawn at any temperature.", "protocol 17.4", top_p).after(&["sampling/greedy", "sampling/max-tokens"]),
    case!("sampling/temperature", "A high temperature draws more different tokens than a low one.", "protocol 17.4", temperature).after(&["sampling/sequences"]),
    case!("sampling/too-long", "More tokens than the context has room for are refused.", "protocol 6.3", too_long).after(&["sampling/session"]),
    case!("sampling/out-of-vocabulary", "A prompt token outside of the vocabulary is refused.", "pitfalls", out_of_vocabulary).after(&["sampling/session"]),
    case!("sampling/join", "Clients that join a sampler get numbers of their own, from 1.", "protocol 9.8", join).optional().after(&["sampling/session"]),
    case!("sampling/completion-feed", "`retrieve_futures` tells of every sample that completed, and goes on from its cursor.", "protocol 13.6", completion_feed).optional().after(&["sampling/session"]),
    case!("sampling/cancel", "A sample that nobody waits for can be cancelled.", "protocol 13.5", cancel).optional().after(&["sampling/session"]),
];

async fn official(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let Err(refused) = sampler.one(&trial.prompt(), json!({})).await else {
        return OK;
    };
    trial.shared.older_samples.store(true, Ordering::Relaxed);
    let older = sampler.one(&trial.prompt(), json!({})).await;
    trial
        .shared
        .older_samples
        .store(older.is_ok(), Ordering::Relaxed);
    Err(refused)
}

async fn session(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let path = endpoint::GET_SAMPLER.at(&SamplingSessionId::new(sampler.id.as_str()));
    let found = trial
        .wire()
        .send(&Sent::at(&endpoint::GET_SAMPLER, path))
        .await?
        .object()?;
    let is_right = found["sampler_id"] == sampler.id.as_str()
        && found["base_model"] == trial.shared.model.as_str();
    ensure(
        is_right,
        "the sampler's id and base model",
        shown(&found.to_string()),
    )?;
    OK
}

async fn sequence_ids(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let sent = sampler.request(&trial.prompt(), json!({}), json!({"num_samples": 3}));
    let promise = trial.wire().accepted(&sent).await?.object()?;
    let ids = promise["sample_sequence_ids"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let different: HashSet<_> = ids.iter().filter_map(Value::as_str).collect();
    ensure(
        different.len() == 3 && ids.len() == 3,
        "3 ids in `sample_sequence_ids`",
        shown(&promise.to_string()),
    )?;
    OK
}

async fn protobuf_result(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let sent = sampler.request(&trial.prompt(), json!({}), json!({}));
    let promise = trial.wire().accepted(&sent).await?.object()?;
    match trial.result(&promise, RequestType::Sample).await? {
        Answer::Message(body) => {
            let read = proto::SampleResponse::decode(body);
            ensure(
                read.is_ok(),
                "a SampleResponse",
                format_args!("{:?}", read.err()),
            )?;
            OK
        }
        Answer::Json(_) => Err(mismatch("a protobuf message", "JSON")),
        Answer::Failed { error, category } => {
            Err(crate::trial::failed(RequestType::Sample, &error, &category))
        }
    }
}

async fn sequences(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let more = json!({"num_samples": 3});
    let output = sampler
        .sample(&trial.prompt(), json!({"max_tokens": 8}), more)
        .await?;
    ensure(
        output.sequences.len() == 3,
        "3 sequences",
        output.sequences.len(),
    )?;
    for sequence in &output.sequences {
        let (tokens, logprobs) = (
            &sequence.tokens,
            sequence.logprobs.as_deref().unwrap_or_default(),
        );
        ensure(
            (1..=8).contains(&tokens.len()),
            "1 to 8 tokens",
            tokens.len(),
        )?;
        let is_full = logprobs.len() == tokens.len();
        ensure(
            is_full,
            format_args!("{} log-probabilities", tokens.len()),
            logprobs.len(),
        )?;
        let are_logprobs = logprobs
            .iter()
            .all(|logprob| *logprob <= 1e-3 && logprob.is_finite());
        ensure(
            are_logprobs,
            "log-probabilities",
            format_args!("{logprobs:?}"),
        )?;
    }
    OK
}

async fn max_tokens(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let params = json!({"max_tokens": 24, "stop": [], "temperature": 1.5, "seed": 3});
    let drawn = sampler.one(&trial.prompt(), params).await?;
    ensure(drawn.tokens.len() == 24, "24 tokens", drawn.tokens.len())?;
    ensure(
        drawn.stop_reason == StopReason::Length,
        "the reason `length`",
        format_args!("{:?}", drawn.stop_reason),
    )?;
    OK
}

async fn greedy(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let first = sampler.greedy(&trial.prompt(), 12).await?;
    let second = sampler.greedy(&trial.prompt(), 12).await?;
    ensure(
        first == second,
        format_args!("{first:?}"),
        format_args!("{second:?}"),
    )?;
    OK
}

async fn seed(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let mut draws = Vec::new();
    for seed in [11, 11, 12, 13, 14] {
        let params = json!({"max_tokens": 16, "stop": [], "temperature": 1.5, "seed": seed});
        draws.push(sampler.one(&trial.prompt(), params).await?.tokens);
    }
    let (first, second) = (&draws[0], &draws[1]);
    ensure(
        first == second,
        format_args!("the same tokens, {first:?},"),
        format_args!("{second:?}"),
    )?;
    let others_differ = draws[2..].iter().any(|draw| draw != first);
    ensure(
        others_differ,
        "other tokens for other seeds",
        format_args!("{first:?} each time"),
    )?;
    OK
}

async fn samples_differ(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    for params in [
        json!({"max_tokens": 16, "stop": [], "temperature": 1.5}),
        json!({"max_tokens": 16, "stop": [], "temperature": 1.5, "seed": 5}),
    ] {
        let output = sampler
            .sample(&trial.prompt(), params, json!({"num_samples": 8}))
            .await?;
        let different: HashSet<_> = output
            .sequences
            .iter()
            .map(|sequence| &sequence.tokens)
            .collect();
        ensure(different.len() > 1, "samples that differ", "8 equal ones")?;
    }
    OK
}

async fn stop_token(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let free = sampler.greedy(&trial.prompt(), 12).await?;
    let Some(stop) = free.get(4).copied() else {
        return Err(mismatch("12 tokens", free.len()));
    };
    let place = free.iter().position(|token| *token == stop).unwrap_or(4);
    let params = json!({"temperature": 0.0, "max_tokens": 12, "stop": [stop]});
    let drawn = sampler.one(&trial.prompt(), params).await?;
    ensure(
        drawn.stop_reason == StopReason::Stop,
        "the reason `stop`",
        format_args!("{:?}", drawn.stop_reason),
    )?;
    // Whether the token itself is part of the sample is not written anywhere.
    let is_prefix =
        free.starts_with(&drawn.tokens) && (place..=place + 1).contains(&drawn.tokens.len());
    ensure(
        is_prefix,
        format_args!("an end at {:?}", &free[..=place]),
        format_args!("{:?}", drawn.tokens),
    )?;
    OK
}

async fn stop_text(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    for stop in [
        json!("~conform~never~"),
        json!(["~conform~never~", "~conform~neither~"]),
    ] {
        let params = json!({"temperature": 0.0, "max_tokens": 6, "stop": stop});
        let drawn = sampler.one(&trial.prompt(), params).await?.tokens;
        let free = sampler.greedy(&trial.prompt(), 6).await?;
        ensure(
            free.starts_with(&drawn) && !drawn.is_empty(),
            format_args!("{free:?}"),
            format_args!("{drawn:?}"),
        )?;
    }
    OK
}

async fn like_greedy(trial: &Trial, params: Value) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let expected = sampler.greedy(&trial.prompt(), 10).await?;
    let drawn = sampler.one(&trial.prompt(), params).await?.tokens;
    ensure(
        drawn == expected,
        format_args!("{expected:?}"),
        format_args!("{drawn:?}"),
    )?;
    OK
}

async fn top_k(trial: &Trial) -> Verdict {
    like_greedy(
        trial,
        json!({"temperature": 1.5, "top_k": 1, "max_tokens": 10, "stop": []}),
    )
    .await
}

async fn top_p(trial: &Trial) -> Verdict {
    like_greedy(
        trial,
        json!({"temperature": 1.5, "top_p": 1e-6, "max_tokens": 10, "stop": []}),
    )
    .await
}

async fn temperature(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let mut counts = Vec::new();
    for temperature in [0.05, 3.0] {
        let params = json!({"max_tokens": 1, "stop": [], "temperature": temperature, "seed": 1});
        let output = sampler
            .sample(&trial.prompt(), params, json!({"num_samples": 48}))
            .await?;
        let different: HashSet<_> = output
            .sequences
            .iter()
            .map(|sequence| &sequence.tokens)
            .collect();
        counts.push(different.len());
    }
    ensure(
        counts[1] > counts[0],
        "more different tokens at 3.0 than at 0.05",
        format_args!("{} and {}", counts[1], counts[0]),
    )?;
    OK
}

async fn too_long(trial: &Trial) -> Verdict {
    let Some(context) = trial.shared.max_context else {
        return measured("the server does not say how long its context is");
    };
    let sampler = trial.base_sampler().await?;
    let sent = sampler.request(&trial.prompt(), json!({"max_tokens": context}), json!({}));
    trial.refused(&sent, RequestType::Sample).await?;
    OK
}

async fn out_of_vocabulary(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let sent = sampler.request(&[TEXT[0], 2_000_000_000, TEXT[1]], json!({}), json!({}));
    trial.refused(&sent, RequestType::Sample).await?;
    OK
}

async fn join(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let body = json!({"sampling_session_id": sampler.id, "type": "join_sampling_session"});
    let mut numbers = HashSet::new();
    for _ in 0..2 {
        let joined = trial
            .wire()
            .post(&endpoint::JOIN_SAMPLING_SESSION, &body)
            .await?;
        match joined["client_counter"].as_u64() {
            Some(number @ 1..=999_999_999) => numbers.insert(number),
            _ => {
                return Err(mismatch(
                    "a `client_counter` from 1",
                    shown(&joined.to_string()),
                ));
            }
        };
    }
    ensure(
        numbers.len() == 2,
        "two different numbers",
        format_args!("{numbers:?}"),
    )?;
    OK
}

async fn completion_feed(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let mut waiting = HashSet::new();
    let mut promises = Vec::new();
    for _ in 0..3 {
        let sent = sampler.request(&trial.prompt(), json!({}), json!({}));
        let promise = trial.wire().accepted(&sent).await?.object()?;
        waiting.insert(text(&promise, "request_id")?);
        promises.push(promise);
    }
    let mut cursor = json!(0);
    while !waiting.is_empty() {
        let target = json!({"type": "sampling_session", "sampling_session_id": sampler.id, "cloned_sampler_id": 0});
        let body = json!({"target": target, "prev_cursor": cursor, "retrieved_request_ids": []});
        let found = trial
            .wire()
            .post(&endpoint::RETRIEVE_FUTURES, &body)
            .await?;
        let Some(completions) = found["completions"].as_array() else {
            return Err(mismatch("a list `completions`", shown(&found.to_string())));
        };
        for completion in completions {
            let is_known = matches!(completion["state"].as_str(), Some("finished" | "failed"));
            ensure(
                is_known,
                "a state finished or failed",
                shown(&completion.to_string()),
            )?;
            waiting.remove(completion["request_id"].as_str().unwrap_or_default());
        }
        ensure(
            found["cursor"].is_u64(),
            "a number `cursor`",
            shown(&found.to_string()),
        )?;
        cursor = found["cursor"].clone();
    }
    let drawn = sampler.output(&promises[0]).await?;
    ensure(
        drawn.sequences.len() == 1,
        "one sequence",
        drawn.sequences.len(),
    )?;
    OK
}

async fn cancel(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let sent = sampler.request(
        &trial.prompt(),
        json!({"max_tokens": 64, "stop": []}),
        json!({}),
    );
    let promise = trial.wire().accepted(&sent).await?.object()?;
    let body = json!({"request_id": text(&promise, "request_id")?});
    let sent = Sent::to(&endpoint::CANCEL_FUTURE).json(&body);
    trial.wire().send(&sent).await?.success()?;
    // The sampler goes on.
    let drawn = sampler.score(&TEXT).await?;
    same("the sampler to go on", &drawn, &sampler.score(&TEXT).await?)?;
    OK
}
