use super::*;

const BASE: WeightsId = WeightsId(0);
const ADAPTER: WeightsId = WeightsId(1);

fn job(weights: WeightsId, prompt: usize, max_tokens: usize, samples: usize) -> Job {
    Job {
        share: 0,
        weights,
        prompt,
        max_tokens,
        samples,
    }
}

/// A request of somebody else for the base model.
fn other(share: u64, prompt: usize, max_tokens: usize) -> Job {
    Job {
        share,
        ..job(BASE, prompt, max_tokens, 1)
    }
}

fn limits() -> Limits {
    Limits {
        queued_requests: 100,
        running_samples: 8,
        cached_tokens: 10_000,
        prefill_tokens: 64,
    }
}

/// Runs a scheduler without a model, noting what each step did.
struct Run {
    scheduler: Scheduler,
    generated: BTreeMap<(Ticket, usize), usize>,
    lengths: BTreeMap<Ticket, usize>,
}

struct Step {
    prefilled: Vec<(u64, Range<usize>)>,
    generating: usize,
    finished: Vec<u64>,
}

impl Run {
    fn new(limits: Limits, jobs: &[Job]) -> Self {
        let mut scheduler = Scheduler::new(limits);
        let mut lengths = BTreeMap::new();
        for (number, job) in jobs.iter().enumerate() {
            let ticket = Ticket(number as u64);
            assert!(scheduler.enqueue(ticket, *job));
            lengths.insert(ticket, job.max_tokens);
        }
        Self {
            scheduler,
            generated: BTreeMap::new(),
            lengths,
        }
    }

    fn step(&mut self) -> Step {
        let plan = self.scheduler.plan(|_| 0);
        let generating = self.scheduler.generating();
        let mut finished = Vec::new();
        for &(ticket, sample) in &generating {
            let count = self.generated.entry((ticket, sample)).or_default();
            *count += 1;
            if *count == self.lengths[&ticket] && self.scheduler.sample_ended(ticket, sample) {
                finished.push(ticket.0);
            }
        }
        let prefilled = plan
            .prefill
            .into_iter()
            .map(|(ticket, range)| (ticket.0, range))
            .collect();
        Step {
            prefilled,
            generating: generating.len(),
            finished,
        }
    }

    fn until_idle(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while !self.scheduler.is_idle() {
            steps.push(self.step());
            assert!(steps.len() < 10_000, "no progress");
        }
        steps
    }
}

#[test]
fn every_sample_of_every_request_runs_to_its_end() {
    let jobs: Vec<Job> = (0..20)
        .map(|i| {
            job(
                WeightsId(i % 3),
                10 + 37 * i as usize,
                1 + i as usize % 5,
                1 + i as usize % 4,
            )
        })
        .collect();
    let mut run = Run::new(limits(), &jobs);
    let steps = run.until_idle();
    let finished: usize = steps.iter().map(|step| step.finished.len()).sum();
    assert_eq!(finished, jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        for sample in 0..job.samples {
            assert_eq!(
                run.generated[&(Ticket(number as u64), sample)],
                job.max_tokens
            );
        }
    }
}

#[test]
fn a_long_prompt_is_computed_in_pieces_while_others_generate() {
    let mut run = Run::new(limits(), &[job(BASE, 4, 20, 1), job(BASE, 1000, 1, 1)]);
    let steps = run.until_idle();
    let pieces: Vec<_> = steps
        .iter()
        .flat_map(|step| &step.prefilled)
        .filter(|(id, _)| *id == 1)
        .collect();
    assert!(pieces.len() > 10, "{} pieces", pieces.len());
    let mut next = 0;
    for (_, range) in &pieces {
        assert_eq!(range.start, next, "pieces follow each other");
        next = range.end;
    }
    assert_eq!(next, 1000);
    for step in &steps {
        let tokens: usize = step.prefilled.iter().map(|(_, range)| range.len()).sum();
        assert!(tokens <= 64);
    }
    assert!(
        steps[1..15].iter().all(|step| step.generating == 1),
        "the short one goes on"
    );
}

#[test]
fn requests_join_and_leave_at_every_step() {
    let mut run = Run::new(limits(), &[job(BASE, 4, 3, 1), job(BASE, 4, 1, 1)]);
    run.step();
    assert_eq!(run.step().finished, [1]);
    run.scheduler.enqueue(Ticket(2), job(BASE, 4, 1, 1));
    run.lengths.insert(Ticket(2), 1);
    assert_eq!(run.step().prefilled, [(2, 0..4)]);
    assert_eq!(run.step().finished, [0, 2]);
    assert!(run.scheduler.is_idle());
}

#[test]
fn prefill_is_shared_between_adapters() {
    // Three requests of one adapter were there before the request of another.
    let jobs = [
        job(BASE, 500, 1, 1),
        job(BASE, 500, 1, 1),
        job(BASE, 500, 1, 1),
        job(ADAPTER, 64, 1, 1),
    ];
    let mut run = Run::new(limits(), &jobs);
    let first = run.step();
    assert_eq!(first.prefilled, [(0, 0..32), (3, 0..32)]);
    let second = run.step();
    assert_eq!(second.prefilled, [(0, 32..64), (3, 32..64)]);
    assert_eq!(
        run.step().prefilled,
        [(0, 64..128)],
        "what one does not need, the other gets"
    );
}

#[test]
fn slots_are_shared_between_adapters() {
    let mut jobs = vec![job(BASE, 4, 50, 100)];
    jobs.push(job(ADAPTER, 4, 50, 4));
    let mut run = Run::new(limits(), &jobs);
    for _ in 0..3 {
        run.step();
    }
    let generating = run.scheduler.generating();
    assert_eq!(generating.len(), 8);
    assert_eq!(
        generating
            .iter()
            .filter(|(ticket, _)| ticket.0 == 1)
            .count(),
        4
    );
}

#[test]
fn slots_are_shared_between_owners_however_many_weights_they_use() {
    // One owner has two adapters and many samples, the other one request.
    let jobs = [
        job(BASE, 4, 50, 100),
        job(ADAPTER, 4, 50, 100),
        Job {
            share: 1,
            ..job(ADAPTER, 4, 50, 100)
        },
    ];
    let mut run = Run::new(limits(), &jobs);
    for _ in 0..3 {
        run.step();
    }
    let count = |run: &Run, number| {
        let generating = run.scheduler.generating();
        let own = generating.iter().filter(|(ticket, _)| ticket.0 == number);
        own.count()
    };
    let counts: Vec<_> = (0..3).map(|number| count(&run, number)).collect();
    assert_eq!(counts, [2, 2, 4]);
}

#[test]
fn a_newcomer_does_not_wait_for_the_samples_of_others_to_end() {
    let mut run = Run::new(limits(), &[job(BASE, 4, 1000, 100)]);
    for _ in 0..3 {
        run.step();
    }
    assert_eq!(run.scheduler.generating().len(), 8, "all slots");
    for number in 1..=9 {
        run.scheduler.enqueue(Ticket(number), other(number, 4, 2));
        run.lengths.insert(Ticket(number), 2);
    }
    run.step();
    assert_eq!(run.step().generating, 16, "as many again, and no more");
    let finished = run.step().finished;
    assert_eq!(finished, [1, 2, 3, 4, 5, 6, 7, 8]);
    let generating = run.scheduler.generating();
    assert_eq!(
        generating.len(),
        8,
        "nobody who has a slot gets one of these"
    );
}

#[test]
fn some_cached_tokens_are_kept_for_those_who_have_none() {
    let limits = Limits {
        cached_tokens: 800,
        ..limits()
    };
    // Each reserves 110 tokens, 100 once it has begun: a seventh would need more than seven eighths.
    let mut run = Run::new(limits, &[job(BASE, 10, 90, 1); 8]);
    run.step();
    assert_eq!(run.scheduler.queued(), 2);
    run.scheduler.enqueue(Ticket(8), other(1, 10, 80));
    run.step();
    assert!(run.scheduler.running.contains_key(&Ticket(8)));
    assert_eq!(run.scheduler.queued(), 2);
}

#[test]
fn prefill_is_shared_between_owners() {
    let mut jobs = vec![job(BASE, 500, 1, 1), job(ADAPTER, 500, 1, 1)];
    jobs.push(other(1, 64, 1));
    let mut run = Run::new(limits(), &jobs);
    let first = run.step();
    assert_eq!(first.prefilled, [(0, 0..16), (1, 0..16), (2, 0..32)]);
}

#[test]
fn more_samples_than_slots_run_one_after_the_other() {
    let mut run = Run::new(limits(), &[job(BASE, 4, 3, 50)]);
    let steps = run.until_idle();
    assert!(steps.iter().all(|step| step.generating <= 8));
    assert_eq!(run.generated.len(), 50);
}

#[test]
fn reserved_tokens_stay_within_the_limit() {
    let limits = Limits {
        cached_tokens: 250,
        ..limits()
    };
    // A request in prefill holds its prompt and its first sample: 20 + 40 tokens.
    let mut run = Run::new(
        limits,
        &[
            job(BASE, 20, 20, 3),
            job(BASE, 20, 20, 3),
            job(BASE, 20, 20, 3),
        ],
    );
    while !run.scheduler.is_idle() {
        run.step();
        let reserved: usize = run
            .scheduler
            .running
            .values()
            .map(Running::reserved_tokens)
            .sum();
        assert!(reserved <= 250, "{reserved}");
    }
}

#[test]
fn a_request_larger_than_the_limit_runs_alone() {
    let limits = Limits {
        cached_tokens: 10,
        ..limits()
    };
    let mut run = Run::new(limits, &[job(BASE, 100, 2, 2), job(BASE, 100, 2, 1)]);
    let steps = run.until_idle();
    assert!(steps.iter().all(|step| step.generating <= 1));
    let finished: Vec<u64> = steps.into_iter().flat_map(|step| step.finished).collect();
    assert_eq!(finished, [0, 1]);
}

#[test]
fn a_full_queue_refuses_and_running_requests_do_not_count() {
    let mut scheduler = Scheduler::new(Limits {
        queued_requests: 2,
        ..limits()
    });
    assert!(scheduler.enqueue(Ticket(0), job(BASE, 4, 1, 1)));
    assert!(scheduler.enqueue(Ticket(1), job(BASE, 4, 1, 1)));
    assert!(!scheduler.enqueue(Ticket(2), job(BASE, 4, 1, 1)));
    scheduler.plan(|_| 0);
    assert_eq!(scheduler.queued(), 0);
    assert!(scheduler.enqueue(Ticket(3), job(BASE, 4, 1, 1)));
}

#[test]
fn a_cached_beginning_is_not_computed_again() {
    let mut scheduler = Scheduler::new(limits());
    scheduler.enqueue(Ticket(0), job(BASE, 40, 1, 1));
    let plan = scheduler.plan(|_| 32);
    assert_eq!(plan.prefill, [(Ticket(0), 32..40)]);
}

#[test]
fn removed_requests_make_room_at_once() {
    let limits = Limits {
        running_samples: 1,
        ..limits()
    };
    let mut scheduler = Scheduler::new(limits);
    for number in 0..3 {
        scheduler.enqueue(Ticket(number), job(BASE, 4, 9, 1));
    }
    scheduler.plan(|_| 0);
    assert!(scheduler.remove(Ticket(1)), "a waiting one");
    assert!(scheduler.remove(Ticket(0)), "a running one");
    assert!(!scheduler.remove(Ticket(0)), "gone already");
    assert_eq!(scheduler.plan(|_| 0).prefill, [(Ticket(2), 0..4)]);
}
