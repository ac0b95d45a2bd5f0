//! The losses of `torch.nn.functional` that compare two tensors element by element.

use super::{Call, Function, Result, function};
use tinkrs_autodiff::{Binary, Dtype, Id, Unary};

pub(super) const TABLE: &[Function] = &[
    function(
        "f",
        "mse_loss",
        "input target size_average! reduce! reduction? weight!",
        |c| {
            let off = c.difference()?;
            let squares = c.tape.unary(Unary::Pow(2.0), off)?;
            c.reduced_as(squares, 4)
        },
    ),
    function(
        "f",
        "l1_loss",
        "input target size_average! reduce! reduction? weight!",
        |c| {
            let off = c.difference()?;
            let sizes = c.tape.unary(Unary::Abs, off)?;
            c.reduced_as(sizes, 4)
        },
    ),
    function(
        "f",
        "smooth_l1_loss",
        "input target size_average! reduce! reduction? beta?",
        |c| {
            let beta = c.number(5)?.unwrap_or(1.0);
            let loss = c.bent(beta, 1.0 / beta)?;
            c.reduced_as(loss, 4)
        },
    ),
    function(
        "f",
        "huber_loss",
        "input target reduction? delta? weight!",
        |c| {
            let delta = c.number(3)?.unwrap_or(1.0);
            let loss = c.bent(delta, 1.0)?;
            c.reduced_as(loss, 2)
        },
    ),
    function(
        "f",
        "binary_cross_entropy_with_logits",
        "input target weight! size_average! reduce! reduction? pos_weight!",
        |c| {
            // `−t ln σ(x) − (1 − t) ln(1 − σ(x)) = softplus(x) − t x`.
            let (x, target) = (c.tensor(0)?, c.tensor(1)?);
            let soft = c.tape.unary(Unary::Softplus, x)?;
            let product = c.tape.binary(Binary::Mul, target, x)?;
            let loss = c.tape.binary(Binary::Sub, soft, product)?;
            c.reduced_as(loss, 5)
        },
    ),
    function(
        "f",
        "kl_div",
        "input target size_average! reduce! reduction? log_target?",
        kl_div,
    ),
];

impl Call<'_> {
    fn difference(&mut self) -> Result<Id> {
        let (x, target) = (self.tensor(0)?, self.tensor(1)?);
        self.tape.binary(Binary::Sub, x, target)
    }

    /// `scale · d² / 2` up to a distance of `bend`, and from there straight on.
    fn bent(&mut self, bend: f64, scale: f64) -> Result<Id> {
        let off = self.difference()?;
        let squares = self.tape.unary(Unary::Pow(2.0), off)?;
        let curve = self.tape.unary(Unary::Scale(0.5 * scale), squares)?;
        let sizes = self.tape.unary(Unary::Abs, off)?;
        let line = self.tape.unary(Unary::Scale(bend * scale), sizes)?;
        let drop = self.constant(0.5 * bend * bend * scale)?;
        let line = self.tape.binary(Binary::Sub, line, drop)?;
        let is_far = |size: f64| f64::from(u8::from(size > bend));
        let mask = self.tape.map(sizes, Dtype::Bool, is_far)?;
        self.tape.select(mask, line, curve)
    }
}

/// `t (ln t − x)`, where `x` and, if so told, `t` are logarithms.
fn kl_div(c: &mut Call<'_>) -> Result {
    let (x, target) = (c.tensor(0)?, c.tensor(1)?);
    let loss = if c.flag(5)? {
        let off = c.tape.binary(Binary::Sub, target, x)?;
        let weight = c.tape.unary(Unary::Exp, target)?;
        c.tape.binary(Binary::Mul, weight, off)?
    } else {
        let logarithm = c.tape.unary(Unary::Ln, target)?;
        let entropy = c.tape.binary(Binary::Mul, target, logarithm)?;
        let mask = c
            .tape
            .map(target, Dtype::Bool, |t| f64::from(u8::from(t == 0.0)))?;
        let zero = c.constant(0.0)?;
        let entropy = c.tape.select(mask, zero, entropy)?;
        let product = c.tape.binary(Binary::Mul, target, x)?;
        c.tape.binary(Binary::Sub, entropy, product)?
    };
    c.reduced_as(loss, 4)
}
