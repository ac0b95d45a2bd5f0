//! Rotary position embedding.
//!
//! At position `t`, the pair `(x_i, x_{i + d/2})` of a head turns by the angle `t f_i`:
//!
//! ```text
//! x_i' = x_i cos − x_{i+d/2} sin      x_{i+d/2}' = x_{i+d/2} cos + x_i sin
//! ```
//!
//! Only the first `d` numbers of a head may turn. Some models multiply what has turned by a factor, which is
//! then in the cosines and sines.
//!
//! A rotation's transpose is its inverse, so the backward pass turns gradients by `−t f_i`.

use std::sync::{Arc, RwLock};

use crate::config::Rope;

/// Cosines and sines by position, computed in `f64` as far as they were asked for.
#[derive(Debug)]
pub(crate) struct Table {
    frequencies: Vec<f64>,
    factor: f64,
    angles: RwLock<Arc<Vec<f32>>>,
}

/// A view of a [`Table`] that covers the positions asked for.
#[derive(Clone, Debug)]
pub(crate) struct Angles {
    half: usize,
    values: Arc<Vec<f32>>, // position × (d/2 cosines, d/2 sines)
}

/// Which way to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Forward,
    Back,
}

impl Table {
    pub(crate) fn new(rope: &Rope, head_dim: usize) -> Self {
        Self {
            frequencies: rope.frequencies(head_dim),
            factor: rope.attention_factor(),
            angles: RwLock::default(),
        }
    }

    /// Returns angles for positions below `positions`.
    pub(crate) fn up_to(&self, positions: usize) -> Angles {
        let half = self.frequencies.len();
        let enough = |values: &Arc<Vec<f32>>| values.len() >= positions * 2 * half;
        let current = Arc::clone(&self.angles.read().expect("no writer panics"));
        if enough(&current) {
            return Angles {
                half,
                values: current,
            };
        }
        let mut held = self.angles.write().expect("no writer panics");
        if !enough(&held) {
            let mut values = Vec::with_capacity(positions.next_power_of_two() * 2 * half);
            for position in 0..positions.next_power_of_two() {
                let (angle, factor) = (|f: &f64| position as f64 * f, self.factor);
                let frequencies = self.frequencies.iter();
                values.extend(frequencies.map(|f| (factor * angle(f).cos()) as f32));
                let frequencies = self.frequencies.iter();
                values.extend(frequencies.map(|f| (factor * angle(f).sin()) as f32));
            }
            *held = Arc::new(values);
        }
        Angles {
            half,
            values: Arc::clone(&held),
        }
    }
}

impl Angles {
    /// Turns one head at a position.
    pub(crate) fn turn(&self, head: &mut [f32], position: usize, turn: Turn) {
        let (cos, sin) =
            self.values[position * 2 * self.half..][..2 * self.half].split_at(self.half);
        let sign = if turn == Turn::Forward { 1.0 } else { -1.0 };
        let (low, high) = head[..2 * self.half].split_at_mut(self.half);
        for (((a, b), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let sin = sign * sin;
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check;

    fn table() -> Table {
        Table::new(&Rope::plain(10_000.0), 8)
    }

    #[test]
    fn turning_back_undoes_a_turn_and_position_zero_does_nothing() {
        let angles = table().up_to(20);
        let head = check::values(8, 3);
        let mut turned = head.clone();
        angles.turn(&mut turned, 0, Turn::Forward);
        assert_eq!(turned, head);
        angles.turn(&mut turned, 19, Turn::Forward);
        assert!(turned.iter().zip(&head).any(|(a, b)| (a - b).abs() > 0.1));
        angles.turn(&mut turned, 19, Turn::Back);
        assert!(turned.iter().zip(&head).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn the_backward_turn_is_the_gradient() {
        let table = table();
        let (x, dy) = (check::values(8, 1), check::values(8, 2));
        for position in [1, 7, 100] {
            let value = |x: &[f64]| {
                (0..4)
                    .map(|i| {
                        let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / 8.0);
                        let (low, high) = (x[i], x[i + 4]);
                        (low * angle.cos() - high * angle.sin()) * f64::from(dy[i])
                            + (high * angle.cos() + low * angle.sin()) * f64::from(dy[i + 4])
                    })
                    .sum::<f64>()
            };
            let mut dx = dy.clone();
            table
                .up_to(position + 1)
                .turn(&mut dx, position, Turn::Back);
            check::gradient(&dx, &check::widen(&x), value, "rope");
        }
    }
}
