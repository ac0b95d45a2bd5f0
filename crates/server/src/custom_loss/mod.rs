//! Losses that clients upload.
//!
//! A client traces a loss of one datum with PyTorch and sends the trace: a list of calls by name.
//! [`CompiledLoss::new`] rebuilds it from the functions that this server knows, `functions`, and
//! refuses every other by its name; nothing that was sent is ever executed. What it keeps is a list
//! of steps, which its `evaluate`, called by the backend, runs on a tape for one datum at a time, to take
//! derivatives by the log-probabilities from it.
//!
//! 1. `program`: the graph, checked and decoded;
//! 2. `functions`: what may be called, each with its parameters;
//! 3. `value`: what arguments and results are.
//!
//! The tape that it runs on is [`tinkrs_autodiff`]'s.
//!
//! Everything is computed in `f64`. The sizes of datums are not known when a loss is created, so
//! that is tried with small ones: whatever would go wrong with datums of any size is refused then.

mod functions;
mod limits;
mod program;
#[cfg(test)]
mod tests;
mod value;

use tinkrs_backend::CustomOutput;
use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossInput};
use tinkrs_types::protocol::key;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::{Datum, InvalidInput, TensorData};

use tinkrs_autodiff::{Dtype, Error, Tensor, size};

use program::{Output, Program};

/// A loss that a client uploaded, ready to run.
#[derive(Debug)]
pub(crate) struct CompiledLoss {
    name: String,
    inputs: Vec<CustomLossInput>,
    program: Program,
}

impl CompiledLoss {
    /// Rebuilds a loss from its graph.
    ///
    /// # Errors
    ///
    /// When the graph is malformed or too large, calls what this server does not know, or cannot be
    /// computed for datums of any size. The message names the node and what it calls.
    pub(crate) fn new(
        name: &str,
        inputs: &[CustomLossInput],
        graph: &CustomLossGraph,
    ) -> Result<Self, InvalidInput> {
        if name.is_empty() || name.len() > limits::NAME_BYTES {
            let allowed = format!("1 to {} bytes", limits::NAME_BYTES);
            return Err(InvalidInput::new(
                "name",
                format!("{} bytes", name.len()),
                allowed,
            ));
        }
        program::check_inputs(inputs)?;
        let loss = Self {
            name: name.to_owned(),
            inputs: inputs.to_vec(),
            program: Program::new(inputs, graph)?,
        };
        loss.try_small()?;
        Ok(loss)
    }

    /// Reads what the loss takes, the log-probabilities first.
    fn tensors(&self, logprobs: &[f32], datum: &Datum) -> Result<Vec<Tensor>, Error> {
        let shape = datum.target_tokens().map(shape_of).unwrap_or_default();
        if size(&shape) != logprobs.len() {
            let count = logprobs.len();
            let reason = format!("{count} log-probabilities for targets of shape {shape:?}");
            return Err(Error::Size(reason));
        }
        let logprobs = logprobs.iter().copied().map(f64::from).collect();
        let mut inputs = vec![Tensor::new(shape, logprobs, Dtype::Float)];
        for (name, _) in self.keys().skip(1) {
            let found = datum.loss_fn_inputs().get(name);
            let missing = || Error::Size(format!("the datum has no `{name}`"));
            inputs.push(read(found.ok_or_else(missing)?));
        }
        Ok(inputs)
    }

    fn run(&self, inputs: Vec<Tensor>) -> Result<CustomOutput, Error> {
        let Output {
            tape,
            logprobs,
            loss,
            metrics,
        } = self.program.run(inputs)?;
        let gradient = tape.gradients(loss)[logprobs].take();
        Ok(CustomOutput {
            loss: tape.tensor(loss).values[0],
            gradient: gradient.unwrap_or_else(|| vec![0.0; tape.tensor(logprobs).len()]),
            metrics,
        })
    }

    /// The keys of a datum that hold the inputs.
    fn keys(&self) -> impl Iterator<Item = (&str, &CustomLossInput)> {
        self.inputs.iter().enumerate().map(|(index, input)| {
            // The first input is the log-probabilities, which have the shape of the targets.
            let name = if index == 0 {
                key::TARGET_TOKENS
            } else {
                &input.name
            };
            (name, input)
        })
    }

    /// Runs the loss on a small datum, to find what is wrong with it at any size.
    fn try_small(&self) -> Result<(), InvalidInput> {
        let small = |input: &CustomLossInput| {
            let shape = [5, 3][..usize::from(input.rank)].to_vec();
            Tensor::new(shape.clone(), vec![0.5; size(&shape)], Dtype::Float)
        };
        let refused = |reason: String| InvalidInput::new("graph", reason, "what can be computed");
        match self.program.run(self.inputs.iter().map(small).collect()) {
            Ok(output) if !output.tape.needs_gradient(output.loss) => Err(refused(
                "a loss that does not depend on `logprobs`".to_owned(),
            )),
            Ok(_) | Err(Error::Size(_)) => Ok(()),
            Err(Error::Kind(reason)) => Err(refused(reason)),
        }
    }
}

impl tinkrs_backend::CustomLoss for CompiledLoss {
    /// Checks that a datum has what the loss takes. It may have more: clients send a datum as it is, and
    /// run the same loss on it themselves where a server does not.
    ///
    /// # Errors
    ///
    /// When a tensor is missing, or has another rank than was declared.
    fn check(&self, datum: &Datum) -> Result<(), InvalidInput> {
        for (name, input) in self.keys() {
            let rank = datum.loss_fn_inputs().get(name).map(TensorData::rank);
            if rank != Some(usize::from(input.rank)) {
                let found = rank.map_or("nothing".to_owned(), |rank| format!("rank {rank}"));
                let allowed = format!("rank {}, as loss `{}` takes it", input.rank, self.name);
                return Err(InvalidInput::new(name.to_owned(), found, allowed));
            }
        }
        Ok(())
    }

    /// Computes the loss of a datum that passes [`check`](Self::check), from the log-probabilities of
    /// its targets.
    ///
    /// # Errors
    ///
    /// When the sizes of its tensors do not fit the loss. The message names the node.
    fn evaluate(&self, logprobs: &[f32], datum: &Datum) -> Result<CustomOutput, String> {
        let evaluated = self
            .tensors(logprobs, datum)
            .and_then(|inputs| self.run(inputs));
        evaluated.map_err(|failure| failure.at(&format!("loss `{}`", self.name)).reason())
    }
}

fn shape_of(tensor: &TensorData) -> Vec<usize> {
    let flat = || vec![tensor.values().len()];
    tensor.shape().map_or_else(flat, <[usize]>::to_vec)
}

fn read(tensor: &TensorData) -> Tensor {
    let shape = shape_of(tensor);
    match tensor.clone().into_dense(0).into_values() {
        TensorValues::F32(values) => {
            let values = values.into_iter().map(f64::from).collect();
            Tensor::new(shape, values, Dtype::Float)
        }
        TensorValues::I64(values) => {
            let values = values.into_iter().map(|value| value as f64).collect();
            Tensor::new(shape, values, Dtype::Int)
        }
    }
}
