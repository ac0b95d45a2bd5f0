//! The data of a step, from the journal.
//!
//! Nothing is stored for this: the journal has the bodies of passes since the snapshot before the last, and their
//! results for as long as their client may ask for them.

use axum::extract::State;
use bytes::Bytes;
use tinkrs_types::input::Chunk;
use tinkrs_types::protocol::key;
use tinkrs_types::{Datum, ForwardBackwardOutput, LossFn, ModelId};
use tinkrs_wire::header;
use tinkrs_wire::op::forward_backward::{self, ForwardBackwardRequest};
use tinkrs_wire::op::run_view::{KeptSteps, StepData, StepDatum, StepQuery, TokenText};

use crate::Server;
use crate::api::Plain;
use crate::body::read_json_with;
use crate::error::ApiError;
use crate::extract::{Caller, InPath, Parameters};
use crate::operations::forward_backward::{FORWARD_BACKWARD, FORWARD_BACKWARD_JSON};
use crate::operations::optim_step::OPTIM_STEP;
use crate::results::ResultFormat;
use crate::state::Base;
use crate::store::studio::{JournalEntry, Reading};

/// How many datums a page has, unless a request says otherwise, and at most.
const LIMIT: u64 = 64;
const MOST: u64 = 256;
/// How many tokens a page has at most, beside its first datum.
const TOKENS: usize = 200_000;
/// How far back the journal is read.
const ENTRIES: usize = 20_000;

pub(crate) async fn get(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath((run, step)): InPath<(String, i64)>,
    Parameters(query): Parameters<StepQuery>,
) -> Result<Plain<StepData>, ApiError> {
    let run = server.own_run(owner, &run)?;
    let base_model = {
        let record = server.registry().find_stored_run(owner, &run)?;
        record.map(|record| record.base_model).unwrap_or_default()
    };
    // Bodies may be large: one after the other.
    let turns = server.clone();
    let _turn = turns.shared().step_turn.acquire().await;
    let id = run.clone();
    let passes = server.read(move |_, reading| passes(reading, &id)).await?;
    let kept = kept(&passes).ok_or_else(|| gone(&run, step, None))?;
    let of_step = passes.into_iter().filter(|(of, _)| *of == step);
    let mut entries: Vec<_> = of_step.map(|(_, entry)| entry).collect();
    if entries.is_empty() {
        return Err(gone(&run, step, Some(kept)));
    }
    // The journal is read from its end.
    entries.reverse();
    let page = Page {
        offset: query.offset.unwrap_or(0),
        limit: query.limit.unwrap_or(LIMIT).min(MOST),
        tokens: 0,
        total: 0,
        datums: Vec::new(),
    };
    let read = tokio::task::spawn_blocking(move || {
        let base = server.base(&base_model).ok().cloned();
        let mut page = page;
        for entry in &entries {
            page.add(&server, base.as_deref(), entry)?;
        }
        Ok::<_, ApiError>(page)
    });
    let page = read
        .await
        .map_err(|error| ApiError::unavailable(error.to_string()))??;
    Ok(Plain(StepData {
        step,
        datums: page.datums,
        total: page.total,
        kept,
    }))
}

fn gone(run: &ModelId, step: i64, kept: Option<KeptSteps>) -> ApiError {
    let kept = match kept {
        Some(KeptSteps { from, to }) => format!("it has those of the steps {from} to {to}"),
        None => "it has none of this run: the journal forgets data once they are in a snapshot of the run, and when \
                 the run is closed"
            .to_owned(),
    };
    ApiError::not_found(format!(
        "the journal does not have the data of step {step} of `{run}`: {kept}"
    ))
}

/// Lists the passes of a run whose bodies are in the journal with the steps that they belong to, the latest first.
fn passes(reading: &Reading<'_>, run: &ModelId) -> Result<Vec<(i64, JournalEntry)>, ApiError> {
    let steps = reading.progress(run)?.steps;
    Ok(assign(steps, reading.journal(run, ENTRIES)?))
}

fn assign(steps: i64, journal: Vec<JournalEntry>) -> Vec<(i64, JournalEntry)> {
    let mut step = steps + 1;
    let mut passes = Vec::new();
    for entry in journal {
        if entry.kind == OPTIM_STEP.name && entry.outcome == Some(ResultFormat::Json) {
            step -= 1;
        } else if entry.outcome == Some(ResultFormat::Pass) {
            if !entry.has_body {
                // Part of this step is gone, and so is all before it.
                passes.retain(|(of, _)| *of != step);
                break;
            }
            passes.push((step, entry));
        }
    }
    passes
}

fn kept(passes: &[(i64, JournalEntry)]) -> Option<KeptSteps> {
    let steps = passes.iter().map(|(step, _)| *step);
    Some(KeptSteps {
        from: steps.clone().min()?,
        to: steps.max()?,
    })
}

struct Page {
    offset: u64,
    limit: u64,
    tokens: usize,
    total: u64,
    datums: Vec<StepDatum>,
}

impl Page {
    fn add(
        &mut self,
        server: &Server,
        base: Option<&Base>,
        entry: &JournalEntry,
    ) -> Result<(), ApiError> {
        let store = &server.shared().store;
        let lost = |error| ApiError::unavailable(format!("could not read the journal: {error}"));
        let body = Bytes::from(store.body(&entry.id).map_err(lost)?);
        let request = match entry.kind.as_str() {
            kind if kind == FORWARD_BACKWARD.name => ForwardBackwardRequest::decode(body)?,
            kind if kind == FORWARD_BACKWARD_JSON.name => {
                read_json_with(&body, ForwardBackwardRequest::decode_json)?
            }
            _ => return Ok(()),
        };
        if request.forward_only {
            return Ok(());
        }
        let output = entry.has_result.then(|| {
            let bytes = Bytes::from(store.result(&entry.id).ok()?);
            forward_backward::decode_result(header::PROTOBUF, bytes).ok()
        });
        let output = output.flatten();
        for (index, datum) in request.data.iter().enumerate() {
            let place = self.total;
            self.total += 1;
            let is_full = !self.datums.is_empty() && self.tokens > TOKENS;
            if place < self.offset || self.datums.len() as u64 >= self.limit || is_full {
                continue;
            }
            let shown = show(base, datum, (output.as_ref(), index), &request.loss_fn);
            self.tokens += shown.tokens.len();
            self.datums.push(StepDatum {
                index: place,
                request_id: entry.id.clone(),
                ..shown
            });
        }
        Ok(())
    }
}

fn show(
    base: Option<&Base>,
    datum: &Datum,
    (output, index): (Option<&ForwardBackwardOutput>, usize),
    loss_fn: &LossFn,
) -> StepDatum {
    let text = |id: u32| TokenText {
        id: Some(id),
        text: base.map_or_else(String::new, |base| {
            String::from_utf8_lossy(base.token_bytes(id)).into_owned()
        }),
    };
    let targets = datum.target_tokens().and_then(|targets| {
        let one_each = targets.rank() == 1;
        targets.as_i64().filter(|_| one_each)
    });
    let inputs = datum
        .model_input()
        .chunks()
        .iter()
        .flat_map(|chunk| match chunk {
            Chunk::Text(tokens) => tokens.iter().copied().map(Some).collect(),
            _ => vec![None],
        });
    let shown = |id: Option<u32>| match id {
        Some(id) => text(id),
        None => TokenText {
            id: None,
            text: "[image]".to_owned(),
        },
    };
    let tokens: Vec<_> = match targets {
        Some(targets) => {
            let targets = targets.iter().map(|id| u32::try_from(*id).ok());
            inputs.take(1).chain(targets).map(shown).collect()
        }
        // With several targets at a position, the input is what can be read.
        None => inputs.map(shown).collect(),
    };
    let has_targets = targets.is_some();
    let align = |values: &[f32]| {
        let number = |value: &f32| value.is_finite().then(|| rounded(f64::from(*value)));
        let values = values.iter().map(number);
        std::iter::once(None).chain(values).collect::<Vec<_>>()
    };
    let tensor = |name: &str| {
        let tensor = datum.loss_fn_inputs().get(name)?;
        tensor.as_f32().filter(|_| has_targets)
    };
    let logprobs = output
        .and_then(|output| output.logprobs(index))
        .filter(|logprobs| targets.is_some_and(|targets| targets.len() == logprobs.len()));
    let weights = tensor(key::WEIGHTS);
    let loss = logprobs
        .filter(|_| *loss_fn == LossFn::CrossEntropy)
        .map(|logprobs| {
            let weight =
                |index: usize| weights.map_or(1.0, |all| all.get(index).copied().unwrap_or(0.0));
            let terms = logprobs.iter().enumerate();
            let terms = terms.filter(|(index, _)| weight(*index) != 0.0);
            -terms
                .map(|(index, logprob)| f64::from(*logprob) * f64::from(weight(index)))
                .sum::<f64>()
        });
    StepDatum {
        index: 0,
        request_id: "".into(),
        loss_fn: loss_fn.name().to_owned(),
        tokens,
        weights: weights.map(align),
        target_logprobs: logprobs.map(align),
        sampler_logprobs: tensor(key::LOGPROBS).map(align),
        advantages: tensor(key::ADVANTAGES).map(align),
        loss: loss.filter(|loss| loss.is_finite()).map(rounded),
    }
}

/// Six decimals are more than anyone sees.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
