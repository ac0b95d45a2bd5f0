//! A model in training, one operation at a time or many.

use crate::case::{Stop, mismatch};
use crate::numbers::{TEXT, datum};
use crate::sampler::Sampler;
use crate::trial::{Answer, Trial, failed, text};
use crate::wire::Sent;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicI32, Ordering};
use tinkrs_types::protocol::RequestType;
use tinkrs_types::{Datum, ForwardBackwardOutput, LossFn};
use tinkrs_wire::op::forward_backward::{ForwardBackwardRequest, decode_result};
use tinkrs_wire::{endpoint, header};

/// A model of a case.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) trial: &'a Trial,
    pub(crate) id: String,
    next: AtomicI32,
}

/// Parameters of a step, with the client's defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adam {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) grad_clip_norm: f64,
}

impl Adam {
    pub(crate) fn new(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }

    /// A step that moves the weights by the gradient times `scale`: without moments, and with an `eps` beside which the
    /// gradient does not count.
    pub(crate) fn plain(scale: f64) -> Self {
        const EPS: f64 = 1e6;
        Self {
            beta1: 0.0,
            beta2: 0.0,
            eps: EPS,
            ..Self::new(scale * EPS)
        }
    }

    pub(crate) fn json(self) -> Value {
        json!({"learning_rate": self.learning_rate, "beta1": self.beta1, "beta2": self.beta2,
            "eps": self.eps, "weight_decay": self.weight_decay, "grad_clip_norm": self.grad_clip_norm})
    }
}

impl<'a> Run<'a> {
    pub(crate) fn new(trial: &'a Trial, id: String) -> Self {
        let next = AtomicI32::new(1);
        Self { trial, id, next }
    }

    /// Takes the next sequence number.
    pub(crate) fn seq_id(&self) -> i32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Describes a pass under a number.
    pub(crate) fn pass_at(
        &self,
        seq_id: i32,
        data: Vec<Datum>,
        loss_fn: LossFn,
        forward_only: bool,
    ) -> Sent {
        let request = ForwardBackwardRequest {
            model_id: self.id.as_str().into(),
            seq_id,
            data,
            loss_fn,
            forward_only,
        };
        if self.trial.shared.json_passes.load(Ordering::Relaxed) {
            let endpoint = if forward_only {
                &endpoint::FORWARD
            } else {
                &endpoint::FORWARD_BACKWARD
            };
            let body = request.encode_json().expect("cases send text");
            return Sent::to(endpoint).bytes(header::JSON, body);
        }
        let body = request.encode().expect("cases send text");
        Sent::to(&endpoint::FORWARD_BACKWARD).bytes(header::PROTOBUF, body)
    }

    /// Describes a step under a number.
    pub(crate) fn step_at(&self, seq_id: i32, adam: Adam) -> Sent {
        let body = json!({"model_id": self.id, "seq_id": seq_id, "type": "optim_step", "adam_params": adam.json()});
        Sent::to(&endpoint::OPTIM_STEP).json(&body)
    }

    /// Sends something that is answered by a promise.
    pub(crate) async fn promise(&self, sent: &Sent) -> Result<Value, Stop> {
        self.trial.wire().accepted(sent).await?.object()
    }

    /// Waits for the result of a pass.
    pub(crate) async fn output(&self, promise: &Value) -> Result<ForwardBackwardOutput, Stop> {
        let kind = RequestType::ForwardBackward;
        let (content_type, body) = match self.trial.result(promise, kind).await? {
            Answer::Message(body) => (header::PROTOBUF, body),
            Answer::Json(value) => (header::JSON, value.to_string().into()),
            Answer::Failed { error, category } => return Err(failed(kind, &error, &category)),
        };
        decode_result(content_type, body)
            .map_err(|error| Stop::Failed(format!("the result of a pass cannot be read: {error}")))
    }

    /// Makes a pass with gradients.
    pub(crate) async fn forward_backward(
        &self,
        data: Vec<Datum>,
    ) -> Result<ForwardBackwardOutput, Stop> {
        self.pass(data, LossFn::CrossEntropy, false).await
    }

    /// Makes a pass.
    pub(crate) async fn pass(
        &self,
        data: Vec<Datum>,
        loss: LossFn,
        forward_only: bool,
    ) -> Result<ForwardBackwardOutput, Stop> {
        let sent = self.pass_at(self.seq_id(), data, loss, forward_only);
        let promise = self.promise(&sent).await?;
        self.output(&promise).await
    }

    /// Makes a step.
    pub(crate) async fn step(&self, adam: Adam) -> Result<Value, Stop> {
        let promise = self.promise(&self.step_at(self.seq_id(), adam)).await?;
        self.trial
            .json_result(&promise, RequestType::OptimStep)
            .await
    }

    /// Trains on a text for a few steps, so that the weights differ from the base model's.
    pub(crate) async fn train(&self, steps: usize) -> Result<(), Stop> {
        for _ in 0..steps {
            self.forward_backward(vec![datum(&TEXT, 1.0)]).await?;
            self.step(Adam::new(0.005)).await?;
        }
        Ok(())
    }

    /// Returns the log-probabilities of a text as the trainer has them, without touching the weights.
    pub(crate) async fn logprobs(&self, text: &[u32]) -> Result<Vec<f32>, Stop> {
        let output = self
            .pass(vec![datum(text, 1.0)], LossFn::CrossEntropy, true)
            .await?;
        logprobs(&output, 0)
    }

    /// Sends an operation on weights and waits for its JSON result.
    pub(crate) async fn weights(
        &self,
        endpoint: &endpoint::Endpoint,
        kind: RequestType,
        more: Value,
    ) -> Result<Value, Stop> {
        let promise = self
            .promise(&self.weights_at(self.seq_id(), endpoint, more))
            .await?;
        self.trial.json_result(&promise, kind).await
    }

    /// Describes an operation on weights.
    pub(crate) fn weights_at(
        &self,
        seq_id: i32,
        endpoint: &endpoint::Endpoint,
        more: Value,
    ) -> Sent {
        let mut body = json!({"model_id": self.id, "seq_id": seq_id, "type": endpoint.name});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        Sent::to(endpoint).json(&body)
    }

    /// Saves the state of training and returns its path.
    pub(crate) async fn save(&self, more: Value) -> Result<String, Stop> {
        let mut body = json!({"path": self.trial.name(), "overwrite": false});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let saved = self
            .weights(&endpoint::SAVE_WEIGHTS, RequestType::SaveWeights, body)
            .await?;
        let path = text(&saved, "path")?;
        self.trial.remember(&path);
        Ok(path)
    }

    /// Saves named weights for sampling and returns their path.
    pub(crate) async fn save_for_sampler(&self) -> Result<String, Stop> {
        let body = json!({"path": self.trial.name()});
        let kind = RequestType::SaveWeightsForSampler;
        let saved = self
            .weights(&endpoint::SAVE_WEIGHTS_FOR_SAMPLER, kind, body)
            .await?;
        let path = text(&saved, "path")?;
        self.trial.remember(&path);
        Ok(path)
    }

    /// Opens a sampler of the current weights, without a name.
    pub(crate) async fn sampler(&self) -> Result<Sampler<'a>, Stop> {
        let body = json!({"sampling_session_seq_id": self.trial.number()});
        let kind = RequestType::SaveWeightsForSampler;
        let saved = self
            .weights(&endpoint::SAVE_WEIGHTS_FOR_SAMPLER, kind, body)
            .await?;
        Ok(Sampler::new(
            self.trial,
            text(&saved, "sampling_session_id")?,
        ))
    }

    /// Loads a checkpoint into the model.
    pub(crate) async fn load(&self, path: &str, optimizer: bool) -> Result<(), Stop> {
        let body = json!({"path": path, "optimizer": optimizer});
        let loaded = self.weights(&endpoint::LOAD_WEIGHTS, RequestType::LoadWeights, body);
        loaded.await.map(drop)
    }
}

/// Returns the log-probabilities of a datum.
pub(crate) fn logprobs(output: &ForwardBackwardOutput, datum: usize) -> Result<Vec<f32>, Stop> {
    match output.logprobs(datum) {
        Some(found) => Ok(found.to_vec()),
        None => Err(mismatch(
            format_args!("`logprobs` of datum {datum}"),
            format_args!("{} datums without it", output.datums()),
        )),
    }
}
