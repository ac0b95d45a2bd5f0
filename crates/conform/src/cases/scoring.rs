//! Log-probabilities of prompts, and whether sampler and trainer agree.

use crate::case::{Case, OK, Verdict, case, ensure, measured, mismatch};
use crate::numbers::{SAME, TEXT, distance, same};
use crate::trial::Trial;
use serde_json::json;
use std::collections::BTreeMap;

pub(super) const CASES: &[Case] = &[
    case!("scoring/prompt-logprobs", "`prompt_logprobs` has a value for each token of the prompt, and NaN for the first.", "protocol 12.1, pitfalls", prompt_logprobs).after(&["sampling/sequences"]),
    case!("scoring/last-n", "`prompt_logprobs_last_n` scores the last positions only.", "protocol 12.1", last_n).after(&["sampling/sequences"]),
    case!("scoring/top-k-prompt", "`topk_prompt_logprobs` has k tokens for each position but the first, the likeliest first, in agreement with the scores.", "protocol 12.1", top_k_prompt).after(&["sampling/sequences"]),
    case!("scoring/top-k-sample", "`topk_sample_logprobs` has k tokens for each drawn one; at temperature 0 the first is the drawn one.", "protocol 12.1", top_k_sample).after(&["sampling/sequences"]),
    case!("scoring/targets", "`target_prompt_logprobs` scores the tokens that are asked for.", "protocol 12.1", targets).after(&["sampling/sequences"]),
    case!("scoring/alternatives", "`prompt_alt_tokens_k` draws k tokens at each position.", "protocol 12.1", alternatives).after(&["sampling/sequences"]),
    case!("scoring/drawn-is-scored", "A drawn token has the log-probability that the sampler gives it in a prompt.", "protocol 17.4", drawn_is_scored).after(&["sampling/sequences"]),
    case!("scoring/sampler-is-trainer", "Sampler and trainer give a text the same log-probabilities, before training and after.", "pitfalls", sampler_is_trainer).after(&["sampling/sequences", "optimizer/changes"]),
    case!("scoring/scaled", "Log-probabilities of drawn tokens are those of the distribution at the temperature: differences shrink with it.", "protocol 17.4", scaled_logprobs).after(&["sampling/sequences"]),
];

async fn prompt_logprobs(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let output = sampler
        .sample(
            &TEXT,
            json!({"max_tokens": 1}),
            json!({"prompt_logprobs": true}),
        )
        .await?;
    let found = output.prompt_logprobs.unwrap_or_default();
    ensure(
        found.len() == TEXT.len(),
        format_args!("{} values", TEXT.len()),
        found.len(),
    )?;
    ensure(found[0].is_nan(), "no value for the first token", found[0])?;
    let are_logprobs = found[1..]
        .iter()
        .all(|logprob| *logprob <= 1e-3 && logprob.is_finite());
    ensure(are_logprobs, "log-probabilities", format_args!("{found:?}"))?;
    OK
}

async fn last_n(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let all = sampler.score(&TEXT).await?;
    let more = json!({"prompt_logprobs": true, "prompt_logprobs_last_n": 3});
    let output = sampler
        .sample(&TEXT, json!({"max_tokens": 1}), more)
        .await?;
    let found = output.prompt_logprobs.unwrap_or_default();
    ensure(
        found.len() == TEXT.len(),
        format_args!("{} values", TEXT.len()),
        found.len(),
    )?;
    let (before, last) = found.split_at(TEXT.len() - 3);
    ensure(
        before.iter().all(|value| value.is_nan()),
        "no values before the last 3",
        format_args!("{before:?}"),
    )?;
    same("the scores of the last 3", &all[all.len() - 3..], last)?;
    OK
}

async fn top_k_prompt(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let more = json!({"prompt_logprobs": true, "topk_prompt_logprobs": 4});
    let output = sampler
        .sample(&TEXT, json!({"max_tokens": 1}), more)
        .await?;
    let scores = output.prompt_logprobs.clone().unwrap_or_default();
    let Some(rows) = output.topk_prompt_logprobs else {
        return Err(mismatch("`topk_prompt_logprobs`", "none"));
    };
    ensure(
        (rows.len(), rows.k()) == (TEXT.len(), 4),
        format_args!("{} rows of 4", TEXT.len()),
        format_args!("{} of {}", rows.len(), rows.k()),
    )?;
    for (position, token) in TEXT.iter().enumerate().skip(1) {
        let row: Vec<_> = rows.row(position).into_iter().flatten().collect();
        let is_sorted = row.windows(2).all(|pair| pair[0].1 >= pair[1].1);
        ensure(
            row.len() == 4 && is_sorted,
            format_args!("4 tokens at {position}, the likeliest first"),
            format_args!("{row:?}"),
        )?;
        let score = scores.get(position).copied().unwrap_or(f32::NAN);
        let listed = row
            .iter()
            .find(|(id, _)| id == token)
            .map(|(_, logprob)| *logprob);
        let agrees = match listed {
            Some(logprob) => (logprob - score).abs() <= SAME,
            None => score <= row[3].1 + SAME,
        };
        ensure(
            agrees,
            format_args!("agreement with the score {score:.3} of token {token}"),
            format_args!("{row:?}"),
        )?;
    }
    OK
}

async fn top_k_sample(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let params = json!({"max_tokens": 6, "stop": [], "temperature": 0.0});
    let output = sampler
        .sample(&trial.prompt(), params, json!({"topk_sample_logprobs": 3}))
        .await?;
    for sequence in &output.sequences {
        let Some(rows) = &sequence.topk_logprobs else {
            return Err(mismatch("`topk_logprobs` of a sequence", "none"));
        };
        let count = sequence.tokens.len();
        ensure(
            (rows.len(), rows.k()) == (count, 3),
            format_args!("{count} rows of 3"),
            format_args!("{} of {}", rows.len(), rows.k()),
        )?;
        for (position, token) in sequence.tokens.iter().enumerate() {
            let first = rows.row(position).into_iter().flatten().next();
            let is_first = first.is_some_and(|(id, _)| id == *token);
            ensure(
                is_first,
                format_args!("the drawn token {token} first"),
                format_args!("{first:?}"),
            )?;
        }
    }
    OK
}

async fn targets(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let scores = sampler.score(&TEXT).await?;
    let data: Vec<i64> = TEXT[1..]
        .iter()
        .flat_map(|token| [i64::from(*token), -1])
        .collect();
    let tensor = json!({"data": data, "dtype": "int64", "shape": [TEXT.len() - 1, 2]});
    let more = json!({"prompt_logprobs": true, "target_prompt_logprobs": tensor});
    let output = sampler
        .sample(&TEXT, json!({"max_tokens": 1}), more)
        .await?;
    let Some(found) = output.target_prompt_logprobs else {
        return Err(mismatch("`target_prompt_logprobs`", "none"));
    };
    let values = found.into_dense(0);
    let values = values.as_f32().unwrap_or_default();
    let expected = format!("{} values", data.len());
    ensure(values.len() == data.len(), expected, values.len())?;
    let firsts: Vec<f32> = values.chunks(2).map(|row| row[0]).collect();
    same("the scores of the prompt's own tokens", &scores, &firsts)?;
    let skipped = values.chunks(2).all(|row| row[1] == 0.0);
    ensure(
        skipped,
        "0 where -1 asks for nothing",
        format_args!("{values:?}"),
    )?;
    OK
}

async fn alternatives(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let more = json!({"prompt_logprobs": true, "prompt_alt_tokens_k": 2});
    let output = sampler
        .sample(&TEXT, json!({"max_tokens": 1}), more)
        .await?;
    let Some(found) = output.prompt_alt_tokens else {
        return Err(mismatch("`prompt_alt_tokens`", "none"));
    };
    let count = (TEXT.len() - 1) * 2;
    let shapes = [&found.tokens, &found.logprobs].map(|tensor| tensor.values().len());
    ensure(
        shapes == [count, count],
        format_args!("{count} tokens and log-probabilities"),
        format_args!("{shapes:?}"),
    )?;
    OK
}

async fn drawn_is_scored(trial: &Trial) -> Verdict {
    let sampler = trial.base_sampler().await?;
    let params = json!({"max_tokens": 12, "stop": [], "temperature": 1.0, "seed": 9});
    let drawn = sampler.one(&trial.prompt(), params).await?;
    let text = [trial.prompt(), drawn.tokens.clone()].concat();
    let scores = sampler.score(&text).await?;
    let scored = &scores[trial.prompt().len() - 1..];
    let apart = same(
        "the same log-probabilities",
        scored,
        drawn.logprobs.as_deref().unwrap_or_default(),
    )?;
    measured(format_args!("largest difference {apart:.1e}"))
}

async fn sampler_is_trainer(trial: &Trial) -> Verdict {
    let run = trial.model().await?;
    let mut apart: f32 = 0.0;
    for steps in [0, 3] {
        run.train(steps).await?;
        let sampler = run.sampler().await?;
        let (drawn, trained) = (sampler.score(&TEXT).await?, run.logprobs(&TEXT).await?);
        apart = apart.max(distance(&drawn, &trained)?);
        same("the trainer's log-probabilities", &trained, &drawn)?;
    }
    measured(format_args!("largest difference {apart:.1e}"))
}

async fn scaled_logprobs(trial: &Trial) -> Verdict {
    const TEMPERATURE: f32 = 2.0;
    let sampler = trial.base_sampler().await?;
    let params = json!({"max_tokens": 1, "stop": [], "temperature": TEMPERATURE, "seed": 2});
    let output = sampler
        .sample(&trial.prompt(), params, json!({"num_samples": 32}))
        .await?;
    let mut drawn: BTreeMap<u32, f32> = BTreeMap::new();
    for sequence in &output.sequences {
        let logprob = sequence.logprobs.as_deref().and_then(<[f32]>::first);
        if let (Some(token), Some(logprob)) = (sequence.tokens.first(), logprob) {
            drawn.insert(*token, *logprob);
        }
    }
    // The two that are furthest apart, by the sampler's own word.
    let by_logprob = |a: &(&u32, &f32), b: &(&u32, &f32)| a.1.total_cmp(b.1);
    let (Some(least), Some(most)) = (
        drawn.iter().min_by(by_logprob),
        drawn.iter().max_by(by_logprob),
    ) else {
        return Err(mismatch("tokens with log-probabilities", "none"));
    };
    let mut plain = Vec::new();
    for (token, _) in [least, most] {
        let text = [trial.prompt(), vec![*token]].concat();
        plain.push(*sampler.score(&text).await?.last().unwrap_or(&f32::NAN));
    }
    let (at_one, at_two) = (plain[1] - plain[0], most.1 - least.1);
    ensure(
        at_one.abs() > 0.2,
        "two tokens of different probability",
        format_args!("a difference of {at_one:.3}"),
    )?;
    let expected = at_one / TEMPERATURE;
    let is_scaled = (expected - at_two).abs() < 0.05 + 0.05 * expected.abs();
    ensure(
        is_scaled,
        format_args!("a difference of {expected:.3}"),
        format_args!("{at_two:.3}"),
    )?;
    measured(format_args!(
        "{at_one:.3} at temperature 1, {at_two:.3} at 2"
    ))
}
