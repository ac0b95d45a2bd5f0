//! A model of another server by its name alone: no folder, no hub, no key.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::here::{Here, Served};

const QUESTION: &str = "What is the password?";

/// A server in a folder of its own, with a model under a name that nobody else knows.
fn server(model: &str) -> (Here, Served) {
    let here = Here::new();
    let folder = here.path("the model");
    tinkrs_nano::write_to(&folder).unwrap();
    if model.ends_with("plain") {
        without_template(&folder);
    }
    let served = here.serve(&["--model", &format!("{model}=the model")]);
    (here, served)
}

fn without_template(folder: &Path) {
    let _ = std::fs::remove_file(folder.join("chat_template.jinja"));
    let path = folder.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config.as_object_mut().unwrap().remove("chat_template");
    std::fs::write(path, config.to_string()).unwrap();
}

/// A command in an empty home that would notice a question to the hub: nobody is there.
fn command(here: &Here, served: &Served, arguments: &[&str]) -> Command {
    let server = ["--base-url", served.url.as_str()];
    let mut command = here.command(&[arguments, &server].concat());
    command.env("HF_ENDPOINT", "http://127.0.0.1:9");
    command
}

#[track_caller]
fn ok(here: &Here, served: &Served, arguments: &[&str]) -> (String, String) {
    let output = command(here, served, arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

#[test]
fn a_model_of_a_server_is_sampled_talked_to_and_trained_by_its_name_alone() {
    let (_folder, served) = server("acme/mine");
    let here = Here::new().with_examples();
    let model = ["--model", "acme/mine"];
    let sample = [
        "sample",
        QUESTION,
        "--temperature",
        "0",
        "--max-tokens",
        "8",
    ];
    let (first, said) = ok(&here, &served, &[&sample[..], &model].concat());
    assert!(said.contains("model acme/mine"), "{said}");
    assert!(!first.trim().is_empty());

    let sft = ["train", "sft", "--config", "examples/configs/sft.toml"];
    ok(
        &here,
        &served,
        &[&sft[..], &model, &["--name", "honey"]].concat(),
    );
    let show = ["data", "show", "examples/configs/sft.jsonl"];
    let (shown, _) = ok(&here, &served, &[&show[..], &model].concat());
    assert!(shown.contains("honey"), "{shown}");

    let chat = ["chat", "--checkpoint", "honey", "--temperature", "0"];
    let mut chat = command(&here, &served, &chat);
    let mut chat = chat.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), QUESTION.as_bytes()).unwrap();
    let talked = chat.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&talked.stdout);
    assert!(said.contains("The password is honey."), "{talked:?}");

    let cache = here.path(".cache/tinkrs/tokenizers");
    let kept = std::fs::read_dir(&cache).unwrap().count();
    assert_eq!(kept, 2, "one tokenizer, and whose it is");
    // What is broken is fetched again.
    let folders = std::fs::read_dir(&cache)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let folder = folders.filter(|path| path.is_dir()).last().unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let (again, _) = ok(&here, &served, &[&sample[..], &model].concat());
    assert_eq!(again, first);
}

#[test]
fn a_name_that_the_server_does_not_have_is_refused_with_those_that_it_has() {
    let (_folder, served) = server("acme/mine");
    let here = Here::new();
    let output = command(&here, &served, &["sample", "hi", "--model", "acme/other"]);
    let output = { output }.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("could not get the tokenizer of `acme/other`"),
        "{said}"
    );
    assert!(said.contains("acme/mine"), "{said}");
}

#[test]
fn a_model_without_a_chat_template_learns_pairs_as_plain_text_and_says_so() {
    let (folder, served) = server("acme/plain");
    let here = Here::new();
    let pairs = "{\"prompt\": \"The capital of France is\", \"completion\": \" Paris.\"}\n";
    here.write("pairs.jsonl", &pairs.repeat(8));
    let train = [
        "train",
        "sft",
        "--model",
        "acme/plain",
        "--data",
        "pairs.jsonl",
    ];
    let more = [
        "--run-dir",
        "run",
        "--max-steps",
        "2",
        "--ask",
        "The capital",
    ];
    let (_, said) = ok(&here, &served, &[&train[..], &more].concat());
    let note = "acme/plain has no chat template: prompts and completions are joined as plain text";
    assert!(said.contains(note), "{said}");
    // Also where the folder is.
    folder.write("pairs.jsonl", &pairs.repeat(8));
    let model = ["--model", "acme/plain=the model", "--data-dir", "other"];
    let shown = folder.ok(&[
        "data",
        "show",
        "pairs.jsonl",
        "--model",
        "acme/plain=the model",
    ]);
    assert!(
        shown.contains("The capital of France is⟦ Paris."),
        "{shown}"
    );
    let train = ["train", "sft", "--data", "pairs.jsonl", "--run-dir", "run"];
    let output = folder.command(&[&train[..], &["--max-steps", "1"], &model].concat());
    let output = { output }.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains(note), "{said}");
}
