//! A server as a process: how it starts, and how it ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn serve(data: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .args(["serve", "--addr", "127.0.0.1:0", "--data-dir", data])
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn a_server_says_where_it_listens_keeps_its_folder_to_itself_and_ends_when_asked_to() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let mut first = serve(data);
    let mut line = String::new();
    let mut stdout = BufReader::new(first.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}");

    let second = serve(data).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains("`tinkrs serve` (process"), "{stderr}");

    end(first, "-TERM");
}

/// Asks a process to end, which it does as if by itself.
#[cfg(unix)]
#[track_caller]
fn end(mut process: Child, signal: &str) {
    let id = process.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status().unwrap();
    assert!(sent.success());
    let asked = Instant::now();
    let ended = process.wait().unwrap();
    assert!(ended.success(), "{ended}");
    // What is promised, and not how fast this machine is.
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[cfg(unix)]
#[test]
fn a_signal_right_after_a_server_says_that_it_listens_ends_it_as_any_other() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    for signal in ["-INT", "-TERM"] {
        let mut server = serve(data);
        let mut line = String::new();
        let mut stdout = BufReader::new(server.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        end(server, signal);
    }
}

#[test]
fn a_server_that_is_told_to_ends_with_its_standard_input() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .args(["serve", "--addr", "127.0.0.1:0", "--stop-with-stdin"])
        .arg("--data-dir")
        .arg(data.path().join("data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}
