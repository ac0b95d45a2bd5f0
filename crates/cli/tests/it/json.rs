//! `--json` on everything: what a command prints is JSON, and nothing else.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::Value;

use crate::here::Here;
use crate::{text, tinkrs};

/// Commands that need an account of the hosted service, or a server that has one; `account.rs` runs them.
const OF_ACCOUNTS: [&str; 10] = [
    "auth login",
    "auth logout",
    "auth whoami",
    "billing usage",
    "billing checkpoint-storage",
    "checkpoint push-hf",
    // Those of the hosted service, from its own list.
    "models hosted",
    // It downloads; `hub.rs` runs it.
    "models pull",
    // It takes minutes; `local.rs` runs it.
    "demo",
    "help",
];

/// Lists the commands below one, from its help.
fn commands(of: &[&str]) -> Vec<String> {
    let output = tinkrs(&[of, &["--help"]].concat());
    let help = text(&output.stdout);
    let Some((_, listed)) = help.split_once("Commands:\n") else {
        return Vec::new();
    };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn all_commands() -> Vec<String> {
    let mut all = Vec::new();
    for group in commands(&[]) {
        let below = commands(&[&group]);
        if below.is_empty() || group == "help" {
            all.push(group);
        } else {
            let below = below.iter().filter(|name| *name != "help");
            all.extend(below.map(|name| format!("{group} {name}")));
        }
    }
    all
}

#[test]
fn every_command_prints_json_if_it_is_asked_to() {
    let here = Here::new().with_examples();
    let sft = ["train", "sft", "--config", "examples/configs/sft.toml"];
    here.ok(&[&sft[..], &["--max-steps", "1", "--name", "a"]].concat());
    here.ok(&["export", "a", "--format", "peft", "--to", "adapter"]);
    tinkrs_nano::write_to(&here.path("model")).unwrap();
    let session = here.json(&["session", "list"])["sessions"][0]["session_id"].clone();
    let session = session.as_str().unwrap();
    let own = "mine";
    let rl = [
        "--steps",
        "1",
        "--problems-per-step",
        "1",
        "--group-size",
        "2",
    ];
    let small = |recipe: &str, config: &'static str, more: &[&'static str]| {
        let train = ["train", recipe, "--config", config];
        let run: Vec<String> = [&train[..], more]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect();
        run
    };
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let cases: Vec<Vec<String>> = vec![
        words("auth list"),
        words("checkpoint list"),
        words("checkpoint info a"),
        words("checkpoint download a --output downloaded"),
        words("checkpoint import adapter --base-model tinkrs/nano"),
        words("checkpoint publish a"),
        words("checkpoint unpublish a"),
        words("checkpoint set-ttl a --ttl 3600"),
        words("completions bash"),
        words("conform --list"),
        words("data show examples/configs/sft.jsonl"),
        words("data stats examples/configs/sft.jsonl"),
        words("data check tinkrs-data"),
        words("data repair tinkrs-data"),
        words("doctor"),
        words("eval --data examples/configs/eval.jsonl --grader contains"),
        words("export a --to merged"),
        words("man pages"),
        words("model list"),
        words("models list"),
        words(&format!("models add {own} model")),
        words(&format!("models remove {own}")),
        words("report runs/sft"),
        words("run list"),
        words("run info a"),
        words("sample Hello --max-tokens 4"),
        words("session list"),
        words(&format!("session info {session}")),
        words(&format!("session export-trace {session}")),
        small("sft", "examples/configs/sft.toml", &["--max-steps", "2"]),
        small("dpo", "examples/configs/dpo.toml", &["--max-steps", "1"]),
        small("rl", "examples/configs/rl.toml", &rl),
        small("distill", "examples/configs/distill_on_policy.toml", &rl),
        words("train reward --data examples/configs/dpo.jsonl --run-dir runs/reward --max-steps 1"),
        words("studio runs/sft --no-open"),
        words("version"),
        words("checkpoint delete --run-id a --yes"),
    ];
    let mut known: Vec<String> = OF_ACCOUNTS.map(str::to_owned).to_vec();
    // Looked at below.
    known.extend(["chat", "serve", "auth status"].map(str::to_owned));
    for case in &cases {
        let arguments: Vec<&str> = case.iter().map(String::as_str).collect();
        let shown = here.json(&arguments);
        assert!(shown.is_object() || shown.is_array(), "{case:?}: {shown}");
        known.push(match &arguments[..] {
            [
                group @ ("auth" | "checkpoint" | "data" | "model" | "models" | "run" | "session"
                | "train"),
                name,
                ..,
            ] => {
                format!("{group} {name}")
            }
            [command, ..] => (*command).to_owned(),
            [] => unreachable!("no case is empty"),
        });
    }
    for command in all_commands() {
        assert!(
            known.contains(&command),
            "`{command}` is in no case of this test"
        );
    }

    // It fails without a key, and says so in JSON as well.
    let output = here
        .command(&["auth", "status", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["credentials_available"], false);

    let mut chat = here
        .command(&["chat", "--json"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"Hello\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    for line in text(&output.stdout).lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
    let mut serve = here.start(&["serve", "--port", "0", "--json"]);
    let mut line = String::new();
    let mut stdout = BufReader::new(serve.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    serve.kill().unwrap();
    serve.wait().unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert!(ready.is_object(), "{line}");
}
