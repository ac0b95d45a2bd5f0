//! Tests of values and gradients; each module has one kind of evidence.

mod closed_forms;
mod failures;
mod finite_differences;
mod losses;
mod traced;

use super::loss::differentiate;
use super::tape::Tape;
use super::{Tensor, Var};

/// An expression that a table can hold.
type Expression = for<'tape> fn(&[Var<'tape>]) -> Var<'tape>;

/// Evaluates a scalar expression with its gradients by all inputs, in double precision.
fn evaluate(
    inputs: &[Tensor],
    expression: impl for<'t> Fn(&[Var<'t>]) -> Var<'t>,
) -> (f64, Vec<Vec<f64>>) {
    let tape = Tape::new();
    let vars: Vec<Var<'_>> = inputs
        .iter()
        .map(|input| Var::node(&tape, tape.input(input.clone())))
        .collect();
    let loss = expression(&vars);
    let value = loss.value();
    assert_eq!(tape.error(), None);
    let gradients = match loss.repr {
        super::var::Repr::Node(_, node) => tape.gradients(node, inputs.len()),
        _ => Vec::new(),
    };
    let gradient = |index: usize| match gradients.get(index) {
        Some(Some(gradient)) => gradient.clone(),
        _ => vec![0.0; inputs[index].values().len()],
    };
    (value, (0..inputs.len()).map(gradient).collect())
}

/// Evaluates an expression that must fail, and returns the error's text.
fn failure(inputs: &[Tensor], expression: Expression) -> String {
    let tape = Tape::new();
    let vars: Vec<Var<'_>> = inputs
        .iter()
        .map(|input| Var::node(&tape, tape.input(input.clone())))
        .collect();
    let error = differentiate(&tape, expression(&vars), inputs.len()).unwrap_err();
    error.to_string()
}
