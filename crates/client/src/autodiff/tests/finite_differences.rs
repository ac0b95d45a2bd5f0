//! Gradients against `(f(x + h) − f(x − h)) / 2h`, over several seeds.

use super::{Expression, Tensor, evaluate};
use crate::autodiff::{Shape, Var};

const SCALAR: Shape = Shape::Scalar;
const VECTOR: Shape = Shape::Vector(5);
const MATRIX: Shape = Shape::Matrix(5, 3);

/// Any values; positive values; values away from the kinks at 0.
#[derive(Clone, Copy)]
enum Domain {
    Any,
    Positive,
    NotZero,
}
use Domain::{Any, NotZero, Positive};

impl Domain {
    fn draw(self, rng: &mut fastrand::Rng) -> f64 {
        let magnitude = 0.1 + 1.5 * rng.f64();
        match self {
            Any => 3.0 * rng.f64() - 1.5,
            Positive => magnitude,
            NotZero => magnitude * if rng.bool() { 1.0 } else { -1.0 },
        }
    }
}

#[test]
fn functions_of_elements() {
    let cases: &[(&str, Domain, Expression)] = &[
        ("neg", Any, |x| -x[0]),
        ("exp", Any, |x| x[0].exp()),
        ("ln", Positive, |x| x[0].ln()),
        ("log", Positive, |x| x[0].log()),
        ("sqrt", Positive, |x| x[0].sqrt()),
        ("powi(3)", Any, |x| x[0].powi(3)),
        ("powi(-2)", NotZero, |x| x[0].powi(-2)),
        ("powi(0)", Any, |x| x[0].powi(0)),
        ("powf(1.7)", Positive, |x| x[0].powf(1.7)),
        ("powf(-0.5)", Positive, |x| x[0].powf(-0.5)),
        ("abs", NotZero, |x| x[0].abs()),
        ("sigmoid", Any, |x| x[0].sigmoid()),
        ("log_sigmoid", Any, |x| x[0].log_sigmoid()),
        ("softplus", Any, |x| x[0].softplus()),
        ("tanh", Any, |x| x[0].tanh()),
        ("relu", NotZero, |x| x[0].relu()),
        ("clamp", Any, |x| x[0].clamp(-0.4, 0.6)),
        ("clamp_min", Any, |x| x[0].clamp_min(-0.4)),
        ("clamp_max", Any, |x| x[0].clamp_max(0.6)),
        ("minimum with a number", Any, |x| x[0].minimum(0.3)),
        ("maximum with a number", Any, |x| {
            Var::from(0.3).maximum(x[0])
        }),
        ("with numbers", NotZero, |x| {
            1.5 - (2.0 * x[0] + 1.0) / 3.0 + 0.5 / x[0]
        }),
    ];
    for (name, domain, expression) in cases {
        for shape in [SCALAR, VECTOR, MATRIX] {
            check(name, *domain, &[shape], *expression);
        }
    }
}

#[test]
fn functions_of_two_variables_and_their_broadcasting() {
    let cases: &[(&str, Domain, Expression)] = &[
        ("+", Any, |x| x[0] + x[1]),
        ("-", Any, |x| x[0] - x[1]),
        ("*", Any, |x| x[0] * x[1]),
        ("/", NotZero, |x| x[0] / x[1]),
        ("minimum", Any, |x| x[0].minimum(x[1])),
        ("maximum", Any, |x| x[0].maximum(x[1])),
        ("select", Any, |x| {
            let mask = x[0].constant(&[true, false, true, true, false][..]);
            mask.select(x[0] * 2.0, x[1])
        }),
        ("select a number", Any, |x| {
            let mask = x[0].constant(&[true, false, false, true, true][..]);
            mask.select(1.0, x[0]) + mask.select(x[1], 0.0)
        }),
    ];
    let shapes = [SCALAR, VECTOR, MATRIX];
    for (name, domain, expression) in cases {
        for first in shapes {
            for second in shapes {
                check(name, *domain, &[first, second], *expression);
            }
        }
    }
}

#[test]
fn reductions_and_rearrangements() {
    let cases: &[(&str, &[Shape], Expression)] = &[
        ("sum", &[MATRIX], |x| x[0].sum() * x[0].sum()),
        ("mean", &[MATRIX], |x| x[0].mean() * x[0].mean()),
        ("sum_last of a matrix", &[MATRIX], |x| {
            x[0].sum_last().powi(2)
        }),
        ("sum_last of a vector", &[VECTOR], |x| {
            x[0].sum_last().powi(2)
        }),
        ("logsumexp of a matrix", &[MATRIX], |x| x[0].logsumexp()),
        ("logsumexp of a vector", &[VECTOR], |x| x[0].logsumexp()),
        ("logsumexp of a scalar", &[SCALAR], |x| {
            x[0].logsumexp() * x[0]
        }),
        ("soft-max", &[MATRIX], |x| (x[0] - x[0].logsumexp()).exp()),
        ("dot", &[VECTOR, VECTOR], |x| x[0].dot(x[1])),
        ("dot with itself", &[VECTOR], |x| x[0].dot(x[0])),
        ("slice", &[VECTOR], |x| x[0].slice(1..4) * x[0].slice(..3)),
        ("slice from the end", &[VECTOR], |x| {
            x[0].slice(1..) * x[0].slice(..-1)
        }),
        ("slice of rows", &[MATRIX], |x| {
            x[0].slice(-2..) * x[0].slice(..=1)
        }),
        ("index", &[VECTOR], |x| x[0].index(2) * x[0].index(-1)),
        ("index of a row", &[MATRIX], |x| {
            x[0].index(0) * x[0].index(-1)
        }),
        ("concat", &[VECTOR, VECTOR], |x| {
            Var::concat(&[x[0] * x[1], x[1], x[0].slice(..2)])
        }),
        ("concat of rows", &[MATRIX, MATRIX], |x| {
            Var::concat(&[x[0] * x[1], x[0]])
        }),
        ("stack", &[SCALAR, VECTOR], |x| {
            Var::stack(&[x[0], x[1].sum() * x[0], 2.0.into()])
        }),
        ("sum of an iterator", &[SCALAR, VECTOR], |x| {
            let squares: Vec<Var<'_>> = x.iter().map(|x| x * x).collect();
            squares.iter().sum::<Var<'_>>() + squares.into_iter().sum::<Var<'_>>()
        }),
        ("one variable used often", &[VECTOR], |x| {
            let mut y = x[0];
            for _ in 0..6 {
                y = y * x[0] + y / 2.0;
            }
            y
        }),
    ];
    for (name, shapes, expression) in cases {
        check(name, Any, shapes, *expression);
    }
}

/// Compares the gradients of a weighted sum of the expression's elements.
fn check(name: &str, domain: Domain, shapes: &[Shape], expression: Expression) {
    for seed in 0..5 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut draw = |shape: &Shape| {
            let values = (0..shape.len()).map(|_| domain.draw(&mut rng)).collect();
            Tensor::new(*shape, values).unwrap()
        };
        let inputs: Vec<Tensor> = shapes.iter().map(&mut draw).collect();
        let (_, gradients) = evaluate(&inputs, |x| weighted_sum(expression, x));
        for (input, gradient) in gradients.iter().enumerate() {
            for (element, analytic) in gradient.iter().enumerate() {
                let numeric = difference_quotient(&inputs, input, element, expression);
                let error = (numeric - analytic).abs() / analytic.abs().max(1.0);
                assert!(
                    error < 1e-6,
                    "{name} of {shapes:?}, seed {seed}, input {input}[{element}]: \
                     {analytic}, but by differences {numeric}"
                );
            }
        }
    }
}

/// Weighs elements differently, so that a gradient in the wrong place shows.
fn weighted_sum<'tape>(expression: Expression, x: &[Var<'tape>]) -> Var<'tape> {
    let y = expression(x);
    let shape = y.shape().expect("the expression has a value");
    let weights = (0..shape.len()).map(|element| 1.0 + 0.25 * element as f64);
    (y * y.constant(Tensor::new(shape, weights.collect()).unwrap())).sum()
}

fn difference_quotient(
    inputs: &[Tensor],
    input: usize,
    element: usize,
    expression: Expression,
) -> f64 {
    const STEP: f64 = 1e-6;
    let moved = |step: f64| {
        let mut inputs = inputs.to_vec();
        let mut values = inputs[input].values().to_vec();
        values[element] += step;
        inputs[input] = Tensor::new(inputs[input].shape(), values).unwrap();
        evaluate(&inputs, |x| weighted_sum(expression, x)).0
    };
    (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
}
