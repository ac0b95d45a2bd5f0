//! Who runs next: continuous batching as a state machine that knows nothing of models.
//!
//! Requests wait in a bounded queue, then have their prompts computed (prefill), then generate one token
//! a step for each of their samples. All of that happens in every step side by side: a request joins as
//! soon as there is room and leaves when its last sample ends, and a long prompt is computed in pieces of
//! a bounded number of tokens so that samples under way never wait for it.
//!
//! Rules:
//!
//! - Room is a number of slots (samples that generate at once) and a number of cached tokens. A sample
//!   reserves its prompt and all the tokens it may generate, so nothing that runs is ever evicted.
//! - Requests have a share: whose they are. The next slot goes to the share that holds the fewest, among its
//!   requests to the weights (base model or adapter) that hold the fewest, and then to the oldest. If that
//!   one does not fit, nobody else is let past it.
//! - Nobody has to wait until the samples of others end: a share that holds no slot gets one beyond their
//!   number, up to twice as many, and an eighth of the cached tokens is kept for such shares.
//! - The tokens of prefill in a step are divided evenly between shares, those of a share between weights, and
//!   the oldest request is first among those.
//!
//! None of this can change a result: a sample's tokens do not depend on what runs beside it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::prefix_cache::WeightsId;

/// Tokens of prefill that are given at a time while they are divided.
const PREFILL_PIECE: usize = 16;

/// Names a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// How much may wait and run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Requests that may wait; one more is refused.
    pub(crate) queued_requests: usize,
    /// Samples that generate at once, and as many again for shares that have none.
    pub(crate) running_samples: usize,
    /// Tokens whose keys and values may be held for running requests. A single request always runs,
    /// however long it is.
    pub(crate) cached_tokens: usize,
    /// Prompt tokens computed in one step.
    pub(crate) prefill_tokens: usize,
}

/// What the scheduler needs to know about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Whose request it is.
    pub(crate) share: u64,
    pub(crate) weights: WeightsId,
    /// Tokens of the prompt; at least one.
    pub(crate) prompt: usize,
    /// Most tokens that a sample may generate.
    pub(crate) max_tokens: usize,
    pub(crate) samples: usize,
}

/// What to do in a step, before every running sample generates a token.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Samples to start; the prompts of their requests are complete.
    pub(crate) start: Vec<(Ticket, usize)>,
    /// Ranges of prompts to compute.
    pub(crate) prefill: Vec<(Ticket, Range<usize>)>,
}

/// The requests that wait and run.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    waiting: BTreeMap<Ticket, Job>,
    running: BTreeMap<Ticket, Running>,
    /// Who was served last by prefill; the next step begins behind.
    last_prefilled: Option<Line>,
}

/// The requests of one share for the same weights: they are served one after the other.
type Line = (u64, WeightsId);

/// How much the shares hold, or have been given, of something.
#[derive(Debug, Default)]
struct Division {
    by_share: BTreeMap<u64, usize>,
    by_line: BTreeMap<Line, usize>,
}

impl Division {
    fn add(&mut self, line: Line, amount: usize) {
        *self.by_share.entry(line.0).or_default() += amount;
        *self.by_line.entry(line).or_default() += amount;
    }

    /// Returns what the share has, and which part of that is for these weights: whoever has least is next.
    fn of(&self, line: Line) -> (usize, usize) {
        let amount = |found: Option<&usize>| found.copied().unwrap_or(0);
        (
            amount(self.by_share.get(&line.0)),
            amount(self.by_line.get(&line)),
        )
    }
}

impl Job {
    fn line(&self) -> Line {
        (self.share, self.weights)
    }
}

#[derive(Debug)]
struct Running {
    job: Job,
    /// Tokens of the prompt computed so far; `None` until the first piece is planned.
    prefilled: Option<usize>,
    started: usize,
    live: Vec<usize>,
}

impl Running {
    fn is_prefilled(&self) -> bool {
        self.prefilled == Some(self.job.prompt)
    }

    fn has_more(&self) -> bool {
        self.started < self.job.samples
    }

    /// Slots held. One is kept as long as there are samples to start, so that a request which has begun
    /// can always go on.
    fn slots(&self) -> usize {
        self.live.len().max(usize::from(self.has_more()))
    }

    fn reserved_tokens(&self) -> usize {
        let prompt = if self.has_more() { self.job.prompt } else { 0 };
        prompt + self.slots() * (self.job.prompt + self.job.max_tokens)
    }
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            last_prefilled: None,
        }
    }

    /// Queues a request, or returns `false` if the queue is full.
    ///
    /// Tickets must be handed in in rising order.
    pub(crate) fn enqueue(&mut self, ticket: Ticket, job: Job) -> bool {
        let fits = self.waiting.len() < self.limits.queued_requests;
        if fits {
            self.waiting.insert(ticket, job);
        }
        fits
    }

    /// Returns whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Returns the number of requests that have not been given room yet.
    pub(crate) fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Plans a step. The caller carries it out before planning the next one.
    ///
    /// `cached` is asked once for each request, when its prompt's turn has come: how many of the prompt's
    /// tokens are there already. At least one token must be left to compute.
    pub(crate) fn plan(&mut self, cached: impl FnMut(Ticket) -> usize) -> Plan {
        Plan {
            start: self.fill_slots(),
            prefill: self.share_prefill(cached),
        }
    }

    /// Returns the samples that generate a token in this step.
    pub(crate) fn generating(&self) -> Vec<(Ticket, usize)> {
        self.running
            .iter()
            .flat_map(|(&ticket, running)| running.live.iter().map(move |&sample| (ticket, sample)))
            .collect()
    }

    /// Notes that a sample has ended. Returns whether it was the request's last one.
    pub(crate) fn sample_ended(&mut self, ticket: Ticket, sample: usize) -> bool {
        let Some(running) = self.running.get_mut(&ticket) else {
            return false;
        };
        running.live.retain(|&live| live != sample);
        let is_last = running.live.is_empty() && !running.has_more();
        if is_last {
            self.running.remove(&ticket);
        }
        is_last
    }

    /// Drops a request wherever it is. Returns whether it was there.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some() || self.running.remove(&ticket).is_some()
    }

    /// Starts samples and admits requests while there is room.
    fn fill_slots(&mut self) -> Vec<(Ticket, usize)> {
        let mut start = Vec::new();
        // These have had a slot kept for them.
        for (&ticket, running) in &mut self.running {
            if running.is_prefilled() && running.live.is_empty() && running.has_more() {
                start_sample(ticket, running, &mut start);
            }
        }
        while let Some(ticket) = self.next_in_line() {
            if let Some(running) = self.running.get_mut(&ticket) {
                let job = running.job;
                if !self.has_room(job.share, job.prompt + job.max_tokens) {
                    break;
                }
                let running = self.running.get_mut(&ticket).expect("found above");
                start_sample(ticket, running, &mut start);
            } else {
                let job = self.waiting[&ticket];
                let running = Running {
                    job,
                    prefilled: None,
                    started: 0,
                    live: Vec::new(),
                };
                if !self.running.is_empty() && !self.has_room(job.share, running.reserved_tokens())
                {
                    break;
                }
                self.waiting.remove(&ticket);
                self.running.insert(ticket, running);
            }
        }
        start
    }

    /// Returns the request that the next slot belongs to: a waiting one, or one with samples to start.
    fn next_in_line(&self) -> Option<Ticket> {
        let held = self.held_slots();
        let more_samples = self
            .running
            .iter()
            .filter(|(_, running)| !running.live.is_empty() && running.has_more())
            .map(|(&ticket, running)| (ticket, running.job.line()));
        let waiting = self.waiting.iter();
        let waiting = waiting.map(|(&ticket, job)| (ticket, job.line()));
        more_samples
            .chain(waiting)
            .min_by_key(|&(ticket, line)| (held.of(line), ticket))
            .map(|(ticket, _)| ticket)
    }

    fn held_slots(&self) -> Division {
        let mut held = Division::default();
        for running in self.running.values() {
            held.add(running.job.line(), running.slots());
        }
        held
    }

    fn has_room(&self, share: u64, tokens: usize) -> bool {
        let Limits {
            running_samples,
            cached_tokens,
            ..
        } = self.limits;
        let holds_any = self.running.values().any(|other| other.job.share == share);
        let (slot_limit, token_limit) = if holds_any {
            (running_samples, cached_tokens - cached_tokens / 8)
        } else {
            (running_samples.saturating_mul(2), cached_tokens)
        };
        let slots: usize = self.running.values().map(Running::slots).sum();
        let reserved: usize = self.running.values().map(Running::reserved_tokens).sum();
        slots < slot_limit && reserved + tokens <= token_limit
    }

    fn share_prefill(
        &mut self,
        mut cached: impl FnMut(Ticket) -> usize,
    ) -> Vec<(Ticket, Range<usize>)> {
        let mut lines: BTreeMap<Line, VecDeque<Ticket>> = BTreeMap::new();
        for (&ticket, running) in &self.running {
            if !running.is_prefilled() {
                let line = lines.entry(running.job.line()).or_default();
                line.push_back(ticket);
            }
        }
        let mut planned: BTreeMap<Ticket, Range<usize>> = BTreeMap::new();
        let mut given = Division::default();
        let mut budget = self.limits.prefill_tokens.max(1);
        while budget > 0 {
            // Of equals, those behind the one that was served last, so that a remainder goes round.
            let last = self.last_prefilled;
            let next = lines
                .keys()
                .min_by_key(|&&line| (given.of(line), Some(line) <= last));
            let Some(&line) = next else {
                break;
            };
            let tickets = lines.get_mut(&line).expect("one of its keys");
            let ticket = tickets[0];
            let running = self.running.get_mut(&ticket).expect("made from its keys");
            let done = *running.prefilled.get_or_insert_with(|| cached(ticket));
            let piece = PREFILL_PIECE.min(budget).min(running.job.prompt - done);
            running.prefilled = Some(done + piece);
            planned.entry(ticket).or_insert(done..done).end = done + piece;
            budget -= piece;
            given.add(line, piece);
            self.last_prefilled = Some(line);
            if running.is_prefilled() {
                tickets.pop_front();
                if tickets.is_empty() {
                    lines.remove(&line);
                }
            }
        }
        planned.into_iter().collect()
    }
}

fn start_sample(ticket: Ticket, running: &mut Running, start: &mut Vec<(Ticket, usize)>) {
    start.push((ticket, running.started));
    running.live.push(running.started);
    running.started += 1;
}

#[cfg(test)]
mod tests;
