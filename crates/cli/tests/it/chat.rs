//! Conversations on the terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tinkrs_chat::format::ChatTemplate;
use tinkrs_chat::{Renderer, Tokenizer};
use tinkrs_server::{BaseModel, LocalServer, Settings};

use crate::local::local;
use crate::user::nano;

const SKY: &str = "What color is the sky?";

#[test]
fn an_answer_that_is_streamed_is_the_one_that_comes_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    // Tokens that are likely and unlikely, and some that are half a character.
    for seed in ["1", "2"] {
        let draw = ["--temperature", "1.5", "--seed", seed, "--max-tokens", "40"];
        let sample = [&["sample", SKY][..], &draw].concat();
        let chat = [&["chat"][..], &draw].concat();
        let sampled = local(folder.path(), &sample, "").stdout;
        let streamed = local(folder.path(), &chat, &format!("{SKY}\n")).stdout;
        assert_eq!(
            String::from_utf8(streamed).unwrap(),
            String::from_utf8(sampled).unwrap()
        );
    }
}

#[test]
fn a_conversation_is_reset_saved_and_told_how_to_behave() {
    let folder = tempfile::tempdir().unwrap();
    let said = format!(
        "/help\n\n{SKY}\n/save a file.jsonl\n/reset\n/system Be kind.\nWhat does a cow say?\n\
         /save a file.jsonl\n/save no/such/folder/x\n/nonsense\n/system\n/save x"
    );
    let output = local(folder.path(), &["chat", "--temperature", "0"], &said);
    let (stdout, stderr) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(stdout.starts_with("The sky is blue.\n"), "{stdout}");
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    for part in [
        "/save FILE",
        "forgotten",
        "could not write no/such/folder/x",
        "there is no command /nonsense",
        "nothing was said yet",
    ] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    let saved = std::fs::read_to_string(folder.path().join("a file.jsonl")).unwrap();
    let roles = |line: &str| -> Vec<String> {
        let line: Value = serde_json::from_str(line).unwrap();
        let messages = line["messages"].as_array().unwrap().iter();
        let role = |message: &Value| message["role"].as_str().unwrap().to_owned();
        messages.map(role).collect()
    };
    let saved: Vec<_> = saved.lines().map(roles).collect();
    assert_eq!(saved[0], ["user", "assistant"]);
    assert_eq!(saved[1], ["system", "user", "assistant"]);
}

#[test]
fn an_answer_is_given_anew_taken_back_and_drawn_as_it_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let said = format!(
        "/regenerate\n/set temperature 0\n/set top-p 2\n/set color blue\n/set seed 4\n{SKY}\n/regenerate\n\
         /save both.jsonl\n/undo\n/save none.jsonl\n/set\n/exit\nnever said\n"
    );
    let output = local(folder.path(), &["chat"], &said);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout, "The sky is blue.\n".repeat(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    for part in [
        "nothing was answered yet",
        "`--top-p`: found 2, expected above 0 and at most 1",
        "there is no setting `color`, only temperature, top-p",
        "nothing was said yet",
        "temperature 0, top-p 1, top-k -1, max-tokens 128, seed 5",
    ] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    let saved = std::fs::read_to_string(folder.path().join("both.jsonl")).unwrap();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 2);
}

#[test]
fn answers_are_json_lines_and_one_that_cannot_be_given_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let long = "word ".repeat(3000);
    let said = format!("{long}\n{SKY}\n");
    let chat = ["chat", "--temperature", "0", "--json"];
    let output = local(folder.path(), &chat, &said);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["content"], "The sky is blue.");
    assert_eq!(answer["stop_reason"], "stop");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("/reset starts anew"), "{stderr}");
}

/// A server whose first answer to a poll never comes.
async fn stuck() -> (LocalServer, tempfile::TempDir) {
    let data = tempfile::tempdir().unwrap();
    let faults = data.path().join("faults.json");
    let rule = r#"{"rules": [{"endpoint": "retrieve_future", "fault": "hang", "first": 1}]}"#;
    std::fs::write(&faults, rule).unwrap();
    let mut settings = Settings::new(data.path().join("data"));
    settings.faults = Some(faults);
    let admins = data.path().join("admin-keys");
    std::fs::write(&admins, "tml-admin").unwrap();
    settings.admin_key_file = Some(admins);
    let server = LocalServer::start(vec![nano()], settings).await.unwrap();
    (server, data)
}

fn interrupt(child: &Child) {
    let kill = format!("kill -INT {}", child.id());
    let killed = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(killed.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_an_answer_and_then_the_conversation() {
    let (server, data) = stuck().await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
        .args(["chat", "--temperature", "0", "--base-url", server.url()])
        .current_dir(data.path())
        .env("HOME", data.path())
        .env("TINKER_API_KEY", "tml-test")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{SKY}").unwrap();
    // Its result is what never comes: the poll for it hangs by now.
    let faults = format!("{}/admin/faults", server.url());
    let http = tinkrs::external::HttpClient::new(std::time::Duration::from_secs(60));
    loop {
        let rules = http
            .get(&faults)
            .header("x-api-key", "tml-admin")
            .send()
            .await
            .unwrap();
        let rules: Value = rules.json().await.unwrap();
        if rules["rules"][0]["injected"] == 1 {
            break;
        }
    }
    interrupt(&child);
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let stopped = stderr.find(|line| line.as_ref().unwrap() == "(stopped)");
    assert!(stopped.is_some());
    writeln!(stdin, "{SKY}").unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        stdout.read_line(line).unwrap();
    }
    assert_eq!(lines, ["\n", "The sky is blue.\n"]);
    interrupt(&child);
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    drop(stdin);
}

/// A server that passes requests below `/v1` on to another one, and has nothing else: no Tinker API.
async fn without_tinker_api(url: String) -> std::net::SocketAddr {
    use axum::http::{Request, StatusCode};
    use tinkrs::external::HttpClient;

    let pass_on = move |request: Request<axum::body::Body>| {
        let url = url.clone();
        async move {
            let path = request.uri().path().to_owned();
            if !path.starts_with("/v1/") {
                return (StatusCode::NOT_FOUND, "nothing here".to_owned());
            }
            let key = request.headers().get("authorization").cloned();
            let is_get = request.method() == axum::http::Method::GET;
            let body = axum::body::to_bytes(request.into_body(), 1 << 20)
                .await
                .unwrap();
            let http = HttpClient::new(std::time::Duration::from_secs(60));
            let whole = format!("{url}{path}");
            let sent = if is_get {
                http.get(&whole)
            } else {
                http.post(&whole).body(body)
            };
            let key = key.map(|key| key.to_str().unwrap().to_owned());
            let sent = match key {
                Some(key) => sent.header("authorization", &key),
                None => sent,
            };
            let answer = sent
                .header("content-type", "application/json")
                .send()
                .await
                .unwrap();
            let status = StatusCode::from_u16(answer.status()).unwrap();
            (status, answer.text().await.unwrap())
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let app = axum::Router::new().fallback(pass_on);
        axum::serve(listener, app).await.unwrap();
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn any_server_of_the_openai_api_can_be_asked() {
    let data = tempfile::tempdir().unwrap();
    let settings = Settings::new(data.path().join("data"));
    let files = data.path().join("nano");
    tinkrs_nano::write_to(&files).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_path(&files).unwrap());
    let template = ChatTemplate::from_path(&files).unwrap();
    let talking = BaseModel {
        renderer: Some(Renderer::new(Arc::clone(&tokenizer), template).unwrap()),
        tokenizer: Some(tokenizer),
        ..nano()
    };
    let server = LocalServer::start(vec![talking], settings).await.unwrap();
    let proxy = without_tinker_api(server.url().to_owned()).await;
    let run = |arguments: &[&str], key: Option<&str>, input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinkrs"));
        command.args(arguments).current_dir(data.path()).env_clear();
        command.env("HOME", data.path());
        if let Some(key) = key {
            command.env("OPENAI_API_KEY", key);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // A command that fails at once does not read it.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let key = Some("tml-some-key");
    for url in [
        format!("http://{proxy}"),
        format!("http://{proxy}/v1/"),
        format!("{}/v1", server.url()),
    ] {
        let chat = ["chat", "--temperature", "0", "--base-url", &url];
        let (is_done, said, notes) = run(&chat, key, &format!("{SKY}\n/regenerate\n"));
        assert!(is_done, "{notes}");
        assert_eq!(said, "The sky is blue.\n".repeat(2), "{notes}");
        assert!(
            notes.contains("(OpenAI API), model: tinkrs/nano"),
            "{notes}"
        );
    }
    let url = format!("http://{proxy}");
    let sample = [
        "sample",
        SKY,
        "--temperature",
        "0",
        "--json",
        "-n",
        "2",
        "--base-url",
        &url,
    ];
    let (_, said, notes) = run(&sample, key, "");
    let first: Value = serde_json::from_str(said.lines().next().expect(&notes)).unwrap();
    assert_eq!(
        (&first["text"], &first["stop_reason"]),
        (&"The sky is blue.".into(), &"stop".into())
    );
    assert_eq!(said.lines().count(), 2);
    let raw = [
        "sample",
        "The sky",
        "--raw",
        "--temperature",
        "0",
        "--max-tokens",
        "3",
        "--base-url",
        &url,
    ];
    let (is_done, said, notes) = run(&raw, key, "");
    assert!(is_done && !said.trim().is_empty(), "{notes}");

    let with =
        |more: &[&'static str]| [&["chat", "--base-url"][..], &[url.as_str()], more].concat();
    for (arguments, key, reason) in [
        (
            with(&["--model", "other"]),
            key,
            "expected a base model or a checkpoint",
        ),
        (
            with(&["--template", "chatml"]),
            key,
            "a server of the OpenAI API writes prompts itself",
        ),
        (with(&[]), Some("not a key"), "OPENAI_API_KEY"),
    ] {
        let (_, said, notes) = run(&arguments, key, "hi\n");
        assert!(
            said.is_empty() && notes.contains(reason),
            "{reason} in {notes}"
        );
        assert!(!notes.contains("not a key"), "{notes}");
    }
}
