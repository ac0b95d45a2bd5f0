//! A run folder as one page: curves, samples before and after, settings.
//!
//! The page is a pure function of the folder and stands by itself: no network, text escaped. Opening it years later, on
//! a plane, shows the same. It has the style and the charts of the studio: pictures that are there without scripts, and
//! that a script of ours makes live where it may run.

mod comparison;

pub use comparison::write as write_comparison;

use crate::Error;
use crate::run::{Cost, Goal, Numbers, SampleRecord, read_metrics, read_samples};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tinkrs_studio::assets;
use tinkrs_studio::chart::{Curve, chart, number};

/// A page that loads nothing, whatever is in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:";

/// The charts, with the numbers that each shows. A chart without numbers is left out.
const CHARTS: [(&str, &[&str]); 8] = [
    ("Loss", &["loss", "eval_loss"]),
    ("Reward", &["reward", "eval_reward"]),
    ("KL divergence, nats a token", &["kl", "kl_reference"]),
    ("Throughput, tokens a second", &["tokens_per_second"]),
    ("Preferences that are right", &["accuracy", "eval_accuracy"]),
    ("Preference margin", &["margin", "eval_margin"]),
    ("Entropy, nats a token", &["entropy"]),
    ("Learning rate", &["learning_rate"]),
];

/// The file of a run folder with commands for what was trained, one on each line.
const NEXT: &str = "next.txt";

/// Writes down commands for what was trained in a run folder, which its report shows.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write_next(folder: impl AsRef<Path>, commands: &[String]) -> Result<(), Error> {
    let path = folder.as_ref().join(NEXT);
    let text: String = commands
        .iter()
        .map(|command| format!("{command}\n"))
        .collect();
    std::fs::write(&path, text).map_err(Error::file("write", &path))
}

/// Writes `report.html` into a run folder, and returns its path.
///
/// # Errors
/// If the folder cannot be read or written.
pub fn write(folder: impl AsRef<Path>) -> Result<PathBuf, Error> {
    let path = folder.as_ref().join("report.html");
    std::fs::write(&path, render(&folder)?).map_err(Error::file("write", &path))?;
    Ok(path)
}

/// Makes the page of a run folder.
///
/// # Errors
/// If the folder has no metrics, or a file of it cannot be read.
pub fn render(folder: impl AsRef<Path>) -> Result<String, Error> {
    let folder = folder.as_ref();
    let metrics = read_metrics(folder.join("metrics.jsonl"))?;
    let samples = read_samples(folder)?;
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (config, next) = (text("config.json"), text(NEXT));
    let name = folder
        .file_name()
        .map_or("run".into(), |name| name.to_string_lossy());
    let summary = match Cost::read(folder) {
        Some(cost) => format!("{}, {cost}", summary(&metrics)),
        None => summary(&metrics),
    };
    Ok(page(&name, &summary, &metrics, &samples, &config, &next).into_string())
}

fn page(
    name: &str,
    summary: &str,
    metrics: &BTreeMap<usize, Numbers>,
    samples: &[SampleRecord],
    config: &str,
    next: &str,
) -> Markup {
    let drawings: Vec<Drawing> = CHARTS
        .iter()
        .map(|(title, names)| Drawing {
            title: (*title).to_owned(),
            curves: names
                .iter()
                .filter_map(|name| curve(metrics, name))
                .collect(),
        })
        .filter(|drawing| !drawing.curves.is_empty())
        .collect();
    let content = html! {
        (charts(&drawings))
        (evaluation_table(metrics))
        (sample_table(samples))
        @if !next.is_empty() {
            section.panel { h2 { "What to do with it" } pre.pad { (printable(next.trim_end())) } }
        }
        @if !config.is_empty() {
            section.panel { h2 { "Settings" } pre.pad { (printable(config.trim_end())) } }
        }
    };
    document(name, summary, &drawings, &content)
}

/// A chart and what is in it.
struct Drawing {
    title: String,
    curves: Vec<Curve>,
}

/// A page in the style of the studio that needs nothing else.
fn document(name: &str, summary: &str, drawings: &[Drawing], content: &Markup) -> Markup {
    let name = printable(name);
    let script = assets::bundle(&["dom.js", "chart.js", "report.js"]);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (name) }
                style { (PreEscaped(assets::STYLE)) }
            }
            body {
                main {
                    div.head { h1 { bdi { (name) } } span.soft { (summary) } div.tools.actions #report-tools {} }
                    div.stack { (content) }
                }
                script #report-data type="application/json" { (PreEscaped(as_json(drawings))) }
                script type="module" { (PreEscaped(script)) }
            }
        }
    }
}

/// Writes the numbers of charts so that they cannot end the element that they are in.
fn as_json(drawings: &[Drawing]) -> String {
    let curve = |curve: &Curve| serde_json::json!({"name": curve.name, "points": curve.points});
    let drawings = drawings.iter().map(|drawing| {
        let curves: Vec<_> = drawing.curves.iter().map(curve).collect();
        serde_json::json!({"title": drawing.title, "curves": curves})
    });
    let text = serde_json::Value::from_iter(drawings).to_string();
    text.replace('<', "\\u003c")
}

/// Charts, each with its title and the last value of each curve.
fn charts(drawings: &[Drawing]) -> Markup {
    html! {
        div.charts {
            @for (place, drawing) in drawings.iter().enumerate() {
                section.panel.chart data-drawing=(place) {
                    div.chart-head {
                        h3 { bdi { (printable(&drawing.title)) } }
                        @for (index, curve) in drawing.curves.iter().enumerate() {
                            span class=(format_args!("key k{}", index % 8)) {
                                bdi { (printable(&curve.name)) } " "
                                span.value { @if let Some((_, last)) = curve.points.last() { (number(*last)) } }
                            }
                        }
                    }
                    (chart(&drawing.title, &drawing.curves))
                }
            }
        }
    }
}

fn summary(metrics: &BTreeMap<usize, Numbers>) -> String {
    let steps = metrics
        .values()
        .filter(|numbers| numbers.contains_key("tokens"))
        .count();
    let tokens: f64 = metrics
        .values()
        .filter_map(|numbers| numbers.get("tokens"))
        .sum();
    format!("{steps} steps, {tokens:.0} tokens")
}

fn curve(metrics: &BTreeMap<usize, Numbers>, name: &str) -> Option<Curve> {
    let point = |(step, numbers): (&usize, &Numbers)| Some((*step as f64, *numbers.get(name)?));
    let points: Vec<(f64, f64)> = metrics.iter().filter_map(point).collect();
    (!points.is_empty()).then(|| Curve {
        name: name.replace('_', " "),
        points,
    })
}

/// Shows what each evaluation found, and which was the best one.
fn evaluation_table(metrics: &BTreeMap<usize, Numbers>) -> Markup {
    let is_eval = |name: &&String| name.starts_with("eval_");
    let rows = metrics
        .iter()
        .filter(|(_, n)| n.keys().any(|name| is_eval(&name)));
    let rows: Vec<(&usize, &Numbers)> = rows.collect();
    let names: BTreeSet<&String> = rows
        .iter()
        .flat_map(|(_, n)| n.keys())
        .filter(is_eval)
        .collect();
    let best = [Goal::LOSS, Goal::REWARD].into_iter().find_map(|goal| {
        let values = rows
            .iter()
            .filter_map(|(step, n)| Some((**step, *n.get(goal.number)?)));
        values.reduce(|best, next| {
            if goal.is_better(next.1, best.1) {
                next
            } else {
                best
            }
        })
    });
    html! {
        @if !rows.is_empty() {
            section.panel.scroll { h2 { "Evaluations" }
            table {
                tr {
                    th { "after steps" }
                    @for name in &names { th.num { (name.replace('_', " ")) } }
                }
                @for (step, numbers) in rows {
                    tr {
                        td { (step) @if best.is_some_and(|(best, _)| best == *step) { " (best)" } }
                        @for name in &names {
                            td.num { @if let Some(value) = numbers.get(*name) { (number(*value)) } }
                        }
                    }
                }
            } }
        }
    }
}

/// Shows each prompt's first and last answer side by side.
fn sample_table(samples: &[SampleRecord]) -> Markup {
    let mut prompts: Vec<&str> = Vec::new();
    for sample in samples {
        if !prompts.contains(&sample.prompt.as_str()) {
            prompts.push(&sample.prompt);
        }
    }
    let row = |prompt: &str| {
        let of_prompt = || samples.iter().filter(|sample| sample.prompt == prompt);
        let before = of_prompt().min_by_key(|sample| sample.steps);
        let after = of_prompt().rev().max_by_key(|sample| sample.steps);
        let after = after.filter(|after| before.is_some_and(|before| after.steps > before.steps));
        let answer = |sample: Option<&SampleRecord>| {
            sample.map_or(String::new(), |sample| printable(&sample.answer))
        };
        html! {
            tr { td { (printable(prompt)) } td { (answer(before)) } td { (answer(after)) } }
        }
    };
    html! {
        @if !prompts.is_empty() {
            section.panel.scroll { h2 { "What it says" }
            table.said {
                tr { th { "asked" } th { "before" } th { "after" } }
                @for prompt in prompts { (row(prompt)) }
            } }
        }
    }
}

/// Replaces control characters, which are not allowed in a page even when they are escaped.
fn printable(text: &str) -> String {
    text.replace(
        |c: char| c.is_control() && c != '\n' && c != '\t',
        "\u{FFFD}",
    )
}

#[cfg(test)]
mod tests;
