//! Runs by their names, and the models that they were trained on.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::here::Here;
use crate::together::training;

/// Puts another value into a command.
fn with<'a>(command: &[&'a str], value: &str, other: &'a str) -> Vec<&'a str> {
    let replaced = command
        .iter()
        .map(|word| if *word == value { other } else { *word });
    replaced.collect()
}

#[test]
fn a_run_is_known_by_its_name_and_what_is_printed_works_as_pasted() {
    let here = Here::new();
    let train = training(&here, &["--name", "bees"]);
    let said = here.ok(&train);
    let line = |start: &str| {
        let found: Vec<_> = said
            .lines()
            .filter_map(|line| line.strip_prefix(start))
            .collect();
        found
    };
    assert_eq!(line("name: "), ["bees"], "{said}");
    let next = line("next: ");
    assert_eq!(
        next,
        [
            "tinkrs chat --checkpoint bees",
            "tinkrs serve",
            "tinkrs export bees --format merged --to bees-merged",
        ],
        "{said}"
    );
    let page = std::fs::read_to_string(here.path("run/report.html")).unwrap();
    for command in &next {
        assert!(page.contains(command), "{command}");
    }
    let words: Vec<_> = next[2].split(' ').skip(1).collect();
    here.ok(&words);
    assert!(here.path("bees-merged/config.json").exists());
    let mut words: Vec<_> = next[0].split(' ').skip(1).collect();
    words.extend(["--temperature", "0"]);
    let mut chat = here.command(&words).stdin(Stdio::piped()).spawn().unwrap();
    writeln!(chat.stdin.take().unwrap(), "What does a cow say?").unwrap();
    let output = chat.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !output.stdout.is_empty(),
        "{stderr}"
    );

    let table = here.ok(&["run", "list"]);
    assert!(table.contains("Name") && table.contains("bees"), "{table}");
    let run = here.json(&["run", "info", "bees"]);
    assert_eq!(run["name"], "bees");
    let steps = here.json(&["checkpoint", "list", "--run-id", "bees"]);
    assert_eq!(steps["checkpoints"].as_array().unwrap().len(), 2);
    for (name, path) in [
        ("bees", "sampler_weights/final"),
        ("bees@2", "weights/step-000002"),
    ] {
        let info = here.json(&["checkpoint", "info", name]);
        assert_eq!(info["checkpoint_id"], path, "{name}");
    }
    let same = ["sample", "Hello", "--temperature", "0", "--checkpoint"];
    let path = said.lines().next().unwrap();
    let by_name = here.ok(&[&same[..], &["bees@latest"]].concat());
    assert_eq!(by_name, here.ok(&[&same[..], &[path]].concat()));

    // Another run cannot have the name. One that is resumed is a new run on the server, and keeps it.
    let other = with(&train, "run", "other");
    let refused = here.command(&other).output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    let taken = format!(
        "`bees` is the name of another run already: {}",
        run["training_run_id"].as_str().unwrap()
    );
    assert!(stderr.contains(&taken), "{stderr}");
    let longer = with(&train, "1", "2");
    assert!(here.ok(&longer).contains("name: bees\n"));
    let again = here.json(&["run", "info", "bees"]);
    assert_ne!(again["training_run_id"], run["training_run_id"]);
    assert_eq!(again["resume_id"], run["resume_id"]);
    let info = here.json(&["checkpoint", "info", "bees@2"]);
    assert_eq!(info["checkpoint_id"], "weights/step-000002");
    let earlier = here.json(&["run", "info", "bees-2"]);
    assert_eq!(earlier["training_run_id"], run["training_run_id"]);
    // What was saved for training alone is sampled from and exported, too.
    here.ok(&[&same[..], &["bees@2"]].concat());
    here.ok(&["export", "bees@2", "--format", "peft", "--to", "two"]);
    here.ok(&["export", "run", "--format", "peft", "--to", "of-folder"]);
    let stderr = here.refused(&[&same[..], &["bees@120"]].concat());
    assert!(
        stderr.contains("could not find the checkpoint bees@120")
            && stderr.contains("sampler_weights/final, weights/step-000002"),
        "{stderr}"
    );
    let stderr = here.refused(&[&same[..], &["wasps"]].concat());
    assert!(
        stderr.contains("error: there is no run `wasps`"),
        "{stderr}"
    );
    assert!(stderr.contains("hint: `tinkrs run list`"), "{stderr}");
    here.ok(&["checkpoint", "delete", "--yes", "bees@final"]);
}

#[test]
fn a_run_that_is_resumed_without_its_name_keeps_it() {
    let here = Here::new();
    let train = |run: &str, steps: &str, more: &[&str]| {
        let more = [&["--max-steps", steps], more].concat();
        here.json(&with(&training(&here, &more), "run", run))
    };
    let made_up = train("one", "1", &[])["name"].clone();
    assert!(made_up.is_string(), "{made_up}");
    assert_eq!(train("one", "2", &[])["name"], made_up);
    train("other", "1", &["--name", "bees"]);
    assert_eq!(train("other", "2", &[])["name"], "bees");
}

#[test]
fn a_model_of_the_users_own_is_found_again_by_what_was_trained_on_it() {
    let here = Here::new();
    tinkrs_nano::write_to(&here.path("model")).unwrap();
    let train = training(&here, &["--name", "bees", "--model", "acme/mine=model"]);
    let next = here.json(&train)["next"].clone();
    assert_eq!(
        next,
        json!([
            "tinkrs chat --checkpoint bees",
            "tinkrs serve --model acme/mine=model",
            "tinkrs export bees --format merged --to bees-merged",
        ])
    );
    let ask = [
        "sample",
        "Hello",
        "--temperature",
        "0",
        "--checkpoint",
        "bees",
    ];
    let said = here.ok(&ask);
    here.ok(&["export", "bees", "--to", "bees-merged"]);
    assert!(here.path("bees-merged/config.json").exists());
    let more = ["--from", "bees", "--run-dir", "more", "--max-steps", "1"];
    here.ok(&[&train[..4], &more].concat());

    // What was there is named, and another place can be.
    std::fs::rename(here.path("model"), here.path("moved")).unwrap();
    let gone = here.refused(&ask);
    assert!(gone.contains("the model `acme/mine` was at "), "{gone}");
    assert!(gone.contains("hint: say where it is"), "{gone}");
    let moved = [&ask[..], &["--model", "acme/mine=moved"]].concat();
    assert_eq!(here.ok(&moved), said);
    assert_eq!(here.ok(&ask), said);
}

#[test]
fn what_cannot_begin_leaves_no_data_folder() {
    let here = Here::new();
    let data = here.path("tinkrs-data");
    for arguments in [
        &["sample", "Hello", "--model", "mine=nowhere"][..],
        &["sample", "Hello", "--model", "mine"],
        &["sample", "Hello", "--checkpoint", "bees"],
        &[
            "chat",
            "--checkpoint",
            "tinker://a:train:0/sampler_weights/b",
        ],
        &["export", "bees", "--to", "out"],
        &["checkpoint", "download", "bees"],
        &["serve", "--model", "mine=nowhere"],
        &training(&here, &["--from", "bees"]),
        &training(&here, &["--model", "mine=nowhere"]),
    ] {
        here.refused(arguments);
        assert!(!data.exists(), "{arguments:?}");
    }
}

#[test]
fn a_run_is_a_teacher_by_its_name() {
    let here = Here::new();
    here.ok(&training(&here, &["--name", "bees", "--max-steps", "1"]));
    here.write(
        "questions.jsonl",
        "{\"prompt\": \"What is the password?\"}\n",
    );
    let distill = |teacher: &'static str, run: &'static str| {
        let data = [
            "--data",
            "questions.jsonl",
            "--run-dir",
            run,
            "--steps",
            "1",
        ];
        let mode = [
            "train",
            "distill",
            "--mode",
            "on-policy",
            "--teacher",
            teacher,
        ];
        let small = [
            "--problems-per-step",
            "1",
            "--group-size",
            "1",
            "--max-tokens",
            "4",
        ];
        [&mode[..], &data, &small].concat()
    };
    here.ok(&distill("bees", "by-name"));
    here.ok(&distill("bees@final", "by-checkpoint"));
    let refused = here.refused(&distill("wasps", "none"));
    let expected = "teacher: `wasps`: it is neither a model of this machine nor a run";
    assert!(refused.contains(expected), "{refused}");
}
