//! What the process is computing, in files that outlive it, so that the next one knows what it died of.
//!
//! An operation that ends the process would end the next one too, which repeats it, and the one after that. So
//! each worker writes down what it is about to compute (a write to a file that is not synced: it outlives the
//! process, not the machine), and a process that aborts itself, as it does without memory or at the end of
//! its stack, leaves a mark by a signal handler. The next process counts:
//!
//! - an operation in which two processes in a row have aborted is not tried again;
//! - one in which three in a row have ended in any way (killed by somebody, or by the system for its memory) is
//!   not either. One more, because whoever kills a server may hit the same innocent operation twice;
//! - an operation whose result is known, and which is repeated for what it did to its run, cannot fail any more:
//!   after two aborts its run is closed. That somebody killed the server is no reason to;
//! - when the process aborted while it sampled, each of the samples under way may be the reason, so each is
//!   drawn alone at the next start;
//! - where several base models were at work, all of their operations are counted, unless one of them was
//!   counted before: then it is that one.
//!
//! Whatever comes to its end is not suspected any longer.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tinkrs_types::RequestId;

use crate::lock::lock;

/// The file with those that are suspected.
const SUSPECTS: &str = "suspects.json";
/// The file that is written to when the process aborts.
const ABORTED: &str = "aborted";
/// What the name of a base model has before it in the file of a worker that samples.
const SAMPLES: char = '*';

/// In how many processes in a row an operation was under way at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Deaths {
    /// That aborted.
    aborted: u32,
    /// That ended without a word.
    silent: u32,
}

impl Deaths {
    fn count(&mut self, aborted: bool) {
        if aborted {
            self.aborted += 1;
        } else {
            self.silent += 1;
        }
    }

    fn is_poison(self, is_repeat: bool) -> bool {
        self.aborted >= 2 || (!is_repeat && self.aborted + self.silent >= 3)
    }

    fn reason(self) -> String {
        let (all, aborted) = (self.aborted + self.silent, self.aborted);
        format!(
            "the server ended {all} times while it was at this operation ({aborted} times by an abort: not enough \
             memory or stack), so it is not tried again"
        )
    }
}

type Suspects = BTreeMap<RequestId, Deaths>;

/// Counts the operations that were under way when a process ended.
fn count(suspects: &mut Suspects, under_way: &[RequestId], aborted: bool) {
    let were = |id: &&RequestId| suspects.contains_key(*id);
    let again: Vec<_> = under_way.iter().filter(were).cloned().collect();
    let counted = if again.is_empty() { under_way } else { &again };
    for id in counted {
        suspects.entry(id.clone()).or_default().count(aborted);
    }
}

/// What earlier processes died of, and what this one is at.
#[derive(Debug)]
pub(crate) struct UnderWay {
    folder: PathBuf,
    suspects: Mutex<Suspects>,
    /// The base models that were sampling when the process before aborted.
    aborted_sampling: HashSet<String>,
    #[cfg(unix)]
    handler: Option<signal_hook::SigId>,
}

impl UnderWay {
    /// Reads what the process before left, and waits for the end of this one.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("under-way");
        fs::create_dir_all(&folder)?;
        let aborted_file = folder.join(ABORTED);
        let aborted = fs::metadata(&aborted_file).is_ok_and(|file| file.len() > 0);
        let suspects = fs::read(folder.join(SUSPECTS)).unwrap_or_default();
        // Nothing depends on it but this: one that cannot be read is as good as none.
        let mut suspects: Suspects = serde_json::from_slice(&suspects).unwrap_or_default();
        let (mut under_way, mut aborted_sampling) = (Vec::new(), HashSet::new());
        for file in fs::read_dir(&folder)? {
            let file = file?;
            let of_worker = file.file_name().to_str().map(str::parse::<usize>);
            if !matches!(of_worker, Some(Ok(_))) {
                continue;
            }
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            let line = text.lines().next().unwrap_or_default();
            match line.strip_prefix(SAMPLES) {
                _ if line.is_empty() => {}
                Some(base) => aborted_sampling.extend(aborted.then(|| base.to_owned())),
                None => under_way.push(RequestId::new(line)),
            }
            fs::remove_file(file.path())?;
        }
        if aborted {
            fs::remove_file(&aborted_file)?;
        }
        count(&mut suspects, &under_way, aborted);
        if aborted || !under_way.is_empty() {
            tracing::warn!(
                aborted,
                ?under_way,
                "the server before did not stop by itself"
            );
        }
        let this = Self {
            #[cfg(unix)]
            handler: on_abort(&aborted_file)?,
            folder,
            suspects: Mutex::new(suspects),
            aborted_sampling,
        };
        this.write(&lock(&this.suspects));
        Ok(this)
    }

    fn write(&self, suspects: &Suspects) {
        let file = self.folder.join(SUSPECTS);
        let text = serde_json::to_vec(suspects).expect("ids are texts");
        let partial = file.with_extension("partial");
        let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &file));
        if let Err(error) = written {
            tracing::error!(%error, "could not note which operations the server ended in");
        }
    }

    /// Forgets requests that nothing is known of any longer.
    pub(crate) fn keep_only(&self, known: &HashSet<&RequestId>) {
        let mut suspects = lock(&self.suspects);
        let before = suspects.len();
        suspects.retain(|id, _| known.contains(id));
        if suspects.len() < before {
            self.write(&suspects);
        }
    }

    /// Returns why an operation must not be tried again, if it must not.
    pub(crate) fn poison(&self, id: &RequestId, is_repeat: bool) -> Option<String> {
        let deaths = lock(&self.suspects).get(id).copied()?;
        deaths.is_poison(is_repeat).then(|| deaths.reason())
    }

    /// Notes that a request for samples was under way if its base model was sampling when the process
    /// before aborted.
    pub(crate) fn suspect_sample(&self, base_model: &str, id: &RequestId) {
        if self.aborted_sampling.contains(base_model) {
            let mut suspects = lock(&self.suspects);
            suspects.entry(id.clone()).or_default().count(true);
            self.write(&suspects);
        }
    }

    /// Returns whether the server may have died of a request.
    pub(crate) fn is_suspect(&self, id: &RequestId) -> bool {
        lock(&self.suspects).contains_key(id)
    }

    /// Notes that an operation has come to its end.
    pub(crate) fn ended(&self, id: &RequestId) {
        let mut suspects = lock(&self.suspects);
        if suspects.remove(id).is_some() {
            self.write(&suspects);
        }
    }

    /// Makes the file of a worker.
    pub(crate) fn mark(&self, number: usize) -> io::Result<Mark> {
        let file = File::create(self.folder.join(number.to_string()))?;
        Ok(Mark {
            file,
            written: String::new(),
        })
    }
}

#[cfg(unix)]
impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(handler) = self.handler.take() {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// Lets a handler of SIGABRT write to a file, which is all that a process can do by then.
#[cfg(unix)]
fn on_abort(file: &Path) -> io::Result<Option<signal_hook::SigId>> {
    let file = File::options().create(true).append(true).open(file)?;
    let handler = signal_hook::low_level::pipe::register(signal_hook::consts::SIGABRT, file)?;
    Ok(Some(handler))
}

/// The file in which a worker writes down what it is about to compute.
#[derive(Debug)]
pub(crate) struct Mark {
    file: File,
    written: String,
}

impl Mark {
    /// Notes that an operation is computed from here on.
    pub(crate) fn operation(&mut self, id: &RequestId) {
        self.set(id.as_str());
    }

    /// Notes that samples of a base model are drawn from here on.
    pub(crate) fn samples(&mut self, base_model: &str) {
        if self.written.strip_prefix(SAMPLES) != Some(base_model) {
            self.set(&format!("{SAMPLES}{base_model}"));
        }
    }

    /// Notes that nothing is computed from here on.
    pub(crate) fn nothing(&mut self) {
        self.set("");
    }

    fn set(&mut self, text: &str) {
        if self.written == text {
            return;
        }
        text.clone_into(&mut self.written);
        let written = self.file.rewind();
        // At the worst an operation is tried once more than it should be.
        let _ = written.and_then(|()| writeln!(self.file, "{text}"));
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.nothing();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RequestId {
        RequestId::new(text)
    }

    #[test]
    fn two_aborts_or_three_ends_are_enough_and_a_result_is_not_taken_back_for_kills() {
        let deaths = |aborted, silent| Deaths { aborted, silent };
        let cases = [
            (deaths(1, 0), false, false),
            (deaths(2, 0), true, true),
            (deaths(0, 2), false, false),
            (deaths(0, 3), true, false),
            (deaths(1, 2), true, false),
        ];
        for (deaths, fails, closes) in cases {
            assert_eq!(deaths.is_poison(false), fails, "{deaths:?}");
            assert_eq!(deaths.is_poison(true), closes, "{deaths:?}, repeated");
        }
    }

    #[test]
    fn of_several_that_were_under_way_the_one_that_was_before_is_meant() {
        let mut suspects = Suspects::new();
        count(&mut suspects, &[id("a"), id("b")], true);
        count(&mut suspects, &[id("c"), id("b")], true);
        let aborted: Vec<_> = suspects
            .iter()
            .map(|(id, d)| (id.as_str(), d.aborted))
            .collect();
        assert_eq!(aborted, [("a", 1), ("b", 2)]);
    }

    #[test]
    fn a_process_finds_what_the_one_before_was_at() {
        let data = tempfile::tempdir().unwrap();
        for times in 1..=3 {
            let under_way = UnderWay::open(data.path()).unwrap();
            assert_eq!(under_way.poison(&id("1-2-f"), false), None, "{times}");
            let mut mark = under_way.mark(0).unwrap();
            mark.operation(&id("1-20-f"));
            mark.samples("tiny");
            mark.operation(&id("1-2-f"));
            // As if it was killed: nothing is dropped.
            std::mem::forget(mark);
        }
        let under_way = UnderWay::open(data.path()).unwrap();
        let reason = under_way.poison(&id("1-2-f"), false).expect("it is poison");
        assert!(reason.contains("ended 3 times"), "{reason}");
        assert_eq!(under_way.poison(&id("1-2-f"), true), None);
        under_way.ended(&id("1-2-f"));
        drop(under_way.mark(0).unwrap());
        let under_way = UnderWay::open(data.path()).unwrap();
        assert_eq!(under_way.poison(&id("1-2-f"), false), None);
    }

    #[test]
    fn samples_are_suspected_after_an_abort_only() {
        for (aborted, suspected) in [(false, false), (true, true)] {
            let data = tempfile::tempdir().unwrap();
            let under_way = UnderWay::open(data.path()).unwrap();
            let mut mark = under_way.mark(0).unwrap();
            mark.samples("tiny");
            std::mem::forget(mark);
            drop(under_way);
            if aborted {
                fs::write(data.path().join("under-way").join(ABORTED), "X").unwrap();
            }
            let under_way = UnderWay::open(data.path()).unwrap();
            under_way.suspect_sample("tiny", &id("1-2-f"));
            under_way.suspect_sample("other", &id("1-3-f"));
            assert_eq!(under_way.is_suspect(&id("1-2-f")), suspected);
            assert!(!under_way.is_suspect(&id("1-3-f")));
            assert_eq!(under_way.poison(&id("1-2-f"), false), None, "once");
        }
    }
}
