//! Where the positions of a datum came from: which prompt, which sampled sequence.

use crate::{InvalidInput, SequenceId};

/// What a span's offset counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanSource {
    /// The prompt that produced the sequence.
    Prompt,
    /// The tokens that were generated as the sequence.
    Sampled,
}

/// One claim: the next `length` positions are `[offset, offset + length)` of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenanceSpan {
    source: SpanSource,
    sequence: SequenceId,
    offset: u64,
    length: u64,
}

impl ProvenanceSpan {
    /// Claims positions of the prompt that produced `sequence`.
    ///
    /// # Errors
    /// If the sequence id is empty.
    pub fn prompt(sequence: SequenceId, offset: u64, length: u64) -> Result<Self, InvalidInput> {
        Self::new(SpanSource::Prompt, sequence, offset, length)
    }

    /// Claims positions of the tokens generated as `sequence`.
    ///
    /// # Errors
    /// If the sequence id is empty.
    pub fn sampled(sequence: SequenceId, offset: u64, length: u64) -> Result<Self, InvalidInput> {
        Self::new(SpanSource::Sampled, sequence, offset, length)
    }

    fn new(
        source: SpanSource,
        sequence: SequenceId,
        offset: u64,
        length: u64,
    ) -> Result<Self, InvalidInput> {
        if sequence.as_str().is_empty() {
            return Err(InvalidInput::new(
                "sequence_id",
                "an empty id",
                "the id of a sequence",
            ));
        }
        for (field, value) in [("offset", offset), ("length", length)] {
            if i64::try_from(value).is_err() {
                return Err(InvalidInput::new(field, value, "at most 2^63 - 1"));
            }
        }
        Ok(Self {
            source,
            sequence,
            offset,
            length,
        })
    }

    /// Returns what the offset counts in.
    pub fn source(&self) -> SpanSource {
        self.source
    }

    /// Returns the sequence that the span names.
    pub fn sequence(&self) -> &SequenceId {
        &self.sequence
    }

    /// Returns the first position that is claimed.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of positions that are claimed.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// The spans of a datum. Runs are consecutive: order gives position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Tiles the model's input.
    pub model_input: Vec<ProvenanceSpan>,
    /// Tiles the target tokens.
    pub loss_fn_inputs: Vec<ProvenanceSpan>,
}

/// Checks that the spans cover exactly `expected` positions.
pub(crate) fn check_tiling(
    field: &'static str,
    spans: &[ProvenanceSpan],
    expected: usize,
) -> Result<(), InvalidInput> {
    let covered: u128 = spans.iter().map(|span| u128::from(span.length)).sum();
    if covered == expected as u128 {
        return Ok(());
    }
    Err(InvalidInput::new(
        field,
        format_args!("spans over {covered} positions"),
        format!("{expected}, exactly as many as the field has"),
    ))
}
