//! What the service has to say while a command waits for it, on stderr: once each, above a progress bar, which
//! says why it stands still.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tinkrs::{QueueNotice, RetryNotice, ServiceClientBuilder, ServiceMessage};

use crate::{output, terminal_line};

/// What was not heard for so long is news when it is heard again.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// How long after a note there is none about the same thing in other words.
const OTHER_WORDS: Duration = Duration::from_secs(60);
/// How many things are told apart: a server that says something new with each response says enough.
const MAX_SUBJECTS: usize = 200;

/// Shows what a client hears of its service.
pub(crate) fn listen(client: ServiceClientBuilder) -> ServiceClientBuilder {
    let notes = Arc::new(Mutex::new(Notes::default()));
    let (retries, queues, messages) = (Arc::clone(&notes), Arc::clone(&notes), notes);
    client
        .on_retry(move |notice| show(&retries, &Note::of_retry(notice)))
        .on_queue_state(move |notice| show(&queues, &Note::of_queue(notice)))
        .on_message(move |message| show(&messages, &Note::of_message(message)))
}

fn show(notes: &Mutex<Notes>, note: &Note) {
    let mut notes = notes.lock().unwrap_or_else(|poison| poison.into_inner());
    if notes.is_news(note, Instant::now()) {
        output::note(&note.text);
    }
    if let Some(reason) = &note.waits_for {
        terminal_line::say_why_it_waits(reason);
    }
}

/// Something to show.
#[derive(Debug, PartialEq)]
struct Note {
    /// What it is about: of several things about the same one, the newest counts.
    subject: String,
    text: String,
    /// Why nothing happens, if this is why.
    waits_for: Option<String>,
}

impl Note {
    fn of_retry(notice: &RetryNotice) -> Self {
        Self {
            subject: "outage".to_owned(),
            text: notice.to_string(),
            waits_for: Some(notice.cause.clone()),
        }
    }

    fn of_queue(notice: &QueueNotice) -> Self {
        Self {
            subject: format!("queue {}", notice.state),
            text: format!("waiting for the server: {}", notice.reason),
            waits_for: Some(notice.reason.clone()),
        }
    }

    fn of_message(message: &ServiceMessage) -> Self {
        let text = message.to_string();
        let (subject, waits_for) = match message {
            ServiceMessage::BillingBlocked { reason, .. } => (
                "billing".to_owned(),
                Some(format!("billing is blocked: {reason}")),
            ),
            ServiceMessage::RateLimited { .. } => {
                ("rate".to_owned(), Some("too many requests".to_owned()))
            }
            // It says for how many seconds.
            ServiceMessage::NoHeartbeat { .. } => ("heartbeat".to_owned(), None),
            _ => (text.clone(), None),
        };
        Self {
            subject,
            text,
            waits_for,
        }
    }
}

/// What was shown already.
#[derive(Debug, Default)]
struct Notes(HashMap<String, Heard>);

#[derive(Debug)]
struct Heard {
    text: String,
    shown: Instant,
    last: Instant,
}

impl Notes {
    /// Takes note of something and returns whether to show it: it is new, or it was not heard of for a while, or
    /// there are other words for it and the last were not just now. An outage that goes on is told anew every
    /// minute, since it says how long is left.
    fn is_news(&mut self, note: &Note, now: Instant) -> bool {
        let full = self.0.len() >= MAX_SUBJECTS;
        let Some(heard) = self.0.get_mut(&note.subject) else {
            if full {
                return false;
            }
            let heard = Heard {
                text: note.text.clone(),
                shown: now,
                last: now,
            };
            self.0.insert(note.subject.clone(), heard);
            return true;
        };
        let is_forgotten = now.duration_since(heard.last) >= FORGOTTEN;
        let in_other_words =
            heard.text != note.text && now.duration_since(heard.shown) >= OTHER_WORDS;
        heard.last = now;
        if is_forgotten || in_other_words {
            heard.shown = now;
            heard.text.clone_from(&note.text);
        }
        is_forgotten || in_other_words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_shown_once_until_it_is_forgotten_or_said_in_other_words() {
        let start = Instant::now();
        let mut notes = Notes::default();
        let mut shown = |text: &str, seconds| {
            let note = Note {
                subject: "queue".to_owned(),
                text: text.to_owned(),
                waits_for: None,
            };
            notes.is_news(&note, start + Duration::from_secs(seconds))
        };
        assert!(shown("no capacity", 0));
        for seconds in (10..1000).step_by(100) {
            assert!(!shown("no capacity", seconds), "{seconds}");
        }
        assert!(shown("no capacity", 2000), "it was over meanwhile");
        assert!(!shown("rate limit", 2030), "not every poll is a line");
        assert!(shown("rate limit", 2070));
    }

    #[test]
    fn a_server_that_always_says_something_new_is_cut_short() {
        let mut notes = Notes::default();
        let news = (0..1000).filter(|number| {
            let note = Note {
                subject: number.to_string(),
                text: number.to_string(),
                waits_for: None,
            };
            notes.is_news(&note, Instant::now())
        });
        assert_eq!(news.count(), MAX_SUBJECTS);
    }
}
