//! How a run ended: rows, a score, and the same as Markdown.

use crate::case::{Case, Need};
use serde::Serialize;
use std::time::Duration;

/// How a case ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The server did what the protocol says.
    Passed,
    /// The same, and this was measured.
    Measured(String),
    /// It did something else: what was expected, and what was seen.
    Failed(String),
    /// It said that it has no such thing.
    NotSupported(String),
    /// The case was not tried, for this reason.
    Skipped(String),
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Self::Passed | Self::Measured(_) => "pass",
            Self::Failed(_) => "fail",
            Self::NotSupported(_) => "not supported",
            Self::Skipped(_) => "skipped",
        }
    }

    fn detail(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Measured(text)
            | Self::Failed(text)
            | Self::NotSupported(text)
            | Self::Skipped(text) => text,
        }
    }

    /// Replaces a secret that a server may have repeated.
    pub(crate) fn without(self, secret: &str) -> Self {
        let clean = |text: String| match secret {
            "" => text,
            secret => text.replace(secret, "(the key)"),
        };
        match self {
            Self::Passed => Self::Passed,
            Self::Measured(text) => Self::Measured(clean(text)),
            Self::Failed(text) => Self::Failed(clean(text)),
            Self::NotSupported(text) => Self::NotSupported(clean(text)),
            Self::Skipped(text) => Self::Skipped(clean(text)),
        }
    }
}

/// One case and how it ended.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The case's name.
    pub name: &'static str,
    /// What it checks.
    pub checks: &'static str,
    /// Where the protocol says so.
    pub spec: &'static str,
    /// Whether a server that has no such thing loses the point.
    pub required: bool,
    /// How it ended, as a word.
    pub result: &'static str,
    /// What was expected and seen, or measured.
    pub detail: String,
    /// How long it took.
    pub seconds: f64,
    /// How it ended.
    #[serde(skip)]
    pub outcome: Outcome,
}

impl Row {
    pub(crate) fn new(case: &Case, outcome: Outcome, took: Duration) -> Self {
        Self {
            name: case.name,
            checks: case.checks,
            spec: case.spec,
            required: case.need == Need::Required,
            result: outcome.name(),
            detail: outcome.detail().to_owned(),
            seconds: (took.as_secs_f64() * 1000.0).round() / 1000.0,
            outcome,
        }
    }

    fn is_scored(&self) -> bool {
        self.required || !matches!(self.outcome, Outcome::NotSupported(_))
    }

    fn is_passed(&self) -> bool {
        matches!(self.outcome, Outcome::Passed | Outcome::Measured(_))
    }
}

/// A whole run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The server.
    pub base_url: String,
    /// The base model that was used; empty if the server offered none.
    pub model: String,
    /// How often the server said that it is busy, and was asked again.
    pub busy: u64,
    /// How long it took.
    pub seconds: f64,
    /// Every case, in order.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns how many cases ended with this word.
    pub fn count(&self, result: &str) -> usize {
        self.rows.iter().filter(|row| row.result == result).count()
    }

    /// Returns how many cases passed, and how many counted. Optional ones that the server does not have do not count.
    pub fn score(&self) -> (usize, usize) {
        let scored = self.rows.iter().filter(|row| row.is_scored());
        (self.count("pass"), scored.count())
    }

    /// Whether every case that counts passed, and there was one.
    pub fn is_full(&self) -> bool {
        let (passed, scored) = self.score();
        passed == scored && passed > 0
    }

    /// Returns the score in words.
    pub fn summary(&self) -> String {
        let (passed, scored) = self.score();
        let percent = 100.0 * passed as f64 / scored.max(1) as f64;
        format!(
            "{passed} of {scored} ({percent:.0} %): {} failed, {} not supported, {} skipped",
            self.count("fail"),
            self.count("not supported"),
            self.count("skipped")
        )
    }

    /// Returns the run as an object for programs.
    pub fn to_json(&self) -> serde_json::Value {
        let (passed, scored) = self.score();
        serde_json::json!({
            "base_url": self.base_url,
            "model": self.model,
            "passed": passed,
            "scored": scored,
            "failed": self.count("fail"),
            "not_supported": self.count("not supported"),
            "skipped": self.count("skipped"),
            "busy": self.busy,
            "seconds": self.seconds,
            "cases": self.rows,
        })
    }

    /// Returns a section of Markdown: the score by group, and a row for each case that did not pass.
    pub fn to_markdown(&self, title: &str, command: &str, date: &str) -> String {
        let mut text = format!("## {}\n\n", cell(title));
        text.push_str(&format!(
            "{date}, model `{}`, {:.0} s: **{}**.\n\n",
            cell(&self.model),
            self.seconds,
            self.summary()
        ));
        text.push_str(&format!(
            "```console\n$ {}\n```\n\n",
            command.replace(['\n', '`'], " ")
        ));
        text.push_str(&self.groups());
        let lacking: Vec<_> = self.rows.iter().filter(|row| !row.is_passed()).collect();
        if lacking.is_empty() {
            text.push_str("\nNothing is missing.\n");
            return text;
        }
        text.push_str("\n| case | checks | result | seen |\n|---|---|---|---|\n");
        for row in lacking {
            let optional = if row.required { "" } else { ", optional" };
            let (result, detail) = (row.result, cell(&row.detail));
            text.push_str(&format!(
                "| `{}` | {} | {result}{optional} | {detail} |\n",
                row.name, row.checks
            ));
        }
        text
    }

    fn groups(&self) -> String {
        let mut groups: Vec<(&str, usize, usize)> = Vec::new();
        for row in self.rows.iter().filter(|row| row.is_scored()) {
            let name = row.name.split('/').next().unwrap_or(row.name);
            if groups.last().is_none_or(|(last, ..)| *last != name) {
                groups.push((name, 0, 0));
            }
            if let Some((_, passed, scored)) = groups.last_mut() {
                *passed += usize::from(row.is_passed());
                *scored += 1;
            }
        }
        let line = |part: &dyn Fn(&(&str, usize, usize)) -> String| {
            let parts: Vec<_> = groups.iter().map(part).collect();
            format!("| {} |\n", parts.join(" | "))
        };
        line(&|(name, ..)| (*name).to_owned())
            + &line(&|_| "---".to_owned())
            + &line(&|(_, passed, scored)| format!("{passed}/{scored}"))
    }
}

/// Makes a text that others wrote fit into a cell: it can neither end the cell nor be markup.
fn cell(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '<' | '>' | '`' | '*' | '_' | '[' | ']' | '\\' => cell.extend(['\\', c]),
            c if c.is_control() => cell.push(' '),
            c => cell.push(c),
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, required: bool, outcome: Outcome) -> Row {
        Row {
            name,
            checks: "Something holds.",
            spec: "1",
            required,
            result: outcome.name(),
            detail: outcome.detail().to_owned(),
            seconds: 0.0,
            outcome,
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        Report {
            base_url: "http://x".into(),
            model: "m".into(),
            busy: 0,
            seconds: 1.0,
            rows,
        }
    }

    #[test]
    fn only_optional_cases_may_be_absent() {
        let absent = || Outcome::NotSupported("404".into());
        let full = report(vec![
            row("a/x", true, Outcome::Passed),
            row("a/y", false, absent()),
        ]);
        assert_eq!((full.score(), full.is_full()), ((1, 1), true));
        for outcome in [
            absent(),
            Outcome::Failed("no".into()),
            Outcome::Skipped("a/x".into()),
        ] {
            let lacking = report(vec![
                row("a/x", true, Outcome::Passed),
                row("a/y", true, outcome),
            ]);
            assert_eq!((lacking.score(), lacking.is_full()), ((1, 2), false));
        }
        assert!(!report(vec![]).is_full());
    }

    #[test]
    fn what_a_server_says_stays_inside_its_cell() {
        let hostile = "x | y\n## title <script> `code` tml-secret";
        let outcome = Outcome::Failed(hostile.into()).without("tml-secret");
        let text =
            report(vec![row("a/x", true, outcome)]).to_markdown("t", "tinkrs conform", "today");
        let last = text.lines().last().unwrap();
        assert!(
            last.starts_with("| `a/x` |") && last.ends_with(" |"),
            "{last}"
        );
        assert!(last.contains("x \\| y ## title \\<script\\>"), "{last}");
        assert!(!text.contains("tml-secret"));
    }
}
