//! A run folder as one page: curves, samples before and after, settings.
//!
//! The page is a pure function of the folder and stands by itself: no scripts, no network, text
//! escaped. Opening it years later, on a plane, shows the same.

mod chart;
mod escape;

use crate::Error;
use crate::run::{Numbers, SampleRecord, read_metrics, read_samples};
use chart::{Curve, chart, number};
use escape::escape;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The charts, with the numbers that each shows. A chart without numbers is left out.
const CHARTS: [(&str, &[&str]); 8] = [
    ("Loss", &["loss", "eval_loss"]),
    ("Reward", &["reward"]),
    ("KL divergence, nats a token", &["kl", "kl_reference"]),
    ("Throughput, tokens a second", &["tokens_per_second"]),
    ("Preferences that are right", &["accuracy"]),
    ("Preference margin", &["margin"]),
    ("Entropy, nats a token", &["entropy"]),
    ("Learning rate", &["learning_rate"]),
];

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
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap_or_default();
    let name = folder
        .file_name()
        .map_or("run".into(), |name| name.to_string_lossy());
    Ok(page(&name, &metrics, &samples, &config))
}

fn page(
    name: &str,
    metrics: &BTreeMap<usize, Numbers>,
    samples: &[SampleRecord],
    config: &str,
) -> String {
    let name = escape(name);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{name}</title>\n<style>\n{}</style>\n</head>\n<body>\n<h1>{name}</h1>\n<p class=\"soft\">{}</p>\n",
        include_str!("style.css"),
        summary(metrics)
    );
    html += "<div class=\"charts\">\n";
    for (title, names) in CHARTS {
        let curves: Vec<Curve> = names
            .iter()
            .filter_map(|name| curve(metrics, name))
            .collect();
        if curves.is_empty() {
            continue;
        }
        let _ = write!(
            html,
            "<section>\n<h2>{}</h2>\n<p class=\"soft\">",
            escape(title)
        );
        for (index, curve) in curves.iter().enumerate() {
            let last = curve
                .points
                .last()
                .map_or(String::new(), |(_, value)| number(*value));
            let name = escape(&curve.name);
            let _ = write!(html, "<span class=\"key c{index}\">{name} {last}</span>");
        }
        let _ = write!(html, "</p>\n{}</section>\n", chart(title, &curves));
    }
    html += "</div>\n";
    html += &sample_table(samples);
    if !config.is_empty() {
        let _ = write!(
            html,
            "<h2>Settings</h2>\n<pre>{}</pre>\n",
            escape(config.trim_end())
        );
    }
    html + "</body>\n</html>\n"
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

/// Shows each prompt's first and last answer side by side.
fn sample_table(samples: &[SampleRecord]) -> String {
    let mut prompts: Vec<&str> = Vec::new();
    for sample in samples {
        if !prompts.contains(&sample.prompt.as_str()) {
            prompts.push(&sample.prompt);
        }
    }
    if prompts.is_empty() {
        return String::new();
    }
    let mut html =
        "<h2>What it says</h2>\n<table>\n<tr><th>asked</th><th>before</th><th>after</th></tr>\n"
            .to_owned();
    for prompt in prompts {
        let of_prompt = || samples.iter().filter(|sample| sample.prompt == prompt);
        let before = of_prompt().min_by_key(|sample| sample.steps);
        let after = of_prompt().rev().max_by_key(|sample| sample.steps);
        let after = after.filter(|after| before.is_some_and(|before| after.steps > before.steps));
        let cell =
            |sample: Option<&SampleRecord>| sample.map_or(String::new(), |s| escape(&s.answer));
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(prompt),
            cell(before),
            cell(after)
        );
    }
    html + "</table>\n"
}

#[cfg(test)]
mod tests;
