//! Training runs of the fake backend.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tinkrs_backend::{
    Adapter, Error, ErrorKind, Objective, Pass, PassProgress, PassRequest, TrainingRun,
    TrainingState,
};
use tinkrs_types::protocol::key;
use tinkrs_types::training::{
    BatchedTensor, Metrics, OptimStepOutput, OptimizerParams, OutputRecord,
};
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, LoraConfig, LossFn};

use super::{
    AdapterSettings, CONTEXT, FakeBackend, SETTINGS, State, VOCABULARY, WEIGHTS, logprobs,
};

pub(super) struct FakeRun {
    backend: FakeBackend,
    shared: Arc<Mutex<Shared>>,
}

/// What a run and its pass have in common.
struct Shared {
    state: State,
    /// Counts what a pass that began earlier must not be continued after.
    revision: u64,
}

impl FakeRun {
    pub(super) fn new(backend: FakeBackend, state: State) -> Self {
        let shared = Arc::new(Mutex::new(Shared { state, revision: 0 }));
        Self { backend, shared }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TrainingRun for FakeRun {
    fn lora(&self) -> LoraConfig {
        lock(&self.shared).state.lora.clone()
    }

    fn begin(&mut self, request: PassRequest) -> Result<Box<dyn Pass>, Error> {
        let examples = request.data.iter().enumerate();
        let examples = examples.map(|(index, datum)| {
            if let Objective::Custom(loss) = &request.objective {
                loss.check(datum).map_err(|error| error.at_datum(index))?;
            }
            Example::new(index, datum)
        });
        let examples = examples.collect::<Result<_, Error>>()?;
        let mut shared = lock(&self.shared);
        shared.revision += 1;
        Ok(Box::new(FakePass {
            backend: self.backend.clone(),
            run: Arc::clone(&self.shared),
            revision: shared.revision,
            weights: shared.state.weights.clone(),
            gradients: shared.state.gradients.clone(),
            examples,
            next: 0,
            results: Vec::new(),
            metrics: Metrics::new(),
            request,
        }))
    }

    fn optim_step(&mut self, params: &OptimizerParams) -> Result<OptimStepOutput, Error> {
        let mut shared = lock(&self.shared);
        let rate = rate(&shared.state, params)?;
        shared.revision += 1;
        let steps = self.backend.counts.steps.fetch_add(1, Ordering::SeqCst);
        let noise = if self.backend.repeats_exactly {
            0.0
        } else {
            1e-3 * (steps + 1) as f32
        };
        let state = &mut shared.state;
        let mut weights = state.weights.clone();
        for (weight, gradient) in weights.iter_mut().zip(&state.gradients) {
            if *gradient != 0.0 {
                *weight -= rate * gradient.signum();
            }
            *weight += noise;
        }
        if weights.iter().any(|weight| !weight.is_finite()) {
            return Err(Error::new(
                ErrorKind::Divergence,
                "optim_step: a weight is not finite",
            ));
        }
        state.weights = weights;
        state.gradients = vec![0.0; VOCABULARY];
        state.steps += 1;
        let metrics = BTreeMap::from([("optimizer_step".to_owned(), state.steps as f64)]);
        Ok(OptimStepOutput::new(Some(metrics)))
    }

    fn state(&self) -> Box<dyn TrainingState> {
        Box::new(lock(&self.shared).state.clone())
    }

    fn adapter(&self) -> Adapter {
        Adapter::new(Arc::new(lock(&self.shared).state.weights.clone()))
    }

    fn save_adapter(&self, folder: &Path, base_model: &str) -> Result<(), Error> {
        let shared = lock(&self.shared);
        let settings = AdapterSettings {
            base_model_name_or_path: base_model.to_owned(),
            r: shared.state.lora.rank as usize,
        };
        super::write(&folder.join(WEIGHTS), &shared.state.weights)?;
        super::write(&folder.join(SETTINGS), &settings)
    }
}

/// How far a step moves each number.
fn rate(state: &State, params: &OptimizerParams) -> Result<f32, Error> {
    if params.name() != state.optimizer.name() {
        let found = params.name();
        let allowed = state.optimizer.name().to_owned();
        return Err(InvalidInput::new("optimizer_params.type", found, allowed).into());
    }
    match params {
        // Smaller from step to step: this optimizer remembers, too.
        OptimizerParams::Adam(params) => Ok(params.learning_rate as f32 / (state.steps + 1) as f32),
        OptimizerParams::Other(params) => {
            let rate = params.members.get("learning_rate").and_then(Value::as_f64);
            let rate = rate.ok_or_else(|| Error::bad_request("`learning_rate` is missing"))?;
            Ok(rate as f32)
        }
        other => Err(Error::bad_request(format!("no step with {}", other.name()))),
    }
}

impl TrainingState for State {
    fn write(&self, file: &Path) -> Result<(), Error> {
        super::write(file, self)
    }
}

/// A datum that can be computed.
struct Example {
    tokens: Vec<u32>,
    targets: Vec<u32>,
    weights: Vec<f32>,
}

impl Example {
    fn new(index: usize, datum: &Datum) -> Result<Self, Error> {
        let bad = |what: String| Error::bad_request(format!("datum {index}: {what}"));
        let tokens = datum.model_input().to_tokens();
        let tokens = tokens.ok_or_else(|| bad("the backend reads text only".to_owned()))?;
        let targets = datum.target_tokens().cloned().map(|t| t.into_dense(0));
        let targets = targets.as_ref().and_then(|targets| targets.as_i64());
        let targets = targets.ok_or_else(|| bad("`target_tokens` is missing".to_owned()))?;
        if tokens.is_empty() || tokens.len() > CONTEXT {
            return Err(bad(format!("{} tokens do not fit", tokens.len())));
        }
        if targets.len() != tokens.len() {
            let (found, expected) = (targets.len(), tokens.len());
            return Err(bad(format!("{found} targets for {expected} tokens")));
        }
        let known = |token: i64| {
            u32::try_from(token)
                .ok()
                .filter(|t| (*t as usize) < VOCABULARY)
        };
        let token = |token: i64| {
            let outside = format!("token {token} is outside the vocabulary of {VOCABULARY}");
            known(token).ok_or_else(|| bad(outside))
        };
        let weights = datum
            .weights()
            .cloned()
            .map(|weights| weights.into_dense(0));
        let weights = weights.as_ref().and_then(|weights| weights.as_f32());
        Ok(Self {
            tokens: tokens
                .iter()
                .map(|found| token(i64::from(*found)))
                .collect::<Result<_, _>>()?,
            targets: targets
                .iter()
                .map(|found| token(*found))
                .collect::<Result<_, _>>()?,
            weights: weights.map_or_else(|| vec![1.0; tokens.len()], <[f32]>::to_vec),
        })
    }
}

struct FakePass {
    backend: FakeBackend,
    run: Arc<Mutex<Shared>>,
    revision: u64,
    request: PassRequest,
    weights: Vec<f32>,
    gradients: Vec<f32>,
    examples: Vec<Example>,
    next: usize,
    results: Vec<Vec<f32>>,
    metrics: Metrics,
}

impl Pass for FakePass {
    fn advance(&mut self, max_tokens: usize) -> Result<PassProgress, Error> {
        (self.backend.before_slice)();
        let run = Arc::clone(&self.run);
        let mut shared = lock(&run);
        if shared.revision != self.revision {
            return Err(Error::bad_request(
                "the run was changed since the pass began",
            ));
        }
        let mut tokens = 0;
        while self.next < self.examples.len() {
            let length = self.examples[self.next].tokens.len();
            if tokens > 0 && tokens + length > max_tokens {
                return Ok(PassProgress::Continue);
            }
            tokens += length;
            self.backend.meet(&self.examples[self.next].tokens);
            self.compute(self.next)?;
            self.next += 1;
        }
        shared.revision += 1;
        self.backend.counts.passes.fetch_add(1, Ordering::SeqCst);
        if self.request.backward {
            shared.state.gradients = std::mem::take(&mut self.gradients);
        }
        Ok(PassProgress::Done(self.output()?))
    }
}

impl FakePass {
    fn compute(&mut self, index: usize) -> Result<(), Error> {
        let example = &self.examples[index];
        let tokens = example.tokens.iter();
        let distributions: Vec<_> = tokens
            .map(|token| logprobs(&self.weights, *token))
            .collect();
        let targets = example.targets.iter().zip(&distributions);
        let found: Vec<f32> = targets.map(|(target, all)| all[*target as usize]).collect();
        let (loss, slopes, metrics) = evaluate(&self.request, index, example, &found)?;
        *self.metrics.entry("loss:sum".to_owned()).or_default() += loss;
        for (name, value) in metrics {
            *self.metrics.entry(name).or_default() += value;
        }
        for ((target, all), slope) in example.targets.iter().zip(&distributions).zip(&slopes) {
            for (token, logprob) in all.iter().enumerate() {
                let is_target = if token == *target as usize { 1.0 } else { 0.0 };
                self.gradients[token] += slope * (is_target - logprob.exp());
            }
        }
        self.results.push(found);
        Ok(())
    }

    fn output(&self) -> Result<ForwardBackwardOutput, InvalidInput> {
        let field = BatchedTensor::from_datums(self.results.iter().map(Vec::as_slice));
        let fields = [(key::LOGPROBS.to_owned(), field)].into();
        let records = vec![OutputRecord::new(self.results.len(), fields)?];
        let metrics = self.metrics.clone();
        Ok(ForwardBackwardOutput::new(
            "scalar".to_owned(),
            records,
            metrics,
        ))
    }
}

/// A datum's loss, its derivatives and its metrics.
type Evaluated = (f64, Vec<f32>, Vec<(String, f64)>);

fn evaluate(
    request: &PassRequest,
    index: usize,
    example: &Example,
    logprobs: &[f32],
) -> Result<Evaluated, Error> {
    let bad = |reason: String| Error::bad_request(format!("datum {index}: {reason}"));
    match &request.objective {
        Objective::BuiltIn(LossFn::CrossEntropy) => {
            let terms = example.weights.iter().zip(logprobs);
            let terms = terms.map(|(weight, logprob)| -f64::from(*weight) * f64::from(*logprob));
            let slopes = example.weights.iter().map(|weight| -weight);
            Ok((terms.sum(), slopes.collect(), Vec::new()))
        }
        Objective::BuiltIn(other) => Err(bad(format!(
            "the fake backend has no loss `{}`",
            other.name()
        ))),
        Objective::Custom(loss) => {
            let output = loss.evaluate(logprobs, &request.data[index]).map_err(bad)?;
            let slopes = output.gradient.iter().map(|slope| *slope as f32);
            Ok((output.loss, slopes.collect(), output.metrics))
        }
    }
}
