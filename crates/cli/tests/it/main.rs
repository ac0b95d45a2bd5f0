//! The binary as a user meets it: in an empty home, without an environment.

mod account;
mod browser;
mod budget;
mod by_name;
mod chat;
mod checkpoints;
mod conform;
mod data;
mod data_files;
mod docs;
mod docs_links;
mod endings;
mod environments;
mod eval;
mod evaluation;
mod examples;
mod export;
mod from;
mod full_disk;
mod help;
mod here;
mod hub;
mod interrupt;
mod json;
mod learning_rate;
mod local;
mod loggers;
mod minute_after;
mod models;
mod names;
mod numbers;
#[cfg(feature = "otel")]
mod otel;
mod other_servers;
mod private;
mod rewards;
mod runs;
mod sample;
mod serve;
mod sockets;
mod studio;
mod together;
mod train;
mod user;

use std::process::{Command, Output};

fn tinkrs(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .args(arguments)
        .current_dir(home.path())
        .env_clear()
        .env("HOME", home.path())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_version_goes_to_stdout() {
    let output = tinkrs(&["version"]);
    assert!(output.status.success());
    let expected = format!("tinkrs {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn a_model_that_is_not_there_is_an_error_with_causes_and_a_hint() {
    let output = tinkrs(&["serve", "--model", "tiny=no-such-folder", "--threads", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        "error: could not load model `tiny` from no-such-folder\n  \
         caused by: could not read no-such-folder/config.json\n  \
         caused by: No such file or directory (os error 2)\n\n\
         hint: a model is a Hugging Face folder with config.json and safetensors, or a GGUF file\n"
    );
}

#[test]
fn a_server_that_others_can_reach_needs_keys() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let output = tinkrs(&["serve", "--addr", "0.0.0.0:0", "--data-dir", data]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("hint: name a file of keys with `--api-key-file`"));
}

#[test]
fn wrong_values_are_refused_with_what_is_expected() {
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["serve", "--addr", "localhost:8000"],
            2,
            "such as 127.0.0.1:8000",
        ),
        (
            &["billing", "usage", "monday", "tuesday"],
            2,
            "such as 2026-01-31",
        ),
        (
            &["report", "no-such-folder"],
            1,
            "hint: name the folder that `tinkrs train`",
        ),
        (&["conform"], 1, "hint: name a server"),
        (&["doctor", "--base-url", "http://127.0.0.1:1"], 1, ""),
    ];
    for (arguments, code, expected) in cases {
        let output = tinkrs(arguments);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        // A command line has no builder to pass a key to.
        assert!(!stdout.contains("ServiceClient"), "{arguments:?}: {stdout}");
    }
}

#[test]
fn wrong_usage_has_an_exit_code_of_its_own() {
    for arguments in [&["serve", "--model", "tiny"][..], &["no-such-command"]] {
        let output = tinkrs(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}
