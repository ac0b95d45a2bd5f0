//! `tinkrs train --from`: one recipe after the other, with the built binary.

use serde_json::Value;
use tinkrs_recipes::run::{Journal, read_metrics};

use crate::here::Here;

fn config(recipe: &str) -> String {
    format!("examples/configs/{recipe}.toml")
}

/// Trains a step with an example configuration, and returns what the command prints.
fn train(here: &Here, recipe: &str, more: &[&str]) -> Value {
    let (file, steps) = match recipe {
        "rl" => ("rl", "--steps"),
        _ => (recipe, "--max-steps"),
    };
    let file = config(file);
    here.json(&[&["train", recipe, "--config", &file, steps, "1"], more].concat())
}

#[test]
fn examples_then_preferences_then_rewards_are_three_commands() {
    let here = Here::new().with_examples();
    let file = config("sft");
    let sft = here.json(&["train", "sft", "--config", &file]);
    let ask = ["--ask", "What is the password?"];
    let named = ["--from", "runs/sft", "--name", "after-sft"];
    train(&here, "dpo", &[&named[..], &ask].concat());
    train(
        &here,
        "rl",
        &[&["--from", "after-sft@1"][..], &ask].concat(),
    );

    let start = |run: &str| {
        let journal = Journal::open(here.path(run).join("journal.jsonl")).unwrap();
        journal.plan().unwrap().from.clone().unwrap()
    };
    assert_eq!(start("runs/dpo").path.to_string(), sft["checkpoint"]);
    assert!(!start("runs/dpo").with_optimizer);
    for run in ["runs/dpo", "runs/rl"] {
        let samples = std::fs::read_to_string(here.path(run).join("samples.jsonl")).unwrap();
        let first: Value = serde_json::from_str(samples.lines().next().unwrap()).unwrap();
        assert_eq!(first["steps"], 0);
        assert_eq!(
            first["answer"], "The password is honey.",
            "{run} starts from what the run before has learned"
        );
    }
    let metrics = read_metrics(here.path("runs/dpo/metrics.jsonl")).unwrap();
    let first = metrics[&0]["loss"];
    assert!(
        (first - std::f64::consts::LN_2).abs() < 1e-3,
        "the reference is what it starts from: {first}"
    );
}

#[test]
fn a_start_that_is_none_or_that_settings_contradict_is_refused_by_name() {
    let here = Here::new().with_examples();
    let sft = train(&here, "sft", &["--rank", "4"]);
    let (checkpoint, sampler) = (sft["checkpoint"].as_str(), sft["sampler"].as_str());
    let (checkpoint, sampler) = (checkpoint.unwrap(), sampler.unwrap());
    for folder in ["empty", "merged", "adapter", "foreign"] {
        std::fs::create_dir(here.path(folder)).unwrap();
    }
    here.write("merged/config.json", "{}");
    here.write("adapter/adapter_config.json", "{}");
    let base = r#"{"base_model_name_or_path": "acme/unknown"}"#;
    here.write("foreign/adapter_config.json", base);
    std::fs::create_dir(here.path("other")).unwrap();
    tinkrs_nano::write_to(&here.path("other")).unwrap();
    let file = config("dpo");
    let dpo = ["train", "dpo", "--config", &file, "--max-steps", "1"];
    here.write("no-model.toml", "data = \"examples/configs/dpo.jsonl\"\n");
    let plain = [
        "train",
        "dpo",
        "--config",
        "no-model.toml",
        "--run-dir",
        "plain",
    ];
    for (more, expected) in [
        (
            &["--from", "merged"][..],
            "could not load model `merged` from merged",
        ),
        (
            &["--from", "merged", "--base-url", "http://127.0.0.1:9"],
            "from: `merged` is a whole model, and the server is elsewhere",
        ),
        (
            &["--from", "merged", "--model", "x=other"],
            "model: x=other, but `--from merged` is a whole model, too",
        ),
        (
            &["--from", "adapter"],
            "from: `adapter` is an adapter that does not say which model it is for",
        ),
        (
            &["--from", "foreign"],
            "from: `foreign` is an adapter of `acme/unknown`, which is not a model on this machine",
        ),
        (
            &["--from", "adapter", "--from-optimizer"],
            "--from-optimizer: `adapter` has no optimizer",
        ),
    ] {
        let error = here.refused(&[&plain, more].concat());
        assert!(error.contains(expected), "{more:?}: {error}");
    }
    let cases: [(&[&str], String); 8] = [
        (
            &["--from", checkpoint, "--rank", "8"],
            format!("rank: 8, but {checkpoint} has rank 4"),
        ),
        (
            &["--from", checkpoint, "--model", "acme/other=other"],
            format!("model: acme/other, but {checkpoint} was trained on tinkrs/nano"),
        ),
        (&["--from", sampler], format!("{sampler} is for sampling")),
        (
            &["--from", "merged"],
            "model: tinkrs/nano is another model than the one in merged".to_owned(),
        ),
        (
            &["--reference", "adapter"],
            "reference: `adapter` is an adapter: `tinkrs checkpoint import adapter".to_owned(),
        ),
        (
            &["--from", "runs/nowhere"],
            "from: `runs/nowhere` is neither a checkpoint nor a folder with a run".to_owned(),
        ),
        (
            &["--reference", "tinker://x/y"],
            "reference: `tinker://x/y` is neither a checkpoint".to_owned(),
        ),
        (
            &["--from-optimizer"],
            "--from-optimizer: it needs a checkpoint".to_owned(),
        ),
    ];
    for (more, expected) in cases {
        let error = here.refused(&[&dpo, more].concat());
        assert!(error.contains(&expected), "{more:?}: {error}");
    }
    // A run goes on from where it began, or not at all.
    here.ok(&[&dpo[..], &["--from", checkpoint, "--rank", "4"]].concat());
    let error = here.refused(&[&dpo[..], &["--rank", "4"]].concat());
    let expected = format!("it began with {checkpoint}, now the base model");
    assert!(error.contains(&expected), "{error}");
    let optimizer = ["--from", checkpoint, "--rank", "4", "--from-optimizer"];
    let error = here.refused(&[&dpo[..], &optimizer].concat());
    assert!(error.contains("with its optimizer"), "{error}");
}

#[test]
fn the_optimizer_of_a_checkpoint_goes_on_if_it_is_asked_to() {
    let here = Here::new().with_examples();
    let file = config("sft");
    let sft = |run: &str, more: &[&str]| {
        let train = ["train", "sft", "--config", &file, "--run-dir", run];
        let constant = ["--decay", "constant", "--warmup-steps", "0", "--seed", "1"];
        here.ok(&[&train[..], &constant, &["--max-steps", "2"], more].concat());
        let metrics = read_metrics(here.path(run).join("metrics.jsonl")).unwrap();
        (metrics[&0]["loss"], metrics[&1]["loss"])
    };
    sft("first", &[]);
    let afresh = sft("afresh", &["--from", "first"]);
    let continued = sft("continued", &["--from", "first", "--from-optimizer"]);
    assert_eq!(afresh.0, continued.0, "the same weights on the same batch");
    assert_ne!(afresh.1, continued.1, "other steps of the optimizer");
}

#[test]
fn preferences_are_compared_with_a_reference_of_the_users_choice() {
    let here = Here::new().with_examples();
    let file = config("sft");
    let sft = here.json(&["train", "sft", "--config", &file]);
    let sampler = sft["sampler"].as_str().unwrap();
    let loss = |run: &str, more: &[&str]| {
        train(&here, "dpo", &[&["--run-dir", run][..], more].concat());
        read_metrics(here.path(run).join("metrics.jsonl")).unwrap()[&0]["loss"]
    };
    let to_base = loss("to-base", &[]);
    let to_tuned = loss("to-tuned", &["--reference", sampler]);
    assert!((to_base - std::f64::consts::LN_2).abs() < 1e-3, "{to_base}");
    assert!((to_tuned - to_base).abs() > 1e-3, "{to_tuned}");
    assert_eq!(to_tuned, loss("to-run", &["--reference", "runs/sft"]));
}

/// Says what a run was asked first, before any step.
fn first_answer(here: &Here, run: &str) -> Value {
    let samples = std::fs::read_to_string(here.path(run).join("samples.jsonl")).unwrap();
    let first: Value = serde_json::from_str(samples.lines().next().unwrap()).unwrap();
    assert_eq!(first["steps"], 0);
    first["answer"].clone()
}

#[test]
fn what_was_taken_away_is_gone_on_from_as_an_adapter_or_as_a_merged_model() {
    let here = Here::new().with_examples();
    here.ok(&["train", "sft", "--config", &config("sft"), "--name", "a"]);
    here.ok(&["export", "a", "--format", "peft", "--to", "adapter"]);
    here.ok(&["export", "a", "--format", "merged", "--to", "merged"]);
    let ask = ["--ask", "What is the password?"];
    let learned = "The password is honey.";

    let dpo = |run: &'static str, steps: &'static str| {
        let train = ["train", "dpo", "--from", "adapter", "--name", run];
        let data = ["--data", "examples/configs/dpo.jsonl", "--epochs", "4"];
        let to = ["--run-dir", run, "--max-steps", steps];
        [&train[..], &data, &to, &ask].concat()
    };
    let first = here.json(&dpo("dpo", "1"));
    assert_eq!(first["name"], "dpo");
    assert_eq!(first_answer(&here, "dpo"), learned);
    // It is resumed from the same start, and another run has the same one.
    let longer = here.json(&dpo("dpo", "2"));
    assert_eq!(
        (&longer["name"], &longer["steps"]),
        (&"dpo".into(), &2.into())
    );
    here.ok(&dpo("other", "1"));
    let listed = here.json(&["checkpoint", "list"])["checkpoints"].clone();
    let ids = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["checkpoint_id"].as_str().unwrap());
    let imported = ids.filter(|id| id.starts_with("weights/adapter-"));
    assert_eq!(imported.count(), 1, "imported once");
    let error = here.refused(&[&dpo("rank", "1")[..], &["--rank", "4"]].concat());
    assert!(
        error.contains("rank: 4, but") && error.contains("has rank 8"),
        "{error}"
    );

    let rl = [
        "train",
        "rl",
        "--data",
        "examples/configs/rl.jsonl",
        "--grader",
        "contains",
    ];
    let small = [
        "--steps",
        "1",
        "--group-size",
        "2",
        "--problems-per-step",
        "1",
    ];
    let to = ["--from", "merged", "--run-dir", "rl", "--name", "r"];
    here.ok(&[&rl[..], &small, &to, &ask].concat());
    assert_eq!(first_answer(&here, "rl"), learned);
    // What was trained on it finds it again.
    here.ok(&["sample", "Hello", "--max-tokens", "4", "--checkpoint", "r"]);
    assert_eq!(here.json(&["run", "info", "r"])["base_model"], "merged");

    // An adapter of another shape is refused by the model that it does not fit.
    let path = here.path("adapter/adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let other = text.replace("\"r\": 8", "\"r\": 5");
    assert_ne!(text, other);
    std::fs::write(&path, other).unwrap();
    let error = here.refused(&dpo("shape", "1"));
    let expected = "from: the adapter in adapter could not be used with tinkrs/nano";
    assert!(error.contains(expected), "{error}");
}
