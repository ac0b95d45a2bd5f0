//! Losses that a server can compute: traced once, then run for each datum.
//!
//! A traced loss is a function of one datum. It is called once, with variables that stand for any
//! datum's tensors, and what it does with them is written down. From then on the record is the
//! loss: it is what a server gets, and what runs here where no server does.

use super::graph;
use super::loss::{differentiate, in_target_shape};
use super::op::{NodeIndex, Op};
use super::tape::Tape;
use super::tensor::Tensor;
use super::var::{Repr, Var};
use crate::training::CustomLoss;
use crate::{BoxError, Error};
use ring::digest;
use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossInput};
use tinkrs_types::protocol::key;
use tinkrs_types::training::Metrics;
use tinkrs_types::{Datum, InvalidInput};

/// A loss that was traced.
///
/// ```
/// use tinkrs::autodiff::TracedLoss;
///
/// let loss = TracedLoss::trace(
///     "clipped",
///     [("logprobs", 1), ("old_logprobs", 1), ("advantages", 1)],
///     |[logprobs, old_logprobs, advantages]| {
///         let ratio = (logprobs - old_logprobs).exp();
///         let clipped = ratio.clamp(0.8, 1.2) * advantages;
///         let loss = -(ratio * advantages).minimum(clipped).sum();
///         (loss, vec![("custom/ratio:mean", ratio.mean())])
///     },
/// )?;
/// assert_eq!(loss.graph().nodes.last().unwrap().name, "output");
/// # Ok::<(), tinkrs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TracedLoss {
    name: String,
    inputs: Vec<CustomLossInput>,
    graph: CustomLossGraph,
    ops: Vec<Op>,
    /// The name of each operation in the graph.
    nodes: Vec<String>,
    loss: NodeIndex,
    metrics: Vec<(String, NodeIndex)>,
}

impl TracedLoss {
    /// Traces a loss of one datum.
    ///
    /// `inputs` names what the function takes, in order, with the number of dimensions of each:
    /// first `logprobs`, the log-probabilities of the target tokens, with 1 or 2; then tensors of
    /// the datum, with 0, 1 or 2. There can be 16 in all.
    ///
    /// The function returns the loss of the datum, a scalar, and metrics, scalars named
    /// `custom/<name>:sum` or `custom/<name>:mean` after the way in which those of several datums
    /// combine. It cannot look at values while it is traced, nor take tensors from elsewhere.
    ///
    /// # Errors
    /// If a name or a number of dimensions is not allowed, if the function does what cannot be
    /// traced, or if its loss does not depend on the log-probabilities.
    pub fn trace<const N: usize, F>(
        name: impl Into<String>,
        inputs: [(&str, u8); N],
        function: F,
    ) -> Result<Self, Error>
    where
        F: for<'tape> FnOnce([Var<'tape>; N]) -> (Var<'tape>, Vec<(&'static str, Var<'tape>)>),
    {
        check_inputs(&inputs)?;
        let tape = Tape::tracing();
        let vars = inputs.map(|(name, rank)| {
            let node = tape.placeholder(rank, name == key::LOGPROBS);
            Var::node(&tape, node)
        });
        let (loss, metrics) = function(vars);
        if let Some(error) = tape.error() {
            return Err(Error::CustomLoss(error.into()));
        }
        let loss = scalar(&tape, "loss", loss)?;
        let metrics = check_metrics(&tape, metrics)?;
        let nodes = tape.into_nodes();
        if !nodes[loss].needs_gradient {
            let allowed = "one that depends on `logprobs`";
            return Err(InvalidInput::new("loss", "a constant", allowed).into());
        }
        let ops: Vec<Op> = nodes.into_iter().map(|node| node.op).collect();
        let names = inputs.map(|(name, _)| name);
        let (graph, nodes) = graph::encode(&names, &ops, loss, &metrics);
        let input = |(name, rank): &(&str, u8)| CustomLossInput {
            name: (*name).to_owned(),
            rank: *rank,
        };
        Ok(Self {
            name: name.into(),
            inputs: inputs.iter().map(input).collect(),
            graph,
            ops,
            nodes,
            loss,
            metrics,
        })
    }

    /// Returns the name that the loss was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the loss takes: `logprobs`, then tensors of the datum.
    pub fn inputs(&self) -> &[CustomLossInput] {
        &self.inputs
    }

    /// Returns what the loss does.
    pub fn graph(&self) -> &CustomLossGraph {
        &self.graph
    }

    /// Returns a text that is the same for losses that take and do the same, whatever their name.
    ///
    /// A session needs each loss once.
    pub fn key(&self) -> String {
        let identity = serde_json::json!([self.graph, self.inputs]).to_string();
        let hash = digest::digest(&digest::SHA256, identity.as_bytes());
        tinkrs_wire::text::hex(hash.as_ref())
    }

    /// Checks that every datum has what the loss takes.
    ///
    /// # Errors
    /// If a tensor is missing, or has another number of dimensions than was declared.
    pub fn check(&self, data: &[Datum]) -> Result<(), InvalidInput> {
        for (index, datum) in data.iter().enumerate() {
            for (position, input) in self.inputs.iter().enumerate() {
                let is_logprobs = position == 0;
                let name = if is_logprobs {
                    key::TARGET_TOKENS
                } else {
                    &input.name
                };
                let rank = datum.loss_fn_inputs().get(name).map(|tensor| tensor.rank());
                if rank != Some(usize::from(input.rank)) {
                    let found = rank.map_or("nothing".to_owned(), dimensions);
                    let Self { name: loss, .. } = self;
                    let allowed =
                        format!("{}, as loss `{loss}` takes", dimensions(input.rank.into()));
                    let error = InvalidInput::new(name.to_owned(), found, allowed);
                    return Err(error.at_datum(index));
                }
            }
        }
        Ok(())
    }

    /// Computes the loss of one datum from the log-probabilities of its targets.
    ///
    /// The result has one gradient, and the metrics as the datum gives them.
    ///
    /// # Errors
    /// If the datum lacks a tensor, or its tensors' sizes do not fit the loss.
    pub fn evaluate(&self, datum: &Datum, logprobs: &[f32]) -> Result<CustomLoss, BoxError> {
        self.check(std::slice::from_ref(datum))?;
        let tape = Tape::new();
        for (op, node) in self.ops.iter().zip(&self.nodes) {
            let made = match op {
                Op::Input(0) => Ok(tape.input(in_target_shape(logprobs, datum)?)),
                Op::Input(position) => Ok(tape.constant(self.input(*position, datum)?)),
                op => tape.apply(op.clone()),
            };
            made.map_err(|reason| format!("loss `{}`: `{node}`: {reason}", self.name))?;
        }
        let metric =
            |(name, node): &(String, NodeIndex)| (name.clone(), Var::node(&tape, *node).value());
        let metrics = self.metrics.iter().map(metric).collect();
        let (loss, gradients) = differentiate(&tape, Var::node(&tape, self.loss), 1)?;
        Ok(CustomLoss {
            loss,
            gradients,
            metrics,
        })
    }

    /// Computes the loss of a batch: the sum of the losses of its datums.
    ///
    /// Metrics named `:sum` are added up, those named `:mean` averaged over the datums. This is
    /// what `forward_backward_custom` takes: `move |data, logprobs| loss.evaluate_batch(data,
    /// logprobs)`.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate); the error names the datum.
    pub fn evaluate_batch(
        &self,
        data: &[Datum],
        logprobs: &[&[f32]],
    ) -> Result<CustomLoss, BoxError> {
        self.check(data)?;
        let mut batch = CustomLoss::default();
        for (index, (datum, logprobs)) in data.iter().zip(logprobs).enumerate() {
            let evaluated = self.evaluate(datum, logprobs);
            let one = evaluated.map_err(|error| format!("datum {index}: {error}"))?;
            batch.loss += one.loss;
            batch.gradients.extend(one.gradients);
            for (name, value) in one.metrics {
                *batch.metrics.entry(name).or_default() += value;
            }
        }
        average(&mut batch.metrics, data.len());
        Ok(batch)
    }

    fn input(&self, position: usize, datum: &Datum) -> Result<Tensor, InvalidInput> {
        let name = self.inputs.get(position).map_or("", |input| &input.name);
        let tensor = datum.loss_fn_inputs().get(name);
        let missing = || InvalidInput::new(name.to_owned(), "nothing", "a tensor");
        Tensor::try_from(tensor.ok_or_else(missing)?)
    }
}

/// Divides the means, which were added up, by the number of datums.
fn average(metrics: &mut Metrics, datums: usize) {
    for (name, value) in metrics {
        if name.ends_with(":mean") {
            *value /= datums as f64;
        }
    }
}

const MAX_INPUTS: usize = 16;

/// Words that a server could not use as the name of a parameter, since it speaks Python.
const PYTHON_KEYWORDS: [&str; 32] = [
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif",
    "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda",
    "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

fn check_inputs(inputs: &[(&str, u8)]) -> Result<(), InvalidInput> {
    match inputs {
        [(key::LOGPROBS, 1 | 2), ..] => {}
        [(key::LOGPROBS, rank), ..] => {
            let found = dimensions((*rank).into());
            return Err(InvalidInput::new(
                key::LOGPROBS,
                found,
                "1, or 2 with candidates",
            ));
        }
        other => {
            let found = other.first().map_or("nothing", |(name, _)| name);
            return Err(InvalidInput::new(
                "inputs",
                found,
                "`logprobs` as the first",
            ));
        }
    }
    if inputs.len() > MAX_INPUTS {
        return Err(InvalidInput::new(
            "inputs",
            inputs.len(),
            "at most 16, with `logprobs`",
        ));
    }
    for (position, (name, rank)) in inputs.iter().enumerate() {
        let field = || format!("inputs[{position}]");
        if !is_input_name(name) {
            let allowed = "up to 64 of a-z, 0-9 and _, no digit first, no word of Python's";
            return Err(InvalidInput::new(
                field(),
                format_args!("`{name}`"),
                allowed,
            ));
        }
        if inputs[..position]
            .iter()
            .any(|(earlier, _)| earlier == name)
        {
            let found = format!("`{name}` again");
            return Err(InvalidInput::new(field(), found, "each name once"));
        }
        if *rank > 2 {
            let found = format!("`{name}` with {}", dimensions((*rank).into()));
            return Err(InvalidInput::new(field(), found, "0, 1 or 2"));
        }
    }
    Ok(())
}

fn is_input_name(name: &str) -> bool {
    let letters = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    (1..=64).contains(&name.len())
        && name.bytes().all(letters)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !PYTHON_KEYWORDS.contains(&name)
}

fn check_metrics(
    tape: &Tape,
    metrics: Vec<(&'static str, Var<'_>)>,
) -> Result<Vec<(String, NodeIndex)>, InvalidInput> {
    let mut checked: Vec<(String, NodeIndex)> = Vec::new();
    for (name, var) in metrics {
        if !is_metric_name(name) {
            let allowed = "`custom/<name>:sum` or `:mean`, with up to 64 of a-z, 0-9 and _./-";
            return Err(InvalidInput::new(
                "metrics",
                format_args!("`{name}`"),
                allowed,
            ));
        }
        if checked.iter().any(|(earlier, _)| earlier == name) {
            let found = format!("`{name}` again");
            return Err(InvalidInput::new("metrics", found, "each name once"));
        }
        checked.push((name.to_owned(), scalar(tape, name, var)?));
    }
    Ok(checked)
}

fn is_metric_name(name: &str) -> bool {
    let middle = name.strip_prefix("custom/").and_then(|name| {
        let without = |suffix| name.strip_suffix(suffix);
        without(":sum").or_else(|| without(":mean"))
    });
    let letters = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"_./-".contains(&c);
    middle.is_some_and(|middle| (1..=64).contains(&middle.len()) && middle.bytes().all(letters))
}

/// Returns where a result stands on the tape, if it is a scalar there.
fn scalar(tape: &Tape, name: &'static str, var: Var<'_>) -> Result<NodeIndex, InvalidInput> {
    let found = match var.repr {
        Repr::Node(_, node) => match tape.rank(node) {
            0 => return Ok(node),
            rank => dimensions(rank.into()),
        },
        Repr::Number(number) => format!("the plain number {number}"),
        Repr::Failed(fault) => fault.error().to_string(),
    };
    Err(InvalidInput::new(
        name,
        found,
        "a scalar that the function computes",
    ))
}

fn dimensions(rank: usize) -> String {
    match rank {
        1 => "1 dimension".to_owned(),
        _ => format!("{rank} dimensions"),
    }
}
