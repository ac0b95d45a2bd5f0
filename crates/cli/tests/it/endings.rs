//! How the session of a command ends, as the server has it.

use serde_json::{Value, json};
use tinkrs_server::{LocalServer, Settings};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{Gate, status};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::here::Here;
use crate::user::{Local, User, nano, press_ctrl_c};

const CHATS: &str = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}]}
{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A pirate."}]}
"#;

fn with_chats(user: User) -> User {
    std::fs::write(user.home().join("chats.jsonl"), CHATS).unwrap();
    user
}

/// Returns a run that takes so many steps.
fn train(epochs: &str) -> [&str; 12] {
    [
        "train",
        "sft",
        "--data",
        "chats.jsonl",
        "--run-dir",
        "run",
        "--epochs",
        epochs,
        "--rank",
        "2",
        "--eval",
        "0",
    ]
}

/// Returns what became of the user's sessions, the newest first.
async fn endings(user: &User) -> Vec<Value> {
    let listed = user.run(&["--json", "session", "list"]).await.json();
    let sessions = listed["sessions"].as_array().unwrap().iter();
    sessions.map(|session| session["status"].clone()).collect()
}

fn finished(reason: &str, detail: Option<&str>) -> Value {
    json!({"type": "client_finished", "reason": {"type": reason}, "detail": detail})
}

#[tokio::test]
async fn a_command_that_succeeds_ends_its_session_with_success() {
    let server = Local::nano().await;
    let user = with_chats(server.user());
    user.run(&["sample", "Hi"]).await.ok();
    user.run_with_input(&["chat"], "Hi\n").await.ok();
    user.run(&["eval", "--data", "chats.jsonl"]).await.ok();
    user.run(&train("2")).await.ok();
    assert_eq!(endings(&user).await, vec![finished("success", None); 4]);
}

#[tokio::test]
async fn a_command_that_fails_says_in_its_session_why() {
    let server = Local::nano().await;
    let front = ScriptedServer::in_front_of(server.url()).await;
    front
        .on("create_sampling_session")
        .always()
        .reply(status(400));
    let user = with_chats(User::of(front.url()));
    user.run(&["eval", "--data", "chats.jsonl"]).await.failed(1);
    let endings = endings(&user).await;
    assert_eq!(endings.len(), 1);
    assert_eq!(endings[0]["reason"], json!({"type": "errored"}));
    let detail = endings[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("could not open the model: "), "{detail}");
    assert!(!detail.contains("tinkrs run"), "the hint is for the user");
}

#[cfg(unix)]
#[tokio::test]
async fn ctrl_c_ends_the_session_as_interrupted() {
    let server = Local::nano().await;
    let front = ScriptedServer::in_front_of(server.url()).await;
    let user = with_chats(User::of(front.url()));
    // The answer never comes.
    let never = Gate::closed();
    front
        .on("retrieve_future")
        .always()
        .for_request_type("Sample")
        .stall_until(&never);
    let asked = front.received("retrieve_future", 1);
    let stopped = user.interrupt(&["sample", "Hi"], asked).await.failed(130);
    assert!(stopped.ends_with("error: aborted\n"), "{stopped}");
    assert_eq!(endings(&user).await, [finished("interrupted", None)]);

    let stepped = front.received("optim_step", 2);
    user.interrupt(&train("500"), stepped).await.failed(130);
    assert_eq!(endings(&user).await[0], finished("interrupted", None));
}

#[cfg(unix)]
#[tokio::test]
async fn a_run_that_is_stopped_at_once_tells_the_server() {
    let server = Local::nano().await;
    let front = ScriptedServer::in_front_of(server.url()).await;
    let user = with_chats(User::of(front.url()));
    let never = Gate::closed();
    front
        .on("retrieve_future")
        .always()
        .for_request_type("ForwardBackward")
        .stall_until(&never);
    let mut child = user.command(&train("500")).spawn().unwrap();
    front.received("optim_step", 1).await;
    press_ctrl_c(&child);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("Ctrl-C again stops at once") {
            break;
        }
    }
    press_ctrl_c(&child);
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
    assert_eq!(endings(&user).await, [finished("interrupted", None)]);
}

#[tokio::test]
async fn a_server_that_does_not_record_endings_is_a_note_and_no_error() {
    let server = Local::nano().await;
    let front = ScriptedServer::in_front_of(server.url()).await;
    front.on("finish_session").always().reply(status(404));
    let ran = User::of(front.url()).run(&["sample", "Hi"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let note = "the server does not record how a session ends\n";
    assert!(ran.stderr.ends_with(note), "{ran:?}");
}

#[tokio::test]
async fn a_command_on_this_machine_leaves_no_session_open() {
    let here = Here::new();
    here.ok(&["sample", "Hi"]);
    here.refused(&["sample", &"longer than the context ".repeat(1000)]);
    let settings = Settings::new(here.path("tinkrs-data"));
    let server = LocalServer::start(vec![nano()], settings).await.unwrap();
    let user = User::of(server.url()).variable("TINKER_API_KEY", "tml-local");
    let endings = endings(&user.without_key()).await;
    assert_eq!(
        endings[0]["reason"],
        json!({"type": "errored"}),
        "{endings:?}"
    );
    assert_eq!(endings[1], finished("success", None));
}
