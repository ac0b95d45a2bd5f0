//! Finding sessions again.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::caller::{TestServer, pass};

async fn session(server: &TestServer, name: &str, labels: Value) -> String {
    let body = json!({
        "tags": ["t"], "sdk_version": "0.36.0", "display_name": name, "user_metadata": labels,
    });
    let session = server.ok("/create_session", body).await;
    session["session_id"].as_str().unwrap().to_owned()
}

async fn finish(server: &TestServer, session: &str, reason: &str) {
    let body = json!({"reason": {"type": reason}, "detail": "done"});
    server
        .ok(&format!("/sessions/{session}/finish"), body)
        .await;
}

/// Searches, and returns the ids that were found.
async fn search(server: &TestServer, body: Value) -> Vec<String> {
    let page = server.ok("/sessions/search", body).await;
    let found = page["sessions"].as_array().unwrap().iter();
    found
        .map(|s| s["session_id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn sessions_are_listed_newest_first_and_described() {
    let server = TestServer::start().await;
    let mut sessions = Vec::new();
    for number in 0..5 {
        let labels = json!({"number": number.to_string()});
        sessions.push(session(&server, &format!("run {number}"), labels).await);
    }
    sessions.reverse();
    let newest = sessions[0].clone();
    let body = json!({"session_id": newest, "sampling_session_seq_id": 3, "base_model": "tiny"});
    server.ok("/create_sampling_session", body).await;
    let body = json!({
        "session_id": newest, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
    });
    let id = server.promise("/create_model", body).await;
    server.result(&id).await;
    let server = server.restart(|_| {}).await;
    assert_eq!(server.get("/sessions").await["sessions"], json!(sessions));
    let page = server
        .get("/sessions?limit=2&offset=1&access_scope=accessible")
        .await;
    assert_eq!(page["sessions"], json!(sessions[1..3]));
    assert_eq!(
        server
            .get(&format!("/sessions/{newest}?access_scope=owned"))
            .await,
        json!({
            "training_run_ids": [format!("{newest}:train:0")],
            "sampler_ids": [format!("{newest}:sample:3")],
            "user_metadata": {"number": "4"}, "display_name": "run 4",
        })
    );
    let sampler = server.get(&format!("/samplers/{newest}:sample:3")).await;
    assert_eq!(sampler["base_model"], "tiny");
    assert_eq!(sampler["model_path"], Value::Null);
    let missing = server
        .me()
        .call(Method::GET, "/sessions/none", &Value::Null)
        .await;
    assert_eq!(missing.status, 404);
}

#[tokio::test]
async fn a_search_finds_by_name_labels_and_status() {
    let server = TestServer::start().await;
    let a = session(&server, "Math RL  large", json!({"team": "x", "size": "8"})).await;
    let b = session(&server, "math sft", json!({"team": "x"})).await;
    let c = session(&server, "chat rl", json!({"team": "y"})).await;
    finish(&server, &b, "success").await;
    finish(&server, &c, "errored").await;
    // The first end counts.
    finish(&server, &c, "success").await;
    let server = server.restart(|_| {}).await;
    let me = server.get("/training_runs").await;
    assert_eq!(me["training_runs"], json!([]));
    let owner = server.ok("/sessions/search", json!({})).await["sessions"][0]["owner"].clone();
    let (a, b, c) = (a.as_str(), b.as_str(), c.as_str());
    let finished = |reasons: Value| json!({"type": "client_finished", "reasons": reasons});
    let cases = [
        (json!({}), vec![c, b, a]),
        (json!({"display_name": "MATH"}), vec![b, a]),
        (json!({"display_name": "rl math"}), vec![a]),
        (json!({"display_name": "vision"}), vec![]),
        (json!({"session_id": c}), vec![c]),
        (json!({"session_id": c, "display_name": "sft"}), vec![c, b]),
        (json!({"session_id": "none"}), vec![]),
        (json!({"user_metadata": {"team": "x"}}), vec![b, a]),
        (
            json!({"user_metadata": {"team": "x", "size": "8"}}),
            vec![a],
        ),
        (
            json!({"user_metadata": {"team": "x"}, "display_name": "sft"}),
            vec![b],
        ),
        (json!({"statuses": [{"type": "active"}]}), vec![a]),
        (
            json!({"statuses": [{"type": "client_finished"}]}),
            vec![c, b],
        ),
        (json!({"statuses": [finished(json!(["errored"]))]}), vec![c]),
        (
            json!({"statuses": [{"type": "active"}, finished(json!(["success"]))]}),
            vec![b, a],
        ),
        (
            json!({"statuses": [{"type": "failed"}, {"type": "cancelled"}]}),
            vec![],
        ),
        (json!({"owner": {"type": "own"}}), vec![c, b, a]),
        (json!({"owner": {"type": "accessible"}}), vec![c, b, a]),
        (
            json!({"owner": {"type": "user", "owner_urns": [owner]}}),
            vec![c, b, a],
        ),
        (
            json!({"owner": {"type": "user", "owner_urns": ["somebody"]}}),
            vec![],
        ),
        (json!({"project_ids": ["local"]}), vec![c, b, a]),
        (json!({"limit": 1}), vec![c]),
    ];
    for (body, expected) in cases {
        assert_eq!(search(&server, body.clone()).await, expected, "{body}");
    }
    for (body, named) in [
        (json!({"limit": 0}), "limit"),
        (json!({"limit": 201}), "limit"),
        (json!({"statuses": []}), "statuses"),
        (json!({"display_name": ""}), "display_name"),
        (
            json!({"owner": {"type": "user", "owner_urns": []}}),
            "owner_urns",
        ),
        (
            json!({"owner": {"type": "user", "owner_urns": vec!["x"; 11]}}),
            "owner_urns",
        ),
        (json!({"project_ids": ["other"]}), "other"),
        (json!({"tags": ["t"]}), "tags"),
        (json!({"statuses": [{"type": "sleeping"}]}), "sleeping"),
        (
            json!({"cursor": {"last_created_at": "x", "last_session_id": a}}),
            "last_created_at",
        ),
    ] {
        let answer = server.post("/sessions/search", body.clone()).await;
        assert!(answer.status.is_client_error(), "{body}");
        assert!(
            answer.detail().contains(named),
            "{body}: {}",
            answer.detail()
        );
    }
}

#[tokio::test]
async fn pages_of_a_search_follow_each_other_without_gaps() {
    let server = TestServer::start().await;
    let mut sessions = Vec::new();
    for _ in 0..7 {
        sessions.push(session(&server, "same name", json!({})).await);
    }
    sessions.reverse();
    let (mut found, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let mut body = json!({"limit": 3});
        if !cursor.is_null() {
            body["cursor"] = cursor;
        }
        let page = server.ok("/sessions/search", body).await;
        for session in page["sessions"].as_array().unwrap() {
            found.push(session["session_id"].as_str().unwrap().to_owned());
        }
        // One that comes later does not move the pages.
        session(&server, "late", json!({})).await;
        cursor = page["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(found, sessions);
}

#[tokio::test]
async fn a_found_session_shows_what_it_holds() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.save("/save_weights", &model, 1, "a").await;
    server.save("/save_weights_external", &model, 2, "a").await;
    let session = model.split(':').next().unwrap();
    finish(&server, session, "interrupted").await;
    let checkpoints = server.get("/checkpoints").await;
    let bytes: u64 = checkpoints["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["size_bytes"].as_u64().unwrap())
        .sum();
    let server = server.restart(|_| {}).await;
    let page = server
        .ok("/sessions/search", json!({"session_id": session}))
        .await;
    let found = &page["sessions"][0];
    assert_eq!(found["checkpoints_count"], 2);
    assert_eq!(found["checkpoint_storage_bytes"], json!(bytes));
    assert_eq!(found["project_id"], "local");
    let status = json!({
        "type": "client_finished", "reason": {"type": "interrupted"}, "detail": "done",
    });
    assert_eq!(found["status"], status);
    assert_eq!(page["next_cursor"], Value::Null);
}

#[tokio::test]
async fn there_is_one_project() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let path = format!("/sessions/{session}/project");
    let assign = |project: &str| json!({"project_id": project});
    for (path, body, status) in [
        (path.clone(), assign("local"), 200),
        (path.clone(), assign("other"), 403),
        (path.clone(), json!({}), 400),
        (path.clone(), json!({"project_id": null}), 400),
        ("/sessions/none/project".to_owned(), assign("local"), 404),
    ] {
        let answer = server.me().call(Method::PUT, &path, &body).await;
        assert_eq!(answer.status, status, "{path} {body}");
    }
    for path in ["/training_runs", "/checkpoints", "/sessions"] {
        server.get(&format!("{path}?project_id=local")).await;
        let path = format!("{path}?project_id=other");
        let answer = server.me().call(Method::GET, &path, &Value::Null).await;
        assert_eq!(answer.status, 403, "{path}");
    }
}

#[tokio::test]
async fn a_session_whose_client_is_silent_is_ended_and_frees_its_models() {
    let server = TestServer::with(|settings| {
        settings.session_timeout = Duration::from_millis(300);
        settings.gap_timeout = Duration::from_millis(5);
    })
    .await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap();
    let described = format!("/sessions/{session}");
    // Asking about a session is not a sign of its client.
    let ended = loop {
        let found = server
            .ok("/sessions/search", json!({"session_id": session}))
            .await;
        let status = found["sessions"][0]["status"].clone();
        if status["type"] != "active" {
            break status;
        }
        server.send(Method::GET, &described, &[], "").await;
    };
    assert_eq!(ended["type"], "cancelled", "{ended}");
    let beat = server
        .post("/session_heartbeat", json!({"session_id": session}))
        .await;
    assert_eq!(beat.status, 410);
    let pass = server.post("/forward_backward", pass(&model, 1)).await;
    assert_eq!(pass.status, 400, "{}", pass.detail());
}
