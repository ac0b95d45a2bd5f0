//! Settings in files.

use serde_json::{Value, json};
use tinkrs_recipes::distill::{OffPolicyConfig, OnPolicyConfig, PromptConfig};
use tinkrs_recipes::rl::PolicyLoss;
use tinkrs_recipes::{Decay, Schedule, dpo, reward, rl, sft};

#[test]
fn a_file_needs_only_the_model_and_says_no_to_typos() {
    let file = "[adapter]\nbase_model = \"tiny\"\n";
    assert_eq!(
        toml::from_str::<sft::Config>(file).unwrap(),
        sft::Config::new("tiny")
    );
    assert_eq!(
        toml::from_str::<rl::Config>(file).unwrap(),
        rl::Config::new("tiny")
    );
    assert_eq!(
        toml::from_str::<dpo::Config>(file).unwrap(),
        dpo::Config::new("tiny")
    );
    assert_eq!(
        toml::from_str::<OnPolicyConfig>(file).unwrap(),
        OnPolicyConfig::new("tiny")
    );
    assert_eq!(
        toml::from_str::<OffPolicyConfig>(file).unwrap(),
        OffPolicyConfig::new("tiny")
    );
    assert_eq!(
        toml::from_str::<reward::Config>(file).unwrap(),
        reward::Config::new("tiny")
    );
    let told = format!("instructions = \"Rhyme.\"\n{file}");
    assert_eq!(
        toml::from_str::<PromptConfig>(&told).unwrap(),
        PromptConfig::new("tiny", "Rhyme.")
    );

    let typo = format!("bach_size = 3\n{file}");
    let error = toml::from_str::<sft::Config>(&typo)
        .unwrap_err()
        .to_string();
    assert!(error.contains("bach_size"), "{error}");
    let typo = format!("{file}rang = 3\n");
    assert!(
        toml::from_str::<rl::Config>(&typo)
            .unwrap_err()
            .to_string()
            .contains("rang")
    );
}

#[test]
fn nested_settings_are_read() {
    let file = "steps = 3\nloss = { ppo = { low = 0.9, high = 1.1 } }\nbaseline = \"group_normalized\"\n\
        [adapter]\nbase_model = \"tiny\"\nrank = 8\n\
        [learning_rate]\npeak = 0.5\ndecay = \"cosine\"\n";
    let config: rl::Config = toml::from_str(file).unwrap();
    assert_eq!((config.policy.steps, config.adapter.rank), (3, Some(8)));
    assert_eq!(config.policy.loss, PolicyLoss::ppo(0.9, 1.1));
    assert_eq!(
        config.learning_rate,
        Schedule {
            decay: Decay::Cosine,
            ..Schedule::new(0.5)
        }
    );
}

/// The `config.json` of a supervised and of a reinforcement run, as written before 0.1.
fn stored() -> [Value; 2] {
    let adapter = json!({"base_model": "tiny", "rank": 4, "seed": 0});
    let rate = json!({"peak": 0.01, "warmup_steps": 0, "decay": "linear", "floor": 0.0});
    let adam = json!({"learning_rate": 0.0001, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
        "weight_decay": 0.0, "grad_clip_norm": 0.0});
    let sft = json!({"adapter": adapter, "learning_rate": rate, "batch_size": 3, "epochs": 2,
        "max_steps": null, "seed": 7, "checkpoint_every": 2, "eval_every": 20, "adam": adam});
    let rl = json!({"adapter": adapter, "learning_rate": rate, "steps": 3, "problems_per_step": 2,
        "group_size": 4, "max_staleness": 1, "baseline": "group_mean",
        "loss": {"cispo": {"low": 0.9, "high": 1.1}}, "kl_penalty": 0.0, "seed": 7,
        "checkpoint_every": 20, "adam": adam});
    [sft, rl]
}

/// Takes the settings away that came later.
fn without_newer(mut settings: Value) -> Value {
    let settings_now = settings.as_object_mut().unwrap();
    let newer = [
        ("checkpoint_seconds", json!(60.0)),
        ("keep_last", json!(0)),
        ("early_stop", json!(0)),
        ("keep_best", json!(false)),
    ];
    for (name, default) in newer {
        assert_eq!(settings_now.remove(name), Some(default));
    }
    settings
}

#[test]
fn the_settings_in_older_run_folders_can_be_read() {
    let [sft, rl] = stored();
    let config: sft::Config = serde_json::from_value(sft.clone()).unwrap();
    let mut expected = sft::Config::new("tiny");
    expected.adapter.rank = Some(4);
    expected.learning_rate = Schedule::new(0.01);
    expected.passes.batch_size = 3;
    expected.passes.epochs = 2;
    (expected.seed, expected.checkpoint_every) = (7, 2);
    assert_eq!(config, expected);
    // What is written has the same shape, without the optimizer's own learning rate: it was never used.
    let mut written = without_newer(serde_json::to_value(&config).unwrap());
    written["adam"]["learning_rate"] = json!(0.0001);
    assert_eq!(written, sft);

    let config: rl::Config = serde_json::from_value(rl.clone()).unwrap();
    assert_eq!(config.policy.loss, PolicyLoss::cispo(0.9, 1.1));
    let mut written = without_newer(serde_json::to_value(&config).unwrap());
    let of_policies = [
        ("eval_every", json!(20)),
        ("kl_discount", json!(0.0)),
        ("asynchronous", json!(false)),
        ("stale", json!("drop")),
        ("substeps", json!(1)),
        ("minibatches", json!(1)),
        ("max_turns", json!(0)),
        ("max_episode_tokens", json!(0)),
        ("episode_timeout", json!(0.0)),
        ("episode_retries", json!(0)),
        ("min_group_size", json!(0)),
        ("transcripts", json!(0)),
    ];
    for (name, default) in of_policies {
        let newer = written.as_object_mut().unwrap().remove(name);
        assert_eq!(newer, Some(default), "{name}");
    }
    assert_eq!(
        written["loss"],
        json!({"kind": "cispo", "low": 0.9, "high": 1.1, "beta": null})
    );
    written["adam"]["learning_rate"] = json!(0.0001);
    written["loss"] = rl["loss"].clone();
    assert_eq!(written, rl);
}

#[test]
fn settings_that_contradict_each_other_are_refused_by_name() {
    let wrong = |change: fn(&mut rl::Config)| {
        let mut config = rl::Config::new("tiny");
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(
        wrong(|config| (config.policy.substeps, config.policy.minibatches) = (3, 3)),
        "substeps and minibatches: 3 times 3, but a step has groups of 8 problems"
    );
    assert_eq!(
        wrong(|config| (config.policy.substeps, config.policy.minibatches) = (usize::MAX, 2)),
        format!(
            "substeps and minibatches: {} times 2, but a step has groups of 8 problems",
            usize::MAX
        )
    );
    assert_eq!(
        wrong(|config| config.policy.substeps = 0),
        "substeps: 0, expected 1 or more"
    );
    assert_eq!(
        wrong(|config| config.policy.stale = rl::Stale::Requeue),
        "stale: no group can be too old without `asynchronous`"
    );
    assert_eq!(
        wrong(|config| config.kl_discount = 0.5),
        "kl_penalty: 0, but a reference or a discount is given"
    );
    assert_eq!(
        wrong(|config| (config.kl_penalty, config.kl_discount) = (0.1, 1.5)),
        "kl_discount: 1.5, expected 0 to 1"
    );
}
