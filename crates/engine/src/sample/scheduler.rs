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
//! - The next slot goes to the weights (base model or adapter) that hold the fewest, then to the oldest
//!   request among theirs. If that one does not fit, nobody else is let past it.
//! - The tokens of prefill in a step are shared evenly between weights, oldest request first within each.
//!
//! None of this can change a result: a sample's tokens do not depend on what runs beside it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::prefix_cache::WeightsId;

/// Names a submitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// How much may wait and run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Requests that may wait; one more is refused.
    pub(crate) queued_requests: usize,
    /// Samples that generate at once.
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
    /// Weights served last by prefill; the next step begins after them.
    last_prefilled: Option<WeightsId>,
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
                let grown = running.job.prompt + running.job.max_tokens;
                if !self.has_room(grown) {
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
                if !self.running.is_empty() && !self.has_room(running.reserved_tokens()) {
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
        let mut held: BTreeMap<WeightsId, usize> = BTreeMap::new();
        for running in self.running.values() {
            *held.entry(running.job.weights).or_default() += running.slots();
        }
        let more_samples = self
            .running
            .iter()
            .filter(|(_, running)| !running.live.is_empty() && running.has_more())
            .map(|(&ticket, running)| (ticket, running.job.weights));
        let waiting = self
            .waiting
            .iter()
            .map(|(&ticket, job)| (ticket, job.weights));
        more_samples
            .chain(waiting)
            .min_by_key(|&(ticket, weights)| (held.get(&weights).copied().unwrap_or(0), ticket))
            .map(|(ticket, _)| ticket)
    }

    fn has_room(&self, tokens: usize) -> bool {
        let slots: usize = self.running.values().map(Running::slots).sum();
        let reserved: usize = self.running.values().map(Running::reserved_tokens).sum();
        slots < self.limits.running_samples && reserved + tokens <= self.limits.cached_tokens
    }

    fn share_prefill(
        &mut self,
        mut cached: impl FnMut(Ticket) -> usize,
    ) -> Vec<(Ticket, Range<usize>)> {
        let mut by_weights: BTreeMap<WeightsId, Vec<Ticket>> = BTreeMap::new();
        for (&ticket, running) in self
            .running
            .iter()
            .filter(|(_, running)| !running.is_prefilled())
        {
            by_weights
                .entry(running.job.weights)
                .or_default()
                .push(ticket);
        }
        // Begin after the weights that were served last, so that a remainder goes round.
        let mut order: Vec<WeightsId> = by_weights.keys().copied().collect();
        let next = order
            .iter()
            .position(|&weights| Some(weights) > self.last_prefilled);
        order.rotate_left(next.unwrap_or(0));

        let mut planned: BTreeMap<Ticket, Range<usize>> = BTreeMap::new();
        let mut budget = self.limits.prefill_tokens.max(1);
        while budget > 0 && !order.is_empty() {
            let share = (budget / order.len()).max(1);
            order.retain(|weights| {
                let queue = by_weights.get_mut(weights).expect("made from its keys");
                let mut share = share.min(budget);
                while let Some(&ticket) = queue.first().filter(|_| share > 0) {
                    let running = self.running.get_mut(&ticket).expect("made from its keys");
                    let done = *running.prefilled.get_or_insert_with(|| cached(ticket));
                    let pieces = share.min(running.job.prompt - done);
                    running.prefilled = Some(done + pieces);
                    planned.entry(ticket).or_insert(done..done).end = done + pieces;
                    share -= pieces;
                    budget -= pieces;
                    self.last_prefilled = Some(*weights);
                    if running.is_prefilled() {
                        queue.remove(0);
                    }
                }
                !queue.is_empty() && budget > 0
            });
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
