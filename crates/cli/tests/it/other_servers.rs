//! Servers that do less than ours, or say it in another way.

use serde_json::json;
use tinkrs_recipes::run::{Journal, read_metrics};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{Reply, not_yet, refuse, status};
use tinkrs_types::training::LossSource;

use crate::user::User;

const CHATS: &str = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}]}
{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A pirate."}]}
"#;

#[tokio::test]
async fn what_the_service_says_is_shown_once_and_a_pause_says_why() {
    let server = ScriptedServer::start().await;
    let user = User::of(server.url());
    std::fs::write(user.home().join("chats.jsonl"), CHATS).unwrap();
    let session = json!({
        "type": "create_session", "session_id": "session-0", "info_message": "maintenance at noon",
        "warning_message": "your quota is nearly used up",
    });
    server
        .on("create_session")
        .executed()
        .reply(Reply::json(&session));
    let old = status(404).header("x-deprecation-note", "update your client");
    server.on("client_dynamic_config").always().reply(old);
    let paused = not_yet("paused_capacity", "no GPUs left");
    server
        .on("retrieve_future")
        .for_request_type("ForwardBackward")
        .times(6)
        .reply(paused);
    server.on("optim_step").reply(refuse(402, "no credit left"));
    let train = [
        "train",
        "sft",
        "--run-dir",
        "run",
        "--data",
        "chats.jsonl",
        "--eval",
        "0",
    ];
    let ran = user.run(&train).await;
    for line in [
        "maintenance at noon\n",
        "warning: your quota is nearly used up\n",
        "warning: client_dynamic_config is deprecated: update your client\n",
        "waiting for the server: no GPUs left\n",
        "billing is blocked: no credit left; waiting up to 60 min for it to clear\n",
    ] {
        assert_eq!(ran.stderr.matches(line).count(), 1, "{line}{}", ran.stderr);
    }
    ran.ok();

    let listed = user.run(&["run", "list"]).await;
    let deprecated = "client_dynamic_config is deprecated: update your client\n";
    assert_eq!(listed.stderr.matches(deprecated).count(), 1, "{listed:?}");
}

fn losses(user: &User, run: &str) -> Vec<f64> {
    let metrics = read_metrics(user.home().join(run).join("metrics.jsonl")).unwrap();
    let steps = metrics.values();
    steps
        .filter_map(|numbers| numbers.get("loss").copied())
        .collect()
}

#[tokio::test]
async fn a_run_on_a_server_that_reports_no_loss_computes_it_and_says_so_once() {
    let server = ScriptedServer::start().await;
    let user = User::of(server.url());
    std::fs::write(user.home().join("chats.jsonl"), CHATS).unwrap();
    let data = [
        "--data",
        "chats.jsonl",
        "--epochs",
        "3",
        "--eval",
        "1",
        "--eval-every",
        "2",
    ];
    let train = |run| [&["train", "sft", "--run-dir", run][..], &data].concat();
    let ran = user.run(&train("reported")).await;
    assert!(!ran.stderr.contains("loss:sum"), "{ran:?}");
    ran.ok();

    server.edit_passes(|_, output| output.metrics.clear());
    let ran = user.run(&train("computed")).await;
    let note = "the server does not report `loss:sum`: the loss comes from the log-probabilities of the targets\n";
    assert_eq!(ran.stderr.matches(note).count(), 1, "{ran:?}");
    ran.ok();
    let journal = Journal::open(user.home().join("computed/journal.jsonl")).unwrap();
    assert_eq!(journal.loss_source(), Some(LossSource::Logprobs));
    let (computed, reported) = (losses(&user, "computed"), losses(&user, "reported"));
    assert_eq!(computed.len(), reported.len());
    for (computed, reported) in computed.iter().zip(&reported) {
        assert!(
            (computed - reported).abs() < 1e-6,
            "{computed} and {reported}"
        );
    }
}
