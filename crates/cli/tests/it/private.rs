//! What is kept on this machine is for its owner alone.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::here::Here;

/// Asserts that nobody but the owner can enter a folder or read anything in it.
#[track_caller]
pub(crate) fn assert_private(path: &Path) {
    let about = std::fs::symlink_metadata(path).unwrap();
    let expected = if about.is_dir() { 0o700 } else { 0o600 };
    let mode = about.permissions().mode() & 0o777;
    assert_eq!(mode, expected, "{} has mode {mode:o}", path.display());
    if about.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            assert_private(&entry.unwrap().path());
        }
    }
}

/// Runs a command under a umask.
fn run(here: &Here, umask: &str, arguments: &[&str]) {
    let output = Command::new("sh")
        .args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"])
        .arg(env!("CARGO_BIN_EXE_tinkrs"))
        .args(arguments)
        .current_dir(here.path(""))
        .env_clear()
        .env("HOME", here.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    assert!(!stderr.contains("chmod"), "{stderr}");
}

const SAMPLE: [&str; 4] = ["sample", "Who are you?", "--max-tokens", "2"];

#[test]
fn a_data_folder_is_for_its_owner_alone_whatever_the_umask_and_the_command() {
    let chat = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let train = [
        "train",
        "sft",
        "--data",
        "chats.jsonl",
        "--run-dir",
        "runs/first",
        "--eval",
        "0",
    ];
    let cases: [(&str, &[&str]); 4] = [
        ("000", &train),
        ("022", &["chat"]),
        ("000", &SAMPLE),
        ("277", &SAMPLE),
    ];
    for (umask, command) in cases {
        let here = Here::new();
        here.write("chats.jsonl", chat);
        run(&here, umask, command);
        assert_private(&here.path("tinkrs-data"));
        if command == train {
            assert_private(&here.path("runs/first"));
        }
    }
}

#[test]
fn a_data_folder_that_was_there_with_other_modes_is_closed() {
    let here = Here::new();
    let data = here.path("tinkrs-data");
    let open = |path: &Path| {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    std::fs::create_dir(&data).unwrap();
    open(&data);
    run(&here, "022", &SAMPLE);
    assert_private(&data);
    // One of an earlier version.
    for path in [
        "",
        "tinkrs.db",
        "models",
        "models/tinkrs-nano",
        "models/tinkrs-nano/config.json",
    ] {
        open(&data.join(path));
    }
    run(&here, "022", &SAMPLE);
    assert_private(&data);
}

#[test]
fn a_data_folder_with_other_things_in_it_stays_open_and_the_user_is_told() {
    let here = Here::new();
    here.write("notes.txt", "");
    std::fs::set_permissions(here.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let output = here
        .command(&[&SAMPLE[..], &["--data-dir", "."]].concat())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("`chmod 700 .` keeps them out"), "{stderr}");
    for name in ["tinkrs.db", "models", "secret", "checkpoints"] {
        assert_private(&here.path(name));
    }
}
