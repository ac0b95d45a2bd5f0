use crate::InvalidInput;

/// The log-probability that marks an unused cell, together with token 0.
pub const TOPK_FILLER_LOGPROB: f32 = -99999.0;

/// The likeliest tokens at each position, as two dense matrices.
///
/// ```
/// use tinkrs_types::sampling::{TOPK_FILLER_LOGPROB, TopkLogprobs};
///
/// let topk = TopkLogprobs::new(2, vec![5, 9, 0, 0], vec![-0.1, -2.0, TOPK_FILLER_LOGPROB, TOPK_FILLER_LOGPROB])?;
/// assert_eq!(topk.row(0).unwrap().collect::<Vec<_>>(), [(5, -0.1), (9, -2.0)]);
/// assert!(topk.row(1).is_none(), "nothing was computed there");
/// # Ok::<(), tinkrs_types::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TopkLogprobs {
    k: usize,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
}

impl TopkLogprobs {
    /// Joins the two matrices, both row-major with `k` columns.
    ///
    /// # Errors
    /// If `k` is 0 or the sizes are not the same multiple of it.
    pub fn new(k: usize, token_ids: Vec<u32>, logprobs: Vec<f32>) -> Result<Self, InvalidInput> {
        if k == 0 || !token_ids.len().is_multiple_of(k) || token_ids.len() != logprobs.len() {
            return Err(InvalidInput::new(
                "topk_logprobs",
                format_args!(
                    "{} tokens, {} logprobs, k {k}",
                    token_ids.len(),
                    logprobs.len()
                ),
                "as many of each, a multiple of k",
            ));
        }
        Ok(Self {
            k,
            token_ids,
            logprobs,
        })
    }

    /// Returns how many cells each position has.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of positions.
    pub fn len(&self) -> usize {
        self.token_ids.len() / self.k
    }

    /// Returns whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.token_ids.is_empty()
    }

    /// Returns all token ids, fillers included.
    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// Returns all log-probabilities, fillers included.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// Takes the two matrices out: token ids and log-probabilities.
    pub fn into_parts(self) -> (Vec<u32>, Vec<f32>) {
        (self.token_ids, self.logprobs)
    }

    /// Returns a position's tokens and log-probabilities, or `None` if it has none.
    pub fn row(&self, position: usize) -> Option<impl Iterator<Item = (u32, f32)>> {
        let start = position.checked_mul(self.k)?;
        let cells = start..start.checked_add(self.k)?;
        let (ids, logprobs) = (
            self.token_ids.get(cells.clone())?,
            self.logprobs.get(cells)?,
        );
        let is_filler = |index: usize| ids[index] == 0 && logprobs[index] == TOPK_FILLER_LOGPROB;
        if is_filler(0) {
            return None;
        }
        let used = (0..self.k)
            .rev()
            .find(|index| !is_filler(*index))
            .map_or(0, |last| last + 1);
        Some(
            ids[..used]
                .iter()
                .copied()
                .zip(logprobs[..used].iter().copied()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_that_is_not_there_has_no_row() {
        let topk = TopkLogprobs::new(1, vec![5], vec![-0.5]).unwrap();
        for position in [1, usize::MAX - 1, usize::MAX] {
            assert!(topk.row(position).is_none());
        }
    }
}
