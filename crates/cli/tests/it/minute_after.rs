//! The minute after training, from an empty folder to an empty list, with the built binary, no key and no variable.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;
use tinkrs::{CheckpointRef, ModelInput, SamplingParams, ServiceClient};

use crate::here::Here;

/// Says something to a chat, and returns its answer.
fn say(chat: &mut Child, answers: &mut BufReader<ChildStdout>, words: &str) -> String {
    writeln!(chat.stdin.as_mut().unwrap(), "{words}").unwrap();
    let mut answer = String::new();
    answers.read_line(&mut answer).unwrap();
    answer
}

fn names(here: &Here) -> Vec<String> {
    let runs = here.json(&["run", "list"]);
    let runs = runs["runs"].as_array().unwrap().iter();
    let name = |run: &Value| run["name"].as_str().unwrap().to_owned();
    let mut names: Vec<_> = runs.map(name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_was_trained_is_talked_to_continued_taken_away_served_and_deleted() {
    let here = Here::new().with_examples();
    let sft = ["train", "sft", "--config", "examples/configs/sft.toml"];
    here.ok(&[&sft[..], &["--name", "a"]].concat());

    let question = "What is the password?";
    let chat = ["chat", "--checkpoint", "a", "--temperature", "0"];
    let mut chat = here.command(&chat).stdin(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(chat.stdout.take().unwrap());
    let learned = "The password is honey.\n";
    assert_eq!(say(&mut chat, &mut answers, question), learned);
    let rl = ["train", "rl", "--config", "examples/configs/rl.toml"];
    let more = ["--steps", "2", "--from", "a", "--name", "b"];
    let mut rl = here.start(&[&rl[..], &more].concat());
    let mut said = BufReader::new(rl.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("through `tinkrs chat`"), "{line}");
    // It trains, and the conversation goes on.
    writeln!(chat.stdin.as_mut().unwrap(), "/reset").unwrap();
    assert_eq!(say(&mut chat, &mut answers, question), learned);
    let rest = std::io::read_to_string(&mut said).unwrap();
    assert!(rl.wait().unwrap().success(), "{rest}");
    drop(chat.stdin.take());
    assert!(chat.wait().unwrap().success());

    assert_eq!(names(&here), ["a", "b"]);
    for (format, file) in [
        ("merged", "config.json"),
        ("gguf", ".gguf"),
        ("peft", "adapter_config.json"),
    ] {
        let exported = here.json(&["export", "b", "--format", format, "--to", format]);
        let mut files = exported["files"].as_array().unwrap().iter();
        let has = files.any(|written| written["name"].as_str().unwrap().ends_with(file));
        assert!(has, "{exported}");
    }

    let mut serve = here.start(&["serve", "--addr", "127.0.0.1:0"]);
    let mut line = String::new();
    let mut stdout = BufReader::new(serve.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("listening on ").unwrap();
    let service = ServiceClient::builder().base_url(url).api_key("tml-local");
    let service = service.build();
    let tuned: CheckpointRef = "b".parse().unwrap();
    let sampling = service.create_sampling_client(tuned).await.unwrap();
    let prompt = ModelInput::from_tokens(vec![1, 2, 3]);
    let sampled = sampling.sample(prompt, SamplingParams::new(4)).await;
    assert!(!sampled.unwrap().sequences[0].tokens.is_empty());
    drop((sampling, service));
    serve.kill().unwrap();
    serve.wait().unwrap();

    for run in ["a", "b"] {
        here.ok(&["checkpoint", "delete", "--run-id", run, "--yes"]);
    }
    let left = here.json(&["checkpoint", "list"]);
    assert_eq!(left["checkpoints"], Value::Array(Vec::new()));
}
