//! Weights that were saved for sampling without a name.
//!
//! A loop of reinforcement learning saves some at every step, and has no use for them when it has newer
//! ones. The newest of each run stay for as long as the session. Older ones go when nobody has sampled from
//! them for a while, or when they take too much room together; then those that were not used for longest go
//! first, but none that was used a moment ago. Whoever asks for one later is told so.

use std::collections::HashMap;
use std::time::Duration;

use tinkrs_types::{ModelId, SamplingSessionId};

use crate::Server;
use crate::registry::Sampler;
use crate::store::Change;
use crate::worker::Command;

/// However little room there is, weights stay for this long after they were used.
const JUST_USED: Duration = Duration::from_secs(60);

/// Weights without a name, and what decides whether they stay.
#[derive(Clone, Debug)]
struct Unnamed {
    id: SamplingSessionId,
    /// The run that they are of, and the sequence id of their save.
    of_run: (ModelId, i64),
    bytes: u64,
    unused: Duration,
}

/// Returns the weights that go if nothing is done with them at the moment, the longest unused first.
fn superseded(mut all: Vec<Unnamed>, keep: Duration, most_bytes: u64) -> Vec<Unnamed> {
    let mut newest = HashMap::new();
    for Unnamed { of_run, .. } in &all {
        let (run, seq_id) = of_run.clone();
        let known = newest.entry(run).or_insert(seq_id);
        *known = seq_id.max(*known);
    }
    all.retain(|one| one.of_run.1 < newest[&one.of_run.0]);
    all.sort_by_key(|one| std::cmp::Reverse(one.unused));
    let mut bytes: u64 = all.iter().map(|one| one.bytes).sum();
    all.retain(|one| {
        let goes = one.unused >= keep || (bytes > most_bytes && one.unused >= JUST_USED);
        bytes -= if goes { one.bytes } else { 0 };
        goes
    });
    all
}

impl Server {
    /// Deletes weights without a name that newer ones have superseded.
    pub(crate) fn drop_superseded(&self) {
        let settings = &self.shared().settings;
        let mut registry = self.registry();
        let unnamed = |sampler: &Sampler| {
            let record = &sampler.record;
            let unused = sampler.last_used.elapsed();
            Some(Unnamed {
                id: record.id.clone(),
                of_run: record.of_run.clone()?,
                bytes: record.bytes,
                unused,
            })
        };
        let all = registry.samplers.values().filter_map(unnamed).collect();
        let over = superseded(all, settings.keep_unnamed, settings.unnamed_bytes);
        if over.is_empty() {
            return;
        }
        // Under the registry's lock: from here on no request can name one of them.
        let at_work = self.shared().results.samplers_at_work();
        let mut folders = HashMap::<String, Vec<_>>::new();
        for Unnamed { id, .. } in over {
            if at_work.contains(&id) {
                continue;
            }
            let Some(Sampler { record, .. }) = registry.samplers.remove(&id) else {
                continue;
            };
            self.shared().results.feeds.forget(&id);
            let folder = record.own_folder().cloned();
            let of_base = folders.entry(record.base_model).or_default();
            of_base.extend(folder.map(|folder| self.shared().checkpoints.folder(&folder)));
            self.shared().store.note(Change::SamplerGone(id));
        }
        for (base, folders) in folders {
            if let Some(base) = self.bases().get(&base) {
                base.send(Command::ForgetAdapters(folders));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unnamed(run: &str, seq_id: i64, bytes: u64, unused: u64) -> Unnamed {
        Unnamed {
            id: SamplingSessionId::new(format!("{run}-{seq_id}")),
            of_run: (ModelId::new(run), seq_id),
            bytes,
            unused: Duration::from_secs(unused),
        }
    }

    fn gone(all: &[Unnamed], keep: u64, most_bytes: u64) -> Vec<String> {
        let over = superseded(all.to_vec(), Duration::from_secs(keep), most_bytes);
        over.into_iter().map(|one| one.id.to_string()).collect()
    }

    #[test]
    fn the_newest_of_each_run_stay_and_older_ones_go_when_they_are_unused() {
        let all = [
            unnamed("a", 3, 10, 9_000),
            unnamed("a", 6, 10, 700),
            unnamed("a", 9, 10, 5),
            unnamed("b", 2, 10, 9_999),
        ];
        assert_eq!(gone(&all, 600, 1000), ["a-3", "a-6"]);
        assert_eq!(gone(&all, 1000, 1000), ["a-3"]);
        assert_eq!(gone(&all, 10_000, 1000), [""; 0]);
    }

    #[test]
    fn without_room_the_longest_unused_go_first_and_none_that_was_just_used() {
        let all = [
            unnamed("a", 1, 10, 100),
            unnamed("a", 2, 10, 300),
            unnamed("a", 3, 10, 200),
            unnamed("a", 4, 10, 59),
            unnamed("a", 5, 10, 0),
        ];
        assert_eq!(gone(&all, 600, 40), [""; 0]);
        assert_eq!(gone(&all, 600, 39), ["a-2"]);
        assert_eq!(gone(&all, 600, 20), ["a-2", "a-3"]);
        assert_eq!(gone(&all, 600, 0), ["a-2", "a-3", "a-1"]);
    }
}
