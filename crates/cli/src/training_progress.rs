//! How far a run is: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tinkrs::training::LossSource;
use tinkrs_recipes::run::StepReport;

use crate::human::counted;
use crate::output::note;
use crate::terminal_line;

/// Without a terminal, how many lines a run prints if its steps are quick.
const LINES: usize = 20;
/// Without a terminal, how long a run with slow steps may print nothing.
const SILENCE: Duration = Duration::from_secs(10);

/// Shows the steps of a run on stderr.
pub(crate) struct TrainingProgress {
    start: Instant,
    last_line: Instant,
    first_step: Option<usize>,
    is_terminal: bool,
    /// Which number to show.
    number: &'static str,
}

impl TrainingProgress {
    /// Shows one of a run's numbers beside its steps.
    pub(crate) fn of(number: &'static str) -> Self {
        Self {
            start: Instant::now(),
            last_line: Instant::now(),
            first_step: None,
            is_terminal: std::io::stderr().is_terminal(),
            number,
        }
    }

    /// Shows a step.
    pub(crate) fn step(&mut self, report: &StepReport) {
        if self.first_step.is_none() && report.step > 0 {
            note(format_args!(
                "resuming after {}",
                counted(report.step as u64, "step")
            ));
        }
        if let Some(source) = report.loss_source.filter(|_| self.first_step.is_none())
            && source != LossSource::LossSum
        {
            note(format_args!(
                "the server does not report `loss:sum`: the loss comes from {source}"
            ));
        }
        let first = *self.first_step.get_or_insert(report.step);
        let done = report.step + 1;
        // The run's own time, if it says so: what came before its steps is not their pace.
        let seconds = report.numbers.get("elapsed_seconds").copied();
        let seconds = seconds.unwrap_or_else(|| self.start.elapsed().as_secs_f64());
        let each = seconds / (done - first) as f64;
        let text = Line {
            done,
            steps: report.steps,
            name: self.number,
            value: report.numbers.get(self.number).copied(),
            tokens_per_second: report.numbers.get("tokens_per_second").copied(),
            seconds_left: each * report.steps.saturating_sub(done) as f64,
        }
        .text();
        let is_last = done == report.steps;
        if self.is_terminal {
            terminal_line::draw(text);
            if is_last {
                terminal_line::end();
            }
        } else if is_last
            || done.is_multiple_of(report.steps.div_ceil(LINES))
            || self.last_line.elapsed() >= SILENCE
        {
            self.last_line = Instant::now();
            note(text);
        }
    }

    /// Ends the line, for whatever is shown next.
    pub(crate) fn end(&mut self) {
        terminal_line::end();
    }
}

struct Line {
    done: usize,
    steps: usize,
    name: &'static str,
    value: Option<f64>,
    tokens_per_second: Option<f64>,
    seconds_left: f64,
}

impl Line {
    fn text(&self) -> String {
        const WIDTH: usize = 24;
        let filled = WIDTH * self.done / self.steps.max(1);
        let bar = format!("{}{}", "#".repeat(filled), "-".repeat(WIDTH - filled));
        let mut text = format!("[{bar}] {}/{}", self.done, self.steps);
        if let Some(value) = self.value {
            text += &format!("  {} {value:.4}", self.name.replace('_', " "));
        }
        if let Some(rate) = self.tokens_per_second.filter(|rate| rate.is_finite()) {
            text += &format!("  {rate:.0} tokens/s");
        }
        text + &format!("  {} left", duration(self.seconds_left))
    }
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_steps_number_rate_and_time() {
        let mut line = Line {
            done: 12,
            steps: 24,
            name: "loss",
            value: Some(1.5),
            tokens_per_second: Some(320.4),
            seconds_left: 7.2,
        };
        let bar = format!("{}{}", "#".repeat(12), "-".repeat(12));
        assert_eq!(
            line.text(),
            format!("[{bar}] 12/24  loss 1.5000  320 tokens/s  7 s left")
        );
        line.value = None;
        line.seconds_left = 3723.0;
        assert_eq!(
            line.text(),
            format!("[{bar}] 12/24  320 tokens/s  1 h 2 min left")
        );
    }
}
