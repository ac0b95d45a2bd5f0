//! A server that is stopped and started again goes on as if nothing had happened.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::caller::{TestServer, fake, large_pass};

/// A result as it was sent: the same bits print the same.
async fn results(server: &TestServer, ids: &[String]) -> Vec<Value> {
    let mut results = Vec::new();
    for id in ids {
        results.push(server.result(id).await);
    }
    results
}

/// Trains a few steps, calling `between` after each, and returns all results.
async fn train(
    mut server: TestServer,
    session: &mut String,
    between: impl AsyncFn(TestServer) -> TestServer,
) -> (TestServer, Vec<Value>) {
    let model = server.model().await;
    *session = model.split(':').next().unwrap().to_owned();
    let mut all = Vec::new();
    for step in 0..4 {
        let number = 3 * step + 1;
        let ids = [
            server.forward_backward(&model, number).await,
            server.forward_backward(&model, number + 1).await,
            server.optim_step(&model, number + 2).await,
        ];
        server = between(server).await;
        all.extend(results(&server, &ids).await);
    }
    (server, all)
}

#[tokio::test]
async fn an_interrupted_run_equals_an_uninterrupted_one() {
    let mut session = String::new();
    let plain = TestServer::real(|_| {}).await;
    let (_plain, expected) = train(plain, &mut session, async |server| server).await;
    // With a snapshot after every operation, after some, and never.
    for operations in [1, 2, u32::MAX] {
        let change = move |settings: &mut tinkrs_server::Settings| {
            settings.snapshot_interval = Duration::MAX;
            settings.snapshot_operations = operations;
        };
        let server = TestServer::real(change).await;
        let (_server, found) = train(server, &mut session, async |server| {
            server.restart(change).await
        })
        .await;
        assert_eq!(found, expected, "snapshot after {operations}");
    }
}

#[tokio::test]
async fn a_run_is_what_it_was_though_its_results_were_not_kept_any_longer() {
    let plain = TestServer::real(|_| {}).await;
    let model = plain.model().await;
    plain.forward_backward(&model, 1).await;
    plain.optim_step(&model, 2).await;
    let pass = plain.forward_backward(&model, 3).await;
    let expected = plain.loss(&pass).await;

    // With no snapshot at all, and with one in the middle.
    for operations in [u32::MAX, 2] {
        let change = move |settings: &mut tinkrs_server::Settings| {
            settings.snapshot_interval = Duration::MAX;
            settings.snapshot_operations = operations;
            settings.keep_fetched = Duration::ZERO;
            // Maintenance runs as often as this.
            settings.gap_timeout = Duration::from_millis(5);
        };
        let server = TestServer::real(change).await;
        let model = server.model().await;
        let pass = server.forward_backward(&model, 1).await;
        let step = server.optim_step(&model, 2).await;
        for id in [&pass, &step] {
            while server.poll(id, "application/json").await.status != 410 {
                tokio::task::yield_now().await;
            }
        }
        let server = server.restart(change).await;
        let again = server.poll(&step, "application/json").await;
        assert_eq!(again.status, 410);
        let pass = server.forward_backward(&model, 3).await;
        assert_eq!(
            server.loss(&pass).await,
            expected,
            "snapshot after {operations}"
        );
    }
}

#[tokio::test]
async fn operations_and_results_wait_for_their_numbers_and_readers_across_a_restart() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let first = server.forward_backward(&model, 1).await;
    let loss = server.loss(&first).await;
    let early = server.forward_backward(&model, 3).await;
    let server = server.restart(|_| {}).await;
    assert_eq!(
        server.loss(&first).await,
        loss,
        "fetched before, and still there"
    );
    assert_eq!(server.forward_backward(&model, 1).await, first);
    assert_eq!(server.forward_backward(&model, 3).await, early);
    let step = server.optim_step(&model, 2).await;
    assert_eq!(server.result(&step).await["metrics"]["optimizer_step"], 1.0);
    assert!(server.loss(&early).await < loss);
}

#[tokio::test]
async fn a_failed_operation_fails_the_same_way_after_a_restart() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let mut bad = crate::caller::pass(&model, 1);
    bad["forward_backward_input"]["data"][0]["model_input"]["chunks"][0]["tokens"][1] =
        json!(1_000_000);
    let bad = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&bad).await;
    let server = server.restart(|_| {}).await;
    assert_eq!(server.user_error(&bad).await, error);
    let next = server.forward_backward(&model, 2).await;
    server.loss(&next).await;
}

#[tokio::test]
async fn checkpoints_samplers_and_samples_survive_a_restart() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let body = json!({"model_id": model, "seq_id": 1, "path": "a"});
    let saved = server.promise("/save_weights", body.clone()).await;
    let path = server.result(&saved).await["path"].clone();
    let body = json!({"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0});
    let saved = server.promise("/save_weights_for_sampler", body).await;
    let sampler = server.result(&saved).await["sampling_session_id"].clone();
    let sample = json!({
        "sampling_session_id": sampler, "seq_id": 0, "num_samples": 2,
        "prompt": {"chunks": [{"tokens": [1, 5]}]}, "sampling_params": {"max_tokens": 8},
    });
    let first = server.promise("/asample", sample.clone()).await;
    let tokens = server.result(&first).await;
    let server = server.restart(|_| {}).await;
    assert_eq!(server.result(&first).await, tokens);
    assert_eq!(server.promise("/asample", sample.clone()).await, first);
    let mut next = sample;
    next["seq_id"] = json!(1);
    let next = server.promise("/asample", next).await;
    assert_eq!(
        server.result(&next).await["sequences"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let body = json!({"model_id": model, "seq_id": 3, "path": path, "optimizer": true});
    let loaded = server.promise("/load_weights", body).await;
    assert_eq!(server.result(&loaded).await["path"], path);
}

#[tokio::test]
async fn what_a_run_loaded_is_not_needed_to_take_it_up_again() {
    let server = TestServer::start().await;
    let source = server.model().await;
    for (number, operation) in [(1, "pass"), (2, "step")] {
        match operation {
            "pass" => server.forward_backward(&source, number).await,
            _ => server.optim_step(&source, number).await,
        };
    }
    let body = json!({"model_id": source, "seq_id": 3, "path": "a"});
    let saved = server.promise("/save_weights", body).await;
    let path = server.result(&saved).await["path"].clone();

    let copy = server.model().await;
    let body = json!({"model_id": copy, "seq_id": 1, "path": path, "optimizer": true});
    let loaded = server.promise("/load_weights", body).await;
    assert_eq!(server.result(&loaded).await["path"], path);
    // Another checkpoint takes the name: what was loaded cannot be loaded again.
    server.forward_backward(&source, 4).await;
    server.optim_step(&source, 5).await;
    let body = json!({"model_id": source, "seq_id": 6, "path": "a", "overwrite": true});
    let saved = server.promise("/save_weights", body).await;
    server.result(&saved).await;
    let pass = server.forward_backward(&copy, 2).await;
    let expected = server.loss(&pass).await;
    let server = server.restart(|_| {}).await;
    let again = server.forward_backward(&copy, 3).await;
    assert_eq!(server.loss(&again).await, expected);
}

#[tokio::test]
async fn a_request_that_cannot_be_stored_is_refused_and_can_be_repeated() {
    let server = TestServer::start().await;
    let model = server.model().await;
    // A disk that takes no more: what is to be written has no place.
    let bodies = server.data().join("bodies");
    std::fs::remove_dir_all(&bodies).unwrap();
    let refused = server
        .post("/forward_backward", large_pass(&model, 1))
        .await;
    assert_eq!(refused.status, 503);
    let detail = refused.detail();
    assert!(
        detail.contains("could not write to the data folder"),
        "{detail}"
    );

    std::fs::create_dir(&bodies).unwrap();
    let accepted = server.large_pass(&model, 1).await;
    let step = server.optim_step(&model, 2).await;
    server.loss(&accepted).await;
    assert_eq!(server.result(&step).await["metrics"]["optimizer_step"], 1.0);
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_is_told_and_is_the_same_after_a_restart() {
    let plain = TestServer::start().await;
    let model = plain.model().await;
    let pass = plain.large_pass(&model, 1).await;
    let loss = plain.loss(&pass).await;
    plain.optim_step(&model, 2).await;
    let pass = plain.forward_backward(&model, 3).await;
    let later = plain.loss(&pass).await;

    for is_room_before_the_end in [true, false] {
        let server = TestServer::start().await;
        let model = server.model().await;
        let (results, away) = (server.data().join("results"), server.data().join("away"));
        // A disk that takes requests, but no large results.
        std::fs::rename(&results, &away).unwrap();
        let pass = server.large_pass(&model, 1).await;
        assert_eq!(server.loss(&pass).await, loss, "it was computed");
        let refused = server
            .post("/optim_step", crate::caller::step(&model, 2))
            .await;
        assert_eq!(refused.status, 503, "no more is taken");
        let server = if is_room_before_the_end {
            std::fs::rename(&away, &results).unwrap();
            server.optim_step(&model, 2).await;
            server.restart(|_| {}).await
        } else {
            let data = server.stop().await;
            std::fs::rename(&away, &results).unwrap();
            let server = TestServer::of(fake(), data, |_| {}).await;
            server.optim_step(&model, 2).await;
            server
        };
        assert_eq!(server.loss(&pass).await, loss);
        assert_eq!(server.large_pass(&model, 1).await, pass);
        let next = server.forward_backward(&model, 3).await;
        assert_eq!(server.loss(&next).await, later);
    }
}

#[tokio::test]
async fn a_save_that_cannot_be_stored_fails_and_leaves_nothing() {
    for (path, place, folder) in [
        ("/save_weights", json!({"path": "a"}), "checkpoints"),
        (
            "/save_weights_for_sampler",
            json!({"sampling_session_seq_id": 0}),
            "samplers",
        ),
    ] {
        let server = TestServer::start().await;
        let model = server.model().await;
        let save = |number: i64| {
            let mut body = place.clone();
            body["model_id"] = json!(model);
            body["seq_id"] = json!(number);
            body
        };
        let (results, away) = (server.data().join("results"), server.data().join("away"));
        std::fs::rename(&results, &away).unwrap();
        // It waits for a pass whose result is not taken, and nothing overtakes that.
        let first = server.promise(path, save(2)).await;
        server.large_pass(&model, 1).await;
        let failed = server.result(&first).await;
        assert_eq!(failed["category"], "server", "{failed}");
        assert_eq!(files(&server.data().join(folder)), 0, "{folder}");
        assert_eq!(server.get("/checkpoints").await["checkpoints"], json!([]));

        // Room again: the same can be saved, and the failure stays what it was.
        std::fs::rename(&away, &results).unwrap();
        let second = server.promise(path, save(3)).await;
        let saved = server.result(&second).await;
        assert!(saved["category"].is_null(), "{saved}");
        let server = server.restart(|_| {}).await;
        assert_eq!(server.result(&first).await, failed);
        assert_eq!(server.result(&second).await, saved);
    }
}

#[tokio::test]
async fn a_checkpoint_whose_deletion_cannot_be_stored_stays() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server.save("/save_weights", &model, 1, "a").await;
    let path = crate::caller::address(&path);
    let (results, away) = (server.data().join("results"), server.data().join("away"));
    std::fs::rename(&results, &away).unwrap();
    let pass = server.large_pass(&model, 2).await;
    server.loss(&pass).await;
    let delete = async || {
        let me = server.me();
        me.call(Method::DELETE, &path, &Value::Null).await.status
    };
    assert_eq!(delete().await, 503);
    std::fs::rename(&away, &results).unwrap();
    assert_eq!(delete().await, 200);
    assert_eq!(delete().await, 404);
}

/// Counts the files below a folder.
fn files(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    let count = entries.map(|entry| match entry.unwrap().path() {
        path if path.is_dir() => files(&path),
        _ => 1,
    });
    count.sum()
}
