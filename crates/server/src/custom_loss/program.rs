//! A graph, checked and decoded into steps.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};
use tinkrs_types::InvalidInput;
use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossInput, CustomLossNode, NodeOp};
use tinkrs_types::protocol::key;

use super::functions::{self, Call, Function};
use super::limits;
use super::value::{Number, Value};
use tinkrs_autodiff::{Dtype, Error, Id, Tape, Tensor};

/// The steps of a loss, in order. Operands name earlier results by their number.
#[derive(Debug)]
pub(super) struct Program {
    steps: Vec<Step>,
    loss: usize,
    metrics: Vec<(String, usize)>,
}

#[derive(Debug)]
struct Step {
    /// The node and what it calls, for messages.
    place: String,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Input(usize),
    Call(&'static Function, Vec<Option<Operand>>),
}

/// An argument: a literal, or made of earlier results.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Result(usize),
    Literal(Value),
    List(Vec<Self>),
    Slice(Box<[Self; 3]>),
}

/// What a run leaves behind.
pub(super) struct Output {
    pub(super) tape: Tape,
    pub(super) logprobs: Id,
    pub(super) loss: Id,
    pub(super) metrics: Vec<(String, f64)>,
}

/// Checks the declared inputs.
pub(super) fn check_inputs(inputs: &[CustomLossInput]) -> Result<(), InvalidInput> {
    if inputs.is_empty() || inputs.len() > limits::INPUTS {
        let allowed = format!("1 to {} inputs", limits::INPUTS);
        return Err(InvalidInput::new("inputs", inputs.len(), allowed));
    }
    for (index, input) in inputs.iter().enumerate() {
        let field = |name: &str| format!("inputs[{index}].{name}");
        let name = input.name.as_str();
        let is_first = index == 0;
        if is_first != (name == key::LOGPROBS) {
            let allowed = "`logprobs` as the first input and only there";
            return Err(InvalidInput::new(field("name"), short(name), allowed));
        }
        if !is_name(name) || inputs[..index].iter().any(|other| other.name == name) {
            let allowed = "a name of its own: lower-case letters, digits and underscores, up to 64";
            return Err(InvalidInput::new(field("name"), short(name), allowed));
        }
        if input.rank > 2 || (is_first && input.rank == 0) {
            let allowed = if is_first { "1 or 2" } else { "0, 1 or 2" };
            return Err(InvalidInput::new(field("rank"), input.rank, allowed));
        }
    }
    Ok(())
}

impl Program {
    pub(super) fn new(
        inputs: &[CustomLossInput],
        graph: &CustomLossGraph,
    ) -> Result<Self, InvalidInput> {
        if graph.format != 1 {
            return Err(InvalidInput::new("graph.format", graph.format, "1"));
        }
        if graph.nodes.len() > limits::NODES {
            let allowed = format!("up to {} nodes", limits::NODES);
            return Err(InvalidInput::new("graph.nodes", graph.nodes.len(), allowed));
        }
        let mut reader = Reader {
            inputs,
            names: HashMap::new(),
            steps: Vec::new(),
            changed: HashMap::new(),
        };
        let Some((last, nodes)) = graph.nodes.split_last() else {
            return Err(InvalidInput::new(
                "graph.nodes",
                "none",
                "at least an output",
            ));
        };
        for (index, node) in nodes.iter().enumerate() {
            let place = format!("graph.nodes[{index}]");
            reader.read(node).map_err(|error| error.inside(&place))?;
        }
        let place = format!("graph.nodes[{}]", nodes.len());
        let output = reader.output(last).map_err(|error| error.inside(&place));
        let (loss, metrics) = output?;
        let taken = |step: &Step| matches!(step.action, Action::Input(_));
        if reader.steps.iter().filter(|step| taken(step)).count() != inputs.len() {
            let allowed = "a placeholder for each input, in their order";
            return Err(InvalidInput::new(
                "graph.nodes",
                "fewer placeholders",
                allowed,
            ));
        }
        Ok(Self {
            steps: reader.steps,
            loss,
            metrics,
        })
    }

    /// Runs the steps on the inputs, `logprobs` first.
    pub(super) fn run(&self, inputs: Vec<Tensor>) -> Result<Output, Error> {
        let mut tape = Tape::with_limit(limits::CELLS);
        let mut inputs = inputs.into_iter();
        let mut results: Vec<Value> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let result = match &step.action {
                Action::Input(position) => {
                    let tensor = inputs
                        .next()
                        .ok_or_else(|| Error::Size("the datum has too few inputs".to_owned()))?;
                    match position {
                        0 => tape.variable(tensor),
                        _ => tape.constant(tensor),
                    }
                    .map(Value::Tensor)
                }
                Action::Call(function, operands) => {
                    let operand = |operand: &Option<Operand>| {
                        operand.as_ref().map(|operand| operand.value(&results))
                    };
                    let arguments = operands.iter().map(operand).collect();
                    function.call(Call::new(&mut tape, function, arguments))
                }
            };
            let result = result.map_err(|failure| failure.at(&step.place))?;
            // Lists of lists could otherwise double with every node.
            if result.items() > limits::ITEMS {
                let reason = "makes a list of too many items".to_owned();
                return Err(Error::Kind(reason).at(&step.place));
            }
            results.push(result);
        }
        let loss = self.loss(&tape, &results)?;
        let metric = |(name, result): &(String, usize)| {
            let value = number(&tape, &results[*result]);
            let value = value
                .ok_or_else(|| Error::Kind(format!("metric `{name}` is not a single number")))?;
            Ok((name.clone(), value))
        };
        let metrics = self.metrics.iter().map(metric).collect::<Result<_, _>>()?;
        Ok(Output {
            tape,
            // The first placeholder is `logprobs`, and nothing comes before it.
            logprobs: 0,
            loss,
            metrics,
        })
    }

    fn loss(&self, tape: &Tape, results: &[Value]) -> Result<Id, Error> {
        match results[self.loss] {
            Value::Tensor(id) if tape.shape(id).is_empty() && tape.dtype(id) == Dtype::Float => {
                Ok(id)
            }
            Value::Tensor(id) => Err(Error::Kind(format!(
                "the loss has shape {:?}; it must be a scalar with a fraction",
                tape.shape(id)
            ))),
            ref other => Err(Error::Kind(format!(
                "the loss is {}; it must be a tensor",
                other.kind()
            ))),
        }
    }
}

/// Reads a value that is a single number.
fn number(tape: &Tape, value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => Some(number.float()),
        Value::Tensor(id) => match tape.tensor(*id).values.as_slice() {
            [value] => Some(*value),
            _ => None,
        },
        _ => None,
    }
}

impl Operand {
    fn value(&self, results: &[Value]) -> Value {
        match self {
            Self::Result(index) => results[*index].clone(),
            Self::Literal(value) => value.clone(),
            Self::List(items) => {
                Value::List(items.iter().map(|item| item.value(results)).collect())
            }
            Self::Slice(bounds) => {
                let bounds = bounds.each_ref().map(|bound| bound.value(results));
                Value::Slice(Box::new(bounds))
            }
        }
    }
}

struct Reader<'a> {
    inputs: &'a [CustomLossInput],
    /// The nodes so far, by name.
    names: HashMap<String, usize>,
    steps: Vec<Step>,
    /// Results that a later node changed in place, and that node.
    changed: HashMap<usize, String>,
}

impl Reader<'_> {
    fn read(&mut self, node: &CustomLossNode) -> Result<(), InvalidInput> {
        let text = |field: &'static str, text: &str| match text.len() {
            1..=limits::TEXT_BYTES => Ok(()),
            length => {
                let allowed = format!("1 to {} bytes", limits::TEXT_BYTES);
                Err(InvalidInput::new(field, format!("{length} bytes"), allowed))
            }
        };
        text("name", &node.name)?;
        text("target", &node.target)?;
        let action = match node.op {
            NodeOp::Placeholder => self.input(node)?,
            NodeOp::CallFunction | NodeOp::CallMethod => self.call(node)?,
            NodeOp::Output => {
                return Err(InvalidInput::new("op", "output", "one, as the last node"));
            }
            NodeOp::GetAttr | NodeOp::CallModule => {
                let allowed = "placeholder, call_function, call_method or output";
                return Err(InvalidInput::new("op", short(&node.target), allowed));
            }
        };
        let index = self.steps.len();
        if self.names.insert(node.name.clone(), index).is_some() {
            let allowed = "a name that no other node has";
            return Err(InvalidInput::new("name", short(&node.name), allowed));
        }
        let place = format!("node `{}` ({})", node.name, node.target);
        self.steps.push(Step { place, action });
        Ok(())
    }

    fn input(&self, node: &CustomLossNode) -> Result<Action, InvalidInput> {
        let position = self.steps.len();
        let expected = self.inputs.get(position).map(|input| input.name.as_str());
        let in_order = self
            .steps
            .iter()
            .all(|step| matches!(step.action, Action::Input(_)));
        if !in_order || expected != Some(&node.target) {
            let allowed = "the inputs in their order, before all else";
            return Err(InvalidInput::new("target", short(&node.target), allowed));
        }
        if !node.args.is_empty() || !node.kwargs.is_empty() {
            return Err(InvalidInput::new(
                "args",
                "a default",
                "an input without one",
            ));
        }
        Ok(Action::Input(position))
    }

    fn call(&mut self, node: &CustomLossNode) -> Result<Action, InvalidInput> {
        let is_method = node.op == NodeOp::CallMethod;
        let Some(function) = functions::find(is_method, &node.target) else {
            let target = short(&node.target);
            let called = if is_method { "method" } else { "function" };
            let allowed = "an operation that this server supports in a custom loss";
            return Err(InvalidInput::new(
                "target",
                format!("{called} `{target}`"),
                allowed,
            ));
        };
        let mut items = 0;
        let mut decode = |value: &Json| self.operand(value, 0, &mut items);
        let args = node
            .args
            .iter()
            .map(&mut decode)
            .collect::<Result<Vec<_>, _>>()?;
        let mut named = Vec::new();
        for (name, value) in &node.kwargs {
            named.push((name.as_str(), decode(value)?));
        }
        let bound = function.bind(args, named)?;
        if let (true, Some(Some(Operand::Result(changed)))) = (function.in_place, bound.first()) {
            self.changed.insert(*changed, node.name.clone());
        }
        Ok(Action::Call(function, bound))
    }

    fn operand(
        &self,
        value: &Json,
        depth: usize,
        items: &mut usize,
    ) -> Result<Operand, InvalidInput> {
        *items += 1;
        if depth > limits::DEPTH || *items > limits::ITEMS {
            let allowed = format!("{} levels and {} items", limits::DEPTH, limits::ITEMS);
            return Err(InvalidInput::new("args", "more", allowed));
        }
        let mut list = |values: &[Json]| {
            let inner = values
                .iter()
                .map(|value| self.operand(value, depth + 1, items));
            inner.collect::<Result<Vec<_>, _>>()
        };
        Ok(match value {
            Json::Array(values) => Operand::List(list(values)?),
            Json::Object(members) => {
                let mut pairs = members.iter();
                match (pairs.next(), pairs.next()) {
                    (Some((form, inner)), None) => match (form.as_str(), inner) {
                        ("ref", Json::String(name)) => Operand::Result(self.result(name)?),
                        ("tuple", Json::Array(values)) => Operand::List(list(values)?),
                        ("slice", Json::Array(values)) => {
                            let bounds = <[Operand; 3]>::try_from(list(values)?);
                            Operand::Slice(Box::new(bounds.map_err(|_| unreadable(value))?))
                        }
                        (form, inner) => Operand::Literal(
                            constant(form, inner).ok_or_else(|| unreadable(value))?,
                        ),
                    },
                    _ => return Err(unreadable(value)),
                }
            }
            scalar => Operand::Literal(literal(scalar).ok_or_else(|| unreadable(value))?),
        })
    }

    fn result(&self, name: &str) -> Result<usize, InvalidInput> {
        let index = self.names.get(name).copied().ok_or_else(|| {
            let allowed = "a node that comes earlier";
            InvalidInput::new("args", format!("a reference to `{}`", short(name)), allowed)
        })?;
        match self.changed.get(&index) {
            None => Ok(index),
            Some(by) => {
                let found = format!("`{}`, which `{by}` changed in place", short(name));
                let allowed = "a node with a value of its own: write x = x + y, not x += y";
                Err(InvalidInput::new("args", found, allowed))
            }
        }
    }

    fn output(&self, node: &CustomLossNode) -> Result<(usize, Vec<(String, usize)>), InvalidInput> {
        let wrong = || {
            let allowed = "an output of a loss and a dict of metrics, all of them nodes";
            InvalidInput::new("args", "something else", allowed)
        };
        if node.op != NodeOp::Output {
            let allowed = "an output as the last node";
            return Err(InvalidInput::new("op", short(&node.target), allowed));
        }
        let [pair] = node.args.as_slice() else {
            return Err(wrong());
        };
        let pair = pair.get("tuple").unwrap_or(pair);
        let Some([loss, metrics]) = pair.as_array().map(Vec::as_slice) else {
            return Err(wrong());
        };
        let reference = |value: &Json| {
            let name = value.get("ref").and_then(Json::as_str).ok_or_else(wrong)?;
            self.result(name)
        };
        let loss = reference(loss)?;
        let none = Map::new();
        let metrics = match (metrics.get("dict"), metrics) {
            (Some(Json::Object(metrics)), _) => metrics,
            (None, Json::Object(empty)) if empty.is_empty() => &none,
            _ => return Err(wrong()),
        };
        if metrics.len() > limits::METRICS {
            let allowed = format!("up to {} metrics", limits::METRICS);
            return Err(InvalidInput::new("args", metrics.len(), allowed));
        }
        let metric = |(name, value): (&String, &Json)| {
            if !is_metric(name) {
                let allowed = "custom/<name>:sum or custom/<name>:mean, in lower case";
                return Err(InvalidInput::new(
                    "args",
                    format!("metric `{}`", short(name)),
                    allowed,
                ));
            }
            Ok((name.clone(), reference(value)?))
        };
        let metrics = metrics.iter().map(metric).collect::<Result<_, _>>()?;
        Ok((loss, metrics))
    }
}

fn literal(value: &Json) -> Option<Value> {
    Some(match value {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Number(Number::Bool(*value)),
        Json::Number(value) => Value::Number(match value.as_i64() {
            Some(whole) => Number::Int(whole),
            None => Number::Float(value.as_f64()?),
        }),
        Json::String(text) if text.len() <= limits::TEXT_BYTES => Value::Text(text.clone()),
        _ => return None,
    })
}

fn constant(form: &str, inner: &Json) -> Option<Value> {
    let text = inner.as_str();
    Some(match (form, text) {
        ("float", Some("inf")) => Value::Number(Number::Float(f64::INFINITY)),
        ("float", Some("-inf")) => Value::Number(Number::Float(f64::NEG_INFINITY)),
        ("float", Some("nan")) => Value::Number(Number::Float(f64::NAN)),
        ("ellipsis", None) if *inner == Json::Bool(true) => Value::Ellipsis,
        ("dtype", Some("float32" | "float64" | "float" | "double")) => Value::Dtype(Dtype::Float),
        ("dtype", Some("int64" | "int32" | "long" | "int")) => Value::Dtype(Dtype::Int),
        ("dtype", Some("bool")) => Value::Dtype(Dtype::Bool),
        ("device", Some("cpu"))
        | ("layout", Some("strided"))
        | ("memory_format", Some("contiguous_format" | "preserve_format")) => Value::Place,
        _ => return None,
    })
}

fn unreadable(value: &Json) -> InvalidInput {
    let allowed = "an encoded value: a scalar, list, ref, tuple, slice, ellipsis, float, a dtype of \
                   float32, float64, int32, int64 or bool, or the device cpu";
    InvalidInput::new("args", short(&value.to_string()), allowed)
}

/// Cuts a text that came from outside to a length that fits a message.
fn short(text: &str) -> String {
    match text.char_indices().nth(80) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn is_name(name: &str) -> bool {
    let mut characters = name.bytes();
    characters
        .next()
        .is_some_and(|first| first == b'_' || first.is_ascii_lowercase())
        && characters.all(|c| c == b'_' || c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.len() <= 64
}

fn is_metric(name: &str) -> bool {
    let inner = name.strip_prefix("custom/").and_then(|rest| {
        rest.strip_suffix(":sum")
            .or_else(|| rest.strip_suffix(":mean"))
    });
    let is_allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"_./-".contains(&c);
    inner.is_some_and(|inner| (1..=64).contains(&inner.len()) && inner.bytes().all(is_allowed))
}
