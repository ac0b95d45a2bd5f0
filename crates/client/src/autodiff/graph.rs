//! A traced loss in the form in which it is uploaded.
//!
//! The form is that of a PyTorch trace, because that is what servers know: nodes call functions by
//! their qualified Python names, and tensor methods by theirs. Nodes are also named as PyTorch
//! would name them, after what they call, so that a loss looks the same from either client.

use super::op::{Arg, NodeIndex, Op};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use tinkrs_autodiff::{Binary, Unary};
use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossNode, NodeOp};

/// Writes down operations with their result, the loss and its metrics.
///
/// Also returns the name of the node for each operation.
pub(super) fn encode(
    inputs: &[&str],
    ops: &[Op],
    loss: NodeIndex,
    metrics: &[(String, NodeIndex)],
) -> (CustomLossGraph, Vec<String>) {
    let mut encoder = Encoder::default();
    for op in ops {
        let name = encoder.add(op, inputs);
        encoder.names.push(name);
    }
    let metric = |(key, node): &(String, NodeIndex)| (key.clone(), encoder.reference(*node));
    let metrics: Map<String, Value> = metrics.iter().map(metric).collect();
    let result = json!({"tuple": [encoder.reference(loss), {"dict": metrics}]});
    encoder.push(NodeOp::Output, "output", "output", vec![result], Map::new());
    (CustomLossGraph::new(encoder.nodes), encoder.names)
}

#[derive(Default)]
struct Encoder {
    nodes: Vec<CustomLossNode>,
    /// The node that has the result of each operation.
    names: Vec<String>,
    used: HashSet<String>,
}

impl Encoder {
    /// Adds the nodes of an operation and returns the name of the last one.
    fn add(&mut self, op: &Op, inputs: &[&str]) -> String {
        let reference = |node: &NodeIndex| self.reference(*node);
        match op {
            Op::Input(position) => {
                let name = inputs.get(*position).copied().unwrap_or_default();
                self.push(NodeOp::Placeholder, name, name, Vec::new(), Map::new())
            }
            // A tape that traces takes none.
            Op::Constant => String::new(),
            Op::Unary(function, x) => {
                let x = reference(x);
                self.unary(*function, x)
            }
            Op::Binary(function, a, b) => {
                let args = vec![self.argument(*a), self.argument(*b)];
                self.call(binary_target(*function), args)
            }
            Op::Select { mask, on, off } => {
                let [mask, on, off] = [mask, on, off].map(|arg| self.argument(*arg));
                let set = self.call("operator.ne", vec![mask, json!(0)]);
                self.call("torch.where", vec![json!({"ref": set}), on, off])
            }
            Op::Sum(x) => self.method("sum", vec![reference(x)]),
            Op::Mean(x) => self.method("mean", vec![reference(x)]),
            Op::SumLast(x) => self.method("sum", vec![reference(x), json!(-1)]),
            Op::LogSumExp(x) => self.call("torch.logsumexp", vec![reference(x), json!(-1)]),
            Op::Dot(a, b) => self.call("torch.dot", vec![reference(a), reference(b)]),
            Op::Slice { of, start, end } => {
                let range = json!({"slice": [start, end, null]});
                self.call("operator.getitem", vec![reference(of), range])
            }
            Op::Index { of, at } => self.call("operator.getitem", vec![reference(of), json!(at)]),
            Op::Concat(parts) => {
                let parts = parts.iter().map(reference).collect();
                self.call("torch.cat", vec![Value::Array(parts)])
            }
            Op::Stack(parts) => {
                let parts = parts.iter().map(reference).collect();
                self.call("torch.stack", vec![Value::Array(parts)])
            }
            Op::Column(x) => self.method("unsqueeze", vec![reference(x), json!(-1)]),
            Op::Detach(x) => self.method("detach", vec![reference(x)]),
        }
    }

    fn unary(&mut self, function: Unary, x: Value) -> String {
        let target = match function {
            Unary::Neg => "operator.neg",
            Unary::Exp => "torch.exp",
            Unary::Ln => "torch.log",
            Unary::Sqrt => "torch.sqrt",
            Unary::Abs => "torch.abs",
            Unary::Sigmoid => "torch.sigmoid",
            // These two are built in; their public names are only aliases.
            Unary::LogSigmoid => "torch._C._nn.log_sigmoid",
            Unary::Softplus => "torch._C._nn.softplus",
            Unary::Tanh => "torch.tanh",
            Unary::Relu => "torch.relu",
            Unary::Powi(exponent) => {
                return self.call("operator.pow", vec![x, json!(exponent)]);
            }
            Unary::Pow(exponent) => {
                return self.call("operator.pow", vec![x, number(exponent)]);
            }
            Unary::ExpM1 => "torch.expm1",
            Unary::Ln1p => "torch.log1p",
            Unary::Sin => "torch.sin",
            Unary::Cos => "torch.cos",
            Unary::Scale(factor) => {
                return self.call("operator.mul", vec![x, number(factor)]);
            }
            Unary::Clamp { min, max } => return self.clamp(x, min, max),
        };
        self.call(target, vec![x])
    }

    fn clamp(&mut self, x: Value, min: Option<f64>, max: Option<f64>) -> String {
        let (args, bounds) = match (min, max) {
            (Some(min), Some(max)) => (vec![x, number(min), number(max)], Map::new()),
            (min, max) => {
                let bounds = [("min", min), ("max", max)].into_iter();
                let bounds = bounds.filter_map(|(name, bound)| Some((name, number(bound?))));
                let bounds = bounds.map(|(name, bound)| (name.to_owned(), bound));
                (vec![x], bounds.collect())
            }
        };
        self.push(NodeOp::CallFunction, "clamp", "torch.clamp", args, bounds)
    }

    fn call(&mut self, target: &str, args: Vec<Value>) -> String {
        let name = target.rsplit('.').next().unwrap_or(target);
        self.push(NodeOp::CallFunction, name, target, args, Map::new())
    }

    fn method(&mut self, target: &str, args: Vec<Value>) -> String {
        self.push(NodeOp::CallMethod, target, target, args, Map::new())
    }

    fn push(
        &mut self,
        op: NodeOp,
        name: &str,
        target: &str,
        args: Vec<Value>,
        kwargs: Map<String, Value>,
    ) -> String {
        let name = self.unused(name);
        self.nodes.push(CustomLossNode {
            op,
            name: name.clone(),
            target: target.to_owned(),
            args,
            kwargs,
        });
        name
    }

    /// Returns the name, or the first of `name_1`, `name_2`, … that is free.
    fn unused(&mut self, name: &str) -> String {
        // PyTorch does not hide Python's own functions.
        let hides = matches!(name, "abs" | "pow" | "sum");
        let numbered = (1_usize..).map(|number| format!("{name}_{number}"));
        let plain = (!hides).then(|| name.to_owned());
        let free = plain
            .into_iter()
            .chain(numbered)
            .find(|name| !self.used.contains(name));
        let free = free.unwrap_or_default();
        self.used.insert(free.clone());
        free
    }

    fn reference(&self, node: NodeIndex) -> Value {
        json!({"ref": self.names[node]})
    }

    fn argument(&self, arg: Arg) -> Value {
        match arg {
            Arg::Node(node) => self.reference(node),
            Arg::Number(value) => number(value),
        }
    }
}

fn binary_target(function: Binary) -> &'static str {
    match function {
        Binary::Add => "operator.add",
        Binary::Sub => "operator.sub",
        Binary::Mul => "operator.mul",
        Binary::Div => "operator.truediv",
        Binary::Pow => "operator.pow",
        Binary::Minimum => "torch.minimum",
        Binary::Maximum => "torch.maximum",
    }
}

/// Writes a number; JSON has none for infinities and not-a-number.
fn number(value: f64) -> Value {
    if value.is_finite() {
        return json!(value);
    }
    let text = if value.is_nan() {
        "nan"
    } else if value > 0.0 {
        "inf"
    } else {
        "-inf"
    };
    json!({"float": text})
}
