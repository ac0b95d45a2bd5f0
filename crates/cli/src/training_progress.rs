//! How far a run is: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tinkrs::training::LossSource;
use tinkrs_recipes::run::{EvalReport, StepReport};

use crate::human::counted;
use crate::output::note;
use crate::training_watch::TrainingWatch;
use crate::{system, terminal_line};

/// Without a terminal, how many lines a run prints if its steps are quick.
const LINES: usize = 20;
/// Without a terminal, how long a run with slow steps may print nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// After how many steps it is said how long a run takes: the first one alone would say too much.
const TIMED_STEPS: usize = 2;
/// Runs with fewer seconds left are over before it is read.
const WORTH_SAYING: f64 = 20.0;
/// A bar shorter than this says nothing.
const SHORTEST_BAR: usize = 6;
const LONGEST_BAR: usize = 24;

/// Shows the steps of a run on stderr.
pub(crate) struct TrainingProgress {
    start: Instant,
    last_line: Instant,
    first_step: Option<usize>,
    is_terminal: bool,
    watch: TrainingWatch,
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
            watch: TrainingWatch::new(number == "reward"),
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
        if let Some(warning) = self.watch.step(done, &report.numbers) {
            note(warning);
        }
        if let Some(words) = estimate(done - first, done, report.steps, seconds) {
            note(words);
        }
        let line = Line {
            done,
            steps: report.steps,
            name: self.number,
            value: report.numbers.get(self.number).copied(),
            tokens_per_second: report.numbers.get("tokens_per_second").copied(),
            seconds_left: each * report.steps.saturating_sub(done) as f64,
        };
        let is_last = done == report.steps;
        if self.is_terminal {
            terminal_line::draw(line.text(system::stderr_width()));
            if is_last {
                terminal_line::end();
            }
        } else if is_last
            || done.is_multiple_of(report.steps.div_ceil(LINES))
            || self.last_line.elapsed() >= SILENCE
        {
            self.last_line = Instant::now();
            note(line.text(None));
        }
    }

    /// Shows an evaluation, in a line that stays.
    pub(crate) fn eval(&mut self, report: &EvalReport) {
        note(evaluation(report));
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
    /// Writes the line so that it fits into a terminal of this width: what matters least goes first.
    fn text(&self, width: Option<usize>) -> String {
        // Nothing is written into the last column, where a terminal may begin a new line.
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(1));
        let mut words = format!(" {}/{}", self.done, self.steps);
        let value = self.value;
        let value = value.map(|value| format!("  {} {value:.4}", self.name.replace('_', " ")));
        words += &value.unwrap_or_default();
        let rate = self.tokens_per_second.filter(|rate| rate.is_finite());
        let rate = rate.map(|rate| format!("  {rate:.0} tokens/s"));
        let rate = rate.unwrap_or_default();
        let left = format!("  {} left", duration(self.seconds_left));
        let texts = [
            format!("{words}{rate}{left}"),
            format!("{words}{left}"),
            words,
        ];
        // The bar begins with the space of the text.
        let fits = |text: &&String| text.chars().count() <= room.saturating_add(1);
        let text = texts.iter().find(fits).unwrap_or(&texts[2]);
        let cells = room.saturating_sub(text.chars().count() + 2);
        if cells < SHORTEST_BAR {
            return text.trim_start().to_owned();
        }
        let cells = cells.min(LONGEST_BAR);
        let filled = cells * self.done / self.steps.max(1);
        let bar = format!("{}{}", "#".repeat(filled), "-".repeat(cells - filled));
        format!("[{bar}]{text}")
    }
}

/// Says how long a run takes, once the first steps were timed; `None` if it is not the time to, or it takes too short.
fn estimate(timed: usize, done: usize, steps: usize, seconds: f64) -> Option<String> {
    let left = steps.saturating_sub(done) as f64 * seconds / timed as f64;
    (timed == TIMED_STEPS && left >= WORTH_SAYING).then(|| {
        format!(
            "about {} to go, at the pace of the first {}",
            duration(left),
            counted(timed as u64, "step")
        )
    })
}

/// Says what an evaluation found.
fn evaluation(report: &EvalReport) -> String {
    let numbers = report.numbers.iter();
    let numbers: Vec<_> = numbers
        .map(|(name, value)| format!("{} {value:.4}", name.replace('_', " ")))
        .collect();
    let best = if report.is_best && report.steps > 0 {
        ", the best so far"
    } else {
        ""
    };
    let steps = counted(report.steps as u64, "step");
    format!("after {steps}: {}{best}", numbers.join(", "))
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
    fn a_long_run_says_early_how_long_it_takes() {
        assert_eq!(estimate(1, 1, 100, 3.0), None);
        let words = "about 4 min 54 s to go, at the pace of the first 2 steps";
        assert_eq!(estimate(2, 2, 100, 6.0).as_deref(), Some(words));
        assert_eq!(estimate(3, 3, 100, 9.0), None, "once");
        assert_eq!(estimate(2, 2, 10, 1.0), None, "it is soon over");
    }

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
            line.text(None),
            format!("[{bar}] 12/24  loss 1.5000  320 tokens/s  7 s left")
        );
        for (width, expected) in [
            (
                80,
                format!("[{bar}] 12/24  loss 1.5000  320 tokens/s  7 s left"),
            ),
            (
                60,
                "[#######-------] 12/24  loss 1.5000  320 tokens/s  7 s left".to_owned(),
            ),
            (40, "[####----] 12/24  loss 1.5000  7 s left".to_owned()),
            (30, "12/24  loss 1.5000  7 s left".to_owned()),
            (20, "12/24  loss 1.5000".to_owned()),
        ] {
            assert_eq!(line.text(Some(width)), expected, "{width}");
        }
        for width in 0..200 {
            assert!(line.text(Some(width)).len() < width.max(19), "{width}");
        }
        line.value = None;
        line.seconds_left = 3723.0;
        assert_eq!(
            line.text(None),
            format!("[{bar}] 12/24  320 tokens/s  1 h 2 min left")
        );
    }
}
