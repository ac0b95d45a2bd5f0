//! Expressions that cannot be computed: an error that names the operation, never a panic.

use super::{Expression, Tensor, failure};
use crate::autodiff::{Shape, Var};

fn inputs() -> Vec<Tensor> {
    let matrix = Tensor::new(Shape::Matrix(3, 2), vec![0.0; 6]).unwrap();
    vec![
        Tensor::from(vec![1.0, 2.0, 3.0]),
        Tensor::from(vec![1.0, 2.0]),
        matrix,
        5.0.into(),
    ]
}

#[test]
fn arguments_that_do_not_fit_are_named_with_their_place() {
    // The inputs are [3], [2], [3, 2] and [].
    let cases: &[(Expression, &str, &str)] = &[
        (
            |x| x[0] + x[1],
            "+",
            "the shapes [3] and [2] do not fit together",
        ),
        (
            |x| x[1] * x[2],
            "*",
            "the shapes [2, 1] and [3, 2] do not fit together",
        ),
        (|x| x[0].minimum(x[1]), "minimum", "the shapes [3] and [2]"),
        (
            |x| x[0].select(x[1], 0.0),
            "select",
            "the shapes [2] and [3]",
        ),
        (|x| x[0].dot(x[1]), "dot", "the shapes [3] and [2]"),
        (
            |x| x[0].dot(x[2]),
            "dot",
            "takes two vectors, not 1 and 2 dimensions",
        ),
        (
            |x| x[0].dot(1.0),
            "dot",
            "takes two vectors, not 1 and 0 dimensions",
        ),
        (
            |x| x[0].slice(1..5),
            "slice",
            "1..5 is not a range of 3 elements",
        ),
        (
            |x| x[0].slice(2_usize..1.min(x.len())),
            "slice",
            "2..1 is not a range",
        ),
        (|x| x[0].slice(..-4), "slice", "..-4 is not a range"),
        (|x| x[0].slice(..usize::MAX), "slice", "is not a range"),
        (
            |x| x[3].slice(1..),
            "slice",
            "a scalar has no elements to pick from",
        ),
        (|x| x[0].index(3), "index", "there is no element 3 among 3"),
        (
            |x| x[0].index(-4),
            "index",
            "there is no element -4 among 3",
        ),
        (|x| x[0].index(i64::MIN), "index", "there is no element"),
        (
            |x| Var::concat(&[x[0], x[2]]),
            "concat",
            "takes only vectors or only matrices",
        ),
        (
            |x| Var::concat(&[x[3], x[3]]),
            "concat",
            "scalars can be stacked",
        ),
        (
            |x| {
                Var::concat(&[
                    x[2],
                    Var::concat(&[x[2], x[2]]) * 1.0,
                    x[0].constant(wide()),
                ])
            },
            "concat",
            "the shapes [9, 2] and [1, 3] do not fit together",
        ),
        (
            |x| Var::stack(&[x[3], x[0]]),
            "stack",
            "takes scalars, not 1 dimensions",
        ),
        (
            |x| (x[0] * x[0].value()).sum(),
            "value",
            "a scalar is needed, not the shape [3]",
        ),
        // The loss itself must be one number.
        (
            |x| x[0] * 2.0,
            "value",
            "a scalar is needed, not the shape [3]",
        ),
    ];
    for (expression, operation, reason) in cases {
        let error = failure(&inputs(), *expression);
        assert!(error.starts_with(&format!("`{operation}` at ")), "{error}");
        assert!(
            error.contains("failures.rs:") || operation == &"value",
            "{error}"
        );
        assert!(error.contains(reason), "{error}, not {reason}");
    }
}

fn wide() -> Tensor {
    Tensor::new(Shape::Matrix(1, 3), vec![0.0; 3]).unwrap()
}

#[test]
fn the_first_failure_is_the_one_reported() {
    let error = failure(&inputs(), |x| {
        let first = x[0] + x[1];
        let second = first.exp().slice(1..).index(0) * x[2].index(9);
        assert!(second.value().is_nan() && second.values().is_empty());
        assert_eq!(second.shape(), None);
        assert_eq!(format!("{second:?}"), "Var(failed)");
        second + x[0].dot(x[2])
    });
    assert!(error.starts_with("`+` at "), "{error}");
}

#[test]
fn a_failure_that_is_not_part_of_the_loss_fails_it_too() {
    let error = failure(&inputs(), |x| {
        let _ = x[0] - x[1];
        x[0].sum()
    });
    assert!(error.starts_with("`-` at "), "{error}");
}

#[test]
fn operations_without_any_expression_fail_when_they_reach_one() {
    let cases: &[(Expression, &str)] = &[
        (|x| Var::from(1.0).index(0) + x[3], "index"),
        (|_| Var::from(1.0).slice(1..), "slice"),
        (|x| x[0].sum() * Var::concat(&[]), "concat"),
        (|_| Var::stack(&[1.0.into(), 2.0.into()]).sum(), "stack"),
        (|_| Var::from(1.0).dot(2.0), "dot"),
        (|_| Var::from(1.0).constant(2.0), "constant"),
        (|_| Var::from(1.0).select(2.0, 3.0), "select"),
    ];
    for (expression, operation) in cases {
        let error = failure(&inputs(), *expression);
        assert!(error.starts_with(&format!("`{operation}` at ")), "{error}");
        assert!(error.contains("a plain number"), "{error}");
    }
}

#[test]
fn variables_of_two_evaluations_do_not_mix() {
    use crate::autodiff::tape::Tape;
    let (one, other) = (Tape::new(), Tape::new());
    let x = Var::node(&one, one.input(1.0.into()));
    let y = Var::node(&other, other.input(1.0.into()));
    assert!((x + y).value().is_nan());
    let error = one.error().unwrap();
    assert_eq!(error.operation(), "+");
    assert!(error.location().file().ends_with("failures.rs"));
    assert!(
        error
            .to_string()
            .ends_with("the variables belong to different evaluations")
    );
}
