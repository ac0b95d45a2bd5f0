//! A folder whose database is lost or damaged is repaired from what is saved in it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tinkrs_server::data::{self, DataReport};

use crate::caller::{TestServer, fake};

fn check(folder: &Path) -> DataReport {
    let scratch = tempfile::tempdir().unwrap();
    data::check(folder, scratch.path()).unwrap()
}

async fn sample(server: &TestServer, path: &str) -> Value {
    let body = json!({
        "model_path": path, "num_samples": 1, "prompt": {"chunks": [{"tokens": [1, 5]}]},
        "sampling_params": {"max_tokens": 6, "seed": 3},
    });
    let id = server.promise("/asample", body).await;
    server.result(&id).await["sequences"].clone()
}

/// Trains and saves. Returns the folder, the paths of two checkpoints, and what the second one samples.
async fn saved() -> (Arc<tempfile::TempDir>, String, String, Value) {
    let server = TestServer::with(|settings| settings.snapshot_operations = 2).await;
    let model = server.model().await;
    for seq_id in 1..=4 {
        let id = server.forward_backward(&model, seq_id).await;
        server.loss(&id).await;
    }
    let state = server.save("/save_weights", &model, 5, "a").await;
    let adapter = server
        .save("/save_weights_for_sampler", &model, 6, "b")
        .await;
    let tokens = sample(&server, &adapter).await;
    (server.stop().await, state, adapter, tokens)
}

fn remove_database(folder: &Path) {
    for name in ["tinkrs.db", "tinkrs.db-wal", "tinkrs.db-shm"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

fn damage_database(folder: &Path) {
    let path = folder.join("tinkrs.db");
    let mut bytes = std::fs::read(&path).unwrap();
    // Pages of tables and indexes alike; the header stays.
    for page in bytes.chunks_mut(4096).skip(3).step_by(3) {
        page[..64].fill(0xa5);
    }
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_lost_or_damaged_database_is_rebuilt_and_owners_have_their_checkpoints_back() {
    let losses: [fn(&Path); 2] = [remove_database, damage_database];
    for lose in losses {
        let (folder, state, adapter, tokens) = saved().await;
        let root = folder.path();
        assert_eq!(check(root).problems, []);
        lose(root);
        let found = check(root);
        assert!(found.problems.iter().any(|problem| problem.repairable));

        let report = data::repair(root).unwrap();
        assert_eq!(report.problems, [], "{report:?}");
        assert!(!report.done.is_empty());
        assert_eq!(data::repair(root).unwrap().done, Vec::<String>::new());
        assert_eq!(check(root).problems, []);

        let server = TestServer::of(fake(), folder, |_| {}).await;
        let list = server.get("/checkpoints").await;
        let paths = list["checkpoints"].as_array().unwrap().iter();
        let paths: Vec<_> = paths
            .map(|one| one["tinker_path"].as_str().unwrap())
            .collect();
        assert!(
            paths.contains(&&*state) && paths.contains(&&*adapter),
            "{list}"
        );
        assert!(
            paths.iter().any(|path| path.contains("/recovered-")),
            "{list}"
        );
        let other = server.owner("tml-other").get("/checkpoints").await;
        assert_eq!(other["checkpoints"], json!([]));
        assert_eq!(sample(&server, &adapter).await, tokens);
        for (seq_id, path) in paths
            .iter()
            .filter(|path| path.contains("/weights/"))
            .enumerate()
        {
            let model = server.model().await;
            let body = json!({"model_id": model, "seq_id": 1, "path": path, "optimizer": true});
            let id = server.promise("/load_weights", body).await;
            assert_eq!(server.result(&id).await["path"], **path, "{seq_id}");
        }
    }
}

#[tokio::test]
async fn checkpoints_that_the_database_lost_come_back_from_quarantine() {
    let (folder, state, adapter, tokens) = saved().await;
    let database = rusqlite::Connection::open(folder.path().join("tinkrs.db")).unwrap();
    database.execute("DELETE FROM checkpoints", []).unwrap();
    drop(database);
    // The server moves what it does not know.
    let folder = TestServer::of(fake(), folder, |_| {}).await.stop().await;
    assert_eq!(check(folder.path()).problems.len(), 2);
    let report = data::repair(folder.path()).unwrap();
    assert_eq!(report.problems, [], "{report:?}");
    let server = TestServer::of(fake(), folder, |_| {}).await;
    assert_eq!(sample(&server, &adapter).await, tokens);
    let model = server.model().await;
    let body = json!({"model_id": model, "seq_id": 1, "path": state, "optimizer": true});
    let id = server.promise("/load_weights", body).await;
    assert_eq!(server.result(&id).await["path"], state);
}

#[tokio::test]
async fn a_folder_in_use_is_neither_checked_nor_repaired() {
    let server = TestServer::start().await;
    let scratch = tempfile::tempdir().unwrap();
    for error in [
        data::check(server.data(), scratch.path()).unwrap_err(),
        data::repair(server.data()).unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("another server uses it"),
            "{error}"
        );
    }
    let folder = server.stop().await;
    assert_eq!(check(folder.path()).problems, []);
    assert!(data::repair(folder.path()).unwrap().done.is_empty());
}

#[tokio::test]
async fn damaged_weights_are_named_and_left_where_they_are() {
    let (folder, state, ..) = saved().await;
    let name = state.rsplit('/').next().unwrap();
    let run = state["tinker://".len()..]
        .split('/')
        .next()
        .unwrap()
        .replace(':', ".");
    let weights = folder.path().join("checkpoints").join(run).join("weights");
    let saved = std::fs::read_dir(weights).unwrap().next().unwrap().unwrap();
    assert!(saved.file_name().to_string_lossy().starts_with(name));
    let file = saved.path().join("state.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[9] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    for report in [check(folder.path()), data::repair(folder.path()).unwrap()] {
        let [problem] = &*report.problems else {
            panic!("{report:?}");
        };
        assert!(problem.problem.contains("state.safetensors is damaged"));
        assert!(!problem.repairable && file.exists());
    }
}
