//! The learning rate of runs where none was given.

use serde_json::Value;

use crate::here::Here;

#[test]
fn a_recommended_rate_is_the_default_and_the_run_says_why() {
    let here = Here::new();
    tinkrs_nano::write_to(&here.path("model")).unwrap();
    let pair = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
    here.write("pairs.jsonl", pair);
    here.write(
        "questions.jsonl",
        "{\"prompt\": \"a\", \"answer\": \"b\"}\n",
    );
    // What the formula gives for the width of the model, if its name says that it is a Qwen.
    let recommended = 5e-4 * (2000.0_f64 / 192.0).powf(0.0775);
    let rl = [
        "rl",
        "--data",
        "questions.jsonl",
        "--grader",
        "exact",
        "--steps",
        "1",
    ];
    let rl = [&rl[..], &["--group-size", "2", "--max-tokens", "2"]].concat();
    let reward = vec!["reward", "--data", "pairs.jsonl"];
    let distill = [
        "distill",
        "--data",
        "questions.jsonl",
        "--max-tokens",
        "2",
        "--steps",
        "1",
    ];
    let on_policy = [
        "--mode",
        "on-policy",
        "--teacher",
        "acme/qwen=model",
        "--group-size",
        "2",
    ];
    let on_policy = [&distill[..], &on_policy].concat();
    let dpo = vec!["dpo", "--data", "pairs.jsonl"];
    let given = [&reward[..], &["--learning-rate", "0.25"]].concat();
    let why = "recommended for this model";
    let cases = [
        ("rl", rl, recommended, why),
        ("reward", reward, recommended, why),
        ("on-policy", on_policy, recommended, why),
        ("dpo", dpo, 1e-5, "the default; preferences want less"),
        ("given", given, 0.25, ""),
    ];
    for (run, arguments, rate, why) in cases {
        let all = [
            "--model",
            "acme/qwen=model",
            "--run-dir",
            run,
            "--rank",
            "2",
        ];
        let arguments = [&["train"], &arguments[..], &all].concat();
        let output = here.command(&arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{run}: {said}");
        let config = std::fs::read(here.path(run).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let found = config["learning_rate"]["peak"].as_f64().unwrap();
        assert!((found / rate - 1.0).abs() < 1e-12, "{run}: {found}");
        let shown = format!("learning rate {rate:.3e}, {why}");
        assert_eq!(said.contains(&shown), !why.is_empty(), "{run}: {said}");
    }
}
