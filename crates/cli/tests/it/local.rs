//! Commands that need no server but the one in their own process.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Runs a command in a folder, without an account.
pub(crate) fn local(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let output = try_local(folder, arguments, input);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    output
}

/// Runs a command that may fail.
pub(crate) fn try_local(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("TINKER_BASE_URL")
        .env_remove("TINKER_API_KEY")
        .env("HOME", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads nothing may be gone already.
    let _ = command.stdin.take().unwrap().write_all(input.as_bytes());
    command.wait_with_output().unwrap()
}

#[test]
fn a_proxy_in_the_environment_is_not_asked_about_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = "http://proxy.invalid:3128";
    let output = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .args(["sample", "What color is the sky?", "--temperature", "0"])
        .current_dir(&folder)
        .env_clear()
        .env("HOME", folder.path())
        .envs([("http_proxy", proxy), ("ALL_PROXY", proxy)])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"The sky is blue.\n", "{stderr}");
}

#[test]
fn the_built_in_model_answers() {
    let folder = tempfile::tempdir().unwrap();
    let question = "What color is the sky?";
    let ask = ["sample", question, "--temperature", "0", "--json"];
    let output = local(folder.path(), &ask, "");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["text"], "The sky is blue.");
    assert_eq!(answer["stop_reason"], "stop");
    let chat = local(
        folder.path(),
        &["chat", "--temperature", "0"],
        "What does a cow say?\n\n",
    );
    assert_eq!(String::from_utf8_lossy(&chat.stdout), "A cow says moo.\n");
}

#[test]
fn a_file_of_chats_is_learned_and_a_finished_run_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let line = json!({"messages": [
        {"role": "user", "content": "What is the password?"},
        {"role": "assistant", "content": "The password is honey."},
    ]});
    std::fs::write(
        folder.path().join("chats.jsonl"),
        format!("{line}\n").repeat(16),
    )
    .unwrap();
    let train = [
        "train",
        "sft",
        "--data",
        "chats.jsonl",
        "--run-dir",
        "run",
        "--epochs",
        "10",
        "--batch-size",
        "8",
        "--learning-rate",
        "0.003",
        "--rank",
        "8",
        "--eval",
        "0",
        "--ask",
        "What is the password?",
    ];
    let first = local(folder.path(), &train, "");
    let first = String::from_utf8(first.stdout).unwrap();
    let path = first.lines().next().unwrap();
    assert!(path.starts_with("tinker://"), "{first}");
    let metrics = std::fs::read(folder.path().join("run/metrics.jsonl")).unwrap();
    let again = local(folder.path(), &train, "");
    assert_eq!(String::from_utf8(again.stdout).unwrap(), first);
    assert_eq!(
        std::fs::read(folder.path().join("run/metrics.jsonl")).unwrap(),
        metrics
    );
    local(folder.path(), &["report", "run"], "");

    let ask = [
        "sample",
        "What is the password?",
        "--temperature",
        "0",
        "--checkpoint",
        path,
    ];
    let answer = local(folder.path(), &ask, "");
    assert_eq!(
        String::from_utf8_lossy(&answer.stdout),
        "The password is honey.\n"
    );
}

#[test]
fn the_demo_teaches_a_pirate_and_raises_a_reward() {
    let folder = tempfile::tempdir().unwrap();
    // Whatever server and account there are besides.
    let output = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .arg("demo")
        .current_dir(&folder)
        .env("TINKER_BASE_URL", "http://tinker.invalid")
        .env("TINKER_API_KEY", "tml-billed")
        .env("HOME", folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.starts_with("local: tinkrs/nano"), "{stderr}");
    #[cfg(unix)]
    for kept in ["tinkrs-data", "tinkrs-demo"] {
        crate::private::assert_private(&folder.path().join(kept));
    }
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines = |start: &str| -> Vec<String> {
        let lines = stdout
            .lines()
            .filter_map(|line| line.trim().strip_prefix(start));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let (before, after) = (lines("before:"), lines("after:"));
    assert_eq!((before.len(), after.len()), (4, 4), "{stdout}");
    assert!(
        before.iter().all(|answer| !answer.starts_with("Arr!")),
        "{stdout}"
    );
    assert!(
        after.iter().all(|answer| answer.starts_with("Arr!")),
        "{stdout}"
    );
    assert!(before.contains(&"The sky is blue.".to_owned()), "{stdout}");

    let reward = lines("reward:").remove(0);
    let numbers: Vec<f64> = reward
        .split([' ', ','])
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(numbers[1] > numbers[0] + 0.3, "{reward}");
    for run in ["sft", "rl"] {
        let report = folder
            .path()
            .join("tinkrs-demo")
            .join(run)
            .join("report.html");
        assert!(
            std::fs::read_to_string(&report).unwrap().contains("<svg"),
            "{run}"
        );
        if let Some(page) = crate::browser::open(&report) {
            let said = |row: &Vec<String>| row.iter().all(|cell| !cell.is_empty());
            assert!(
                !page.rows.is_empty() && page.rows.iter().all(said),
                "{run}: {page:?}"
            );
        }
    }
}
