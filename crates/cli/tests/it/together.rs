//! What is on this machine, without a server, a key or a variable: listing it, and several commands at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::here::Here;

/// Writes a file of chats, and returns a command that learns it.
pub(crate) fn training<'a>(here: &Here, more: &[&'a str]) -> Vec<&'a str> {
    let line = json!({"messages": [
        {"role": "user", "content": "What is the password?"},
        {"role": "assistant", "content": "The password is honey."},
    ]});
    here.write("chats.jsonl", &format!("{line}\n").repeat(8));
    let train = [
        "train",
        "sft",
        "--data",
        "chats.jsonl",
        "--run-dir",
        "run",
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--eval",
        "0",
    ];
    [&train[..], more].concat()
}

fn send(pid: u32, signal: &str) {
    let pid = pid.to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(sent.success());
}

/// A chat that holds the folder, after it has answered once.
struct Chat {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Chat {
    fn start(here: &Here) -> Self {
        let mut command = here.command(&["chat", "--temperature", "0"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut chat = Self { child, stdout };
        assert_eq!(chat.say("What does a cow say?"), "A cow says moo.\n");
        chat
    }

    fn say(&mut self, words: &str) -> String {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{words}").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Ends the conversation, and returns what was said on stderr.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        stderr
    }
}

#[test]
fn what_was_trained_here_is_listed_downloaded_and_deleted_without_a_key() {
    let here = Here::new();
    let empty = here.command(&["checkpoint", "list"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&empty.stderr);
    assert!(
        stderr.starts_with("local: tinkrs-data is not there yet"),
        "{stderr}"
    );
    assert!(empty.status.success(), "{stderr}");
    assert!(
        !here.path("tinkrs-data").exists(),
        "looking makes no folder"
    );

    here.ok(&training(&here, &[]));
    let listed = here.command(&["run", "list", "--json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&listed.stderr);
    assert_eq!(stderr, "local: tinkrs-data\n");
    let runs: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let run = runs["runs"][0]["training_run_id"].as_str().unwrap();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1);

    let checkpoints = here.json(&["checkpoint", "list", "--run-id", run]);
    let checkpoints = checkpoints["checkpoints"].as_array().unwrap();
    let path = |kind: &str| {
        let found = checkpoints.iter().find(|c| c["checkpoint_type"] == kind);
        found.unwrap()["tinker_path"].as_str().unwrap()
    };
    let info = here.json(&["checkpoint", "info", path("sampler")]);
    assert_eq!(info["checkpoint_type"], "sampler");
    here.ok(&[
        "checkpoint",
        "download",
        path("training"),
        "--output",
        "files",
    ]);
    let files: Vec<_> = crate::user::files(&here.path("files"));
    assert!(!files.is_empty());
    assert_eq!(
        here.json(&["session", "list"])["sessions"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    here.ok(&["checkpoint", "delete", "--yes", path("sampler")]);
    let left = here.json(&["--json", "checkpoint", "list"]);
    assert_eq!(
        left["checkpoints"].as_array().unwrap().len(),
        checkpoints.len() - 1
    );
    // Another folder has nothing of it.
    let other = here.json(&["run", "list", "--data-dir", "other"]);
    assert_eq!(other["runs"], json!([]));
}

#[test]
fn a_key_in_the_environment_is_for_the_hosted_service_unless_this_machine_is_asked_for() {
    let here = Here::new();
    here.ok(&training(&here, &[]));
    let with_key = |key: &str, arguments: &[&str]| {
        // Nothing is sent: the proxy is nobody.
        let mut command = here.command(arguments);
        command.env("TINKER_API_KEY", key);
        command.env("https_proxy", "http://127.0.0.1:9");
        command.spawn().unwrap()
    };
    for (key, arguments) in [
        ("tml-mine", &["run", "list", "--local"][..]),
        ("tml-mine", &["run", "list", "--data-dir", "tinkrs-data"]),
        // The key of this machine is no key for the hosted service.
        ("tml-local", &["run", "list"]),
    ] {
        let output = with_key(key, arguments).wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr, "local: tinkrs-data\n", "{arguments:?}");
    }
    let mut hosted = with_key("tml-mine", &["run", "list"]);
    let mut line = String::new();
    let mut stderr = BufReader::new(hosted.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    hosted.kill().unwrap();
    hosted.wait().unwrap();
    assert_eq!(
        line,
        "hosted Tinker, with your key; `--local` uses tinkrs-data on this machine\n"
    );
}

#[cfg(unix)]
#[test]
fn commands_share_a_folder_and_the_first_serves_until_the_last_is_done() {
    let here = Here::new();
    let first = Chat::start(&here);
    let pid = first.child.id();
    // One that trains, on the server of the chat.
    let trained = here.command(&training(&here, &[])).output().unwrap();
    let stderr = String::from_utf8_lossy(&trained.stderr);
    assert!(trained.status.success(), "{stderr}");
    let through = format!("free of charge, through `tinkrs chat` (process {pid})\n");
    assert!(stderr.contains(&through), "{stderr}");
    assert_eq!(
        here.json(&["run", "list"])["runs"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    // The first is done before the second, and waits for it.
    let mut second = Chat::start(&here);
    let mut first = first;
    drop(first.child.stdin.take());
    let mut stderr = BufReader::new(first.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("still serving 1 other command") {
        line.clear();
        assert_ne!(
            stderr.read_line(&mut line).unwrap(),
            0,
            "it says what it waits for"
        );
    }
    assert_eq!(second.say("What color is the sky?"), "The sky is blue.\n");
    second.end();
    assert!(first.child.wait().unwrap().success());
    assert!(!here.path("tinkrs-data/server.json").exists());
    assert_eq!(
        here.json(&["run", "list"])["runs"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[cfg(unix)]
#[test]
fn a_command_whose_server_was_killed_says_so_and_works_again() {
    let here = Here::new();
    let mut first = Chat::start(&here);
    let mut second = Chat::start(&here);
    send(first.child.id(), "-KILL");
    first.child.wait().unwrap();
    let ended = second.child.wait().unwrap();
    assert_eq!(ended.code(), Some(1));
    let mut stderr = String::new();
    let mut pipe = second.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut pipe, &mut stderr).unwrap();
    let gone = format!(
        "error: `tinkrs chat` (process {}), which served tinkrs-data, has ended",
        first.child.id()
    );
    assert!(stderr.contains(&gone), "{stderr}");
    assert!(stderr.contains("start this command again"), "{stderr}");
    // What the killed one has left says who it was; nobody is there.
    assert!(here.path("tinkrs-data/server.json").exists());
    Chat::start(&here).end();
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_command_that_only_serves_others() {
    let here = Here::new();
    let mut first = Chat::start(&here);
    let mut second = Chat::start(&here);
    drop(first.child.stdin.take());
    let mut stderr = BufReader::new(first.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("still serving") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0);
    }
    send(first.child.id(), "-INT");
    assert!(first.child.wait().unwrap().success());
    assert_eq!(second.child.wait().unwrap().code(), Some(1));
}

#[cfg(unix)]
#[test]
fn a_stale_address_gets_no_key() {
    let here = Here::new();
    let mut killed = Chat::start(&here);
    send(killed.child.id(), "-KILL");
    killed.child.wait().unwrap();
    // Another program has the port now, and writes down what it is sent.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stale = here.path("tinkrs-data/server.json");
    let text = std::fs::read_to_string(&stale).unwrap();
    let mut holder: Value = serde_json::from_str(&text).unwrap();
    holder["url"] = json!(format!("http://{}", listener.local_addr().unwrap()));
    std::fs::write(&stale, holder.to_string()).unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let body = r#"{"proof": "00"}"#;
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        head
    });
    assert_eq!(here.json(&["run", "list"])["runs"], json!([]));
    let head = heard.join().unwrap();
    assert!(head.starts_with("GET /data-folder?nonce="), "{head}");
    assert!(!head.contains("tml-local") && !head.contains(holder["token"].as_str().unwrap()));
}

#[test]
fn two_commands_that_start_on_an_empty_folder_at_once_both_work() {
    let here = Here::new();
    let ask = ["sample", "What color is the sky?", "--temperature", "0"];
    let both = [here.start(&ask), here.start(&ask)];
    for child in both {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"The sky is blue.\n", "{stderr}");
    }
}

#[test]
fn a_model_that_the_holder_lacks_is_named_with_those_that_it_has() {
    let here = Here::new();
    let first = Chat::start(&here);
    let model = format!(
        "mine={}",
        here.path("tinkrs-data/models/tinkrs-nano").display()
    );
    let stderr = here.refused(&["sample", "Hello", "--model", &model]);
    let pid = first.child.id();
    let expected = format!(
        "error: tinkrs-data is used by `tinkrs chat` (process {pid}), which has no model `mine`, only tinkrs/nano"
    );
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(stderr.contains("--data-dir"), "{stderr}");
    first.end();
}
