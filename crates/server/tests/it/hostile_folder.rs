//! A data folder from a stranger: nothing outside of it is read, moved or removed, whatever is in it.
#![cfg(unix)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tinkrs_server::data::{self, DataReport};
use tinkrs_server::{LocalServer, Settings};

use crate::caller::{TestServer, causes, fake};

/// A data folder with a checkpoint, and a folder of somebody else beside it.
struct Scene {
    folder: Arc<tempfile::TempDir>,
    outside: tempfile::TempDir,
    /// The folder of the checkpoint.
    checkpoint: PathBuf,
}

impl Scene {
    async fn new() -> Self {
        let server = TestServer::start().await;
        let model = server.model().await;
        server.save("/save_weights", &model, 1, "a").await;
        let folder = server.stop().await;
        let mut checkpoint = folder.path().join("checkpoints");
        for _ in 0..3 {
            let mut entries = std::fs::read_dir(&checkpoint).unwrap();
            checkpoint = entries.next().unwrap().unwrap().path();
        }
        let outside = tempfile::tempdir().unwrap();
        // As deep as weights are.
        std::fs::create_dir_all(outside.path().join("a/b/c")).unwrap();
        std::fs::create_dir_all(outside.path().join("empty/empty")).unwrap();
        copy_all(&checkpoint, &outside.path().join("a/b/c"));
        Self {
            folder,
            outside,
            checkpoint,
        }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn check(&self) -> Result<DataReport, String> {
        let scratch = tempfile::tempdir().unwrap();
        data::check(self.root(), scratch.path()).map_err(|error| error.to_string())
    }

    /// Starts a server on the folder and stops it. Returns why it did not start.
    async fn start(&self) -> Result<(), String> {
        let server = LocalServer::start(vec![fake()], Settings::new(self.root())).await;
        let server = server.map_err(|error| causes(&error))?;
        server.stop().await.unwrap();
        Ok(())
    }

    /// Asserts that all that is outside is as it was.
    #[track_caller]
    fn assert_outside_untouched(&self) {
        let outside = self.outside.path();
        let state = outside.join("a/b/c/state.safetensors");
        assert!(state.is_file(), "the file outside is gone");
        assert!(
            outside.join("empty/empty").is_dir(),
            "a folder outside is gone"
        );
        assert_eq!(std::fs::read_dir(outside).unwrap().count(), 2);
    }
}

fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn links_below_the_folders_of_a_data_folder_are_not_followed() {
    for place in ["checkpoints/x", "samplers/x", "snapshots/x", "quarantine/x"] {
        let scene = Scene::new().await;
        let link = scene.root().join(place);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(scene.outside.path(), &link).unwrap();
        let found = scene.check().unwrap();
        let is_said = found.problems.iter().any(|problem| problem.path == link);
        assert_eq!(is_said, place != "quarantine/x", "{place}: {found:?}");
        data::repair(scene.root()).unwrap();
        scene.start().await.unwrap();
        // The database is lost, too, so that everything is looked at.
        std::fs::remove_file(scene.root().join("tinkrs.db")).unwrap();
        symlink(scene.outside.path(), scene.root().join("checkpoints/y")).unwrap();
        let report = data::repair(scene.root()).unwrap();
        assert_eq!(
            (&*report.problems, report.checkpoints),
            (&[][..], 1),
            "{report:?}"
        );
        scene.start().await.unwrap();
        scene.assert_outside_untouched();
    }
}

#[tokio::test]
async fn a_link_or_a_pipe_in_place_of_a_file_is_reported_and_not_read() {
    let scene = Scene::new().await;
    let state = scene.checkpoint.join("state.safetensors");
    let manifest = scene.checkpoint.join("manifest.jsonl");
    let outside = scene.outside.path().join("a/b/c");
    let replace = |path: &Path, kind: &str| {
        std::fs::remove_file(path).unwrap();
        match kind {
            // The same bytes: it is the link that is refused.
            "link" => symlink(outside.join(path.file_name().unwrap()), path).unwrap(),
            _ => assert!(
                std::process::Command::new("mkfifo")
                    .arg(path)
                    .status()
                    .unwrap()
                    .success()
            ),
        }
    };
    for (path, kind) in [
        (&state, "link"),
        (&state, "pipe"),
        (&manifest, "link"),
        (&manifest, "pipe"),
    ] {
        replace(path, kind);
        for report in [scene.check().unwrap(), data::repair(scene.root()).unwrap()] {
            let [problem] = &*report.problems else {
                panic!("{report:?}");
            };
            let expected = format!("{} is not a file", path.display());
            assert_eq!((&*problem.problem, problem.repairable), (&*expected, false));
        }
        std::fs::remove_file(path).unwrap();
        std::fs::copy(outside.join(path.file_name().unwrap()), path).unwrap();
    }
    assert_eq!(scene.check().unwrap().problems, []);
    scene.assert_outside_untouched();
}

#[tokio::test]
async fn a_data_folder_whose_own_files_or_folders_are_links_is_refused() {
    for name in [
        "bodies",
        "checkpoints",
        "partial",
        "quarantine",
        "lock",
        "secret",
        "tinkrs.db",
    ] {
        let scene = Scene::new().await;
        let (own, moved) = (scene.root().join(name), scene.outside.path().join(name));
        let exists = own.exists();
        if exists {
            std::fs::rename(&own, &moved).unwrap();
        }
        symlink(&moved, &own).unwrap();
        let expected = format!("{} is a symbolic link", own.display());
        let repaired = data::repair(scene.root()).map_err(|error| error.to_string());
        for refused in [
            scene.check().unwrap_err(),
            repaired.unwrap_err(),
            scene.start().await.unwrap_err(),
        ] {
            assert!(refused.contains(&expected), "{name}: {refused}");
        }
        assert_eq!(
            moved.exists(),
            exists,
            "{name}: nothing was made or removed there"
        );
    }
}

#[tokio::test]
async fn rows_that_lead_out_of_the_folder_are_damage_and_a_repair_drops_them() {
    for change in [
        "INSERT INTO removals (path) VALUES ('../OUTSIDE/a')",
        "INSERT INTO removals (path) VALUES ('/OUTSIDE/a')",
        "UPDATE checkpoints SET record = json_set(record, '$.folder', '../OUTSIDE/a/b/c')",
        "UPDATE checkpoints SET record = json_set(record, '$.folder', '/OUTSIDE/a/b/c')",
        "UPDATE checkpoints SET record = json_set(record, '$.folder', 'lock')",
        "INSERT INTO removals (path) VALUES ('checkpoints')",
        "INSERT INTO removals (path) VALUES ('secret')",
        "UPDATE runs SET record = json_set(record, '$.id', '../../OUTSIDE/a')",
        "CREATE VIEW mine AS SELECT 1",
        "CREATE TRIGGER mine AFTER INSERT ON sessions BEGIN DELETE FROM checkpoints; END",
    ] {
        let scene = Scene::new().await;
        let database = rusqlite::Connection::open(scene.root().join("tinkrs.db")).unwrap();
        let outside = scene.outside.path();
        let name = outside.file_name().unwrap().to_str().unwrap();
        let absolute = outside.to_str().unwrap();
        let sql = change.replace("/OUTSIDE", absolute);
        let sql = if change.contains("../OUTSIDE") {
            change.replace("OUTSIDE", name)
        } else {
            sql
        };
        database.execute_batch(&sql).unwrap();
        drop(database);
        let refused = scene.start().await.unwrap_err();
        assert!(
            refused.contains("tinkrs data repair"),
            "{change}: {refused}"
        );
        let found = scene.check().unwrap();
        assert!(found.problems[0].repairable, "{change}: {found:?}");
        let report = data::repair(scene.root()).unwrap();
        assert_eq!(
            (&*report.problems, report.checkpoints),
            (&[][..], 1),
            "{change}: {report:?}"
        );
        scene.start().await.unwrap();
        scene.assert_outside_untouched();
    }
}

#[tokio::test]
async fn a_checkpoint_that_was_copied_over_another_is_reported_and_not_loaded() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let first = server.save("/save_weights", &model, 1, "a").await;
    let second = server.save("/save_weights", &model, 2, "b").await;
    let folder = server.stop().await;
    let weights = folder
        .path()
        .join("checkpoints")
        .join(model.replace(':', "."))
        .join("weights");
    let of = |name: &str| {
        let entries = std::fs::read_dir(&weights).unwrap().map(Result::unwrap);
        let mut folders = entries.filter(|e| e.file_name().to_string_lossy().starts_with(name));
        folders.next().unwrap().path()
    };
    copy_all(&of("b."), &of("a."));
    for _ in 0..2 {
        let report = data::repair(folder.path()).unwrap();
        let [problem] = &*report.problems else {
            panic!("{report:?}");
        };
        assert!(
            problem.problem.contains("has other weights: those of"),
            "{problem:?}"
        );
        assert!(!problem.repairable);
    }
    let server = TestServer::of(fake(), folder, |_| {}).await;
    let model = server.model().await;
    for (seq_id, path, is_good) in [(1, &first, false), (2, &second, true)] {
        let body = serde_json::json!({"model_id": model, "seq_id": seq_id, "path": path, "optimizer": true});
        let id = server.promise("/load_weights", body).await;
        let result = server.result(&id).await;
        assert_eq!(result["path"] == **path, is_good, "{result}");
    }
}
