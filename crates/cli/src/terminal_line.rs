//! The line of the terminal that is drawn over and over: a progress bar.
//!
//! One place knows what is drawn, so that whatever else goes to stderr goes above it. Without a terminal nothing
//! is drawn, and other lines come as they are.

use std::io::Write;
use std::sync::{Mutex, MutexGuard};

use crate::output::harmless;
use crate::system;

/// Moves to the beginning of the line and clears it.
const CLEAR: &str = "\r\x1b[2K";

static DRAWN: Mutex<Drawn> = Mutex::new(Drawn {
    line: None,
    waits_for: None,
});

/// What stands on the last line of the terminal.
#[derive(Debug, Default)]
struct Drawn {
    line: Option<String>,
    /// Why it does not move.
    waits_for: Option<String>,
}

impl Drawn {
    /// Returns the line as it is shown. It must not be wider than the terminal: what has gone to another row
    /// cannot be cleared.
    fn text(&self, width: Option<usize>) -> String {
        let line = self.line.as_deref().unwrap_or_default();
        let text = match &self.waits_for {
            Some(reason) => format!("{line}  waiting: {reason}"),
            None => line.to_owned(),
        };
        let text = harmless(&text).replace(['\n', '\t'], " ");
        match width {
            Some(width) => text.chars().take(width.saturating_sub(1)).collect(),
            None => text,
        }
    }
}

fn drawn() -> MutexGuard<'static, Drawn> {
    DRAWN.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn write(text: &str) {
    let mut stderr = std::io::stderr();
    // Nothing is left to do if stderr is gone.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

/// Draws the line anew.
pub(crate) fn draw(line: String) {
    let mut drawn = drawn();
    *drawn = Drawn {
        line: Some(line),
        waits_for: None,
    };
    write(&format!("{CLEAR}{}", drawn.text(system::stderr_width())));
}

/// Says behind the line why it does not move, until it is drawn anew.
pub(crate) fn say_why_it_waits(reason: &str) {
    let mut drawn = drawn();
    if drawn.line.is_some() && drawn.waits_for.as_deref() != Some(reason) {
        drawn.waits_for = Some(reason.to_owned());
        write(&format!("{CLEAR}{}", drawn.text(system::stderr_width())));
    }
}

/// Writes whole lines above the line that is drawn.
pub(crate) fn write_above(lines: &str) {
    let drawn = drawn();
    if drawn.line.is_some() {
        write(&format!(
            "{CLEAR}{lines}{}",
            drawn.text(system::stderr_width())
        ));
    } else {
        write(lines);
    }
}

/// Leaves the line as it stands: what is written next goes below it.
pub(crate) fn end() {
    let mut drawn = drawn();
    if drawn.line.is_some() {
        drawn.waits_for = None;
        write(&format!("{CLEAR}{}\n", drawn.text(system::stderr_width())));
    }
    *drawn = Drawn::default();
}

/// Takes the line away.
pub(crate) fn clear() {
    let mut drawn = drawn();
    if drawn.line.is_some() {
        write(CLEAR);
    }
    *drawn = Drawn::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_why_it_waits_and_stays_within_the_terminal() {
        let mut drawn = Drawn {
            line: Some("[##--] 2/4".to_owned()),
            waits_for: None,
        };
        assert_eq!(drawn.text(None), "[##--] 2/4");
        drawn.waits_for = Some("no\ncapacity\u{1b}".to_owned());
        assert_eq!(drawn.text(None), "[##--] 2/4  waiting: no capacity\u{fffd}");
        assert_eq!(drawn.text(Some(15)), "[##--] 2/4  wa");
    }
}
