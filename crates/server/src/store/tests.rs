//! What is committed is there after a restart; what is not needed is gone.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_types::RequestId;

use super::tables::payloads::INLINE_BYTES;
use super::*;
use crate::auth::Owner;
use crate::registry::records::{RunRecord, SamplerRecord};
use crate::results::{OperationResult, ResultFormat};

fn request(seq_id: i64) -> Change {
    Change::Request(Box::new(NewRequest {
        id: id(seq_id),
        owner: Owner::of_key(b"me"),
        kind: "optim_step",
        subject: RunRecord::example().id.to_string(),
        seq_id: Some(seq_id),
        digest: [7; 32],
        seed: u64::MAX,
        accepted: Timestamp::now(),
        body: Bytes::from(vec![b'b'; INLINE_BYTES + 1]),
        outcome: None,
        also: Vec::new(),
    }))
}

/// Ends a request with a result that is a file.
fn ended_large(seq_id: i64) -> Change {
    let outcome = OperationResult::json(&"x".repeat(INLINE_BYTES));
    let id = id(seq_id);
    let mut ending = Ending::from(outcome);
    ending.of_run = Some((RunRecord::example().id, seq_id));
    let ending = Box::new(ending);
    Change::Ended { id, ending }
}

fn ended(seq_id: i64, with_snapshot: bool) -> Change {
    Change::Ended {
        id: id(seq_id),
        ending: Box::new(Ending {
            of_run: Some((RunRecord::example().id, seq_id)),
            with_snapshot,
            ..OperationResult::json(&seq_id).into()
        }),
    }
}

fn id(seq_id: i64) -> RequestId {
    RequestId::new(format!("1-{seq_id}"))
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn requests_and_their_results_survive_and_a_snapshot_frees_their_bodies() {
    let root = tempfile::tempdir().unwrap();
    let (store, loaded) = Store::open(root.path()).unwrap();
    assert_eq!(loaded.epoch, 1);
    let record = RunRecord::example();
    let is_new = true;
    store.note(Change::Run { record, is_new });
    for seq_id in 1..=3 {
        store.note(request(seq_id));
    }
    store.note(ended(1, false));
    store.write_blocking(ended(2, false)).unwrap();
    drop(store);

    let (store, loaded) = Store::open(root.path()).unwrap();
    assert_eq!(loaded.epoch, 2);
    assert_eq!(loaded.runs[0].next, 3);
    assert_eq!(loaded.runs[0].snapshot, None);
    let outcomes: Vec<_> = loaded.requests.iter().map(|r| r.outcome).collect();
    let json = Some((ResultFormat::Json, Some(1)));
    assert_eq!(outcomes, [json, json, None]);
    assert_eq!(loaded.requests[0].seed, u64::MAX);
    assert_eq!(count(&root.path().join("bodies")), 3);
    assert_eq!(store.result(&id(2)).unwrap(), b"2");

    store.write_blocking(ended(3, true)).unwrap();
    assert_eq!(count(&root.path().join("bodies")), 0);
}

fn take_snapshot(store: &Store, seq_id: i64) -> PathBuf {
    let run = RunRecord::example();
    let snapshot = store.files().snapshot(&run.id, seq_id);
    std::fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    std::fs::write(&snapshot, "state").unwrap();
    manifest::describe_snapshot(&snapshot, run.clone(), seq_id).unwrap();
    let run = run.id;
    store.note(Change::Snapshot { run, seq_id });
    // What is not needed goes when that is durable.
    store.write_blocking(Change::Nothing).unwrap();
    snapshot
}

#[test]
fn the_journal_reaches_back_to_the_snapshot_before_the_last() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (record, is_new) = (RunRecord::example(), true);
    let run = record.id.clone();
    store.note(Change::Run { record, is_new });
    for seq_id in 1..=6 {
        store.note(request(seq_id));
        store.write_blocking(ended(seq_id, false)).unwrap();
    }
    let files = store.files().clone();
    let bodies = || -> Vec<_> {
        let is_there = |seq_id: &i64| files.body(&id(*seq_id)).exists();
        (1..=6).filter(is_there).collect()
    };
    let known = |store: &Store| {
        let (run, _) = store.run(&run).unwrap().unwrap();
        (run.snapshot, run.fallback)
    };
    let first = take_snapshot(&store, 2);
    assert_eq!(bodies(), [1, 2, 3, 4, 5, 6], "it goes on from its creation");
    assert_eq!(known(&store), (Some(2), Fallback::Creation));
    let second = take_snapshot(&store, 4);
    assert_eq!(bodies(), [3, 4, 5, 6], "it goes on from the first snapshot");
    assert_eq!(known(&store), (Some(4), Fallback::Snapshot(2)));
    let third = take_snapshot(&store, 5);
    assert_eq!(bodies(), [5, 6]);
    assert!(!first.exists() && second.exists() && third.exists());
    drop(store);

    let (store, _) = Store::open(root.path()).unwrap();
    assert!(second.exists() && third.exists(), "both are known");
    let lost = Change::SnapshotLost { run: run.clone() };
    store.write_blocking(lost).unwrap();
    assert_eq!(known(&store), (Some(4), Fallback::Nothing));
    // What cannot be repeated is not kept to be repeated.
    store.write_blocking(request(7)).unwrap();
    store.write_blocking(ended(7, true)).unwrap();
    assert_eq!(known(&store), (Some(7), Fallback::Nothing));
    assert!(bodies().is_empty());
    assert!(!second.exists());
}

#[test]
fn an_operation_whose_result_is_dropped_stays_until_a_snapshot_has_seen_it() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (record, is_new) = (RunRecord::example(), true);
    store.note(Change::Run { record, is_new });
    for seq_id in 1..=2 {
        store.note(request(seq_id));
        store.note(ended(seq_id, false));
    }
    let change = Change::ResultsGone(vec![id(1), id(2)]);
    store.write_blocking(Change::Nothing).unwrap();
    assert_eq!(store.result(&id(1)).unwrap(), b"1");
    store.write_blocking(change).unwrap();
    assert!(store.result(&id(1)).is_err());
    drop(store);

    let (store, loaded) = Store::open(root.path()).unwrap();
    let outcomes: Vec<_> = loaded.requests.iter().map(|r| r.outcome).collect();
    assert_eq!(outcomes, [Some((ResultFormat::Json, None)); 2]);
    assert!(loaded.requests.iter().all(|request| request.has_body));
    for seq_id in 1..=2 {
        take_snapshot(&store, seq_id);
    }
    drop(store);

    let (_, loaded) = Store::open(root.path()).unwrap();
    let left: Vec<_> = loaded.requests.into_iter().map(|r| r.id).collect();
    assert_eq!(left, [id(2)]);
    assert_eq!(count(&root.path().join("bodies")), 1);
}

#[test]
fn nothing_is_kept_of_an_operation_of_a_closed_run_whose_result_is_dropped() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (mut record, is_new) = (RunRecord::example(), true);
    store.note(Change::Run {
        record: record.clone(),
        is_new,
    });
    store.note(request(1));
    store.note(ended(1, false));
    record.closed = Some("it was unloaded".to_owned());
    store.note(Change::RunClosed(record));
    store.note(Change::ResultsGone(vec![id(1)]));
    drop(store);
    let (_, loaded) = Store::open(root.path()).unwrap();
    assert!(loaded.requests.is_empty(), "{:?}", loaded.requests);
    assert_eq!(count(&root.path().join("bodies")), 0);
}

#[test]
fn small_bodies_and_results_are_in_the_database_and_large_ones_are_files() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let folders = || ["bodies", "results"].map(|folder| count(&root.path().join(folder)));
    let Change::Request(mut small) = request(1) else {
        unreachable!();
    };
    small.body = Bytes::from_static(b"small");
    store.write_blocking(Change::Request(small)).unwrap();
    store.write_blocking(ended(1, false)).unwrap();
    assert_eq!(folders(), [0, 0]);
    store.write_blocking(request(2)).unwrap();
    store.write_blocking(ended_large(2)).unwrap();
    assert_eq!(folders(), [1, 1]);
    drop(store);
    let (store, _) = Store::open(root.path()).unwrap();
    assert_eq!(store.body(&id(1)).unwrap(), b"small");
    assert_eq!(store.result(&id(1)).unwrap(), b"1");
    assert_eq!(store.body(&id(2)).unwrap().len(), INLINE_BYTES + 1);
    assert_eq!(store.result(&id(2)).unwrap().len(), INLINE_BYTES + 2);
}

#[test]
fn what_no_sender_waits_for_is_removed_when_there_is_nothing_else_to_do() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (record, is_new) = (RunRecord::example(), true);
    store.note(Change::Run { record, is_new });
    store.write_blocking(request(1)).unwrap();
    store.write_blocking(ended(1, false)).unwrap();
    for seq_id in 1..=2 {
        let run = RunRecord::example().id;
        store.note(Change::Snapshot { run, seq_id });
    }
    while store.files().body(&id(1)).exists() {
        std::thread::yield_now();
    }
}

#[test]
fn a_change_of_nothing_is_committed_too() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let other = Connection::open(root.path().join("tinkrs.db")).unwrap();
    // What SQLite changes with each commit that writes something.
    let version = || -> i64 {
        other
            .pragma_query_value(None, "data_version", |row| row.get(0))
            .unwrap()
    };
    let before = version();
    store.write_blocking(Change::Nothing).unwrap();
    assert_ne!(version(), before, "there was nothing to sync");
}

#[test]
fn an_older_snapshot_that_comes_late_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let is_new = true;
    store.note(Change::Run {
        record: RunRecord::example(),
        is_new,
    });
    for seq_id in [5, 4] {
        let run = RunRecord::example().id;
        store
            .write_blocking(Change::Snapshot { run, seq_id })
            .unwrap();
    }
    drop(store);
    let (_, loaded) = Store::open(root.path()).unwrap();
    assert_eq!(loaded.runs[0].snapshot, Some(5));
}

#[test]
fn a_change_that_cannot_be_made_fails_alone() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (results, outcomes) = channel();
    // The second is the same as the first, and an id is taken once.
    for seq_id in [1, 1, 2] {
        let results = results.clone();
        store.send(request(seq_id), move |result| {
            results.send(result.is_ok()).unwrap();
        });
    }
    store.close();
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn what_the_disk_refuses_is_kept_until_it_is_taken_and_nothing_overtakes_it() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (record, is_new) = (RunRecord::example(), true);
    store.note(Change::Run { record, is_new });
    for seq_id in 1..=2 {
        store.write_blocking(request(seq_id)).unwrap();
    }
    // A disk that takes no more: results have no place.
    let results = root.path().join("results");
    std::fs::remove_dir(&results).unwrap();
    let (told, news) = channel();
    for seq_id in 1..=2 {
        let told = told.clone();
        store.keep(ended_large(seq_id), move |result| {
            told.send((seq_id, result.is_ok())).unwrap();
        });
    }
    let (run, seq_id) = (RunRecord::example().id, 2);
    let record_id = run.clone();
    store.note(Change::Snapshot { run, seq_id });
    assert_eq!(news.recv(), Ok((1, false)));
    assert_eq!(news.recv(), Ok((2, false)));
    let me = Owner::of_key(b"me");
    store.remember(me, "checkpoint_read", Default::default());
    let refused = store.write_blocking(Change::Nothing).unwrap_err();
    assert!(refused.to_string().contains("results"), "{refused}");
    let (seen, _) = store.run(&record_id).unwrap().unwrap();
    assert_eq!(seen.next, 0, "nothing of it is stored");
    assert_eq!(count(&root.path().join("bodies")), 2);

    std::fs::create_dir(&results).unwrap();
    assert_eq!(news.recv(), Ok((1, true)));
    assert_eq!(news.recv(), Ok((2, true)));
    store.write_blocking(Change::Nothing).unwrap();
    assert_eq!(count(&results), 2);
    let (seen, _) = store.run(&record_id).unwrap().unwrap();
    assert_eq!(seen.snapshot, Some(2), "it came after what it has seen");
    let audit = store.audit(me, Timestamp::MIN..Timestamp::MAX).unwrap();
    assert!(audit.is_empty(), "what readers do is not kept: {audit:?}");
}

#[test]
fn a_store_that_cannot_write_can_be_closed() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    store.write_blocking(request(1)).unwrap();
    std::fs::remove_dir(root.path().join("results")).unwrap();
    store.keep(ended_large(1), |_| {});
    store.close();
    assert!(Store::open(root.path()).is_ok());
}

#[test]
fn a_folder_is_used_by_one_server() {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    assert!(matches!(Store::open(root.path()), Err(OpenError::Used)));
    store.close();
    assert!(Store::open(root.path()).is_ok());
}

#[test]
fn a_folder_of_a_newer_version_is_refused() {
    let root = tempfile::tempdir().unwrap();
    drop(Store::open(root.path()).unwrap());
    let database = Connection::open(root.path().join("tinkrs.db")).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    let refused = Store::open(root.path()).expect_err("it is newer");
    assert!(matches!(refused, OpenError::Newer { version: 99 }));
    let text = refused.to_string();
    assert!(
        text.contains("newer version") && text.contains("99"),
        "{text}"
    );
}

#[test]
fn a_folder_of_version_1_is_migrated_and_a_copy_of_its_database_stays() {
    // With and without what later servers of that version added.
    for later in [
        "",
        "DROP TABLE spans; DROP INDEX sessions_by_owner; DROP INDEX runs_by_owner",
    ] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tinkrs.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(include_str!("fixtures/v1.sql")).unwrap();
        old.execute_batch(later).unwrap();
        drop(old);

        let (store, loaded) = Store::open(root.path()).unwrap();
        assert_eq!(loaded.epoch, 2);
        assert_eq!(loaded.sessions.len(), 1);
        assert_eq!(loaded.samplers.len(), 1);
        assert_eq!(loaded.checkpoints.len(), 2);
        let run = &loaded.runs[0];
        assert_eq!((run.next, run.snapshot), (5, None));
        let seq_ids: Vec<_> = loaded.requests.iter().filter_map(|r| r.seq_id).collect();
        assert_eq!(seq_ids, [0, 1, 2, 3, 4, 0, 5, 7]);
        let kinds: Vec<_> = loaded.requests.iter().map(|r| r.outcome).collect();
        assert_eq!(kinds[1], Some((ResultFormat::Pass, Some(81))));
        assert_eq!(kinds[6], Some((ResultFormat::Failed, Some(104))));
        assert_eq!(kinds[7], None, "it waits for seq_id 6");
        let owner = run.record.owner;
        let (_, promised) = store.run(&run.record.id).unwrap().unwrap();
        assert_eq!(promised.len(), 7);
        assert_eq!(store.sessions_of(owner).unwrap().len(), 1);
        assert_eq!(store.usage(owner, 0..i64::MAX).unwrap().len(), 3);
        let times = Timestamp::MIN..Timestamp::MAX;
        assert_eq!(store.audit(owner, times).unwrap().len(), 2);
        let spans = store.spans(&run.record.session).unwrap().len();
        assert_eq!(spans, if later.is_empty() { 6 } else { 0 });
        // And it goes on.
        store.write_blocking(request(8)).unwrap();
        store.close();

        let copy = Connection::open(root.path().join("tinkrs.db.v1")).unwrap();
        let sql = "SELECT count(number) FROM requests";
        let count: i64 = copy.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(count, 8, "the copy is as it was");
        std::fs::remove_file(root.path().join("tinkrs.db.v1")).unwrap();
        let (_, loaded) = Store::open(root.path()).unwrap();
        assert_eq!(loaded.requests.len(), 9);
        let copies = std::fs::read_dir(root.path()).unwrap();
        let mut copies = copies.map(|file| file.unwrap().file_name());
        assert!(!copies.any(|name| name.to_string_lossy().contains(".v")));
    }
}

/// A folder with a session's run in its database.
fn folder_in_use() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(root.path()).unwrap();
    let (record, is_new) = (RunRecord::example(), true);
    let change = Change::Run { record, is_new };
    store.write_blocking(change).unwrap();
    root
}

fn put(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "x").unwrap();
}

/// Lists the files below a folder, by their paths inside it.
fn files_below(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let below = files_below(&path).into_iter();
            files.extend(below.map(|file| format!("{name}/{file}")));
        } else {
            files.push(name);
        }
    }
    files.sort();
    files
}

#[test]
fn requests_and_results_that_nothing_was_committed_for_are_removed() {
    let root = folder_in_use();
    let orphans = ["bodies/9-9", "results/9-9", "partial/x/y"];
    for orphan in orphans {
        put(&root.path().join(orphan));
    }
    drop(Store::open(root.path()).unwrap());
    for orphan in orphans {
        assert!(!root.path().join(orphan).exists(), "{orphan}");
    }
    assert!(!root.path().join("quarantine").exists());
}

#[test]
fn weights_that_the_database_does_not_know_are_moved_and_never_removed() {
    let root = folder_in_use();
    let orphans = [
        "checkpoints/s.train.0/weights/a.0123/state.safetensors",
        "samplers/s.sample.0/adapter_model.safetensors",
        "snapshots/s.train.0/7.safetensors",
        "snapshots/s.train.9/7.manifest.jsonl",
        "checkpoints/stray",
    ];
    for orphan in orphans {
        put(&root.path().join(orphan));
    }
    for _ in 0..2 {
        drop(Store::open(root.path()).unwrap());
        let moved = files_below(&root.path().join("quarantine"));
        let moved: Vec<_> = moved
            .iter()
            .map(|file| file.split_once('/').unwrap().1)
            .collect();
        let mut expected = orphans;
        expected.sort_unstable();
        assert_eq!(moved, expected);
    }
    for orphan in orphans {
        assert!(!root.path().join(orphan).exists(), "{orphan}");
    }
}

#[test]
fn what_was_deleted_when_the_process_ended_is_gone_after_the_next_start() {
    let root = folder_in_use();
    let deleted = root
        .path()
        .join("samplers/s.sample.0/adapter_model.safetensors");
    let (store, _) = Store::open(root.path()).unwrap();
    put(&deleted);
    let sampler = SamplerRecord {
        id: "s:sample:0".into(),
        owner: Owner::of_key(b"me"),
        session: "s".into(),
        base_model: "tiny".to_owned(),
        adapter: Some("samplers/s.sample.0".into()),
        path: None,
        clones: 0,
        of_run: None,
        bytes: 0,
    };
    store.note(Change::Sampler(sampler.clone()));
    store
        .write_blocking(Change::SamplerGone(sampler.id))
        .unwrap();
    assert!(!deleted.exists(), "the database has forgotten it");
    drop(store);
    // As if it had been killed right after the commit.
    put(&deleted);
    drop(Store::open(root.path()).unwrap());
    assert!(!deleted.exists() && !root.path().join("quarantine").exists());
}

#[test]
fn a_database_that_knows_nothing_of_the_weights_beside_it_is_refused() {
    let rows_gone = |root: &Path| {
        let database = Connection::open(root.join("tinkrs.db")).unwrap();
        database.execute_batch("DELETE FROM runs").unwrap();
    };
    let file_gone = |root: &Path| std::fs::remove_file(root.join("tinkrs.db")).unwrap();
    let file_empty = |root: &Path| std::fs::write(root.join("tinkrs.db"), "").unwrap();
    let losses: [&dyn Fn(&Path); 3] = [&rows_gone, &file_gone, &file_empty];
    for lose in losses {
        let root = folder_in_use();
        put(&root
            .path()
            .join("checkpoints/s.train.0/weights/a.0123/state.safetensors"));
        lose(root.path());
        let before = files_below(&root.path().join("checkpoints"));
        let refused = Store::open(root.path()).expect_err("weights would be lost");
        assert!(matches!(refused, OpenError::Lost { .. }), "{refused:?}");
        let command = format!("`tinkrs data repair {}`", root.path().display());
        assert!(refused.to_string().contains(&command), "{refused}");
        assert_eq!(files_below(&root.path().join("checkpoints")), before);
    }
}

#[test]
fn a_database_with_a_changed_bit_is_refused_or_read_and_no_weights_are_lost() {
    let root = folder_in_use();
    let weights = root
        .path()
        .join("checkpoints/s.train.0/weights/a.0123/state.safetensors");
    put(&weights);
    let database = root.path().join("tinkrs.db");
    let whole = std::fs::read(&database).unwrap();
    let mut refusals = 0;
    for position in (0..whole.len()).step_by(whole.len() / 97) {
        for name in ["tinkrs.db-wal", "tinkrs.db-shm"] {
            let _ = std::fs::remove_file(root.path().join(name));
        }
        let mut changed = whole.clone();
        changed[position] ^= 1 << (position % 8);
        std::fs::write(&database, &changed).unwrap();
        match Store::open(root.path()) {
            Ok(opened) => drop(opened),
            Err(refused) => {
                refusals += 1;
                let is_named = refused.to_string().contains("tinkrs data repair");
                let is_newer = matches!(refused, OpenError::Newer { .. });
                assert!(is_named || is_newer, "byte {position}: {refused:?}");
            }
        }
        let found = files_below(root.path());
        let left = found
            .iter()
            .filter(|file| file.ends_with("state.safetensors"));
        assert_eq!(left.count(), 1, "byte {position}: {found:?}");
        let quarantine = root.path().join("quarantine");
        if quarantine.exists() {
            std::fs::remove_dir_all(quarantine).unwrap();
            put(&weights);
        }
    }
    assert!(refusals > 0);
}
