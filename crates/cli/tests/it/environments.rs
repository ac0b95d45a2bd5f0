//! `tinkrs train rl --env-command`: an environment in plain Python, with a tool.

use std::path::Path;

use tinkrs_recipes::run::read_metrics;

use crate::here::Here;

/// A folder with the example, and a model that calls the tool now and then, and often guesses.
fn with_habits() -> Here {
    let here = Here::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/environments");
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), here.path("").join(file.file_name())).unwrap();
    }
    here
}

const SFT: [&str; 18] = [
    "train",
    "sft",
    "--data",
    "habits.jsonl",
    "--template",
    "chat.jinja",
    "--run-dir",
    "habits",
    "--train-on",
    "all-assistant-messages",
    "--epochs",
    "90",
    "--batch-size",
    "8",
    "--rank",
    "16",
    "--learning-rate",
    "0.005",
];

const RL: [&str; 26] = [
    "train",
    "rl",
    "--data",
    "box.jsonl",
    "--from",
    "habits",
    "--template",
    "chat.jinja",
    "--run-dir",
    "run",
    "--max-tokens",
    "56",
    "--problems-per-step",
    "4",
    "--group-size",
    "12",
    "--max-staleness",
    "0",
    "--learning-rate",
    "0.0003",
    "--decay",
    "constant",
    "--max-turns",
    "3",
    "--transcripts",
    "1",
];

#[test]
fn an_environment_in_python_teaches_the_model_to_use_a_tool() {
    let here = with_habits();
    here.ok(&SFT);
    let env = ["--env-command", "python3 box.py", "--steps", "10"];
    here.ok(&[&RL[..], &env].concat());
    let metrics = read_metrics(here.path("run/metrics.jsonl")).unwrap();
    let mean = |steps: std::ops::Range<usize>, name: &str| {
        let count = steps.len() as f64;
        steps.map(|step| metrics[&step][name]).sum::<f64>() / count
    };
    let (before, after) = (mean(0..1, "env/looks"), mean(7..10, "env/looks"));
    assert!(before < 0.75 && after > 0.8, "looks: {before} and {after}");
    let (before, after) = (mean(0..1, "reward"), mean(7..10, "reward"));
    assert!(after > before + 0.2, "reward: {before} and {after}");
    let transcripts = std::fs::read_to_string(here.path("run/transcripts.jsonl")).unwrap();
    assert_eq!(transcripts.lines().count(), 20);
    assert!(transcripts.contains("\"tool_calls\""), "{transcripts}");
}

#[test]
fn a_program_that_crashes_costs_episodes_that_are_counted_or_a_run_that_continues() {
    let here = with_habits();
    let script = std::fs::read_to_string(here.path("box.py")).unwrap();
    // Ends at its 60th line, each time that it is started.
    let crashing = script.replace(
        "    request = json.loads(line)\n",
        "    count = globals().get('count', 0) + 1\n    assert count < 60, 'out of paper'\n    \
         request = json.loads(line)\n",
    );
    assert_ne!(crashing, script);
    here.write("crashing.py", &crashing);
    let rl: Vec<&str> = RL.to_vec();
    let from = rl.iter().position(|word| *word == "--from").unwrap();
    let rl = [&rl[..from], &rl[from + 2..]].concat();
    let env = ["--env-command", "python3 crashing.py", "--steps", "2"];
    let error = here.refused(&[&rl[..], &env].concat());
    assert!(error.contains("out of paper"), "{error}");
    let tolerant = ["--episode-retries", "3", "--min-group-size", "2"];
    here.ok(&[&rl[..], &env, &tolerant].concat());
    let metrics = read_metrics(here.path("run/metrics.jsonl")).unwrap();
    let failures: f64 = metrics
        .values()
        .filter_map(|step| step.get("episode_failures"))
        .sum();
    assert!(failures > 0.0, "{metrics:?}");
}
