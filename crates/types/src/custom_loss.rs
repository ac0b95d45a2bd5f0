//! A custom loss as a graph of tensor operations, for servers that compute it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One input of a custom loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CustomLossInput {
    /// `logprobs`, or the name of a tensor of the datum.
    pub name: String,
    /// 0 for a scalar, 1 for `[T]`, 2 for `[T, K]`.
    pub rank: u8,
}

/// What a node of the graph does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeOp {
    /// Takes an input.
    Placeholder,
    /// Reads an attribute. No client sends it.
    GetAttr,
    /// Calls a function by its qualified name.
    CallFunction,
    /// Calls a tensor's method.
    CallMethod,
    /// Calls a module. No client sends it.
    CallModule,
    /// Returns the loss and its metrics.
    Output,
}

/// One node of the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CustomLossNode {
    /// What it does.
    pub op: NodeOp,
    /// Its name, unique in the graph.
    pub name: String,
    /// What it takes or calls.
    pub target: String,
    /// Encoded arguments: JSON scalars and lists, or one-key objects such as `{"ref": "name"}`.
    #[serde(default)]
    pub args: Vec<Value>,
    /// Encoded keyword arguments.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
}

/// A loss as its nodes in execution order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CustomLossGraph {
    /// The version of the format: 1.
    #[serde(default = "CustomLossGraph::format")]
    pub format: u32,
    /// The nodes in execution order.
    pub nodes: Vec<CustomLossNode>,
}

impl CustomLossGraph {
    /// Makes a graph of the current format.
    pub fn new(nodes: Vec<CustomLossNode>) -> Self {
        Self {
            format: Self::format(),
            nodes,
        }
    }

    fn format() -> u32 {
        1
    }
}
