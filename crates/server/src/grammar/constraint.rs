//! One sample on its way through a grammar.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use tinkrs_backend::{Constraint, Error, ErrorKind, Grammar, TokenMask};

use super::vocabulary::Vocabulary;
use super::{Thinking, reason};
use crate::memory::{Budget, MemoryKind, Reservation};

/// Most tokens of whitespace between thoughts and what follows them.
const MAX_BLANKS: u32 = 4;

/// How much memory is taken at a time for a sample's place in a grammar.
const STEP_BYTES: u64 = 64 << 10;
/// How much of it a token takes, about: the rows of the parser for its characters.
const TOKEN_BYTES: u64 = 1 << 10;

/// A compiled grammar. Its samples share what the lexer has found out.
pub(super) struct CompiledGrammar {
    /// The member of the request that it came from.
    field: Arc<str>,
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    end_tokens: Arc<[u32]>,
    thoughts: Option<Thoughts>,
    memory: Memory,
}

/// The memory of a grammar and its samples.
#[derive(Clone, Default)]
pub(super) struct Memory {
    /// `None` in tests of grammars alone.
    budget: Option<Budget>,
    /// What the grammar takes, until the last sample is gone.
    _grammar: Option<Arc<Reservation>>,
}

impl Memory {
    pub(super) fn new(budget: Budget, grammar: Reservation) -> Self {
        Self {
            budget: Some(budget),
            _grammar: Some(Arc::new(grammar)),
        }
    }
}

/// What a sample's place in a grammar takes, which grows with its tokens.
struct PlaceMemory {
    of: Memory,
    held: Option<Reservation>,
    used: u64,
}

impl PlaceMemory {
    /// Takes what the next token needs.
    fn grow(&mut self) -> Result<(), Error> {
        self.used += TOKEN_BYTES;
        let Some(budget) = &self.of.budget else {
            return Ok(());
        };
        if self.used <= self.held.as_ref().map_or(0, Reservation::bytes) {
            return Ok(());
        }
        let more = budget.reserve(MemoryKind::Grammars, STEP_BYTES);
        let more = more.map_err(|refusal| Error::new(ErrorKind::Other, refusal.to_string()))?;
        match &mut self.held {
            Some(held) => held.join(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Thoughts {
    /// The token that begins them.
    opening: Option<u32>,
    closing: Arc<[u8]>,
    is_open: bool,
}

impl CompiledGrammar {
    pub(super) fn new(
        field: &str,
        matcher: Matcher,
        vocabulary: Arc<Vocabulary>,
        end_tokens: &[u32],
        thinking: Option<Thinking<'_>>,
        memory: Memory,
    ) -> Self {
        let thoughts = thinking.map(|thinking| Thoughts {
            opening: vocabulary.find(thinking.opening),
            closing: thinking.closing.as_bytes().into(),
            is_open: thinking.is_open,
        });
        Self {
            field: field.into(),
            matcher,
            vocabulary,
            end_tokens: end_tokens.into(),
            thoughts,
            memory,
        }
    }
}

impl Grammar for CompiledGrammar {
    fn begin(&self) -> Box<dyn Constraint> {
        let phase = match &self.thoughts {
            None => Phase::Document,
            Some(thoughts) if thoughts.is_open => Phase::Thoughts {
                closing: Arc::clone(&thoughts.closing),
                tail: Vec::new(),
            },
            Some(thoughts) => Phase::Choice {
                opening: thoughts.opening,
                closing: Arc::clone(&thoughts.closing),
            },
        };
        Box::new(Sample {
            field: Arc::clone(&self.field),
            phase,
            matcher: self.matcher.clone(),
            vocabulary: Arc::clone(&self.vocabulary),
            end_tokens: Arc::clone(&self.end_tokens),
            memory: PlaceMemory {
                of: self.memory.clone(),
                held: None,
                used: 0,
            },
        })
    }
}

struct Sample {
    field: Arc<str>,
    phase: Phase,
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    end_tokens: Arc<[u32]>,
    memory: PlaceMemory,
}

enum Phase {
    /// Nothing has come yet: thoughts may begin, or the document.
    Choice {
        opening: Option<u32>,
        closing: Arc<[u8]>,
    },
    /// Anything may come but the end, until `closing` has.
    Thoughts { closing: Arc<[u8]>, tail: Vec<u8> },
    /// The document may begin, after so many more tokens of whitespace at most.
    Blanks { left: u32 },
    /// The document has begun.
    Document,
}

impl Constraint for Sample {
    fn allow(&mut self, mask: &mut TokenMask) -> Result<(), Error> {
        match &self.phase {
            Phase::Thoughts { .. } => {
                let is_end = |token: &u32| self.end_tokens.contains(token);
                let tokens = 0..self.vocabulary.size();
                tokens
                    .filter(|token| !is_end(token))
                    .for_each(|token| mask.allow(token));
                return Ok(());
            }
            Phase::Choice { opening, .. } => opening.iter().for_each(|token| mask.allow(*token)),
            Phase::Blanks { .. } => {
                self.vocabulary
                    .blank()
                    .iter()
                    .for_each(|token| mask.allow(*token));
            }
            Phase::Document => {}
        }
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            self.end_tokens.iter().for_each(|token| mask.allow(*token));
            return Ok(());
        }
        let allowed = self
            .matcher
            .compute_mask()
            .map_err(|error| too_complex(&self.field, error))?;
        mask.allow_words(allowed.as_slice());
        if self
            .matcher
            .is_accepting()
            .map_err(|error| too_complex(&self.field, error))?
        {
            self.end_tokens.iter().for_each(|token| mask.allow(*token));
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<bool, Error> {
        match &mut self.phase {
            Phase::Choice { opening, closing } if *opening == Some(token) => {
                self.phase = Phase::Thoughts {
                    closing: Arc::clone(closing),
                    tail: Vec::new(),
                };
                return Ok(true);
            }
            Phase::Thoughts { closing, tail } => {
                tail.extend_from_slice(self.vocabulary.text(token));
                if has(tail, closing) {
                    self.phase = Phase::Blanks { left: MAX_BLANKS };
                } else {
                    let surplus = (tail.len() + 1).saturating_sub(closing.len());
                    tail.drain(..surplus);
                }
                return Ok(true);
            }
            Phase::Blanks { left } if self.vocabulary.blank().contains(&token) => {
                *left -= 1;
                if *left == 0 {
                    self.phase = Phase::Document;
                }
                return Ok(true);
            }
            Phase::Choice { .. } | Phase::Blanks { .. } | Phase::Document => {}
        }
        self.phase = Phase::Document;
        if self.end_tokens.contains(&token) {
            return Ok(false);
        }
        self.memory.grow()?;
        self.matcher
            .consume_token(token)
            .map_err(|error| too_complex(&self.field, error))?;
        // A complete document waits for its end, if there is a token for it.
        Ok(!(self.matcher.is_stopped() && self.end_tokens.is_empty()))
    }
}

fn has(bytes: &[u8], text: &[u8]) -> bool {
    bytes
        .windows(text.len().max(1))
        .any(|window| window == text)
}

/// The library fails where a schema takes more work than [`LIMITS`](super::LIMITS) allow.
fn too_complex(field: &str, error: impl fmt::Display) -> Error {
    let reason = reason(error);
    Error::bad_request(format!(
        "`{field}` became too complex for this sample to go on: {reason}"
    ))
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").finish_non_exhaustive()
    }
}
