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
    std::fs::create_dir(here.path("merged")).unwrap();
    here.write("merged/config.json", "{}");
    std::fs::create_dir(here.path("adapter")).unwrap();
    here.write("adapter/adapter_config.json", "{}");
    std::fs::create_dir(here.path("other")).unwrap();
    tinkrs_nano::write_to(&here.path("other")).unwrap();
    let file = config("dpo");
    let dpo = ["train", "dpo", "--config", &file, "--max-steps", "1"];
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
            "from: `merged` is a whole model: train on it with `--model NAME=merged`".to_owned(),
        ),
        (
            &["--from", "adapter"],
            "from: `adapter` is an adapter: `tinkrs checkpoint import adapter".to_owned(),
        ),
        (
            &["--from", "runs/nowhere"],
            "from: `runs/nowhere` is neither a checkpoint nor the folder of a run".to_owned(),
        ),
        (
            &["--reference", "tinker://x/y"],
            "reference: `tinker://x/y` is neither a checkpoint".to_owned(),
        ),
        (
            &["--from-optimizer"],
            "from_optimizer: it needs a checkpoint".to_owned(),
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
