//! How far a run is: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use tinkrs_recipes::run::StepReport;

/// Shows the steps of a run on stderr.
pub(crate) struct Progress {
    start: Instant,
    first_step: Option<usize>,
    is_terminal: bool,
    /// Which number to show.
    number: &'static str,
}

impl Progress {
    /// Shows one of a run's numbers beside its steps.
    pub(crate) fn of(number: &'static str) -> Self {
        Self {
            start: Instant::now(),
            first_step: None,
            is_terminal: std::io::stderr().is_terminal(),
            number,
        }
    }

    /// Shows a step.
    pub(crate) fn step(&mut self, report: &StepReport) {
        let first = *self.first_step.get_or_insert(report.step);
        let done = report.step + 1;
        let seconds = self.start.elapsed().as_secs_f64();
        let each = seconds / (done - first) as f64;
        let left = each * (report.steps - done) as f64;
        let value = report.numbers.get(self.number).copied();
        let text = line(done, report.steps, self.number, value, left);
        let mut stderr = std::io::stderr();
        // A run does not fail because nobody watches it.
        let _ = match self.is_terminal {
            true if done == report.steps => writeln!(stderr, "\r\x1b[2K{text}"),
            true => write!(stderr, "\r\x1b[2K{text}"),
            false if done == report.steps || done.is_multiple_of(10) => writeln!(stderr, "{text}"),
            false => Ok(()),
        };
        let _ = stderr.flush();
    }
}

fn line(done: usize, steps: usize, name: &str, value: Option<f64>, left: f64) -> String {
    const WIDTH: usize = 24;
    let filled = WIDTH * done / steps.max(1);
    let bar = format!("{}{}", "#".repeat(filled), "-".repeat(WIDTH - filled));
    let value = value.map_or(String::new(), |value| format!("  {name} {value:.4}"));
    format!("[{bar}] {done}/{steps}{value}  {left:.0} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_steps_number_and_time() {
        let text = line(12, 24, "loss", Some(1.5), 7.2);
        let bar = format!("{}{}", "#".repeat(12), "-".repeat(12));
        assert_eq!(text, format!("[{bar}] 12/24  loss 1.5000  7 s left"));
    }
}
