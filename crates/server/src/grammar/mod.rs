//! Constrained decoding: samples that are JSON, or JSON of a schema.
//!
//! The server compiles a schema with the `llguidance` library against the vocabulary of the model. What comes out is a
//! [`Grammar`], which the sampler asks before each draw; it knows neither schemas nor texts.
//!
//! A schema comes from anyone. Its size is bounded before it is compiled ([`bounds`]), the library's work by
//! limits of its own ([`LIMITS`]), and what it cannot do exactly it refuses. [`compiler`] compiles a few at a time beside the threads that
//! answer requests, and takes the memory from the budget.

mod bounds;
mod compiler;
mod constraint;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value, json};
use tinkrs_chat::TokenBytes;
use tinkrs_types::InvalidInput;

pub(crate) use bounds::check_size;
pub(crate) use compiler::{GrammarCompiler, Wanted};
use constraint::{CompiledGrammar, Memory};
use vocabulary::Vocabulary;

/// Whitespace between the parts of a JSON document: one space. A small model that may draw more fills its answer with it.
const WHITESPACE: &str = r"\x20";

/// How much work and memory a grammar may take. The library gives about 1 to 2 kB for a lexer state, 50,000 units of fuel
/// a millisecond for compiling, and 14,000 units or 20,000 items a millisecond for a mask.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 50_000,
    step_max_items: 25_000,
    max_lexer_states: 4_000,
    max_grammar_size: 100_000,
    precompute_large_lexemes: false,
    verbose_errors: false,
};

/// Compiles grammars for one vocabulary.
pub(crate) struct Grammars {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// What a sample has to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape<'a> {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema allows.
    JsonSchema(&'a Value),
}

/// Where a sample may think before it keeps to a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thinking<'a> {
    /// The text of the token that begins thoughts.
    pub(crate) opening: &'a str,
    /// The text that ends them.
    pub(crate) closing: &'a str,
    /// Whether the prompt has begun them already.
    pub(crate) is_open: bool,
}

impl Grammars {
    /// Prepares a vocabulary, which takes some tenths of a second for a large one.
    ///
    /// # Errors
    ///
    /// Says why no grammar can be compiled for the vocabulary.
    pub(crate) fn new(bytes: &TokenBytes, size: usize) -> Result<Self, String> {
        let vocabulary = Vocabulary::new(bytes, size);
        let prepare = || {
            let mut factory = ParserFactory::new(
                &vocabulary.environment(),
                InferenceCapabilities::default(),
                &SlicedBiasComputer::json_slices(),
            )
            .map_err(reason)?;
            factory.quiet();
            *factory.limits_mut() = LIMITS;
            Ok(factory)
        };
        Ok(Self {
            factory: without_panic(prepare)?,
            vocabulary: Arc::new(vocabulary),
        })
    }

    /// Compiles what samples have to be. They may end with one of `end_tokens` where they are complete. It may take tens
    /// of milliseconds, and ends early once it is not needed any longer.
    ///
    /// # Errors
    ///
    /// A schema that is malformed, too large, not supported or that nothing satisfies: `field` is where it came from.
    fn compile(
        &self,
        field: &str,
        shape: &Shape<'_>,
        end_tokens: &[u32],
        thinking: Option<Thinking<'_>>,
        memory: Memory,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<Arc<CompiledGrammar>, InvalidInput> {
        let schema = match shape {
            Shape::JsonObject => json!({"type": "object"}),
            Shape::JsonSchema(schema) => {
                bounds::check(field, schema)?;
                (*schema).clone()
            }
        };
        let matcher = self.matcher(schema, is_needed).map_err(|reason| {
            let allowed = "a JSON schema that can be satisfied and is supported";
            InvalidInput::new(field.to_owned(), reason, allowed)
        })?;
        Ok(Arc::new(CompiledGrammar::new(
            field,
            matcher,
            Arc::clone(&self.vocabulary),
            end_tokens,
            thinking,
            memory,
        )))
    }

    fn matcher(&self, schema: Value, is_needed: &dyn Fn() -> bool) -> Result<Matcher, String> {
        let options = JsonCompileOptions {
            whitespace_pattern: Some(WHITESPACE.to_owned()),
            ..JsonCompileOptions::default()
        };
        without_panic(|| {
            let mut schema = match schema {
                // `true` and `{}` allow everything.
                Value::Bool(true) => json!({}),
                Value::Bool(false) => return Err("nothing satisfies `false`".to_owned()),
                schema => schema,
            };
            options.apply_to(&mut schema);
            let grammar = TopLevelGrammar::from_json_schema(schema);
            let parser = self.factory.create_parser(grammar).map_err(reason)?;
            if !is_needed() {
                return Err("the request was cancelled".to_owned());
            }
            let mut matcher = Matcher::new(Ok(parser));
            // The first mask tells whether anything can follow at all.
            let mask = matcher.compute_mask().map_err(reason)?;
            if mask.is_zero() {
                return Err("no token of this model can begin it".to_owned());
            }
            Ok(matcher)
        })
    }
}

/// Calls the library, of which a schema may find what its authors did not think of.
fn without_panic<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result.unwrap_or_else(|_| Err("it could not be compiled".to_owned()))
}

/// Says why the library refuses something. A panic that it caught comes with the places in its code, which help nobody who sent a schema.
fn reason(error: impl fmt::Display) -> String {
    let reason = format!("{error:#}");
    if reason.contains("panic: ") {
        return "it could not be compiled".to_owned();
    }
    bounds::shorten(&reason)
}
