//! `docs/reliability.md` names tests and scripts that exist, and that run where it says.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the rows of all tables, without their heads.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines = page.lines().filter(|line| line.starts_with('|'));
    lines
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .filter(|cells: &Vec<_>| cells.len() == 3 && cells[0] != "promise")
        .collect()
}

/// What stands between back quotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Whether a file has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = |line: &str| {
        let line = line.trim_start_matches("async ");
        let rest = line.strip_prefix("fn ").and_then(|l| l.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('('))
    };
    let Some(place) = lines.iter().position(|line| declared(line)) else {
        return false;
    };
    let above = lines[..place].iter().rev();
    let mut attributes = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
}

#[test]
fn every_promise_names_a_test_that_exists_and_runs_where_it_says() {
    let page = read("docs/reliability.md");
    let ci = read(".ci/run");
    let rows = rows(&page);
    assert!(rows.len() > 30, "the tables were not found");
    let mut faults = Vec::new();
    for cells in &rows {
        let [promise, shown_by, runs] = cells[..] else {
            unreachable!("rows without three cells were left out");
        };
        let mut fault = |text: String| faults.push(format!("{promise}: {text}"));
        let mut file: Option<(&str, String)> = None;
        let (mut files, mut tests) = (0, 0);
        for name in quoted(shown_by) {
            if name.contains('/') {
                files += 1;
                if root().join(name).is_file() {
                    file = Some((name, read(name)))
                } else {
                    fault(format!("there is no {name}"))
                }
                let is_source = name.starts_with("crates/") && name.ends_with(".rs");
                match runs {
                    "`cargo test`" if is_source => {}
                    "`.ci/run`" if ci.contains(name) => tests += 1,
                    "by hand" if name.starts_with("conformance/") => tests += 1,
                    _ => fault(format!("{name} does not run in {runs}")),
                }
            } else {
                tests += 1;
                match &file {
                    Some((_, text)) if has_test(text, name) => {}
                    Some((path, _)) => fault(format!("{path} has no test {name}")),
                    None => fault(format!("{name} stands before its file")),
                }
            }
        }
        if files == 0 || tests < files {
            fault("names no test".to_owned());
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_test_is_found_by_its_whole_name_and_its_attribute() {
    let text =
        "#[test]\nfn it_works() {}\n\nfn helper() {}\n\n#[tokio::test]\n    async fn it_waits() {}";
    for (name, found) in [
        ("it_works", true),
        ("it_waits", true),
        ("it_work", false),
        ("helper", false),
        ("works", false),
    ] {
        assert_eq!(has_test(text, name), found, "{name}");
    }
}
