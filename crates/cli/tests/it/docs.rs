//! The commands of `docs/*.md`, run as a reader would: each guide's blocks of `sh`, in their order, in one
//! shell and an empty folder.
//!
//! What stands behind `sh` changes that: `shown` blocks need an account or a network and are only shown,
//! `before` blocks come first, and a `background` block is a server that the others find through
//! `TINKER_BASE_URL`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Waits for the server of a `background` block.
const WAIT: &str = r#"
server=$!
trap 'kill $server' EXIT
until grep -q listening .address; do kill -0 $server; sleep 0.1; done
export TINKER_BASE_URL=$(sed 's/listening on //' .address)
"#;

/// Pages that other tests write.
const WRITTEN: [&str; 4] = ["cli.md", "compatibility.md", "http-api.md", "numerics.md"];

fn guides() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut guides: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| WRITTEN.iter().all(|name| !path.ends_with(name)))
        .collect();
    guides.sort();
    guides
}

/// The blocks of a guide that are `sh`: what stands behind the word, and the commands.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some(kind) = info.strip_prefix("sh") {
            blocks.push((kind.trim().to_owned(), block.join("\n")));
        }
    }
    blocks
}

fn script(blocks: &[(String, String)]) -> String {
    let of = |wanted: &'static str| {
        let found = blocks.iter().filter(move |(kind, _)| kind == wanted);
        found.map(|(_, commands)| commands.as_str())
    };
    let mut script = "set -euo pipefail\n".to_owned();
    script.extend(of("before").map(|commands| format!("{commands}\n")));
    script.extend(of("background").map(|commands| format!("{commands} > .address &\n{WAIT}")));
    script.extend(of("").map(|commands| format!("{commands}\n")));
    script
}

fn has(tool: &str) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", &format!("command -v {tool}")]);
    look.output().is_ok_and(|output| output.status.success())
}

#[test]
#[expect(clippy::print_stdout, reason = "says what was not tested")]
fn the_commands_of_every_guide_work() {
    let binaries = Path::new(env!("CARGO_BIN_EXE_tinkrs")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binaries.display());
    let mut ran = 0;
    for guide in guides() {
        let name = guide.file_name().unwrap().to_string_lossy().into_owned();
        let blocks = blocks(&std::fs::read_to_string(&guide).unwrap());
        for (kind, _) in &blocks {
            let known = ["", "shown", "before", "background"].contains(&kind.as_str());
            assert!(known, "{name}: `sh {kind}`");
        }
        if blocks.iter().all(|(kind, _)| kind == "shown") {
            continue;
        }
        let script = script(&blocks);
        let missing = ["bash", "curl"]
            .into_iter()
            .find(|tool| (*tool == "bash" || script.contains(tool)) && !has(tool));
        if let Some(tool) = missing {
            println!("skipped {name}: there is no {tool}");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(folder.path())
            .env_clear()
            .env("HOME", folder.path())
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{name}\n{script}\n--- stdout\n{}\n--- stderr\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        ran += 1;
    }
    assert!(
        ran >= 3 || !has("bash") || !has("curl"),
        "only {ran} guides ran"
    );
}
