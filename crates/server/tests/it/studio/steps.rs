//! The data of a step, from the journal.

use http::Method;
use serde_json::json;

use crate::caller::{TestServer, pass};
use crate::talking::{start, talking};

#[tokio::test]
async fn the_datums_of_a_step_are_text_with_their_weights() {
    let server = start(talking()).await;
    let run = server.model().await;
    for seq_id in [1, 2, 4] {
        let id = server.forward_backward(&run, seq_id).await;
        if seq_id == 2 {
            server.optim_step(&run, 3).await;
        }
        server.loss(&id).await;
    }
    let path = format!("/training_runs/{run}/steps");
    let found = server.get(&format!("{path}/1")).await;
    assert_eq!(found["total"], 2, "{found}");
    assert_eq!(found["kept"], json!({"from": 1, "to": 2}));
    let datum = &found["datums"][0];
    assert_eq!(datum["index"], 0);
    assert_eq!(datum["loss_fn"], "cross_entropy");
    // The first token of the input, and what is to be predicted: 1, and then 5, 9, 2.
    let tokens = datum["tokens"].as_array().unwrap();
    let ids: Vec<_> = tokens.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 5, 9, 2]);
    assert_eq!(tokens[1]["text"], "!", "{datum}");
    assert_eq!(datum["weights"], json!([null, 0.0, 1.0, 1.0]));
    let logprobs = datum["target_logprobs"].as_array().unwrap();
    let sum = -(logprobs[2].as_f64().unwrap() + logprobs[3].as_f64().unwrap());
    assert!(
        (datum["loss"].as_f64().unwrap() - sum).abs() < 1e-5,
        "{datum}"
    );
    assert!(datum["advantages"].is_null());
    let second = server.get(&format!("{path}/1?offset=1&limit=1")).await;
    assert_eq!(second["datums"][0]["index"], 1);
    assert_eq!(second["datums"].as_array().unwrap().len(), 1);
    // What waits for the optimizer is the next step.
    assert_eq!(server.get(&format!("{path}/2")).await["total"], 1);

    let server = server.restart(|_| {}).await;
    assert_eq!(
        server.get(&format!("{path}/1")).await["datums"][0]["tokens"],
        json!(tokens)
    );
    for step in ["0", "3", "-1", "99"] {
        let answer = server
            .send(Method::GET, &format!("{path}/{step}"), &[], "")
            .await;
        assert_eq!(answer.status, 404, "{step}");
        assert!(answer.detail().contains("1 to 2"), "{}", answer.detail());
    }
    let answer = server
        .send(Method::GET, &format!("{path}/x"), &[], "")
        .await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn what_the_journal_has_forgotten_is_not_there() {
    let server = TestServer::with(|settings| {
        settings.snapshot_operations = 1;
        settings.snapshot_interval = std::time::Duration::MAX;
    })
    .await;
    let run = server.model().await;
    for number in 0..5 {
        server
            .promise("/forward_backward", pass(&run, 2 * number + 1))
            .await;
        let id = server.optim_step(&run, 2 * number + 2).await;
        server.result(&id).await;
    }
    let path = format!("/training_runs/{run}/steps");
    // Snapshots are written in their own time.
    let detail = loop {
        let answer = server
            .send(Method::GET, &format!("{path}/1"), &[], "")
            .await;
        if answer.status == 404 {
            break answer.detail();
        }
        tokio::task::yield_now().await;
    };
    assert!(detail.contains("journal"), "{detail}");
}
