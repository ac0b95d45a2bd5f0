//! Compiling in turns, with the memory accounted for.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use serde_json::Value;
use tinkrs_backend::Grammar;
use tokio::sync::{Semaphore, oneshot};

use super::constraint::{CompiledGrammar, Memory};
use super::{Shape, Thinking};
use crate::accept::digest;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::lock::lock;
use crate::memory::{Budget, MemoryKind, Refusal};
use crate::state::Base;
use crate::store::Digest;

/// What a grammar takes at most: [`LIMITS`](super::LIMITS) has 4,000 states of 1 to 2 kB, and the symbols beside them.
pub(super) const GRAMMAR_BYTES: u64 = 10 << 20;

/// The stack of the thread that compiles: the library goes a level deeper for each property and for each step of a reference.
/// [`bounds`](super::bounds) says how many there can be.
const STACK_BYTES: usize = 128 << 20;

/// Compiles the grammars of requests, a few at the same time, on threads of their own. Requests of an owner that ask for the same share one
/// grammar.
pub(crate) struct GrammarCompiler {
    memory: Budget,
    turns: Arc<Semaphore>,
    in_use: Mutex<HashMap<Digest, Weak<CompiledGrammar>>>,
}

/// A grammar that is asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) owner: Owner,
    pub(crate) base: Arc<Base>,
    /// Where the schema came from.
    pub(crate) member: &'static str,
    /// Any JSON object, if there is none.
    pub(crate) schema: Option<Value>,
    pub(crate) end_tokens: Vec<u32>,
    pub(crate) thinking: Option<Thinking<'static>>,
}

impl Wanted {
    fn key(&self) -> Digest {
        let (ends, thinking) = (&self.end_tokens, &self.thinking);
        let schema = self.schema.as_ref().map(Value::to_string);
        let owner = self.owner.number();
        let text = format!(
            "{owner} {} {ends:?} {thinking:?} {schema:?}",
            self.base.name
        );
        digest(text.as_bytes())
    }
}

impl GrammarCompiler {
    pub(crate) fn new(memory: Budget) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            memory,
            turns: Arc::new(Semaphore::new((cores / 2).max(1))),
            in_use: Mutex::default(),
        }
    }

    /// Waits for a turn and compiles. Dropping the future ends the work.
    pub(crate) async fn compile(&self, wanted: Wanted) -> Result<Arc<dyn Grammar>, ApiError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|_| ApiError::unavailable("the server is stopping"))?;
        let key = wanted.key();
        let known = lock(&self.in_use).get(&key).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(known);
        }
        let reserved = self.memory.reserve(MemoryKind::Grammars, GRAMMAR_BYTES);
        let reserved = reserved.map_err(|refusal| refused(wanted.member, &refusal))?;
        let memory = Memory::new(self.memory.clone(), reserved);
        let needed = Needed::default();
        let is_needed = Arc::clone(&needed.0);
        let (answer, compiled) = oneshot::channel();
        let thread = thread::Builder::new().name("tinkrs-grammar".to_owned());
        let started = thread.stack_size(STACK_BYTES).spawn(move || {
            let compiled = wanted.compile(memory, &|| is_needed.load(Ordering::Relaxed));
            drop(turn);
            // Sending fails if the request has ended and dropped the receiver.
            let _ = answer.send(compiled);
        });
        started.map_err(|_| ApiError::unavailable("the system refused a thread"))?;
        let compiled = compiled.await;
        drop(needed);
        let compiled =
            compiled.map_err(|_| ApiError::unavailable("the schema could not be compiled"))??;
        let mut in_use = lock(&self.in_use);
        in_use.retain(|_, grammar| grammar.strong_count() > 0);
        in_use.insert(key, Arc::downgrade(&compiled));
        Ok(compiled)
    }
}

impl Wanted {
    fn compile(
        self,
        memory: Memory,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<Arc<CompiledGrammar>, ApiError> {
        let (member, base) = (self.member, &self.base);
        if !is_needed() {
            return Err(ApiError::unavailable("the request was cancelled"));
        }
        let grammars = base.grammars().map_err(|why| {
            let name = &base.name;
            ApiError::bad_request(format!(
                "`{member}`: answers of `{name}` cannot be constrained: {why}"
            ))
        })?;
        let shape = self
            .schema
            .as_ref()
            .map_or(Shape::JsonObject, Shape::JsonSchema);
        Ok(grammars.compile(
            member,
            &shape,
            &self.end_tokens,
            self.thinking,
            memory,
            is_needed,
        )?)
    }
}

fn refused(member: &str, refusal: &Refusal) -> ApiError {
    let detail = format!("`{member}`: {refusal}");
    if refusal.is_permanent() {
        ApiError::unavailable(detail)
    } else {
        ApiError::busy(detail)
    }
}

/// Says that a result is waited for, until it is dropped.
struct Needed(Arc<AtomicBool>);

impl Default for Needed {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for Needed {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}
