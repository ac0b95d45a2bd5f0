//! Settings in files.

use tinkrs_recipes::{Decay, Schedule, dpo, rl, sft};

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
    assert_eq!((config.steps, config.adapter.rank), (3, 8));
    assert_eq!(
        config.loss,
        rl::PolicyLoss::Ppo {
            low: 0.9,
            high: 1.1
        }
    );
    assert_eq!(
        config.learning_rate,
        Schedule {
            decay: Decay::Cosine,
            ..Schedule::new(0.5)
        }
    );
}
