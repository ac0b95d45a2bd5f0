//! Arithmetic between variables and numbers, by value or by reference.

use super::Var;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};
use tinkrs_autodiff::{Binary, Unary};

macro_rules! operator {
    ($symbol:literal, $trait:ident::$method:ident, $assign_trait:ident::$assign_method:ident) => {
        impl<'tape, R: Into<Var<'tape>>> $trait<R> for Var<'tape> {
            type Output = Self;

            #[track_caller]
            fn $method(self, other: R) -> Self {
                self.binary($symbol, Binary::$trait, other.into())
            }
        }

        impl<'tape, R: Into<Var<'tape>>> $trait<R> for &Var<'tape> {
            type Output = Var<'tape>;

            #[track_caller]
            fn $method(self, other: R) -> Var<'tape> {
                self.binary($symbol, Binary::$trait, other.into())
            }
        }

        impl<'tape> $trait<Var<'tape>> for f64 {
            type Output = Var<'tape>;

            #[track_caller]
            fn $method(self, other: Var<'tape>) -> Var<'tape> {
                Var::from(self).binary($symbol, Binary::$trait, other)
            }
        }

        impl<'tape> $trait<&Var<'tape>> for f64 {
            type Output = Var<'tape>;

            #[track_caller]
            fn $method(self, other: &Var<'tape>) -> Var<'tape> {
                Var::from(self).binary($symbol, Binary::$trait, *other)
            }
        }

        impl<'tape, R: Into<Var<'tape>>> $assign_trait<R> for Var<'tape> {
            #[track_caller]
            fn $assign_method(&mut self, other: R) {
                *self = self.binary($symbol, Binary::$trait, other.into());
            }
        }
    };
}

operator!("+", Add::add, AddAssign::add_assign);
operator!("-", Sub::sub, SubAssign::sub_assign);
operator!("*", Mul::mul, MulAssign::mul_assign);
operator!("/", Div::div, DivAssign::div_assign);

impl Neg for Var<'_> {
    type Output = Self;

    #[track_caller]
    fn neg(self) -> Self {
        self.unary("-", Unary::Neg)
    }
}

impl<'tape> Neg for &Var<'tape> {
    type Output = Var<'tape>;

    #[track_caller]
    fn neg(self) -> Var<'tape> {
        self.unary("-", Unary::Neg)
    }
}

/// Adds variables up; the sum of none is 0.
impl Sum for Var<'_> {
    #[track_caller]
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        // Starting from 0 would put one more operation onto the tape.
        let mut iter = iter;
        let first = iter.next().unwrap_or(0.0.into());
        iter.fold(first, |sum, var| sum + var)
    }
}

impl<'iter> Sum<&'iter Self> for Var<'_> {
    #[track_caller]
    fn sum<I: Iterator<Item = &'iter Self>>(iter: I) -> Self {
        iter.copied().sum()
    }
}
