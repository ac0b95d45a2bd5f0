//! `tinkrs train` on this machine: every recipe from its example file, and what users get wrong.

use serde_json::Value;
use tinkrs::auth::{CredentialStore, StoredCredentials, StoredKey};
use tinkrs_recipes::run::{Entry, Journal, read_metrics};

use crate::here::Here;

#[test]
fn every_example_configuration_trains_and_leaves_a_report() {
    let here = Here::new().with_examples();
    let examples = [
        ("sft", "sft", "--max-steps", "loss", "sft"),
        ("rl", "rl", "--steps", "reward", "rl"),
        ("dpo", "dpo", "--max-steps", "accuracy", "dpo"),
        (
            "distill",
            "distill_on_policy",
            "--steps",
            "kl_reference",
            "distill-on-policy",
        ),
        (
            "distill",
            "distill_prompt",
            "--max-steps",
            "loss",
            "distill-prompt",
        ),
    ];
    for (recipe, file, steps, number, run) in examples {
        let file = format!("examples/configs/{file}.toml");
        let result = here.json(&["train", recipe, "--config", &file, steps, "2"]);
        assert_eq!(result["finished"], true, "{file}: {result}");
        assert_eq!(result["steps"], 2, "{file}: {result}");
        let sampler = result["sampler"].as_str().unwrap();
        assert!(sampler.starts_with("tinker://"), "{file}: {result}");
        let folder = here.path("runs").join(run);
        let metrics = read_metrics(folder.join("metrics.jsonl")).unwrap();
        for step in [0, 1] {
            assert!(metrics[&step].contains_key(number), "{file}: {metrics:?}");
        }
        let report = std::fs::read_to_string(folder.join("report.html")).unwrap();
        assert!(report.contains("<svg"), "{file}");
    }
}

#[test]
fn a_configuration_alone_is_enough_and_asks_before_and_after() {
    let here = Here::new().with_examples();
    let train = ["train", "sft", "--config", "examples/configs/sft.toml"];
    here.ok(&train);
    let samples = std::fs::read_to_string(here.path("runs/sft/samples.jsonl")).unwrap();
    let samples: Vec<Value> = samples
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(samples.len(), 2, "{samples:?}");
    assert_eq!(
        (&samples[0]["steps"], &samples[1]["steps"]),
        (&0.into(), &30.into())
    );
    assert_eq!(samples[1]["answer"], "The password is honey.");
    // A run that is finished asks nothing again.
    here.ok(&train);
    let again = std::fs::read_to_string(here.path("runs/sft/samples.jsonl")).unwrap();
    assert_eq!(again.lines().count(), 2);
}

#[cfg(unix)]
#[test]
fn a_program_of_the_users_rewards_answers_and_loses_nothing_when_it_fails() {
    let here = Here::new().with_examples();
    // Judges 8 answers and then fails, once.
    here.write(
        "judge.sh",
        "n=0\nwhile read -r line; do\n  n=$((n + 1))\n  \
         if [ $n -gt 8 ] && [ ! -e failed ]; then touch failed; echo 'out of paper' >&2; exit 4; fi\n  \
         echo $((${#line} % 7))\ndone\n",
    );
    let config = std::fs::read_to_string(here.path("examples/configs/rl.toml")).unwrap();
    let config = config.replace("grader = \"contains\"", "reward_command = \"sh judge.sh\"");
    here.write("rl.toml", &config);
    let train = [
        "train",
        "rl",
        "--config",
        "rl.toml",
        "--steps",
        "3",
        "--problems-per-step",
        "2",
        "--group-size",
        "2",
        "--max-staleness",
        "0",
    ];
    let error = here.refused(&train);
    assert!(
        error.contains("`sh judge.sh` ended (exit status: 4) before answer 9"),
        "{error}"
    );
    assert!(error.contains("out of paper"), "{error}");
    assert!(
        error.contains("the same command continues after 2 steps"),
        "{error}"
    );
    here.ok(&train);
    let journal = Journal::open(here.path("runs/rl/journal.jsonl")).unwrap();
    let resumed = Entry::Resumed { steps: 2 };
    assert!(
        journal.entries().contains(&resumed),
        "{:?}",
        journal.entries()
    );
    assert_eq!(journal.finished().unwrap().steps, 3);
}

#[test]
fn a_teacher_may_be_a_checkpoint() {
    let here = Here::new().with_examples();
    let tuned = here.json(&["train", "sft", "--config", "examples/configs/sft.toml"]);
    let teacher = tuned["sampler"].as_str().unwrap();
    here.write(
        "questions.jsonl",
        "{\"prompt\": \"What is the password?\"}\n",
    );
    let config = "examples/configs/distill_on_policy.toml";
    let train = ["train", "distill", "--config", config, "--teacher", teacher];
    here.ok(&[&train[..], &["--data", "questions.jsonl", "--steps", "1"]].concat());
    let metrics = read_metrics(here.path("runs/distill-on-policy/metrics.jsonl")).unwrap();
    // The student has never heard of what the teacher knows.
    assert!(metrics[&0]["kl_reference"] > 0.1, "{metrics:?}");
}

#[test]
fn mistakes_are_named_with_file_and_line_and_what_is_allowed() {
    let here = Here::new().with_examples();
    here.write("empty.jsonl", "\n");
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    here.write(
        "third.jsonl",
        &format!("{line}\n{line}\n{{\"prompt\": \"a\"}}\n"),
    );
    here.write(
        "tasks.jsonl",
        "{\"prompt\": \"a\", \"answer\": \"1\"}\n{\"prompt\": \"b\", \"answer\": \"many\"}\n",
    );
    here.write("typo.toml", "data = \"third.jsonl\"\n\nbach_size = 4\n");
    here.write(
        "value.toml",
        "data = \"third.jsonl\"\nlearning_rate = \"fast\"\n",
    );
    here.write("name.toml", "decay = \"steep\"\n");
    let run = ["--run-dir", "run"];
    let sft = |arguments: &[&'static str]| [&["train", "sft"], arguments, &run].concat();
    let rl = |arguments: &[&'static str]| [&["train", "rl"], arguments, &run].concat();
    let example = "examples/configs/sft.jsonl";
    let cases = [
        (sft(&[]), "no data file"),
        (sft(&["--data", "none.jsonl"]), "could not read none.jsonl"),
        (sft(&["--data", "empty.jsonl"]), "empty.jsonl has no lines"),
        (
            sft(&["--data", "third.jsonl"]),
            "third.jsonl, line 3: there is a `prompt`, but no `completion`",
        ),
        (sft(&["--config", "none.toml"]), "could not read none.toml"),
        (
            sft(&["--config", "typo.toml"]),
            "typo.toml, line 3: unknown key `bach_size`; did you mean `batch_size`?",
        ),
        (
            sft(&["--config", "value.toml"]),
            "value.toml, line 2: `learning_rate`: invalid type: string \"fast\", expected f64",
        ),
        (
            sft(&["--config", "name.toml"]),
            "name.toml, line 1: `decay`: `steep`, expected one of constant, linear, cosine",
        ),
        (
            sft(&["--data", example, "--epochs", "0"]),
            "epochs: 0, expected 1 or more",
        ),
        (
            sft(&["--data", example, "--learning-rate=-1"]),
            "error: --learning-rate: -1, expected a positive number",
        ),
        (sft(&["--data", example, "--adam-beta1", "2"]), "beta1"),
        (
            sft(&["--data", example, "--eval", "1000"]),
            "no example to train on",
        ),
        (
            rl(&["--data", "tasks.jsonl"]),
            "no grader: choose --grader, --reward, --rewards, --reward-model or --reward-command",
        ),
        (
            rl(&["--data", "tasks.jsonl", "--grader", "number"]),
            "tasks.jsonl, line 2",
        ),
        (
            rl(&[
                "--data",
                "tasks.jsonl",
                "--grader",
                "exact",
                "--group-size",
                "1",
            ]),
            "a group of one has nothing to be compared with",
        ),
        (
            rl(&["--data", "third.jsonl", "--grader", "exact"]),
            "third.jsonl, line 1",
        ),
    ];
    for (arguments, expected) in cases {
        let error = here.refused(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert!(
        !here.path("run").exists(),
        "a run that never began leaves nothing"
    );
}

#[test]
fn wrong_values_and_modes_are_refused_before_a_model_is_loaded() {
    let here = Here::new();
    let grader = ["train", "rl", "--grader", "regex"];
    let output = here.command(&grader).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("exact, words, contains, number"),
        "{stderr}"
    );

    let distill = |more: &[&'static str]| here.refused(&[&["train", "distill"], more].concat());
    assert!(
        distill(&[]).contains("choose `--mode on-policy`, `--mode off-policy` or `--mode prompt`")
    );
    assert!(distill(&["--mode", "on-policy"]).contains("error: no teacher"));
    assert!(distill(&["--mode", "prompt"]).contains("the teacher has no instructions"));
    let foreign = distill(&["--mode", "prompt", "--instructions", "a", "--steps", "3"]);
    assert!(
        foreign.contains("`--steps` belongs to `--mode on-policy`"),
        "{foreign}"
    );
    let foreign = distill(&["--mode", "prompt", "--instructions", "a", "--clip-low", "0"]);
    assert!(foreign.contains("`--clip-low` belongs"), "{foreign}");
    let weight = distill(&["--mode", "on-policy", "--teacher", "a", "--kl-weight", "0"]);
    assert!(weight.contains("--kl-weight: 0, expected"), "{weight}");
    let bare = distill(&["--mode", "off-policy", "--top-k", "3"]);
    assert!(bare.contains("error: no teacher"), "{bare}");
    let none = distill(&["--mode", "off-policy", "--teacher", "a", "--top-k", "0"]);
    assert!(none.contains("--top-k: 0, expected 1 to 1024"), "{none}");
    here.write("q.jsonl", "{\"prompt\": \"q\"}\n");
    let teacher = ["--mode", "on-policy", "--teacher", "a", "--data", "q.jsonl"];
    let lonely = distill(&[&teacher[..], &["--teacher-of", "q.jsonl"]].concat());
    assert!(
        lonely.contains("teacher_of: `q.jsonl`, expected a file, `=` and its teacher"),
        "{lonely}"
    );
    let missing = distill(&[&teacher[..], &["--teacher-of", "none.jsonl=b"]].concat());
    assert!(missing.contains("could not read none.jsonl"), "{missing}");

    let rl = |more: &[&'static str]| here.refused(&[&["train", "rl"], more].concat());
    let free = rl(&["--grader", "exact", "--kl-reference", "tinkrs/nano"]);
    assert!(
        free.contains("kl_reference: it needs a `--kl-penalty`"),
        "{free}"
    );
    let both = ["train", "rl", "--grader", "exact", "--reward-model", "a"];
    let both = here.command(&both).output().unwrap();
    let both = String::from_utf8(both.stderr).unwrap();
    assert!(both.contains("cannot be used with"), "{both}");
    let old = rl(&["--grader", "exact", "--stale", "requeue"]);
    assert!(old.contains("--stale: no group can be too old"), "{old}");
    let parts = rl(&["--grader", "exact", "--substeps", "9"]);
    assert!(
        parts.contains("--substeps and --minibatches: 9 times 1"),
        "{parts}"
    );
    let beta = rl(&["--grader", "exact", "--loss", "dro"]);
    assert!(beta.contains("--dro-beta: nothing, but"), "{beta}");
    let beta = here.refused(&["train", "sft", "--adam-beta1", "3"]);
    assert!(beta.contains("`--adam-beta1`: found 3, expected"), "{beta}");
}

#[test]
fn a_run_whose_numbers_are_none_any_more_says_what_to_try() {
    let here = Here::new().with_examples();
    let config = "examples/configs/sft.toml";
    let error = here.refused(&[
        "train",
        "sft",
        "--config",
        config,
        "--learning-rate",
        "1e30",
    ]);
    assert!(
        error.contains("is NaN") && error.contains("a lower `--learning-rate`"),
        "{error}"
    );
}

#[test]
fn limits_of_a_ratio_need_a_loss_that_has_them() {
    let here = Here::new().with_examples();
    let config = "examples/configs/rl.toml";
    let error = here.refused(&["train", "rl", "--config", config, "--clip-low", "0.5"]);
    assert!(
        error.contains("--clip-low and --clip-high: for the losses ppo, cispo and gspo only"),
        "{error}"
    );
}

#[test]
fn nothing_is_billed_unless_somebody_agrees() {
    let here = Here::new().with_examples();
    // A hosted model whose tokenizer was downloaded once.
    let model = here.path(".cache/huggingface/hub/models--acme--base");
    std::fs::create_dir_all(model.join("refs")).unwrap();
    std::fs::write(model.join("refs/main"), "c0ffee").unwrap();
    tinkrs_nano::write_to(&model.join("snapshots/c0ffee")).unwrap();
    let train = [
        "train",
        "sft",
        "--config",
        "examples/configs/sft.toml",
        "--model",
        "acme/base",
    ];
    let mut command = here.command(&train);
    for variable in ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"] {
        command.env_remove(variable);
    }
    // As `tinkrs auth login` stores it.
    let store = CredentialStore::in_directory(here.path(".tinker"));
    let mut stored = StoredCredentials::default();
    stored.insert_default("7", StoredKey::manual("tml-test", "laptop"));
    store.save(&stored).unwrap();
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("hosted Tinker, billed to your key"),
        "{stderr}"
    );
    assert!(
        stderr.contains("tokens: ") && stderr.contains("trained at most"),
        "{stderr}"
    );
    assert!(
        stderr.contains("cannot ask for confirmation of the cost"),
        "{stderr}"
    );
    assert!(
        stderr.contains("hint: `--yes` continues without asking"),
        "{stderr}"
    );
    assert!(!here.path("runs").exists(), "nothing began");
}

#[test]
fn a_finished_run_costs_nothing_and_is_not_asked_about() {
    let here = Here::new().with_examples();
    // Nobody is asked anything there: it would fail, since tests have no network.
    let hosted = |arguments: &[&str]| {
        let url = "https://tinker.thinkingmachines.dev";
        let mut command = here.command(&[arguments, &["--base-url", url]].concat());
        let output = command.env("TINKER_API_KEY", "tml-test").output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    let runs = [
        ("sft", "sft", "--max-steps"),
        ("rl", "rl", "--steps"),
        ("dpo", "dpo", "--max-steps"),
        ("distill", "distill_on_policy", "--steps"),
        ("distill", "distill_prompt", "--max-steps"),
    ];
    for (recipe, file, steps) in runs {
        let file = format!("examples/configs/{file}.toml");
        let train = |steps_of_run| ["train", recipe, "--config", &file, steps, steps_of_run];
        here.ok(&train("1"));
        let (code, stderr) = hosted(&train("1"));
        assert_eq!(code, Some(0), "{file}: {stderr}");
        assert!(
            stderr.contains("this run is already finished; nothing is left to do"),
            "{file}: {stderr}"
        );
        assert!(!stderr.contains("retrying"), "{file}: {stderr}");
        let (code, stderr) = hosted(&train("2"));
        assert_eq!(code, Some(1), "{file}: {stderr}");
        assert!(
            stderr.contains("cannot ask for confirmation of the cost"),
            "{file}: {stderr}"
        );
    }
}

#[test]
fn a_run_does_not_go_on_with_another_answer_to_a_question() {
    let here = Here::new();
    let questions = |right: &str| {
        let line =
            |prompt, answer| format!("{{\"prompt\": \"{prompt}\", \"answer\": \"{answer}\"}}\n");
        here.write("questions.jsonl", &(line("a", "one") + &line("b", right)));
    };
    let train = [
        "train",
        "rl",
        "--data",
        "questions.jsonl",
        "--grader",
        "contains",
        "--run-dir",
        "run",
        "--steps",
        "1",
        "--group-size",
        "2",
        "--max-tokens",
        "4",
    ];
    questions("two");
    here.ok(&train);
    questions("three");
    let error = here.refused(&train);
    assert!(
        error.contains(
            "the run in run cannot be resumed: it began with other examples, though as many"
        ),
        "{error}"
    );
    assert!(error.contains("hint: continue with the data"), "{error}");
}
