//! Several run folders as one page: each number in one chart, with a curve for each run.

use super::{CHARTS, Drawing, charts, curve, document, printable, summary};
use crate::Error;
use crate::run::{Numbers, read_metrics};
use maud::{Markup, html};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tinkrs::InvalidInput;
use tinkrs_studio::chart::{Curve, number};

/// More curves than colours cannot be told apart.
const MOST: usize = 8;

/// A run folder as it is compared.
struct Run {
    name: String,
    metrics: BTreeMap<usize, Numbers>,
}

/// Writes a page with the curves of run folders, and returns its path. A page that was written here before is replaced.
///
/// # Errors
/// If a folder has no metrics, there are more than 8 of them, or the page cannot be written.
pub fn write(folders: &[impl AsRef<Path>], to: impl AsRef<Path>) -> Result<PathBuf, Error> {
    if folders.is_empty() || folders.len() > MOST {
        let found = folders.len().to_string();
        let expected = format!("from 1 to {MOST}");
        return Err(InvalidInput::new("run folders", found, expected).into());
    }
    let runs = folders.iter().map(|folder| read(folder.as_ref()));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let to = to.as_ref();
    std::fs::write(to, page(&runs).into_string()).map_err(Error::file("write", to))?;
    Ok(to.to_owned())
}

fn read(folder: &Path) -> Result<Run, Error> {
    let name = folder.file_name().unwrap_or(folder.as_os_str());
    Ok(Run {
        name: name.to_string_lossy().into_owned(),
        metrics: read_metrics(folder.join("metrics.jsonl"))?,
    })
}

fn page(runs: &[Run]) -> Markup {
    let numbers = runs.iter().flat_map(|run| run.metrics.values());
    let all: BTreeSet<&str> = numbers
        .flat_map(|numbers| numbers.keys().map(String::as_str))
        .collect();
    let known = CHARTS.iter().flat_map(|(_, names)| names.iter().copied());
    let mut names: Vec<&str> = known.filter(|name| all.contains(name)).collect();
    let others = all.iter().filter(|name| !names.contains(name));
    let others: Vec<&str> = others.copied().collect();
    names.extend(others);
    let drawings: Vec<Drawing> = names.iter().map(|name| drawing(name, runs)).collect();
    let content = html! {
        (table(runs))
        (charts(&drawings))
    };
    let title = if runs.len() == 1 {
        runs[0].name.clone()
    } else {
        format!("{} runs", runs.len())
    };
    document(&title, "", &drawings, &content)
}

fn drawing(name: &str, runs: &[Run]) -> Drawing {
    let curves = runs.iter().filter_map(|run| {
        let points = curve(&run.metrics, name)?.points;
        let name = run.name.clone();
        Some(Curve { name, points })
    });
    Drawing {
        title: name.replace('_', " "),
        curves: curves.collect(),
    }
}

fn table(runs: &[Run]) -> Markup {
    let last = |run: &Run, name: &str| {
        let mut values = run
            .metrics
            .values()
            .rev()
            .filter_map(|numbers| numbers.get(name));
        values.next().map_or(String::new(), |value| number(*value))
    };
    html! {
        section.panel.scroll {
            table {
                tr { th { "run" } th { "so far" } th.num { "loss" } th.num { "reward" } }
                @for run in runs {
                    tr {
                        td { bdi { (printable(&run.name)) } }
                        td { (summary(&run.metrics)) }
                        td.num { (last(run, "loss")) }
                        td.num { (last(run, "reward")) }
                    }
                }
            }
        }
    }
}
