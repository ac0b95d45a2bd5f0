//! Files to train on: what they may be, and several of them with weights.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::here::Here;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes/tests/data");
    path.join(name).to_str().unwrap().to_owned()
}

fn pairs(count: usize, prompt: &str) -> String {
    let row = |n| format!("{{\"prompt\": \"{prompt} {n}\", \"completion\": \" {n}\"}}\n");
    (0..count).map(row).collect()
}

/// Returns which examples each step trained on.
fn batches(run: PathBuf) -> Vec<Vec<u64>> {
    let journal = std::fs::read_to_string(run.join("journal.jsonl")).unwrap();
    let entries = journal
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut batches = std::collections::BTreeMap::new();
    for entry in entries {
        if let (Some(step), Some(examples)) = (entry["step"].as_u64(), entry["examples"].as_array())
        {
            let examples = examples.iter().filter_map(Value::as_u64).collect();
            batches.insert(step, examples);
        }
    }
    batches.into_values().collect()
}

#[test]
fn parquet_and_datasets_are_shown_and_counted_like_other_files() {
    let here = Here::new();
    let shown = here.ok(&[
        "data",
        "show",
        &fixture("chats-zstd.parquet"),
        "--count",
        "1",
    ]);
    assert!(shown.starts_with("row 1: "), "{shown}");
    assert!(shown.contains("What is 0 + 1?"), "{shown}");
    for name in ["saved", "splits", "hub"] {
        let stats = here.json(&["data", "stats", &fixture(name)]);
        assert_eq!(stats["examples"], 5, "{name}");
        assert!(
            stats["layout"]
                .as_str()
                .unwrap()
                .contains("chats (`messages`)")
        );
    }
    let wrong = here.refused(&["data", "stats", &fixture("hub"), "--data-format", "pairs"]);
    let place = "train-00000-of-00002.parquet, row 1";
    assert!(
        wrong.contains(place) && wrong.contains("nothing to learn from"),
        "{wrong}"
    );
}

#[test]
fn files_with_weights_are_mixed_and_a_run_goes_on_with_the_same_batches() {
    let here = Here::new();
    here.write("a.jsonl", &pairs(4, "one"));
    here.write("b.jsonl", &pairs(12, "two"));
    let train = |run: &str, steps: &str| {
        let arguments = [
            "train",
            "sft",
            "--data",
            "a.jsonl:0.5",
            "--data",
            "b.jsonl",
            "--run-dir",
            run,
            "--batch-size",
            "4",
            "--epochs",
            "3",
            "--eval",
            "0",
            "--max-steps",
            steps,
        ];
        here.ok(&arguments)
    };
    train("whole", "12");
    train("parts", "5");
    train("parts", "12");
    let whole = batches(here.path("whole"));
    assert_eq!(whole, batches(here.path("parts")));
    for pass in whole.chunks(4) {
        let small = pass.iter().flatten().filter(|example| **example < 4);
        assert_eq!(small.count(), 8, "half of each pass is from the small file");
    }
    let other = here.refused(&[
        "train",
        "sft",
        "--data",
        "a.jsonl:0.6",
        "--data",
        "b.jsonl",
        "--run-dir",
        "whole",
        "--batch-size",
        "4",
        "--epochs",
        "3",
        "--eval",
        "0",
        "--max-steps",
        "12",
    ]);
    assert!(other.contains("cannot be resumed"), "{other}");
}

#[test]
fn preferences_of_several_files_go_by_their_weights() {
    let here = Here::new();
    let pairs = |count: usize, word: &str| {
        let pair = |n| {
            format!("{{\"prompt\": \"{word} {n}?\", \"chosen\": \"a\", \"rejected\": \"b\"}}\n")
        };
        (0..count).map(pair).collect::<String>()
    };
    here.write("small.jsonl", &pairs(2, "one"));
    here.write("large.jsonl", &pairs(6, "two"));
    for recipe in ["dpo", "reward"] {
        let files = ["--data", "small.jsonl:0.5", "--data", "large.jsonl"];
        let run = [
            "train",
            recipe,
            "--run-dir",
            recipe,
            "--batch-size",
            "4",
            "--epochs",
            "2",
        ];
        here.ok(&[&run[..], &files, &["--rank", "2"]].concat());
        let journal = std::fs::read_to_string(here.path(recipe).join("journal.jsonl")).unwrap();
        let mut trained = [0; 8];
        for line in journal.lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            for index in entry["examples"].as_array().into_iter().flatten() {
                trained[index.as_u64().unwrap() as usize] += 1;
            }
        }
        assert_eq!(
            trained[..2],
            [4, 4],
            "{recipe}: half of two passes are of the small file"
        );
        assert_eq!(trained[2..].iter().sum::<i32>(), 8, "{recipe}: {trained:?}");
    }
}

#[test]
fn weights_that_cannot_be_are_refused_before_anything_is_loaded() {
    let here = Here::new();
    here.write("a.jsonl", &pairs(4, "one"));
    let refused = |arguments: &[&str]| {
        let all = [arguments, &["--run-dir", "run"]].concat();
        here.refused(&all)
    };
    let error = refused(&["train", "sft", "--data", "a.jsonl:2", "--data", "a.jsonl"]);
    assert!(
        error.contains("leave nothing of 1 for `a.jsonl`"),
        "{error}"
    );
    let error = refused(&["train", "rl", "--grader", "exact", "--data", "a.jsonl:2"]);
    assert!(
        error.contains("only `train sft`, `dpo` and `reward` go by"),
        "{error}"
    );
    let typed = ["train", "sft", "--data", "a.jsonl", "--data-format", "xml"];
    let output = here.command(&typed).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("expected one of jsonl"), "{error}");
    assert!(!here.path("run").exists());
}

#[test]
fn both_answers_of_a_pair_are_shown_and_counted() {
    let here = Here::new();
    // As the published UltraFeedback has it: the better answer is there twice.
    let row = r#"{"prompt": "q", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
        "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
        "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}]}"#;
    here.write("pairs.jsonl", &row.replace('\n', ""));
    let shown = here.ok(&["data", "show", "pairs.jsonl"]);
    assert!(shown.contains("line 1, chosen: "), "{shown}");
    assert!(shown.contains("line 1, rejected: "), "{shown}");
    assert!(shown.contains("⟦good"), "{shown}");
    let shown = here.json(&["data", "show", "pairs.jsonl"]);
    assert_eq!(shown[1]["answer"], "rejected");
    let stats = here.json(&["data", "stats", "pairs.jsonl"]);
    assert_eq!(stats["examples"], 2);
}
