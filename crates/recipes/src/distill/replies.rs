//! What a teacher says to questions, kept as soon as it is there.
//!
//! Answers take time, and maybe money. Each reply is a line of a file beside the one that all of them become in the
//! end, under a hash of what was asked. So a run that was killed, or in which one question failed, asks for what is
//! missing, also when questions were added or taken away.

use crate::Error;
use crate::data::{open_to_add, parse_jsonl, read_jsonl};
use crate::run::{Entry, Hooks, Journal, hold};
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reply<T> {
    /// What can be learned from it.
    pub(super) learned: Vec<T>,
    /// How many answers did not end within the limit of tokens, and are left out.
    pub(super) unfinished: usize,
}

impl<T> Reply<T> {
    pub(super) fn of(learned: T) -> Self {
        Self {
            learned: vec![learned],
            unfinished: 0,
        }
    }
}

/// What a teacher is to be asked.
pub(super) struct Asked {
    /// A hash of all of it.
    pub(super) all: u64,
    /// For each question, a hash of what decides the reply.
    pub(super) each: Vec<u64>,
    /// Most tokens of an answer.
    pub(super) max_tokens: u32,
}

/// Returns what an earlier part of the run in a folder has learned from all replies, if it has them.
///
/// # Errors
/// If they are replies to something else, or cannot be read.
pub(super) fn kept<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    asked: u64,
) -> Result<Option<Vec<T>>, Error> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let earlier = Journal::open(folder.join("journal.jsonl"))?.asked();
    if earlier.is_some_and(|earlier| earlier != asked) {
        let problem = "its teacher was asked other questions, or told something else";
        return Err(Error::resume(folder, problem));
    }
    read_jsonl(&path).map(Some)
}

/// Asks for what was not asked yet. Keeps what is learned in the folder, and tells what is left out. `ask` gets the
/// index of a question.
///
/// # Errors
/// If a question fails, nothing can be learned from any, or it cannot be written.
pub(super) async fn ask<T, F>(
    folder: &Path,
    name: &str,
    asked: &Asked,
    ask: impl Fn(usize) -> F,
    hooks: &mut Hooks<'_>,
) -> Result<Vec<T>, Error>
where
    T: Serialize + DeserializeOwned,
    F: Future<Output = Result<Reply<T>, Error>>,
{
    let _held = hold(folder)?;
    let data = asked.all;
    Journal::open(folder.join("journal.jsonl"))?.write(Entry::Asked { data })?;
    let path = folder.join(name);
    let replies = gather(&path, &asked.each, ask).await?;
    let learned = learned(replies, asked.max_tokens, hooks)?;
    finish(&path, &learned)?;
    Ok(learned)
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    asked: String,
    reply: R,
}

/// Returns the file of replies that will become `path`.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("asked.jsonl")
}

/// Asks each question, known by the hash of what is asked, unless its reply is kept beside `path` already. One that
/// fails does not take the others with it. `ask` gets the question's index.
///
/// # Errors
/// If a question failed, the first one's reason, or the file cannot be used.
async fn gather<T, F>(
    path: &Path,
    asked: &[u64],
    ask: impl Fn(usize) -> F,
) -> Result<Vec<Reply<T>>, Error>
where
    T: Serialize + DeserializeOwned,
    F: Future<Output = Result<Reply<T>, Error>>,
{
    let path = beside(path);
    let (file, text) = open_to_add(&path)?;
    let mut kept: HashMap<String, Vec<Reply<T>>> = HashMap::new();
    for line in parse_jsonl::<Line<Reply<T>>>(&text, &path)? {
        kept.entry(line.asked).or_default().push(line.reply);
    }
    // The first of two equal questions has the first reply.
    kept.values_mut().for_each(|replies| replies.reverse());
    let file = Mutex::new(file);
    let replies = asked.iter().enumerate().map(|(question, asked)| {
        let name = format!("{asked:016x}");
        let known = kept.get_mut(&name).and_then(Vec::pop);
        let asking = known.is_none().then(|| ask(question));
        let (file, path) = (&file, &path);
        async move {
            let reply = match (known, asking) {
                (Some(reply), _) => return Ok(reply),
                (None, Some(asking)) => asking.await?,
                (None, None) => return Err(Error::Missing { what: "reply" }),
            };
            let line = Line {
                asked: name,
                reply: &reply,
            };
            add(file, path, &line)?;
            Ok(reply)
        }
    });
    let replies = join_all(replies.collect::<Vec<_>>()).await;
    replies.into_iter().collect()
}

fn add(file: &Mutex<File>, path: &Path, line: &impl Serialize) -> Result<(), Error> {
    let written = serde_json::to_string(line).map_err(std::io::Error::from);
    let written = written.and_then(|line| {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes())
    });
    written.map_err(Error::file("write", path))
}

/// Writes what was learned from all replies as `path`, as a whole or not at all. Their own file has then done its part.
///
/// # Errors
/// If it cannot be written.
fn finish<T: Serialize>(path: &Path, learned: &[T]) -> Result<(), Error> {
    let lines: Result<Vec<String>, _> = learned.iter().map(serde_json::to_string).collect();
    let text = lines
        .map_err(std::io::Error::from)
        .map(|lines| lines.join("\n") + "\n");
    let part = path.with_extension("part");
    let written = text.and_then(|text| std::fs::write(&part, text));
    let written = written.and_then(|()| std::fs::rename(&part, path));
    written.map_err(Error::file("write", path))?;
    // One that stays there is of no more use, and no harm.
    let _ = std::fs::remove_file(beside(path));
    Ok(())
}

/// Returns what is learned from all replies, and tells what was left out.
///
/// # Errors
/// If nothing is left.
fn learned<T>(
    replies: Vec<Reply<T>>,
    max_tokens: u32,
    hooks: &mut Hooks<'_>,
) -> Result<Vec<T>, Error> {
    let unfinished: usize = replies.iter().map(|reply| reply.unfinished).sum();
    let learned: Vec<T> = replies
        .into_iter()
        .flat_map(|reply| reply.learned)
        .collect();
    if learned.is_empty() {
        return Err(no_answer(max_tokens));
    }
    if unfinished > 0 {
        hooks.failure(&format!(
            "{unfinished} of the teacher's answers did not end within {max_tokens} tokens, and {} learned from",
            learned.len()
        ));
    }
    Ok(learned)
}

/// Says that nothing can be learned.
pub(super) fn no_answer(max_tokens: u32) -> Error {
    let problem = format!("no answer of the teacher ended within {max_tokens}");
    Error::setting("max_tokens", problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[tokio::test]
    async fn what_was_said_is_not_asked_for_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("distilled.jsonl");
        let asked = RefCell::new(Vec::new());
        let ask = |fails: &'static [usize]| {
            let asked = &asked;
            move |question: usize| async move {
                asked.borrow_mut().push(question);
                if fails.contains(&question) {
                    return Err(Error::Missing { what: "answer" });
                }
                Ok(Reply::of(format!("to {question}")))
            }
        };
        let error = gather(&path, &[7, 8, 9], ask(&[1])).await.unwrap_err();
        assert!(matches!(error, Error::Missing { what: "answer" }));
        assert_eq!(asked.take(), [0, 1, 2], "one that fails stops no other");

        // A crash cut the last line short.
        let kept = std::fs::read_to_string(beside(&path)).unwrap();
        std::fs::write(beside(&path), &kept[..kept.len() - 3]).unwrap();
        // A question was taken away, and another one is there twice.
        let replies = gather(&path, &[9, 7, 7], ask(&[])).await.unwrap();
        assert_eq!(asked.take(), [0, 2]);
        let said: Vec<String> = replies.into_iter().flat_map(|r| r.learned).collect();
        assert_eq!(said, ["to 0", "to 0", "to 2"]);

        finish(&path, &said).unwrap();
        assert!(path.exists() && !beside(&path).exists());
    }

    #[test]
    fn answers_that_are_left_out_are_told() {
        let mut told = Vec::new();
        let replies = |learned: usize| {
            vec![Reply {
                learned: vec!["a"; learned],
                unfinished: 3,
            }]
        };
        let mut hooks = Hooks::default().on_failure(|reason| told.push(reason.to_owned()));
        assert_eq!(learned(replies(2), 5, &mut hooks).unwrap().len(), 2);
        assert!(learned(replies(0), 5, &mut hooks).is_err());
        drop(hooks);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("3 of the teacher's answers did not end within 5 tokens"));
    }
}
