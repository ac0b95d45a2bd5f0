//! A folder whose database is lost or damaged is repaired from what is saved in it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tinkrs_server::data::{self, DataReport};

use crate::caller::{TestServer, address, causes, fake};

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

/// The weights in a data folder, wherever they are: how many files there are, and of how many bytes.
fn weights(folder: &Path) -> Vec<u64> {
    let mut sizes = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sizes.extend(weights(&path));
        } else if path.extension().is_some_and(|kind| kind == "safetensors") {
            sizes.push(std::fs::metadata(path).unwrap().len());
        }
    }
    sizes.sort_unstable();
    sizes
}

fn paths(list: &Value) -> Vec<String> {
    let all = list["checkpoints"].as_array().unwrap().iter();
    let mut paths: Vec<_> = all
        .map(|one| one["tinker_path"].as_str().unwrap().to_owned())
        .collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn samplers_and_copies_are_what_they_were_after_a_repair() {
    let losses: [fn(&Path); 2] = [remove_database, damage_database];
    for lose in losses {
        let server = TestServer::start().await;
        let model = server.model().await;
        let state = server.save("/save_weights", &model, 1, "a").await;
        let body = json!({"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0});
        let saved = server.promise("/save_weights_for_sampler", body).await;
        let sampler = server.result(&saved).await["sampling_session_id"].clone();
        let headers = [
            ("content-type", "application/json"),
            ("x-idempotency-key", "k"),
        ];
        let copy = json!({"source_path": state}).to_string();
        let copy = server
            .send(http::Method::POST, "/copy_weights", &headers, copy)
            .await;
        let copy = copy.json()["tinker_path"].as_str().unwrap().to_owned();
        let draw = async |server: &TestServer, seq_id: i64| {
            let body = json!({
                "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
                "prompt": {"chunks": [{"tokens": [1, 5]}]},
                "sampling_params": {"max_tokens": 6, "seed": 3},
            });
            let promise = server.promise("/asample", body).await;
            server.result(&promise).await["sequences"].clone()
        };
        let tokens = draw(&server, 0).await;
        let folder = server.stop().await;
        lose(folder.path());
        let report = data::repair(folder.path()).unwrap();
        assert_eq!(report.problems, [], "{report:?}");

        let server = TestServer::of(fake(), folder, |_| {}).await;
        let list = paths(&server.get("/checkpoints").await);
        for path in [&state, &copy] {
            assert!(list.contains(path), "{path}: {list:?}");
        }
        assert_eq!(draw(&server, 1).await, tokens);
        // The copy has the files for itself when the other one goes.
        let gone = server
            .send(http::Method::DELETE, &address(&state), &[], "")
            .await;
        assert!(gone.status.is_success(), "{:?}", gone.body);
        let model = server.model().await;
        let body = json!({"model_id": model, "seq_id": 1, "path": copy, "optimizer": true});
        let id = server.promise("/load_weights", body).await;
        assert_eq!(server.result(&id).await["path"], copy);
    }
}

#[tokio::test]
async fn a_repair_that_was_interrupted_while_it_replaced_the_database_is_finished_by_the_next() {
    let (folder, state, adapter, _) = saved().await;
    let root = folder.path();
    let old = std::fs::read(root.join("tinkrs.db")).unwrap();
    damage_database(root);
    let damaged = std::fs::read(root.join("tinkrs.db")).unwrap();
    data::repair(root).unwrap();
    let new = std::fs::read(root.join("tinkrs.db")).unwrap();
    // Where it may have been: nothing is moved yet; the old database is; its log is, too.
    for moved in 0..3 {
        remove_database(root);
        let put = |name: &str, bytes: &[u8]| std::fs::write(root.join(name), bytes).unwrap();
        put("tinkrs.db.repaired-20260101T000000Z-0000", &new);
        let kept = "tinkrs.db.damaged-20260101T000000Z-0000";
        put(if moved > 0 { kept } else { "tinkrs.db" }, &damaged);
        let log = format!("{}-wal", if moved > 1 { kept } else { "tinkrs.db" });
        // Of the old database: it must not be taken for the new one's.
        put(&log, &old);
        let found = check(root);
        assert!(
            found.problems[0].problem.contains("interrupted"),
            "{found:?}"
        );
        let refused =
            tinkrs_server::Server::start(vec![fake()], tinkrs_server::Settings::new(root));
        let refused = causes(&refused.unwrap_err());
        assert!(
            refused.contains("a repair of it was interrupted"),
            "{refused}"
        );

        let report = data::repair(root).unwrap();
        assert_eq!(report.problems, [], "{report:?}");
        assert_eq!(std::fs::read(root.join(kept)).unwrap(), damaged, "{moved}");
        assert_eq!(
            std::fs::read(root.join(format!("{kept}-wal"))).unwrap(),
            old
        );
        std::fs::remove_file(root.join(kept)).unwrap();
    }
    let server = TestServer::of(fake(), folder, |_| {}).await;
    let list = paths(&server.get("/checkpoints").await);
    assert!(list.contains(&state) && list.contains(&adapter), "{list:?}");
}

#[tokio::test]
async fn a_repair_that_was_interrupted_before_its_database_was_there_makes_nothing_twice() {
    let (folder, ..) = saved().await;
    let root = folder.path();
    remove_database(root);
    let expected = data::repair(root).unwrap().checkpoints;
    let before = weights(root);
    // Files are where the first repair has put them, and the database that says so is lost again.
    remove_database(root);
    let report = data::repair(root).unwrap();
    assert_eq!(report.problems, [], "{report:?}");
    assert_eq!((report.checkpoints, weights(root)), (expected, before));
}

#[tokio::test]
async fn weights_without_manifests_are_described_and_used_again() {
    let server = TestServer::with(|settings| settings.snapshot_operations = 2).await;
    let model = server.model().await;
    for seq_id in 1..=4 {
        let id = server.forward_backward(&model, seq_id).await;
        server.loss(&id).await;
    }
    let state = server.save("/save_weights", &model, 5, "a").await;
    let folder = server.stop().await;
    remove_manifests(folder.path());
    let found = check(folder.path());
    assert!(
        found.problems.iter().all(|problem| problem.repairable),
        "{found:?}"
    );
    assert!(
        found.problems.len() >= 2,
        "a checkpoint and a snapshot: {found:?}"
    );
    let report = data::repair(folder.path()).unwrap();
    assert_eq!(report.problems, [], "{report:?}");
    assert!(
        report
            .done
            .iter()
            .any(|done| done.contains("cannot be told"))
    );
    let server = TestServer::of(fake(), folder, |_| {}).await;
    // The run goes on from its snapshot, and the checkpoint is loaded.
    let id = server.forward_backward(&model, 6).await;
    server.loss(&id).await;
    let body = json!({"model_id": model, "seq_id": 7, "path": state, "optimizer": true});
    let id = server.promise("/load_weights", body).await;
    assert_eq!(server.result(&id).await["path"], state);
}

fn remove_manifests(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            remove_manifests(&path);
        } else if path.to_string_lossy().ends_with("manifest.jsonl") {
            std::fs::remove_file(path).unwrap();
        }
    }
}
