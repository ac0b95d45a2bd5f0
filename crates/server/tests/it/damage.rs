//! Weights that are not what was saved are an error that names the file, and never other numbers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tinkrs_server::Settings;

use crate::caller::{TestServer, address, base, fake, pass, tiny_llama};

/// Changes one bit in the middle of a file.
fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Lists the files below a folder whose names end like this, the oldest first.
fn files(root: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    found
}

fn snapshots(data: &Path) -> Vec<PathBuf> {
    files(&data.join("snapshots"), ".safetensors")
}

fn snapshot_after(operations: u32) -> impl Fn(&mut Settings) + Copy {
    move |settings| {
        settings.snapshot_interval = Duration::MAX;
        settings.snapshot_operations = operations;
    }
}

/// Trains some steps and returns the loss after each.
async fn train(server: &TestServer, model: &str, steps: std::ops::Range<i64>) -> Vec<f64> {
    let mut losses = Vec::new();
    for step in steps {
        let pass = server.forward_backward(model, 2 * step + 1).await;
        let update = server.optim_step(model, 2 * step + 2).await;
        losses.push(server.loss(&pass).await);
        server.result(&update).await;
    }
    losses
}

#[tokio::test]
async fn a_damaged_snapshot_is_not_used_and_the_run_goes_on_bit_for_bit() {
    let plain = TestServer::real(|_| {}).await;
    let model = plain.model().await;
    let expected = train(&plain, &model, 0..6).await;
    // One snapshot, before which there is only the creation; and several.
    for operations in [5, 2] {
        let change = snapshot_after(operations);
        let server = TestServer::real(change).await;
        let model = server.model().await;
        let mut losses = train(&server, &model, 0..4).await;
        let data = server.stop().await;
        let kept = snapshots(data.path());
        let newest = kept.last().expect("a snapshot was due");
        assert_eq!(kept.len(), if operations == 5 { 1 } else { 2 }, "{kept:?}");
        flip(newest);
        let server = TestServer::of(base(tiny_llama()), data, change).await;
        losses.extend(train(&server, &model, 4..6).await);
        assert_eq!(losses, expected, "snapshot after {operations}");
        // And it recovers from there as before.
        let server = server.restart(change).await;
        assert_eq!(train(&server, &model, 6..7).await.len(), 1);
    }
}

#[tokio::test]
async fn a_run_without_a_snapshot_that_can_be_used_is_closed_and_the_others_go_on() {
    let change = snapshot_after(2);
    let server = TestServer::with(change).await;
    let (lost, whole) = (server.model().await, server.model().await);
    for model in [&lost, &whole] {
        train(&server, model, 0..4).await;
    }
    let data = server.stop().await;
    let of_lost: Vec<_> = snapshots(data.path())
        .into_iter()
        .filter(|path| path.to_string_lossy().contains(&lost.replace(':', ".")))
        .collect();
    assert_eq!(of_lost.len(), 2);
    of_lost.iter().for_each(|path| flip(path));
    let server = TestServer::of(fake(), data, change).await;
    let path = format!("/training_runs/{lost}");
    let run = server.send(Method::GET, &path, &[], "").await.json();
    assert_eq!(run["corrupted"], true, "{run}");
    let refused = server.post("/forward_backward", pass(&lost, 9)).await;
    assert!(refused.status.is_client_error(), "{:?}", refused.body);
    let detail = refused.detail();
    assert!(detail.contains(".safetensors is damaged"), "{detail}");
    assert_eq!(train(&server, &whole, 4..5).await.len(), 1);
    // Nothing of it was removed.
    let data = server.stop().await;
    let server = TestServer::of(fake(), data, change).await;
    let data = server.stop().await;
    let kept = files(&data.path().join("quarantine"), ".safetensors");
    assert_eq!(kept.len(), 2, "{kept:?}");
}

/// A checkpoint to train on, one to sample from, and the id of an unnamed sampler.
async fn save(server: &TestServer) -> (Value, Value, Value) {
    let model = server.model().await;
    train(server, &model, 0..1).await;
    let body = json!({"model_id": model, "seq_id": 3, "path": "a"});
    let saved = server.promise("/save_weights", body).await;
    let state = server.result(&saved).await["path"].clone();
    let body = json!({"model_id": model, "seq_id": 4, "path": "b"});
    let saved = server.promise("/save_weights_for_sampler", body).await;
    let adapter = server.result(&saved).await["path"].clone();
    let body = json!({"model_id": model, "seq_id": 5, "sampling_session_seq_id": 0});
    let saved = server.promise("/save_weights_for_sampler", body).await;
    let sampler = server.result(&saved).await["sampling_session_id"].clone();
    (state, adapter, sampler)
}

async fn failure(server: &TestServer, promise: String) -> String {
    let result = server.result(&promise).await;
    let error = result["error"].as_str();
    error
        .unwrap_or_else(|| panic!("it has not failed: {result}"))
        .to_owned()
}

fn sample(from: Value) -> Value {
    let mut body = json!({
        "num_samples": 1, "prompt": {"chunks": [{"tokens": [1, 5]}]},
        "sampling_params": {"max_tokens": 4, "seed": 1},
    });
    body.as_object_mut()
        .unwrap()
        .extend(from.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn damaged_checkpoints_and_samplers_are_errors_that_name_the_file() {
    let server = TestServer::start().await;
    let (state, adapter, sampler) = save(&server).await;
    let data = server.stop().await;
    for ending in ["state.safetensors", "adapter_model.safetensors"] {
        files(data.path(), ending)
            .iter()
            .for_each(|path| flip(path));
    }
    let server = TestServer::of(fake(), data, |_| {}).await;

    let model = server.model().await;
    for (seq_id, optimizer) in [(1, true), (2, false)] {
        let body =
            json!({"model_id": model, "seq_id": seq_id, "path": state, "optimizer": optimizer});
        let load = server.promise("/load_weights", body).await;
        let error = failure(&server, load).await;
        assert!(error.contains("state.safetensors is damaged"), "{error}");
    }
    // The model that was to load it is as it was.
    let pass = server.forward_backward(&model, 3).await;
    server.loss(&pass).await;
    let from = [
        json!({"model_path": adapter}),
        json!({"sampling_session_id": sampler, "seq_id": 0}),
    ];
    for from in from {
        let promise = server.promise("/asample", sample(from)).await;
        let error = failure(&server, promise).await;
        assert!(
            error.contains("adapter_model.safetensors is damaged"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_damaged_checkpoint_is_not_handed_out() {
    let server = TestServer::start().await;
    let (state, ..) = save(&server).await;
    let path = format!("{}/archive", address(state.as_str().unwrap()));
    let link = server.send(Method::GET, &path, &[], "").await;
    let link = link.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(server.follow(&link, &[]).await.status, 200);
    let data = server.stop().await;
    flip(&files(data.path(), "state.safetensors")[0]);
    let server = TestServer::of(fake(), data.clone(), |_| {}).await;
    let link = server.send(Method::GET, &path, &[], "").await;
    let link = link.headers["location"].to_str().unwrap().to_owned();
    let answer = server.follow(&link, &[]).await;
    assert_eq!(answer.status, 410, "{:?}", answer.body);
    assert!(answer.detail().contains("state.safetensors is damaged"));
    assert!(files(&data.path().join("partial"), "").is_empty());
}

#[tokio::test]
async fn a_checkpoint_without_its_manifest_is_not_used() {
    let server = TestServer::start().await;
    let (state, ..) = save(&server).await;
    let data = server.stop().await;
    for path in files(&data.path().join("checkpoints"), "manifest.jsonl") {
        std::fs::remove_file(path).unwrap();
    }
    let server = TestServer::of(fake(), data, |_| {}).await;
    let model = server.model().await;
    let body = json!({"model_id": model, "seq_id": 1, "path": state, "optimizer": true});
    let load = server.promise("/load_weights", body).await;
    let error = failure(&server, load).await;
    assert!(error.contains("manifest.jsonl is missing"), "{error}");
}

#[tokio::test]
async fn a_snapshot_of_another_run_that_was_copied_over_is_not_used() {
    let change = snapshot_after(2);
    let server = TestServer::with(change).await;
    let (one, other) = (server.model().await, server.model().await);
    for model in [&one, &other] {
        train(&server, model, 0..4).await;
    }
    let data = server.stop().await;
    let of = |model: &str| data.path().join("snapshots").join(model.replace(':', "."));
    // With its manifest, so that the digests are right.
    let theirs = files(&of(&other), ".safetensors").pop().unwrap();
    let ours = files(&of(&one), ".safetensors");
    assert!(!ours.is_empty());
    for file in ours {
        std::fs::copy(&theirs, &file).unwrap();
        let manifest = |of: &Path| of.with_extension("manifest.jsonl");
        std::fs::copy(manifest(&theirs), manifest(&file)).unwrap();
    }
    let server = TestServer::of(fake(), data, change).await;
    let refused = server.post("/forward_backward", pass(&one, 9)).await;
    let detail = refused.detail();
    assert!(
        detail.contains("has other weights: those of snapshots/"),
        "{detail}"
    );
    assert_eq!(train(&server, &other, 4..5).await.len(), 1);
}
