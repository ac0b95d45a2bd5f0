//! Exact fractions that refuse to overflow.

/// A fraction in lowest terms with a positive denominator. Operations return `None` where a number would not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rational {
    numerator: i128,
    denominator: i128,
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}

impl Rational {
    pub(super) const ZERO: Self = Self::whole(0);
    pub(super) const ONE: Self = Self::whole(1);

    pub(super) const fn whole(numerator: i128) -> Self {
        Self {
            numerator,
            denominator: 1,
        }
    }

    pub(super) fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 || numerator == i128::MIN || denominator == i128::MIN {
            return None;
        }
        let common = gcd(numerator, denominator) * denominator.signum();
        Some(Self {
            numerator: numerator / common,
            denominator: denominator / common,
        })
    }

    /// Reads digits with at most one point.
    pub(super) fn decimal(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{part}");
        let scale = 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?;
        Self::new(digits.parse().ok()?, scale)
    }

    pub(super) fn is_zero(self) -> bool {
        self.numerator == 0
    }

    pub(super) fn is_negative(self) -> bool {
        self.numerator < 0
    }

    /// Returns the number, if it is whole.
    pub(super) fn as_whole(self) -> Option<i128> {
        (self.denominator == 1).then_some(self.numerator)
    }

    pub(super) fn parts(self) -> (i128, i128) {
        (self.numerator, self.denominator)
    }

    pub(super) fn negated(self) -> Self {
        Self {
            numerator: -self.numerator,
            ..self
        }
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        let denominator = self.denominator.checked_mul(other.denominator)?;
        Self::new(left.checked_add(right)?, denominator)
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        // Across first, so that less overflows.
        let one = Self::new(self.numerator, other.denominator)?;
        let two = Self::new(other.numerator, self.denominator)?;
        let numerator = one.numerator.checked_mul(two.numerator)?;
        Self::new(numerator, one.denominator.checked_mul(two.denominator)?)
    }

    pub(super) fn inverse(self) -> Option<Self> {
        Self::new(self.denominator, self.numerator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_and_what_does_not_fit_is_none() {
        let half = Rational::decimal("0.50").unwrap();
        assert_eq!(half, Rational::new(-3, -6).unwrap());
        assert_eq!(half.plus(half), Some(Rational::ONE));
        assert_eq!(half.times(half), Rational::new(1, 4));
        assert_eq!(Rational::new(1, 0), None);
        assert_eq!(Rational::ZERO.inverse(), None);
        let large = Rational::whole(i128::MAX);
        assert_eq!(large.plus(large), None);
        assert_eq!(large.times(large), None);
        assert_eq!(Rational::decimal(&"9".repeat(60)), None);
    }
}
