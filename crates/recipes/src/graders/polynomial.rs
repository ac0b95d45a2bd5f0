//! Expressions as quotients of polynomials with exact coefficients, in which equal means the same.
//!
//! Names are variables, and so are π, e, i and the roots of numbers that are no squares: √2 · √2 = 2 is known, and i² = −1;
//! nothing else is of what cannot be written with the four operations. Sizes are bounded, so that no answer of a
//! model can take long.

use super::rational::Rational;
use std::collections::BTreeMap;

/// Most terms of a polynomial, and the highest power of all its variables.
const MOST_TERMS: usize = 400;
const HIGHEST: u32 = 64;

/// Powers of variables, by name.
type Powers = BTreeMap<String, u32>;

/// A sum of terms, none of which is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Polynomial(BTreeMap<Powers, Rational>);

impl Polynomial {
    fn constant(value: Rational) -> Self {
        let mut polynomial = Self::default();
        if !value.is_zero() {
            polynomial.0.insert(Powers::new(), value);
        }
        polynomial
    }

    fn add(&mut self, powers: Powers, value: Rational) -> Option<()> {
        let before = self.0.remove(&powers).unwrap_or(Rational::ZERO);
        let sum = before.plus(value)?;
        if !sum.is_zero() {
            self.0.insert(powers, sum);
        }
        (self.0.len() <= MOST_TERMS).then_some(())
    }

    fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        for (powers, value) in &other.0 {
            sum.add(powers.clone(), *value)?;
        }
        Some(sum)
    }

    fn times(&self, other: &Self) -> Option<Self> {
        if self.0.len() * other.0.len() > MOST_TERMS * 16 {
            return None;
        }
        let mut product = Self::default();
        for (one, left) in &self.0 {
            for (two, right) in &other.0 {
                let mut powers = one.clone();
                for (name, power) in two {
                    *powers.entry(name.clone()).or_default() += power;
                }
                let mut value = left.times(*right)?;
                // √n · √n = n, and i · i = -1.
                for (name, power) in &mut powers {
                    let square = if name == "i" {
                        Some(Rational::whole(-1))
                    } else {
                        let root = name
                            .strip_prefix('√')
                            .and_then(|number| number.parse().ok());
                        root.map(Rational::whole)
                    };
                    if let Some(square) = square {
                        for _ in 0..*power / 2 {
                            value = value.times(square)?;
                        }
                        *power %= 2;
                    }
                }
                powers.retain(|_, power| *power > 0);
                if powers.values().sum::<u32>() > HIGHEST {
                    return None;
                }
                product.add(powers, value)?;
            }
        }
        Some(product)
    }

    fn as_constant(&self) -> Option<Rational> {
        match self.0.first_key_value() {
            None => Some(Rational::ZERO),
            Some((powers, value)) if self.0.len() == 1 && powers.is_empty() => Some(*value),
            Some(_) => None,
        }
    }
}

/// A quotient of two polynomials.
#[derive(Clone, Debug)]
pub(super) struct Value {
    above: Polynomial,
    below: Polynomial,
}

impl Value {
    pub(super) fn number(value: Rational) -> Self {
        Self {
            above: Polynomial::constant(value),
            below: Polynomial::constant(Rational::ONE),
        }
    }

    pub(super) fn variable(name: &str) -> Self {
        let mut above = Polynomial::default();
        let powers = Powers::from([(name.to_owned(), 1)]);
        above.0.insert(powers, Rational::ONE);
        Self {
            above,
            ..Self::number(Rational::ONE)
        }
    }

    pub(super) fn as_number(&self) -> Option<Rational> {
        let below = self.below.as_constant()?.inverse()?;
        self.above.as_constant()?.times(below)
    }

    pub(super) fn plus(&self, other: &Self) -> Option<Self> {
        let left = self.above.times(&other.below)?;
        let right = other.above.times(&self.below)?;
        Some(Self {
            above: left.plus(&right)?,
            below: self.below.times(&other.below)?,
        })
    }

    pub(super) fn times(&self, other: &Self) -> Option<Self> {
        Some(Self {
            above: self.above.times(&other.above)?,
            below: self.below.times(&other.below)?,
        })
    }

    pub(super) fn negated(&self) -> Option<Self> {
        self.times(&Self::number(Rational::whole(-1)))
    }

    pub(super) fn over(&self, other: &Self) -> Option<Self> {
        if other.above.0.is_empty() {
            return None;
        }
        self.times(&Self {
            above: other.below.clone(),
            below: other.above.clone(),
        })
    }

    pub(super) fn power(&self, exponent: &Self) -> Option<Self> {
        let exponent = exponent.as_number()?;
        let (times, root) = exponent.parts();
        if root == 2 {
            return self.root()?.power(&Self::number(Rational::whole(times)));
        }
        let times = exponent.as_whole()?;
        if times.unsigned_abs() > u128::from(HIGHEST) {
            return None;
        }
        let mut power = Self::number(Rational::ONE);
        for _ in 0..times.unsigned_abs() {
            power = power.times(self)?;
        }
        if times < 0 {
            return Self::number(Rational::ONE).over(&power);
        }
        Some(power)
    }

    /// Returns the square root of a number.
    pub(super) fn root(&self) -> Option<Self> {
        let number = self.as_number()?;
        if number.is_negative() {
            return Self::number(number.negated())
                .root()?
                .times(&Self::variable("i"));
        }
        let (above, below) = number.parts();
        // √(a / b) = √(a b) / b
        let (square, rest) = square_free(above.checked_mul(below)?)?;
        let outside = Self::number(Rational::new(square, below)?);
        match rest {
            1 => Some(outside),
            rest => outside.times(&Self::variable(&format!("√{rest}"))),
        }
    }

    /// Whether both are the same for all values of their variables.
    pub(super) fn equals(&self, other: &Self) -> Option<bool> {
        let left = self.above.times(&other.below)?;
        let right = other.above.times(&self.below)?;
        Some(left == right)
    }
}

/// Returns the largest number whose square divides this one, and what is left.
fn square_free(mut number: i128) -> Option<(i128, i128)> {
    if number == 0 {
        return Some((0, 1));
    }
    let (mut outside, mut factor) = (1_i128, 2_i128);
    while factor * factor <= number {
        if factor > 100_000 {
            return None;
        }
        while number % (factor * factor) == 0 {
            number /= factor * factor;
            outside *= factor;
        }
        factor += 1;
    }
    Some((outside, number))
}
