//! `tinkrs eval` on this machine.

use crate::here::Here;

const QUESTIONS: &str = "examples/configs/eval.jsonl";

#[test]
fn answers_are_graded_by_name_or_by_a_program() {
    let here = Here::new().with_examples();
    let eval = |more: &[&'static str]| here.json(&[&["eval", "--data", QUESTIONS], more].concat());
    let exact = eval(&["--grader", "exact"]);
    assert_eq!(exact["questions"], 4);
    assert_eq!(exact["mean"], 0.25, "{exact}");
    assert_eq!(exact["items"][0]["completion"], "The sky is blue.");
    assert_eq!(exact["items"][3]["line"], 4);
    let contains = eval(&["--grader", "contains", "--limit", "3"]);
    assert_eq!(contains["mean"], 1.0, "{contains}");
    if cfg!(unix) {
        let judged = eval(&["--reward-command", "while read -r line; do echo 0.5; done"]);
        assert_eq!(judged["mean"], 0.5, "{judged}");
    }
    let table = here.ok(&["eval", "--data", QUESTIONS, "--grader", "exact"]);
    assert!(
        table.contains("Mean grade") && table.contains("0.2500"),
        "{table}"
    );
}

#[test]
fn training_makes_text_less_surprising() {
    let here = Here::new().with_examples();
    let tuned = here.json(&["train", "sft", "--config", "examples/configs/sft.toml"]);
    let checkpoint = tuned["sampler"].as_str().unwrap();
    let eval = ["eval", "--data", "examples/configs/sft.jsonl"];
    let before = here.json(&eval);
    let after = here.json(&[&eval[..], &["--checkpoint", checkpoint]].concat());
    assert_eq!(
        (&before["metric"], &before["examples"]),
        (&"nll".into(), &24.into())
    );
    let nll = |result: &serde_json::Value| result["mean_nll"].as_f64().unwrap();
    assert!(nll(&after) < 0.5 * nll(&before), "{before} {after}");
    assert_eq!(after["checkpoint"], checkpoint);
    let table = here.ok(&eval);
    assert!(table.contains("nats a token"), "{table}");
}

#[test]
fn files_and_judges_that_do_not_fit_are_refused() {
    let here = Here::new().with_examples();
    here.write("empty.jsonl", "");
    here.write(
        "broken.jsonl",
        "{\"prompt\": \"a\", \"answer\": \"b\"}\n\n{\"prompt\": \n",
    );
    let cases: [(&[&str], &str); 6] = [
        (&["--data", "none.jsonl"], "could not read none.jsonl"),
        (&["--data", "empty.jsonl"], "empty.jsonl has no example"),
        (
            &["--data", "empty.jsonl", "--grader", "exact"],
            "empty.jsonl has no lines",
        ),
        (
            &["--data", "broken.jsonl", "--grader", "exact"],
            "broken.jsonl, line 3: not JSON: EOF",
        ),
        (
            &["--data", QUESTIONS],
            "line 1 has an `answer`\n  caused by: no grader: choose --grader, --reward, --rewards, --reward-model or --reward-command",
        ),
        (
            &["--data", QUESTIONS, "--grader", "number"],
            "eval.jsonl, line 1",
        ),
    ];
    for (arguments, expected) in cases {
        let error = here.refused(&[&["eval"], arguments].concat());
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
