//! Prompts from arguments, files and pipes.

use serde_json::{Value, json};

use crate::local::{local, try_local};

#[test]
fn a_file_of_prompts_is_answered_line_by_line_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let chat = json!({"messages": [
        {"role": "system", "content": "You are a helper."},
        {"role": "user", "content": "What does a cow say?"},
    ], "id": 7});
    let long = json!({"prompt": "word ".repeat(3000)});
    let lines = format!("{{\"prompt\": \"What color is the sky?\"}}\n\n{chat}\n{long}\n");
    std::fs::write(folder.path().join("ask.jsonl"), lines).unwrap();
    let ask = [
        "sample",
        "--file",
        "ask.jsonl",
        "-n",
        "2",
        "--temperature",
        "0",
    ];
    let output = try_local(folder.path(), &ask, "");
    assert_eq!(output.status.code(), Some(1), "one cannot be answered");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<_> = answers
        .iter()
        .map(|answer| answer["line"].clone())
        .collect();
    assert_eq!(numbers, [json!(1), json!(3), json!(4)]);
    assert_eq!(answers[0]["answers"].as_array().unwrap().len(), 2);
    assert_eq!(answers[0]["answers"][1]["text"], "The sky is blue.");
    assert_eq!(answers[1]["answers"][0]["stop_reason"], "stop");
    assert!(answers[2]["error"].as_str().unwrap().contains("context"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("1 of 3 prompts have no answer"), "{stderr}");
}

#[test]
fn a_prompt_may_come_from_stdin_or_a_file_of_text() {
    let folder = tempfile::tempdir().unwrap();
    let piped = ["sample", "-", "--temperature", "0"];
    let output = local(folder.path(), &piped, "What color is the sky?\n");
    assert_eq!(output.stdout, b"The sky is blue.\n");
    std::fs::write(folder.path().join("ask.txt"), "What color is the sky?\n").unwrap();
    let file = ["sample", "--file", "ask.txt", "--temperature", "0"];
    let output = local(folder.path(), &file, "");
    assert_eq!(output.stdout, b"The sky is blue.\n");
}

#[test]
fn a_prompt_that_is_missing_or_wrong_is_said_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.jsonl"), "{\"prompt\": \"a\"}\n{}\n").unwrap();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["sample", "a", "--max-tokens", "0"], 2, "0 is not in 1.."),
        (&["sample"], 2, "required"),
        (&["sample", "a", "--file", "b"], 2, "cannot be used with"),
        (&["sample", "-"], 1, "the prompt is empty"),
        (&["sample", "--file", "none"], 1, "could not read none"),
        (&["sample", "--file", "bad.jsonl"], 1, "bad.jsonl, line 2"),
    ];
    for (arguments, code, problem) in cases {
        let output = try_local(folder.path(), arguments, "");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(problem), "{arguments:?}: {stderr}");
        assert!(
            !stderr.contains("on this machine"),
            "{arguments:?}: {stderr}"
        );
    }
}
