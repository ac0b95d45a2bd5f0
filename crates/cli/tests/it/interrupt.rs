//! A run that is stopped with Ctrl-C and started again, against one that nobody stops.
//!
//! `TINKRS_MODELS` names a folder with a real model, as CI fetches it. Without it the model that
//! comes with the program does the same.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use tinkrs_recipes::run::{Entry, Journal, Numbers, read_metrics};

use crate::here::Here;

/// The steps of a pass over the data.
const PASS: usize = 6;

/// Returns a model to train, and for how many passes: long enough that Ctrl-C finds it at work.
fn model() -> (String, usize) {
    let folder = tinkrs_testkit::skip::models("Ctrl-C while a real model trains");
    match folder.map(|folder| folder.join("MiniMind2-Small")) {
        Some(folder) => {
            assert!(folder.is_dir(), "{} is not there", folder.display());
            (format!("minimind/small={}", folder.display()), 2)
        }
        None => ("tinkrs/nano".to_owned(), 10),
    }
}

/// Writes short chats, all of them different.
fn chats(here: &Here) {
    let line = |number: usize| {
        let messages = serde_json::json!([
            {"role": "user", "content": format!("What is behind door {number}?")},
            {"role": "assistant", "content": format!("Behind door {number} is a jar of honey.")},
        ]);
        serde_json::json!({ "messages": messages }).to_string() + "\n"
    };
    here.write("chats.jsonl", &(0..26).map(line).collect::<String>());
}

/// Returns what a run says about itself, but for its times.
fn numbers(here: &Here, run: &str) -> BTreeMap<usize, Numbers> {
    let mut metrics = read_metrics(here.path(run).join("metrics.jsonl")).unwrap();
    for numbers in metrics.values_mut() {
        numbers.retain(|name, _| !name.contains("second"));
    }
    metrics
}

fn steps(journal: &Journal) -> Vec<(usize, Vec<usize>)> {
    let step = |entry: &Entry| match entry {
        Entry::Step { step, examples } => Some((*step, examples.clone())),
        _ => None,
    };
    journal.entries().iter().filter_map(step).collect()
}

#[cfg(unix)]
#[test]
fn a_run_stopped_by_ctrl_c_goes_on_without_repeating_or_skipping_a_batch() {
    let here = Here::new();
    chats(&here);
    let (model, passes) = model();
    let (steps_of_run, passes) = (PASS * passes, passes.to_string());
    let train = |run| {
        [
            "train",
            "sft",
            "--data",
            "chats.jsonl",
            "--model",
            &model,
            "--run-dir",
            run,
            "--epochs",
            &passes,
            "--batch-size",
            "4",
            "--eval",
            "2",
            "--eval-every",
            "5",
            "--rank",
            "4",
        ]
    };
    here.ok(&train("whole"));

    let mut child = here.start(&train("parts"));
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("] 3/") {
        line.clear();
        assert!(
            stderr.read_line(&mut line).unwrap() > 0,
            "it ended by itself"
        );
    }
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &id])
        .status();
    assert!(sent.unwrap().success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(
        rest.contains("the same command continues from there"),
        "{rest}"
    );

    let path = here.path("parts/journal.jsonl");
    let stopped = Journal::open(&path).unwrap();
    let done = steps(&stopped).len();
    assert!(
        (3..steps_of_run).contains(&done),
        "stopped after {done} steps"
    );
    let saved = stopped.last_checkpoint().map(|(steps, _)| steps);
    assert_eq!(saved, Some(done), "every step is in the checkpoint");
    drop(stopped);

    let result = here.json(&train("parts"));
    assert_eq!(result["steps"], steps_of_run);
    let (parts, whole) = (Journal::open(&path), here.path("whole/journal.jsonl"));
    let (parts, whole) = (parts.unwrap(), Journal::open(whole).unwrap());
    assert!(parts.entries().contains(&Entry::Resumed { steps: done }));
    assert_eq!(steps(&parts).len(), steps_of_run, "no step was done twice");
    assert_eq!(
        steps(&parts),
        steps(&whole),
        "the same batches in the same order"
    );
    assert_eq!(
        numbers(&here, "parts"),
        numbers(&here, "whole"),
        "bit for bit"
    );
    let report = std::fs::read_to_string(here.path("parts/report.html")).unwrap();
    assert!(report.contains("<svg"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_run_and_not_the_program_that_judges_its_answers() {
    use std::os::unix::process::CommandExt;
    let here = Here::new().with_examples();
    // It presses Ctrl-C itself, while the step waits for its answer.
    let judge = "n=0; while read -r line; do n=$((n + 1)); \
                 [ $n = 20 ] && kill -s INT -- -$PPID; echo ${#line}; done";
    let train = [
        "train",
        "rl",
        "--data",
        "examples/configs/rl.jsonl",
        "--run-dir",
        "run",
        "--reward-command",
        judge,
        "--group-size",
        "2",
        "--max-tokens",
        "4",
        "--steps",
        "40",
        "--max-staleness",
        "0",
    ];
    let ran = here.command(&train).process_group(0).output().unwrap();
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(130), "{stderr}");
    assert!(
        stderr.contains("the same command continues from there"),
        "{stderr}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_that_judges_does_not_outlive_a_command_that_is_stopped() {
    use std::os::unix::process::CommandExt;
    let here = Here::new().with_examples();
    let made = std::process::Command::new("mkfifo")
        .arg(here.path("id"))
        .status();
    assert!(made.unwrap().success());
    let eval = [
        "eval",
        "--data",
        "examples/configs/eval.jsonl",
        "--reward-command",
        "sleep 1000 & echo $! > id; wait",
    ];
    let mut child = here.command(&eval).process_group(0).spawn().unwrap();
    let id = std::fs::read_to_string(here.path("id")).unwrap();
    // As a terminal does it: to whatever is in the group.
    let group = format!("-{}", child.id());
    let pressed = std::process::Command::new("kill")
        .args(["-INT", "--", &group])
        .status();
    assert!(pressed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let stat = format!("/proc/{}/stat", id.trim());
    // It is killed, but whoever cleans up after it may take a while.
    let started = std::time::Instant::now();
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(started.elapsed().as_secs() < 20, "{id} still runs");
        std::thread::yield_now();
    }
}

#[cfg(unix)]
#[test]
fn a_run_that_is_killed_goes_on_from_its_checkpoint_and_says_what_it_does_again() {
    let here = Here::new();
    chats(&here);
    let train = |run| {
        let data = ["train", "sft", "--data", "chats.jsonl", "--run-dir", run];
        let course = ["--epochs", "10", "--batch-size", "4", "--eval", "2"];
        // Never because of the time, so that the test knows what is saved.
        let saved = ["--checkpoint-every", "4", "--checkpoint-seconds", "0"];
        [
            &data[..],
            &course,
            &saved,
            &["--eval-every", "3", "--rank", "4"],
        ]
        .concat()
    };
    here.ok(&train("whole"));

    let mut child = here.start(&train("parts"));
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map(Result::unwrap);
    assert!(
        lines.any(|line| line.contains("] 6/")),
        "it ended by itself"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let path = here.path("parts/journal.jsonl");
    let killed = Journal::open(&path).unwrap();
    let lost = killed.unsaved_steps();
    assert!(lost.len() < 4, "{lost:?}");
    drop(killed);

    let again = here.command(&train("parts")).output().unwrap();
    let stderr = String::from_utf8(again.stderr).unwrap();
    assert!(again.status.success(), "{stderr}");
    let after = format!("going on after {} steps", lost.start);
    let what = match lost.len() {
        0 => String::new(),
        1 => format!("; step {} is done again: it was", lost.end),
        _ => format!(
            "; steps {}–{} are done again: they were",
            lost.start + 1,
            lost.end
        ),
    };
    assert!(stderr.contains(&format!("{after}{what}")), "{stderr}");
    assert_eq!(
        numbers(&here, "parts"),
        numbers(&here, "whole"),
        "bit for bit"
    );
    let rows = |run| {
        let text = std::fs::read_to_string(here.path(run).join("metrics.jsonl"));
        text.unwrap().lines().count()
    };
    assert_eq!(rows("parts"), rows("whole"), "no row twice");
}
