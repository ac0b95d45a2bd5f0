//! The pages of `docs` and of the repository's top: what they link to is there, what they name exists, and the site
//! has all of them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::tinkrs;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The pages below `docs`, and those at the top of the repository.
fn pages() -> Vec<PathBuf> {
    let top = repository();
    let folders = [top.clone(), top.join("docs"), top.join("docs/decisions")];
    let mut pages: Vec<_> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect();
    pages.sort();
    pages
}

/// The lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The names by which parts of a page are linked to, as GitHub and mdBook make them from headings.
fn anchors(text: &str) -> HashSet<String> {
    let mut count = HashMap::new();
    let headings = prose(text).filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then_some(title.trim())
    });
    let names = headings.map(|title| {
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c })
            .collect::<String>()
            .to_lowercase()
    });
    names
        .map(|name| {
            let seen = count.entry(name.clone()).or_insert(0);
            *seen += 1;
            if *seen == 1 {
                name
            } else {
                format!("{name}-{}", *seen - 1)
            }
        })
        .collect()
}

/// The targets of the links of a page.
fn links(text: &str) -> Vec<String> {
    let lines = prose(text);
    let parts = lines.flat_map(|line| line.split("](").skip(1));
    parts
        .filter_map(|part| part.split(')').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_link_of_the_pages_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let is_page = target.extension().is_some_and(|it| it == "md");
            let found = match std::fs::read_to_string(&target) {
                Ok(text) if is_page && !anchor.is_empty() => anchors(&text).contains(anchor),
                _ => target.exists(),
            };
            if !found {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn anchors_are_made_from_headings_and_not_from_code() {
    let text = "# A b\n\n```sh\n# no\n```\n## `tinkrs train sft`\n### A b\n#no\n";
    let expected = ["a-b", "tinkrs-train-sft", "a-b-1"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
}

#[test]
fn every_page_of_docs_is_in_the_summary_of_the_site() {
    let docs = repository().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: HashSet<_> = links(&summary)
        .into_iter()
        .map(|it| docs.join(it))
        .collect();
    for page in pages() {
        let inside = page.starts_with(&docs) && !page.ends_with("SUMMARY.md");
        assert!(
            !inside || listed.contains(&page),
            "SUMMARY.md lacks {}",
            page.display()
        );
    }
}

/// What a fence says behind the backticks, of all blocks of a page.
fn fences(text: &str) -> Vec<&str> {
    let fences = text.lines().filter_map(|line| line.strip_prefix("```"));
    fences.step_by(2).collect()
}

#[test]
fn pages_with_rust_are_compiled_and_pages_with_python_are_run() {
    let top = repository();
    let compiled = std::fs::read_to_string(top.join("crates/guides/src/lib.rs")).unwrap();
    for page in pages() {
        let name = page.strip_prefix(&top).unwrap().display().to_string();
        let text = std::fs::read_to_string(&page).unwrap();
        for fence in fences(&text) {
            let language = fence.split([',', ' ']).next().unwrap();
            let known = [
                "", "console", "diff", "json", "jsonl", "python", "rust", "sh", "text", "toml",
                "ts",
            ];
            assert!(known.contains(&language), "{name}: {fence}");
            let is_rust = language == "rust";
            assert!(
                !is_rust || compiled.contains(&format!("/{name}\"")),
                "crates/guides lacks {name}"
            );
            assert!(
                !fence.contains("ignore"),
                "{name}: Rust that is not compiled"
            );
        }
    }
}

/// Options that pages name and that belong to other programs, or to our scripts.
const OTHERS: &[&str] = &[
    "--all-features",
    "--allow-unsafe",
    "--binary",
    "--cfg",
    "--debug",
    "--exclude",
    "--fail-on-warnings",
    "--features",
    "--kills",
    "--lib",
    "--light",
    "--nocapture",
    "--sharing",
    "--test",
    "--timings",
    "--lora",
    "--no-default-features",
    "--path",
    "--release",
    "--workspace",
    "--write",
    "--write-timeout",
];

#[test]
fn every_option_that_a_page_names_is_one_of_a_command() {
    let top = repository();
    let reference = std::fs::read_to_string(top.join("docs/cli.md")).unwrap();
    let mut wrong = Vec::new();
    let guides = pages()
        .into_iter()
        .filter(|page| page.parent().is_some_and(|it| it.ends_with("docs")));
    for page in guides.filter(|page| !page.ends_with("sdk-parity.md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for code in prose(&text).flat_map(|line| line.split('`').skip(1).step_by(2)) {
            for word in code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
                let is_option = word.strip_prefix("--").is_some_and(|it| it.len() > 1);
                let known = OTHERS.contains(&word)
                    || reference.contains(&format!("{word} "))
                    || reference.contains(&format!("{word}`"));
                if is_option && !known {
                    wrong.push(format!("{}: {word}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tinkrs(&["train", "sft", "--no-such-option"]).status.code() == Some(2));
}
