//! Values and gradients that are known, above all at kinks and at the ends of the range.
//!
//! Unless noted, the numbers are those of PyTorch 2.15 in double precision:
//! `y = f(x); y.sum().backward(); print(y, x.grad)`.

use super::{Expression, Tensor, evaluate};
use crate::autodiff::{Shape, Var};

const INF: f64 = f64::INFINITY;

/// Compares `f(x)` and its slope at each `x`; not-a-number equals itself here.
fn check(name: &str, expression: Expression, cases: &[(f64, f64, f64)]) {
    for (x, y, slope) in cases {
        let (value, gradients) = evaluate(&[Tensor::from(*x)], expression);
        let same = |a: f64, b: f64| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() < 1e-15;
        assert!(same(value, *y), "{name}({x}) is {value}, not {y}");
        let gradient = gradients[0][0];
        assert!(
            same(gradient, *slope),
            "{name}′({x}) is {gradient}, not {slope}"
        );
    }
}

#[test]
fn kinks_have_the_documented_slopes() {
    check(
        "relu",
        |x| x[0].relu(),
        &[(-1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)],
    );
    check(
        "abs",
        |x| x[0].abs(),
        &[
            (-1.0, 1.0, -1.0),
            (0.0, 0.0, 0.0),
            (-0.0, 0.0, 0.0),
            (1.0, 1.0, 1.0),
        ],
    );
    // PyTorch 2.15 has the slope 0 at both bounds.
    check(
        "clamp",
        |x| x[0].clamp(0.0, 1.0),
        &[
            (-1.0, 0.0, 0.0),
            (0.0, 0.0, 1.0),
            (0.5, 0.5, 1.0),
            (1.0, 1.0, 1.0),
            (2.0, 1.0, 0.0),
        ],
    );
    check(
        "clamp with bounds swapped",
        |x| x[0].clamp(2.0, 1.0),
        &[(0.0, 1.0, 0.0), (1.5, 1.0, 0.0)],
    );
    check(
        "clamp_min",
        |x| x[0].clamp_min(1.0),
        &[(0.0, 1.0, 0.0), (1.0, 1.0, 1.0), (2.0, 2.0, 1.0)],
    );
    check(
        "clamp_max",
        |x| x[0].clamp_max(1.0),
        &[(0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (2.0, 1.0, 0.0)],
    );
    check(
        "sqrt",
        |x| x[0].sqrt(),
        &[(0.0, 0.0, INF), (4.0, 2.0, 0.25)],
    );
    check("powi(0)", |x| x[0].powi(0), &[(0.0, 1.0, 0.0)]);
    check("powi(1)", |x| x[0].powi(1), &[(0.0, 0.0, 1.0)]);
    check(
        "powi(2)",
        |x| x[0].powi(2),
        &[(0.0, 0.0, 0.0), (-2.0, 4.0, -4.0)],
    );
    check("powf(0)", |x| x[0].powf(0.0), &[(0.0, 1.0, 0.0)]);
    check("powf(1)", |x| x[0].powf(1.0), &[(0.0, 0.0, 1.0)]);
}

#[test]
fn equal_sides_of_minimum_and_maximum_share_the_gradient() {
    let sides = [
        Tensor::from(vec![1.0, 2.0, 3.0]),
        Tensor::from(vec![1.0, 3.0, 2.0]),
    ];
    let (value, gradients) = evaluate(&sides, |x| x[0].minimum(x[1]).sum());
    assert_eq!(
        (value, &gradients[..]),
        (5.0, &[vec![0.5, 1.0, 0.0], vec![0.5, 0.0, 1.0]][..])
    );
    let (value, gradients) = evaluate(&sides, |x| x[0].maximum(x[1]).sum());
    assert_eq!(
        (value, &gradients[..]),
        (7.0, &[vec![0.5, 0.0, 1.0], vec![0.5, 1.0, 0.0]][..])
    );
}

#[test]
fn large_arguments_neither_overflow_nor_cancel() {
    let ln2 = 2_f64.ln();
    check(
        "sigmoid",
        |x| x[0].sigmoid(),
        &[(-1000.0, 0.0, 0.0), (0.0, 0.5, 0.25), (1000.0, 1.0, 0.0)],
    );
    check(
        "log_sigmoid",
        |x| x[0].log_sigmoid(),
        &[
            (-1000.0, -1000.0, 1.0),
            (0.0, -ln2, 0.5),
            (1000.0, 0.0, 0.0),
        ],
    );
    check(
        "softplus",
        |x| x[0].softplus(),
        &[(-1000.0, 0.0, 0.0), (0.0, ln2, 0.5), (1000.0, 1000.0, 1.0)],
    );
    check(
        "tanh",
        |x| x[0].tanh(),
        &[(1000.0, 1.0, 0.0), (-1000.0, -1.0, 0.0)],
    );
    let rows = Tensor::new(Shape::Matrix(3, 2), vec![1e4, 1e4, 0.0, -INF, -1e4, -1e4]).unwrap();
    let (value, gradients) = evaluate(&[rows], |x| x[0].logsumexp().sum());
    assert!((value - 2.0 * ln2).abs() < 1e-11, "{value}");
    let expected = [0.5, 0.5, 1.0, 0.0, 0.5, 0.5];
    let close = gradients[0]
        .iter()
        .zip(expected)
        .all(|(a, b)| (a - b).abs() < 1e-11);
    assert!(close, "{gradients:?}");
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let cases: &[(&str, Expression)] = &[
        ("relu", |x| x[0].relu()),
        ("clamp", |x| x[0].clamp(0.0, 1.0)),
        ("softplus", |x| x[0].softplus()),
        ("sigmoid", |x| x[0].sigmoid()),
        ("minimum", |x| x[0].minimum(x[0].constant(1.0))),
        ("maximum", |x| x[0].constant(1.0).maximum(x[0])),
        ("logsumexp", |x| Var::stack(&[x[0], 1.0.into()]).logsumexp()),
        ("logsumexp of infinity", |x| {
            Var::stack(&[x[0], (-INF).into()]).logsumexp()
        }),
    ];
    for (name, expression) in cases {
        let (value, _) = evaluate(&[Tensor::from(f64::NAN)], *expression);
        assert!(value.is_nan(), "{name}: {value}");
    }
}

#[test]
fn what_is_not_selected_has_no_part_even_if_it_is_infinite() {
    let x = Tensor::from(vec![0.0, 4.0]);
    let (value, gradients) = evaluate(&[x], |x| {
        let positive = x[0].constant(&[false, true][..]);
        // The slope of √x at 0 is infinite.
        positive.select(x[0].sqrt(), -1.0).sum()
    });
    assert_eq!((value, &gradients[0][..]), (1.0, &[0.0, 0.25][..]));
}

#[test]
fn detached_values_count_but_pass_no_gradient() {
    let (value, gradients) = evaluate(&[Tensor::from(3.0)], |x| x[0].detach() * x[0]);
    assert_eq!((value, gradients[0][0]), (9.0, 3.0));
}

#[test]
fn empty_vectors_have_a_sum_and_a_mean_that_is_not_a_number() {
    let empty = [Tensor::from(Vec::<f64>::new())];
    assert_eq!(evaluate(&empty, |x| x[0].sum()), (0.0, vec![vec![]]));
    assert!(evaluate(&empty, |x| x[0].mean()).0.is_nan());
    assert_eq!(evaluate(&empty, |x| x[0].logsumexp()).0, -INF);
    let no_columns = [Tensor::new(Shape::Matrix(2, 0), vec![]).unwrap()];
    assert_eq!(
        evaluate(&no_columns, |x| x[0].sum_last().sum()),
        (0.0, vec![vec![]])
    );
}

#[test]
fn plain_numbers_need_no_expression() {
    let x = Var::from(0.25);
    assert_eq!((1.0 - x.sqrt() * 2.0).abs().value(), 0.0);
    assert_eq!(x.sum().mean().detach().values(), [0.25]);
    assert_eq!(std::iter::empty::<Var<'_>>().sum::<Var<'_>>().value(), 0.0);
    assert_eq!(format!("{x:?}"), "Var(0.25)");
}
