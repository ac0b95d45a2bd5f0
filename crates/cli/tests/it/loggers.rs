//! Metrics for other programs.

use serde_json::Value;

use crate::here::Here;

fn train(here: &Here, steps: &str, more: &[&str]) -> std::process::Output {
    let pair = "{\"prompt\": \"the sky is\", \"completion\": \" blue\"}\n";
    here.write("pairs.jsonl", &pair.repeat(6));
    let arguments = [
        "train",
        "sft",
        "--data",
        "pairs.jsonl",
        "--run-dir",
        "run",
        "--batch-size",
        "1",
        "--eval",
        "1",
        "--eval-every",
        "2",
        "--max-steps",
        steps,
    ];
    here.command(&[&arguments[..], more].concat())
        .output()
        .unwrap()
}

#[test]
fn a_program_gets_a_line_for_each_step_and_files_are_written() {
    let here = Here::new();
    let log = [
        "--log",
        "csv",
        "--log",
        "tensorboard",
        "--metrics-command",
        "cat > lines.jsonl",
    ];
    let output = train(&here, "3", &log);
    assert!(output.status.success(), "{output:?}");
    let lines = std::fs::read_to_string(here.path("lines.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let events: Vec<_> = lines
        .iter()
        .map(|line| line["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        events,
        ["start", "eval", "step", "step", "eval", "step", "eval"]
    );
    assert_eq!(lines[2]["step"], 0);
    assert!(lines[2]["metrics"]["loss"].is_number());
    let table = std::fs::read_to_string(here.path("run/metrics.csv")).unwrap();
    assert_eq!(table.lines().count(), 5, "{table}");
    let events = std::fs::read_dir(here.path("run/tensorboard")).unwrap();
    assert_eq!(events.count(), 1);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("learning rate 5.000e-4, the default"),
        "{said}"
    );
    assert!(said.contains("pairs.jsonl: JSON lines, pairs"), "{said}");
}

#[test]
fn a_program_that_ends_does_not_end_the_run() {
    let here = Here::new();
    let output = train(
        &here,
        "3",
        &["--metrics-command", "echo broken >&2; exit 3"],
    );
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("exit status: 3") && said.contains("broken"),
        "{said}"
    );
}
