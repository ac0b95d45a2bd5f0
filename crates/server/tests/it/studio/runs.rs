//! The list of runs, and looking for one in it.

use serde_json::{Value, json};

use crate::caller::TestServer;

/// The ids of the runs that are found, in the order in which they are listed.
async fn found(server: &TestServer, query: &str) -> Vec<String> {
    let page = server.get(&format!("/studio/runs?{query}")).await;
    let runs = page["runs"].as_array().unwrap().iter();
    let id = |run: &Value| run["id"].as_str().unwrap().to_owned();
    runs.map(id).collect()
}

#[tokio::test]
async fn a_run_is_found_by_its_id_among_those_whose_ids_begin_with_it() {
    let server = TestServer::start().await;
    let session = server.session().await;
    for number in 0..12 {
        let body = json!({
            "session_id": session, "model_seq_id": number, "base_model": "tiny",
            "lora_config": {"rank": 4},
        });
        let id = server.promise("/create_model", body).await;
        server.result(&id).await;
    }
    let first = format!("{session}:train:1");
    let all = found(&server, &format!("query={first}")).await;
    assert_eq!(all.len(), 3, "1, 10 and 11: {all:?}");
    assert_eq!(all[0], first);
    let one = found(&server, &format!("query={first}&limit=1")).await;
    assert_eq!(one, [first]);
}

#[tokio::test]
async fn what_was_forked_from_a_run_is_found_by_its_checkpoints() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let state = server.save("/save_weights", &run, 1, "kept").await;
    let body = json!({
        "session_id": server.session().await, "model_seq_id": 0, "path": state, "optimizer": true,
    });
    let id = server.promise("/load_weights", body).await;
    let fork = server.result(&id).await["model_id"].clone();
    let checkpoints = format!("query=tinker://{run}/");
    assert_eq!(found(&server, &checkpoints).await, [fork.as_str().unwrap()]);
}
