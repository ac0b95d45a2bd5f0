//! The gated delta rule: a matrix that each token decays, corrects and reads, for one head of a sequence.
//!
//! ```text
//! S' = γ S          m = S'ᵀ k          δ = β (v − m)          S⁺ = S' + k δᵀ          o = S⁺ᵀ q
//!
//! dS⁺ += q doᵀ      dq = S⁺ do         dδ = dS⁺ᵀ k            dv = β dδ               dβ = (v − m) · dδ
//! dk = dS⁺ δ − S' dv                   dS' = dS⁺ − k dvᵀ      dγ = ⟨dS', S⟩           dS = γ dS'
//! ```
//!
//! Tokens are computed one after the other, in training as in sampling, so both have the same bits. On the way back the
//! states of a chunk of tokens are computed again from its first one.

use super::isa::vectorised;
use super::softmax::dot;

/// Tokens whose states are held at once on the way back.
pub(crate) const CHUNK: usize = 32;

/// What a token brings: `k` and `q` are normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaToken<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    /// How much of the state stays.
    pub(crate) gamma: f32,
    pub(crate) beta: f32,
}

/// Takes a token in: changes the state (rows for `k`, columns for `v`) and writes the output. `delta` is left at `δ`.
pub(crate) fn step(state: &mut [f32], token: DeltaToken<'_>, delta: &mut [f32], o: &mut [f32]) {
    let DeltaToken {
        q,
        k,
        v,
        gamma,
        beta,
    } = token;
    correct(state, k, v, gamma, beta, delta);
    read(state, k, q, delta, o);
}

vectorised! {
    /// Decays the state, and computes what is to be added to it.
    fn correct(state: &mut [f32], k: &[f32], v: &[f32], gamma: f32, beta: f32, delta: &mut [f32]) {
        delta.fill(0.0);
        for (row, &k) in state.chunks_exact_mut(v.len()).zip(k) {
            for (m, s) in delta.iter_mut().zip(row) {
                *s *= gamma;
                *m = k.mul_add(*s, *m);
            }
        }
        for (m, &v) in delta.iter_mut().zip(v) {
            *m = beta * (v - *m);
        }
    }
}

vectorised! {
    /// Adds to the state, and reads it.
    fn read(state: &mut [f32], k: &[f32], q: &[f32], delta: &[f32], o: &mut [f32]) {
        o.fill(0.0);
        for ((row, &k), &q) in state.chunks_exact_mut(delta.len()).zip(k).zip(q) {
            for ((o, s), &delta) in o.iter_mut().zip(row).zip(delta) {
                *s = k.mul_add(delta, *s);
                *o = q.mul_add(*s, *o);
            }
        }
    }
}

vectorised! {
    fn add(to: &mut [f32], factor: f32, from: &[f32]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = factor.mul_add(from, *to);
        }
    }
}

/// Gradients of what a token brought.
#[derive(Debug, Default)]
pub(crate) struct DeltaGradients {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) gamma: f32,
    pub(crate) beta: f32,
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct DeltaScratch {
    /// The state before the first token of each chunk.
    starts: Vec<f32>,
    /// The state before each token of a chunk.
    before: Vec<f32>,
    after: Vec<f32>,
    d_state: Vec<f32>,
    delta: Vec<f32>,
    d_delta: Vec<f32>,
    o: Vec<f32>,
    gradients: DeltaGradients,
}

/// Goes back through a sequence that began with an empty state. `token` returns what a position brought and the gradient
/// of its output; `write` receives gradients, from the last position to the first.
pub(crate) fn backward<'a>(
    (keys, values): (usize, usize),
    positions: usize,
    scratch: &mut DeltaScratch,
    token: impl Fn(usize) -> (DeltaToken<'a>, &'a [f32]),
    mut write: impl FnMut(usize, &DeltaGradients),
) {
    let s = scratch;
    let size = keys * values;
    for (buffer, length) in [
        (&mut s.delta, values),
        (&mut s.d_delta, values),
        (&mut s.o, values),
        (&mut s.gradients.q, keys),
        (&mut s.gradients.k, keys),
        (&mut s.gradients.v, values),
        (&mut s.before, CHUNK * size),
        (&mut s.after, size),
        (&mut s.d_state, size),
        (&mut s.starts, positions.div_ceil(CHUNK) * size),
    ] {
        buffer.clear();
        buffer.resize(length, 0.0);
    }
    for position in 0..positions {
        if position % CHUNK == 0 {
            s.starts[position / CHUNK * size..][..size].copy_from_slice(&s.after);
        }
        step(&mut s.after, token(position).0, &mut s.delta, &mut s.o);
    }
    for chunk in (0..positions.div_ceil(CHUNK)).rev() {
        let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(positions);
        s.after.copy_from_slice(&s.starts[chunk * size..][..size]);
        for position in range.clone() {
            s.before[(position - range.start) * size..][..size].copy_from_slice(&s.after);
            step(&mut s.after, token(position).0, &mut s.delta, &mut s.o);
        }
        for position in range.clone().rev() {
            let (token, d_o) = token(position);
            s.token_backward(token, d_o, (position - range.start) * size);
            write(position, &s.gradients);
        }
    }
}

impl DeltaScratch {
    fn token_backward(&mut self, token: DeltaToken<'_>, d_o: &[f32], before: usize) {
        let DeltaToken {
            q,
            k,
            v,
            gamma,
            beta,
        } = token;
        let (values, size) = (v.len(), self.after.len());
        let before = &self.before[before..][..size];
        self.after.copy_from_slice(before);
        step(&mut self.after, token, &mut self.delta, &mut self.o);
        let to = &mut self.gradients;
        self.d_delta.fill(0.0);
        let rows = self.d_state.chunks_exact_mut(values);
        for (i, (d_row, row)) in rows.zip(self.after.chunks_exact(values)).enumerate() {
            add(d_row, q[i], d_o);
            to.q[i] = dot(row, d_o);
            add(&mut self.d_delta, k[i], d_row);
            to.k[i] = dot(d_row, &self.delta);
        }
        for (dv, d_delta) in to.v.iter_mut().zip(&self.d_delta) {
            *dv = beta * d_delta;
        }
        to.gamma = 0.0;
        let mut read = vec![0.0; values];
        let rows = self.d_state.chunks_exact_mut(values);
        for (i, (d_row, row)) in rows.zip(before.chunks_exact(values)).enumerate() {
            add(&mut read, gamma * k[i], row);
            to.k[i] -= gamma * dot(row, &to.v);
            add(d_row, -k[i], &to.v);
            to.gamma += dot(d_row, row);
            d_row.iter_mut().for_each(|d| *d *= gamma);
        }
        let errors = v.iter().zip(&read).map(|(v, m)| v - m);
        to.beta = errors.zip(&self.d_delta).map(|(e, d)| e * d).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check;

    /// `Σ do · o` of a sequence in f64. A token is `q, k, v, γ, β` in a row.
    fn value(tokens: &[f64], d_o: &[f32], (keys, values): (usize, usize)) -> f64 {
        let mut state = vec![0.0; keys * values];
        let mut total = 0.0;
        let width = 2 * keys + values + 2;
        for (token, d_o) in tokens.chunks_exact(width).zip(d_o.chunks_exact(values)) {
            let (q, rest) = token.split_at(keys);
            let (k, rest) = rest.split_at(keys);
            let (v, rest) = rest.split_at(values);
            state.iter_mut().for_each(|s| *s *= rest[0]);
            for c in 0..values {
                let m: f64 = (0..keys).map(|i| state[i * values + c] * k[i]).sum();
                let delta = rest[1] * (v[c] - m);
                for i in 0..keys {
                    state[i * values + c] += k[i] * delta;
                }
                let o: f64 = (0..keys).map(|i| state[i * values + c] * q[i]).sum();
                total += o * f64::from(d_o[c]);
            }
        }
        total
    }

    #[test]
    fn gradients_match_finite_differences_within_and_across_chunks() {
        for (seed, positions, keys, values) in [(1, 3, 4, 6), (2, 40, 3, 5), (3, 70, 2, 3)] {
            let width = 2 * keys + values + 2;
            let mut tokens = check::values(positions * width, seed);
            for token in tokens.chunks_exact_mut(width) {
                let (gamma, beta) = (width - 2, width - 1);
                token[gamma] = 0.75 + 0.2 * token[gamma];
                token[beta] = 0.5 + 0.4 * token[beta];
                token[..2 * keys].iter_mut().for_each(|x| *x *= 0.6);
            }
            let d_o = check::values(positions * values, seed + 9);
            let token = |position: usize| {
                let row = &tokens[position * width..][..width];
                let token = DeltaToken {
                    q: &row[..keys],
                    k: &row[keys..2 * keys],
                    v: &row[2 * keys..2 * keys + values],
                    gamma: row[width - 2],
                    beta: row[width - 1],
                };
                (token, &d_o[position * values..][..values])
            };
            let mut gradient = vec![0.0; tokens.len()];
            let scratch = &mut DeltaScratch::default();
            backward((keys, values), positions, scratch, token, |position, d| {
                let row = &mut gradient[position * width..][..width];
                row[..keys].copy_from_slice(&d.q);
                row[keys..2 * keys].copy_from_slice(&d.k);
                row[2 * keys..2 * keys + values].copy_from_slice(&d.v);
                (row[width - 2], row[width - 1]) = (d.gamma, d.beta);
            });
            let at = check::widen(&tokens);
            check::gradient(&gradient, &at, |x| value(x, &d_o, (keys, values)), "token");
        }
    }
}
