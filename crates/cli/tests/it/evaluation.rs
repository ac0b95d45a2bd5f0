//! Evaluations of `tinkrs train`: what they are made with, what is shown, and runs that stop early.

use serde_json::json;

use crate::here::Here;

/// Examples that contradict each other: what is learned from one makes the other worse.
fn chats(answer: &str, count: usize) -> String {
    let chat = |number| {
        json!({"messages": [
            {"role": "user", "content": format!("What is it {number}?")},
            {"role": "assistant", "content": answer},
        ]})
    };
    (0..count)
        .map(|number| format!("{}\n", chat(number)))
        .collect()
}

const TRAIN: [&str; 16] = [
    "train",
    "sft",
    "--data",
    "train.jsonl",
    "--eval-data",
    "eval.jsonl",
    "--run-dir",
    "run",
    "--batch-size",
    "2",
    "--eval-every",
    "1",
    "--rank",
    "4",
    "--learning-rate",
    "0.05",
];

#[test]
fn a_run_stops_early_and_says_what_it_ends_with() {
    let here = Here::new();
    here.write("train.jsonl", &chats("It is a horse.", 4));
    here.write("eval.jsonl", &chats("42!", 2));
    let more = ["--epochs", "50", "--early-stop", "2", "--keep-last", "1"];
    let train = [&TRAIN[..], &more].concat();
    let notes = here.command(&train).output().unwrap().stderr;
    let notes = String::from_utf8(notes).unwrap();
    assert!(
        notes.contains("4 examples to train on, 2 to evaluate"),
        "{notes}"
    );
    assert!(notes.contains("\nafter 0 steps: eval loss "), "{notes}");
    assert!(
        notes.contains("with the weights of the best evaluation"),
        "{notes}"
    );
    let result = here.json(&train);
    let (best, taken) = (&result["best"]["steps"], &result["steps_taken"]);
    assert_eq!(best, &result["steps"]);
    assert_eq!(taken.as_u64().unwrap(), best.as_u64().unwrap() + 2);
    let report = std::fs::read_to_string(here.path("run/report.html")).unwrap();
    assert!(report.contains("Evaluations") && report.contains("(best)"));
    // Its evaluations could not be compared with those of other data.
    here.write("eval.jsonl", &chats("43!", 2));
    let error = here.refused(&[&TRAIN[..], &["--epochs", "50"]].concat());
    assert!(error.contains("other evaluation data"), "{error}");
}

#[test]
fn evaluation_data_that_cannot_be_used_are_refused_before_anything_begins() {
    let here = Here::new();
    here.write("train.jsonl", &chats("It is a horse.", 4));
    let error = here.refused(&TRAIN);
    assert!(error.contains("could not read eval.jsonl"), "{error}");
    here.write("eval.jsonl", "\n");
    let error = here.refused(&TRAIN);
    assert!(error.contains("eval.jsonl has no lines"), "{error}");
    let wrong_usage = [
        (["--eval", "1"], "cannot be used with"),
        (["--ttl", "30"], "such as 7d or 36h"),
    ];
    for (options, problem) in wrong_usage {
        let output = here.command(&[&TRAIN[..], &options].concat()).output();
        let error = String::from_utf8(output.unwrap().stderr).unwrap();
        assert!(error.contains(problem), "{error}");
    }
    assert!(!here.path("run").exists());
}
