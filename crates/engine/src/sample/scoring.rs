//! What is reported about the prompt.
//!
//! Row `i` of the model's logits predicts the token at position `i + 1`, so a prompt of `P` tokens has
//! `P − 1` rows to score, and position 0 has no score:
//!
//! | result | shape | row `i` fills | without a value |
//! | --- | --- | --- | --- |
//! | prompt log-probabilities | `P` | position `i + 1` | NaN |
//! | likeliest tokens | `P × k` | position `i + 1` | token 0 at −99999 |
//! | log-probabilities of named tokens | `(P − 1) × K` | row `i` | 0 |
//! | alternatives | `(P − 1) × k` | row `i` | |
//!
//! Rows are taken one at a time, in any pieces, so that the logits of a whole prompt never exist at once.
//! Log-probabilities are the model's own, at temperature 1; only alternatives are drawn at the request's
//! temperature (with replacement, without top-k or top-p), and report the log-probability they were drawn
//! with, as samples do.

use tinkrs_types::sampling::{PromptAltTokens, SampleOptions, TOPK_FILLER_LOGPROB, TopkLogprobs};
use tinkrs_types::tensor::{CsrIndices, TensorValues};
use tinkrs_types::{InvalidInput, SampleOutput, TensorData};

use super::distribution::{Distribution, DistributionScratch, Rule};
use super::rng::{Purpose, SampleRng};
use crate::Error;

/// The scores that a request asks for, filled in row by row.
#[derive(Debug, Default)]
pub(crate) struct Scoring {
    rows: usize,
    /// First row that prompt log-probabilities and likeliest tokens are wanted for.
    first_row: usize,
    prompt_logprobs: Option<Vec<f32>>,
    likeliest: Option<Likeliest>,
    targets: Option<Targets>,
    alternatives: Option<Alternatives>,
}

/// The likeliest tokens at each position, as two flat `positions × k` matrices.
#[derive(Debug)]
pub(crate) struct Likeliest {
    k: usize,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
}

#[derive(Debug)]
struct Targets {
    ids: Vec<i64>,
    logprobs: Vec<f32>,
    shape: [usize; 2],
    csr: Option<CsrIndices>,
    first_row: usize,
}

#[derive(Debug)]
struct Alternatives {
    k: usize,
    tokens: Vec<i64>,
    logprobs: Vec<f32>,
}

impl Scoring {
    /// Reads what a request wants to know about its prompt of `prompt` tokens.
    ///
    /// # Errors
    ///
    /// Names an option that does not fit the prompt or the vocabulary.
    pub(crate) fn new(options: &SampleOptions, prompt: usize, vocab: usize) -> Result<Self, Error> {
        let rows = prompt - 1;
        let first_row = match options.prompt_logprobs_last_n {
            None => 0,
            Some(last) if (last as usize) <= rows => rows - last as usize,
            Some(last) => {
                let allowed = format!("1 to {rows}, the length of the prompt less one");
                return Err(InvalidInput::new("prompt_logprobs_last_n", last, allowed).into());
            }
        };
        let k = options.topk_prompt_logprobs as usize;
        let targets = options.target_prompt_logprobs.as_ref();
        let alternatives = options.prompt_alt_tokens_k as usize;
        Ok(Self {
            rows,
            first_row,
            prompt_logprobs: options.prompt_logprobs.then(|| vec![f32::NAN; prompt]),
            likeliest: (k > 0).then(|| Likeliest::filled(k, first_row + 1)),
            targets: targets
                .map(|targets| Targets::new(targets, rows, vocab))
                .transpose()?,
            alternatives: (alternatives > 0).then(|| Alternatives {
                k: alternatives,
                tokens: Vec::with_capacity(rows * alternatives),
                logprobs: Vec::with_capacity(rows * alternatives),
            }),
        })
    }

    /// Returns the first row that has to be computed, or `None` if no row is wanted.
    ///
    /// Rows are wanted from there to the last but one position, without gaps.
    pub(crate) fn first_row(&self) -> Option<usize> {
        let suffix = self.prompt_logprobs.is_some() || self.likeliest.is_some();
        let wanted = [
            suffix.then_some(self.first_row),
            self.targets.as_ref().map(|targets| targets.first_row),
            self.alternatives.is_some().then_some(0),
        ];
        wanted
            .into_iter()
            .flatten()
            .min()
            .filter(|&first| first < self.rows)
    }

    /// Takes in the logits of a row. Rows come in order, from the first one wanted.
    ///
    /// # Errors
    ///
    /// Logits that are not finite.
    pub(crate) fn take_row(
        &mut self,
        row: usize,
        logits: &[f32],
        next_token: u32,
        rule: &Rule,
        rng: SampleRng,
        scratch: &mut DistributionScratch,
    ) -> Result<(), Error> {
        let mut own = Distribution::new(logits, 1.0, scratch)?;
        if row >= self.first_row {
            if let Some(logprobs) = &mut self.prompt_logprobs {
                logprobs[row + 1] = own.logprob(next_token);
            }
            if let Some(likeliest) = &mut self.likeliest {
                likeliest.push(&mut own);
            }
        }
        if let Some(targets) = &mut self.targets {
            targets.take_row(row, &own);
        }
        if let Some(alternatives) = &mut self.alternatives {
            let rule = Rule::uncut(rule.temperature);
            let mut scaled = Distribution::new(logits, rule.temperature, scratch)?;
            for draw in 0..alternatives.k {
                let uniform = rng.uniform(Purpose::PromptAlternative, row as u32 + 1, draw as u32);
                let token = scaled.draw(&rule, uniform);
                alternatives.tokens.push(i64::from(token));
                alternatives.logprobs.push(scaled.logprob(token));
            }
        }
        Ok(())
    }

    /// Moves the scores into a result.
    pub(crate) fn finish(self, output: &mut SampleOutput) {
        let rows = self.rows;
        output.prompt_logprobs = self.prompt_logprobs;
        output.topk_prompt_logprobs = self.likeliest.map(Likeliest::finish);
        output.target_prompt_logprobs = self.targets.map(Targets::finish);
        output.prompt_alt_tokens = self.alternatives.map(|alternatives| {
            let shape = [rows, alternatives.k];
            PromptAltTokens::new(
                TensorData::with_shape(alternatives.tokens, shape).expect("k draws a row"),
                TensorData::with_shape(alternatives.logprobs, shape).expect("k draws a row"),
            )
        });
    }
}

impl Likeliest {
    /// Begins with some positions that have no values.
    pub(crate) fn filled(k: usize, positions: usize) -> Self {
        Self {
            k,
            tokens: vec![0; k * positions],
            logprobs: vec![TOPK_FILLER_LOGPROB; k * positions],
        }
    }

    /// Adds a position. `k` is at most the size of the vocabulary, so a row is always full.
    pub(crate) fn push(&mut self, distribution: &mut Distribution<'_>) {
        distribution.likeliest(self.k, &mut self.tokens, &mut self.logprobs);
    }

    /// Returns the tokens of a position, likeliest first.
    pub(crate) fn at(&self, position: usize) -> impl Iterator<Item = (u32, f32)> {
        let of_position = position * self.k..(position + 1) * self.k;
        let (tokens, logprobs) = (
            &self.tokens[of_position.clone()],
            &self.logprobs[of_position],
        );
        tokens.iter().copied().zip(logprobs.iter().copied())
    }

    pub(crate) fn finish(self) -> TopkLogprobs {
        TopkLogprobs::new(self.k, self.tokens, self.logprobs).expect("k tokens a position")
    }
}

impl Targets {
    fn new(tensor: &TensorData, rows: usize, vocab: usize) -> Result<Self, Error> {
        let refuse = |found: String, allowed: String| {
            Err(InvalidInput::new("target_prompt_logprobs", found, allowed).into())
        };
        let (TensorValues::I64(ids), Some(&[height, width])) = (tensor.values(), tensor.shape())
        else {
            return refuse(
                format!("{} tensor", tensor.dtype()),
                "an int64 matrix".to_owned(),
            );
        };
        if height != rows {
            let allowed = format!("{rows}, the length of the prompt less one");
            return refuse(format!("{height} rows"), allowed);
        }
        if let Some(id) = ids.iter().find(|&&id| id < -1 || id >= vocab as i64) {
            let allowed = format!("-1 to skip, or a token below {vocab}");
            return refuse(format!("token {id}"), allowed);
        }
        let mut targets = Self {
            logprobs: vec![0.0; ids.len()],
            ids: ids.clone(),
            shape: [height, width],
            csr: tensor.csr().cloned(),
            first_row: rows,
        };
        let named = (0..rows).find(|&row| targets.cells(row).any(|cell| targets.ids[cell] >= 0));
        let Some(first_row) = named else {
            return refuse("no token".to_owned(), "at least one token".to_owned());
        };
        targets.first_row = first_row;
        Ok(targets)
    }

    /// Returns where the tokens of a row stand in the flat list.
    fn cells(&self, row: usize) -> std::ops::Range<usize> {
        match &self.csr {
            Some(csr) => csr.crow[row] as usize..csr.crow[row + 1] as usize,
            None => row * self.shape[1]..(row + 1) * self.shape[1],
        }
    }

    fn take_row(&mut self, row: usize, distribution: &Distribution<'_>) {
        for cell in self.cells(row) {
            if let Ok(token) = u32::try_from(self.ids[cell]) {
                self.logprobs[cell] = distribution.logprob(token);
            }
        }
    }

    fn finish(self) -> TensorData {
        let tensor = match self.csr {
            Some(csr) => TensorData::sparse(self.logprobs, csr, self.shape),
            None => TensorData::with_shape(self.logprobs, self.shape),
        };
        tensor.expect("the layout is the request's own")
    }
}

#[cfg(test)]
mod tests;
