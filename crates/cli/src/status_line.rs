//! A line on the terminal that says how far something is.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::terminal_line;

/// How often the line is drawn again.
const EVERY: Duration = Duration::from_millis(100);

/// A line that is drawn over and over, and gone when this is dropped. Without a terminal it is
/// never drawn.
#[derive(Debug)]
pub(crate) struct StatusLine {
    drawn: Option<Mutex<Option<Instant>>>,
}

impl StatusLine {
    pub(crate) fn new(ctx: &Context) -> Self {
        Self {
            drawn: ctx.shows_progress().then(Mutex::default),
        }
    }

    /// Says how far it is, if it is time to.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        let Some(drawn) = &self.drawn else { return };
        let mut drawn = drawn.lock().unwrap_or_else(|poison| poison.into_inner());
        if drawn.is_none_or(|last| last.elapsed() >= EVERY) {
            *drawn = Some(Instant::now());
            terminal_line::draw(text());
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        let drawn = self.drawn.as_mut().and_then(|drawn| drawn.get_mut().ok());
        if drawn.is_some_and(|last| last.is_some()) {
            terminal_line::clear();
        }
    }
}
