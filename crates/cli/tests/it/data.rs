//! `tinkrs data`: the folder of a server that is not running.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::here::Here;

const DATA: &str = "tinkrs-data";

/// Trains for a step, which leaves a data folder with two checkpoints.
fn trained() -> Here {
    let here = Here::new();
    let chat = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    here.write("chats.jsonl", chat);
    here.ok(&[
        "train",
        "sft",
        "--data",
        "chats.jsonl",
        "--run-dir",
        "run",
        "--eval",
        "0",
    ]);
    here
}

fn remove_database(data: &Path) {
    for name in ["tinkrs.db", "tinkrs.db-wal", "tinkrs.db-shm"] {
        let _ = std::fs::remove_file(data.join(name));
    }
}

/// Lists everything below a folder.
fn all_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(all_in(&entry.path()));
        }
    }
    found.sort();
    found
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_folder_is_checked_and_repaired_and_exit_codes_say_how_it_is() {
    let here = trained();
    let whole = here.ok(&["data", "check", DATA]);
    assert!(whole.contains("2 checkpoints"), "{whole}");
    assert!(here.ok(&["data", "repair", DATA]).contains("nothing to do"));

    remove_database(&here.path(DATA));
    let before = all_in(&here.path(DATA));
    let found = here.command(&["data", "check", DATA]).output().unwrap();
    assert_eq!(found.status.code(), Some(1));
    assert!(
        stdout(&found).contains("it is missing or empty"),
        "{found:?}"
    );
    assert!(
        stderr(&found).contains("hint: `tinkrs data repair`"),
        "{found:?}"
    );
    assert_eq!(all_in(&here.path(DATA)), before, "a check changes nothing");

    let report = here.json(&["data", "repair", DATA]);
    assert_eq!(
        (&report["checkpoints"], &report["problems"]),
        (&2.into(), &Value::Array(vec![]))
    );
    here.ok(&["data", "check", DATA]);
    // What it was made for: the checkpoint is used again.
    let sampler = report["done"].as_array().unwrap().iter().find_map(|done| {
        let words = done.as_str().unwrap().split(' ');
        words
            .into_iter()
            .find(|word| word.contains("/sampler_weights/"))
    });
    here.ok(&[
        "sample",
        "a",
        "--max-tokens",
        "2",
        "--checkpoint",
        sampler.unwrap(),
    ]);
}

/// A repair dies at the first write above a limit, so in the middle of a file: of the copy of the database, of the
/// new database, of a manifest. The last one has no limit.
#[cfg(target_os = "linux")]
#[test]
fn a_repair_that_was_killed_is_done_again_and_nothing_is_lost() {
    let here = trained();
    let data = here.path(DATA);
    // A page in the middle, so that both a copy is read and a new one is written.
    let mut bytes = std::fs::read(data.join("tinkrs.db")).unwrap();
    for page in bytes.chunks_mut(4096).skip(3).step_by(3) {
        page[..64].fill(0xa5);
    }
    std::fs::write(data.join("tinkrs.db"), &bytes).unwrap();
    let weights = |root: &Path| {
        let all = all_in(root).into_iter();
        let is_weights =
            |path: &PathBuf| path.extension().is_some_and(|kind| kind == "safetensors");
        all.filter(|path| is_weights(path) && !path.starts_with(root.join("models")))
            .count()
    };
    let before = weights(&data);
    let mut killed = 0;
    for kib in [0, 1, 4, 16, 32, 64, 96, 128, 160, 256, 512, 1024, 4096] {
        let script = format!("ulimit -f {}; exec \"$@\"", kib * 2);
        let ran = std::process::Command::new("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tinkrs")])
            .args(["data", "repair", DATA])
            .current_dir(here.path(""))
            .env_clear()
            .output()
            .unwrap();
        killed += usize::from(!ran.status.success());
        assert!(weights(&data) >= before, "at {kib} KiB");
    }
    assert!(killed > 3, "{killed}");
    let report = here.json(&["data", "repair", DATA]);
    assert_eq!(
        (&report["checkpoints"], &report["problems"]),
        (&2.into(), &Value::Array(vec![]))
    );
    assert_eq!(all_in(&data.join("partial")), Vec::<PathBuf>::new());
    here.ok(&["data", "check", DATA]);
    here.ok(&["sample", "a", "--max-tokens", "2"]);
}

#[test]
fn what_is_not_a_data_folder_is_refused_and_left_alone() {
    let here = Here::new();
    here.write("notes.txt", "mine");
    std::fs::create_dir(here.path("folder")).unwrap();
    here.write("folder/notes.txt", "mine");
    for command in ["check", "repair"] {
        for (path, said) in [
            ("folder", "folder is not a data folder of a server"),
            ("notes.txt", "Not a directory"),
            ("nowhere", "No such file or directory"),
        ] {
            let refused = here.refused(&["data", command, path]);
            assert!(
                refused.contains(&format!("could not {command} {path}")),
                "{refused}"
            );
            assert!(refused.contains(said), "{command} {path}: {refused}");
        }
    }
    assert_eq!(
        all_in(&here.path("folder")),
        [here.path("folder/notes.txt")]
    );
    assert!(!here.path("nowhere").exists());
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_is_checked_and_a_repair_says_why_not() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    const OTHER: u32 = 65534;

    let here = trained();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    // Whoever runs as root may write everything, so the command runs as another user then.
    let is_root = std::fs::metadata(here.path("")).unwrap().uid() == 0;
    mode(&here.path(""), 0o755);
    for path in all_in(&here.path(DATA))
        .into_iter()
        .chain([here.path(DATA)])
    {
        mode(&path, if path.is_dir() { 0o500 } else { 0o400 });
        if is_root {
            chown(&path, Some(OTHER), Some(OTHER)).unwrap();
        }
    }
    let run = |arguments: &[&str]| {
        let mut command = here.command(arguments);
        if is_root {
            command.uid(OTHER).gid(OTHER);
        }
        command.output().unwrap()
    };
    let checked = run(&["data", "check", DATA]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    assert!(stdout(&checked).contains("2 checkpoints"));
    let repaired = run(&["data", "repair", DATA]);
    assert_eq!(repaired.status.code(), Some(1));
    let said = stderr(&repaired);
    assert!(
        said.contains("tinkrs-data/lock: Permission denied"),
        "{said}"
    );
    for path in all_in(&here.path(DATA))
        .into_iter()
        .chain([here.path(DATA)])
    {
        mode(&path, if path.is_dir() { 0o700 } else { 0o600 });
    }
}

#[cfg(unix)]
#[test]
fn names_that_a_stranger_chose_do_not_act_on_the_terminal() {
    let here = trained();
    let name = "a\nok  all is well\u{202e}\u{1b}[2J";
    let folder = here
        .path(DATA)
        .join("checkpoints")
        .join(name)
        .join("weights/b.0");
    std::fs::create_dir_all(&folder).unwrap();
    // One that is not even text.
    let broken: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe");
    std::fs::create_dir_all(here.path(DATA).join("samplers").join(broken)).unwrap();
    let found = here.command(&["data", "check", DATA]).output().unwrap();
    assert_eq!(found.status.code(), Some(1));
    let (shown, complaints) = (stdout(&found), stderr(&found));
    assert!(!shown.lines().any(|line| line.starts_with("ok")), "{shown}");
    let harmful = |c: char| c == '\u{202e}' || c == '\u{1b}';
    assert!(
        !shown.contains(harmful) && !complaints.contains(harmful),
        "{shown}"
    );
    let json = here
        .command(&["data", "check", DATA, "--json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), 2, "{report}");
    let report = here.json(&["data", "repair", DATA]);
    assert_eq!(report["problems"], Value::Array(vec![]), "{report}");
}
