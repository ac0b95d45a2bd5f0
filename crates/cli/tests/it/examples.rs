//! The projects of `examples/` that users copy, run as their README and their workflow say.

use std::path::Path;
use std::process::{Command, Output};

use crate::text;

/// A copy of a project, away from the repository.
fn copy_of(project: &str) -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(project);
    let folder = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(from.join("."))
        .arg(folder.path())
        .status();
    assert!(copied.unwrap().success());
    folder
}

/// The commands of a workflow that are the project's own programs, in their order.
fn own_steps(workflow: &str) -> Vec<&str> {
    let lines = workflow.lines().map(str::trim_start);
    let commands = lines.filter_map(|line| line.trim_start_matches("- ").strip_prefix("run: "));
    commands
        .filter(|command| command.starts_with("./"))
        .collect()
}

/// Runs a step as a runner does: by bash, with the file for the job's summary.
fn step(command: &str, folder: &Path) -> Output {
    let programs = Path::new(env!("CARGO_BIN_EXE_tinkrs")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        .args(["-eo", "pipefail", "-c", command])
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("GITHUB_STEP_SUMMARY", folder.join("step-summary.md"))
        .output()
        .unwrap()
}

#[test]
fn a_push_trains_and_posts_a_report_with_the_loss_and_the_answers() {
    let folder = copy_of("ci-training");
    let workflow = folder.path().join(".github/workflows/train.yml");
    let workflow = std::fs::read_to_string(workflow).unwrap();
    let steps = own_steps(&workflow);
    assert_eq!(steps.len(), 2, "{steps:?}");
    for command in steps {
        let output = step(command, folder.path());
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{command}\n{said}");
    }
    let posted = std::fs::read_to_string(folder.path().join("step-summary.md")).unwrap();
    assert!(posted.contains("40 steps, loss "), "{posted}");
    assert!(
        posted.contains("| What is the password? | The password is honey. | ✓ |"),
        "{posted}"
    );
    // What the workflow uploads is there.
    for file in ["runs/ci/report.html", "runs/ci/metrics.jsonl", "summary.md"] {
        assert!(
            workflow.contains(file) && folder.path().join(file).exists(),
            "{file}"
        );
    }
}

#[test]
fn a_push_after_which_an_answer_is_wrong_fails_and_still_has_a_report() {
    let folder = copy_of("ci-training");
    let checks = folder.path().join("checks.tsv");
    // An editor may leave the last line without an end.
    std::fs::write(&checks, "What is the password?\tvinegar").unwrap();
    let settings = folder.path().join("sft.toml");
    let fewer = std::fs::read_to_string(&settings)
        .unwrap()
        .replace("epochs = 40", "epochs = 1");
    std::fs::write(settings, fewer).unwrap();
    assert_eq!(step("./train", folder.path()).status.code(), Some(1));
    let output = step("./summary", folder.path());
    let posted = text(&output.stdout);
    assert!(
        posted.contains("1 steps, loss") && posted.contains("**wrong**"),
        "{posted}"
    );
    std::fs::write(&checks, "What is the password?\n").unwrap();
    let output = step("./train", folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no answer after a tab"));
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
    let output = step("./summary", folder.path());
    let posted = text(&output.stdout);
    assert!(posted.contains("ended before its first step"), "{posted}");
}
