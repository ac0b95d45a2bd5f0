//! Gradients of whole models, exactness, and what happens to bad input.

mod reference;

use std::sync::Arc;

use proptest::prelude::*;
use tinkrs_types::training::ClipBounds;
use tinkrs_types::{AdamParams, Datum, InvalidInput, LoraConfig, LossFn, ModelInput, TensorData};

use super::*;
use crate::ModelConfig;
use crate::kernels::check;
use crate::loss::{CustomLoss, CustomOutput};
use crate::weights::{Dtype, RandomWeights};
use reference::Reference;

fn source(config: &ModelConfig) -> RandomWeights {
    RandomWeights::new(config.clone(), 3, Dtype::F32).unwrap()
}

fn model(config: &ModelConfig, threads: usize) -> Arc<Model> {
    let source = RandomWeights::new(config.clone(), 3, Dtype::Bf16).unwrap();
    Arc::new(Model::load(&source, Precision::Stored, &Threads::new(threads).unwrap()).unwrap())
}

fn lora(config: &ModelConfig, threads: usize) -> TrainingRun {
    let settings = LoraConfig {
        seed: Some(11),
        ..LoraConfig::new(4)
    };
    let mut run = TrainingRun::lora(model(config, threads), &settings).unwrap();
    randomise(&mut run);
    run
}

/// Moves `B` away from zero, where most gradients of `A` would vanish.
fn randomise(run: &mut TrainingRun) {
    for (number, values) in run.values.iter_mut().enumerate() {
        let noise = check::values(values.len(), number as u64 + 1);
        Arc::make_mut(values)
            .iter_mut()
            .zip(noise)
            .for_each(|(value, noise)| *value += 0.05 * noise);
    }
    run.repack().unwrap();
}

fn tokens(len: usize, seed: usize) -> Vec<u32> {
    (0..len)
        .map(|i| ((i * 31 + seed * 17 + i * i * 7) % 96) as u32)
        .collect()
}

fn datum(len: usize, seed: usize) -> Datum {
    let targets: Vec<i64> = tokens(len, seed + 1).into_iter().map(i64::from).collect();
    let weights: Vec<f32> = (0..len)
        .map(|i| {
            if (i + seed).is_multiple_of(4) {
                0.0
            } else {
                0.5 + (i % 3) as f32 * 0.25
            }
        })
        .collect();
    Datum::supervised(ModelInput::from_tokens(tokens(len, seed)), targets, weights).unwrap()
}

fn policy_datum(len: usize, seed: usize) -> Datum {
    let targets: Vec<i64> = tokens(len, seed + 1).into_iter().map(i64::from).collect();
    let logprobs: Vec<f32> = check::values(len, seed as u64 + 9)
        .iter()
        .map(|x| -4.5 + x)
        .collect();
    let advantages = check::values(len, seed as u64 + 5);
    Datum::reinforcement(
        ModelInput::from_tokens(tokens(len, seed)),
        targets,
        logprobs,
        advantages,
    )
    .unwrap()
}

/// Compares some elements of every gradient with differences of the reference in double precision.
fn compare_with_reference(
    run: &mut TrainingRun,
    reference: &mut Reference,
    data: &[Datum],
    what: &str,
) {
    let output = run.forward_backward(data, &LossFn::CrossEntropy).unwrap();
    let expected = reference.loss(data);
    let loss = output.loss().unwrap();
    assert!(
        (loss - expected).abs() < 1e-4 * expected.abs(),
        "{what}: loss {loss} instead of {expected}"
    );
    let mut sums = run.gradients.clone();
    if run.slots.tied {
        let head = sums.pop().unwrap();
        sums[run.slots.embedding.unwrap()]
            .iter_mut()
            .zip(head)
            .for_each(|(sum, head)| *sum += head);
    }
    for (tensor, sum) in run.slots.tensors.iter().zip(&sums) {
        for index in (0..sum.len()).step_by((sum.len() / 5).max(1)) {
            let expected = reference.derivative(&tensor.name, index, data);
            let got = f64::from(sum[index]);
            let tolerance = 2e-4 + 1e-3 * expected.abs();
            assert!(
                (got - expected).abs() < tolerance,
                "{what} {}[{index}]: {got} instead of {expected}",
                tensor.name
            );
        }
    }
}

#[test]
fn lora_gradients_match_finite_differences_for_every_architecture() {
    for config in ModelConfig::tiny_models() {
        let settings = LoraConfig {
            seed: Some(5),
            ..LoraConfig::new(3)
        };
        let threads = Threads::new(2).unwrap();
        let base = Arc::new(Model::load(&source(&config), Precision::Stored, &threads).unwrap());
        let mut run = TrainingRun::lora(base, &settings).unwrap();
        randomise(&mut run);
        let mut reference = Reference::new(&source(&config), &run);
        let data = [datum(9, 1), datum(21, 2)];
        compare_with_reference(
            &mut run,
            &mut reference,
            &data,
            &format!("{:?}", config.architecture),
        );
    }
}

#[test]
fn full_gradients_match_finite_differences_for_every_architecture() {
    for config in ModelConfig::tiny_models() {
        let mut run = TrainingRun::full(&source(&config), &Threads::new(2).unwrap()).unwrap();
        let mut reference = Reference::new(&source(&config), &run);
        let data = [datum(17, 3), datum(6, 4)];
        compare_with_reference(
            &mut run,
            &mut reference,
            &data,
            &format!("{:?}", config.architecture),
        );
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for config in ModelConfig::tiny_models() {
        let run = |threads| {
            let mut run = lora(&config, threads);
            let data = [datum(70, 1), datum(3, 2), datum(40, 3)];
            let first = run.forward_backward(&data, &LossFn::CrossEntropy).unwrap();
            run.optim_step(AdamParams::new(1e-2)).unwrap();
            let second = run
                .forward_backward(&[policy_datum(50, 4)], LossFn::Ppo(ClipBounds::default()))
                .unwrap();
            (first, second, run.state())
        };
        let one = run(1);
        for threads in [2, 3] {
            assert!(
                run(threads) == one,
                "{threads} threads, {:?}",
                config.architecture
            );
        }
    }
}

#[test]
fn gradients_do_not_depend_on_how_datums_are_batched() {
    let data = [datum(70, 1), datum(3, 2), datum(40, 3), datum(1, 7)];
    let configs = ModelConfig::tiny_models();
    let full = |config| TrainingRun::full(&source(config), &Threads::new(2).unwrap()).unwrap();
    let starts: Vec<Box<dyn Fn() -> TrainingRun>> = configs
        .iter()
        .flat_map(|config| -> [Box<dyn Fn() -> TrainingRun>; 2] {
            [Box::new(|| lora(config, 2)), Box::new(|| full(config))]
        })
        .collect();
    for start in starts {
        let mut together = start();
        let whole = together
            .forward_backward(&data, &LossFn::CrossEntropy)
            .unwrap();
        let mut apart = start();
        for (index, datum) in data.iter().enumerate() {
            let alone = apart
                .forward_backward(std::slice::from_ref(datum), &LossFn::CrossEntropy)
                .unwrap();
            assert_eq!(alone.logprobs(0), whole.logprobs(index), "datum {index}");
        }
        assert!(together.state() == apart.state());
    }
}

#[test]
fn a_state_saved_in_the_middle_of_accumulation_goes_on_bit_for_bit() {
    for config in ModelConfig::tiny_models() {
        a_saved_state_goes_on(&config);
    }
}

fn a_saved_state_goes_on(config: &ModelConfig) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let full = || TrainingRun::full(&source(config), &Threads::new(2).unwrap()).unwrap();
    for start in [&(|| lora(config, 2)) as &dyn Fn() -> TrainingRun, &full] {
        let mut run = start();
        run.forward_backward(&[datum(20, 1)], &LossFn::CrossEntropy)
            .unwrap();
        run.optim_step(AdamParams::new(3e-3)).unwrap();
        run.forward_backward(&[datum(9, 2)], &LossFn::CrossEntropy)
            .unwrap();
        run.state().write(&path).unwrap();
        let go_on = |run: &mut TrainingRun| {
            let output = run
                .forward_backward(&[datum(30, 3)], &LossFn::CrossEntropy)
                .unwrap();
            let step = run.optim_step(AdamParams::new(3e-3)).unwrap();
            (output, step, run.state())
        };
        let mut again = start();
        again.restore(&TrainState::read(&path).unwrap()).unwrap();
        assert!(go_on(&mut run) == go_on(&mut again));
        assert_eq!(again.steps(), 2);
    }
}

#[test]
fn a_sampler_sees_the_log_probabilities_of_training_bit_for_bit() {
    use crate::kernels::softmax::log_sum_exp;
    use crate::{KvCache, SequenceInput};
    for config in ModelConfig::tiny_models() {
        let run = lora(&config, 2);
        let datum = datum(75, 5);
        let output = run
            .forward(std::slice::from_ref(&datum), &LossFn::CrossEntropy)
            .unwrap();
        let (adapter, input) = (run.adapter().unwrap(), tokens(75, 5));
        let mut cache = KvCache::new(run.model());
        for (position, &target) in tokens(75, 6).iter().enumerate() {
            let next = SequenceInput {
                adapter: Some(&adapter),
                ..SequenceInput::new(&mut cache, &input[position..=position])
            };
            let hidden = run.model().step(&mut [next]).unwrap();
            let logits = run.model().logits(&hidden, 0..1);
            let logprob = logits[target as usize] - log_sum_exp(&logits);
            assert_eq!(
                logprob,
                output.logprobs(0).unwrap()[position],
                "position {position}"
            );
        }
    }
}

#[test]
fn the_loss_falls_for_adapters_and_for_all_weights() {
    let config = ModelConfig::tiny_qwen3();
    let data = [datum(24, 1), datum(24, 2)];
    let full = TrainingRun::full(&source(&config), &Threads::new(2).unwrap()).unwrap();
    for mut run in [lora(&config, 2), full] {
        let loss = |run: &TrainingRun| {
            run.forward(&data, &LossFn::CrossEntropy)
                .unwrap()
                .loss()
                .unwrap()
        };
        let before = loss(&run);
        for _ in 0..20 {
            run.forward_backward(&data, &LossFn::CrossEntropy).unwrap();
            let metrics = run
                .optim_step(AdamParams::new(1e-2))
                .unwrap()
                .metrics
                .unwrap();
            assert!(metrics["grad_norm"] > 0.0 && metrics["update_norm"] > 0.0);
            let numbers_of_loops = ["step", "epoch", "loss", "learning_rate"];
            assert!(
                numbers_of_loops
                    .iter()
                    .all(|name| !metrics.contains_key(*name))
            );
        }
        let after = loss(&run);
        assert!(
            after < 0.5 * before,
            "the loss went from {before} to {after}"
        );
    }
}

#[test]
fn every_loss_trains_and_agrees_with_forward() {
    let losses = [
        LossFn::ImportanceSampling,
        LossFn::Ppo(ClipBounds::default()),
        LossFn::Cispo(ClipBounds::default()),
        LossFn::Dro { beta: Some(0.05) },
        LossFn::Gspo(ClipBounds::default()),
    ];
    for loss in losses {
        let mut run = lora(&ModelConfig::tiny_llama(), 2);
        let mut datum = policy_datum(12, 3);
        if matches!(loss, LossFn::Gspo(_)) {
            datum = datum
                .with_input("sequence_ratio_mask", vec![1.0f32; 12])
                .unwrap();
        }
        let forward = run.forward(std::slice::from_ref(&datum), &loss).unwrap();
        let both = run
            .forward_backward(std::slice::from_ref(&datum), &loss)
            .unwrap();
        assert_eq!(forward, both, "{loss:?}");
        assert!(
            run.gradients.iter().flatten().any(|&g| g != 0.0),
            "{loss:?}"
        );
    }
}

/// Importance sampling, written by somebody else.
#[derive(Debug)]
struct Ratio;

impl CustomLoss for Ratio {
    fn check(&self, datum: &Datum) -> Result<(), InvalidInput> {
        match datum.loss_fn_inputs().get("advantages") {
            Some(_) => Ok(()),
            None => Err(InvalidInput::new("advantages", "nothing", "a tensor")),
        }
    }

    fn evaluate(&self, logprobs: &[f32], datum: &Datum) -> Result<CustomOutput, String> {
        let tensor = |name: &str| datum.loss_fn_inputs()[name].as_f32().unwrap().to_vec();
        let (old, advantages) = (tensor("logprobs"), tensor("advantages"));
        let terms = logprobs.iter().zip(old).zip(advantages);
        let gradient: Vec<f64> = terms
            .map(|((lp, old), advantage)| {
                -(f64::from(*lp) - f64::from(old)).exp() * f64::from(advantage)
            })
            .collect();
        Ok(CustomOutput {
            loss: gradient.iter().sum(),
            gradient,
            metrics: vec![("custom/one:mean".to_owned(), 1.0)],
        })
    }
}

#[test]
fn a_custom_loss_trains_as_a_known_one_does() {
    let data = [policy_datum(12, 3), policy_datum(7, 4)];
    let (mut known, mut custom) = (
        lora(&ModelConfig::tiny_llama(), 2),
        lora(&ModelConfig::tiny_llama(), 2),
    );
    let expected = known
        .forward_backward(&data, &LossFn::ImportanceSampling)
        .unwrap();
    let forward = custom
        .forward(&data, Objective::Custom(Arc::new(Ratio)))
        .unwrap();
    let both = custom
        .forward_backward(&data, Objective::Custom(Arc::new(Ratio)))
        .unwrap();
    assert_eq!(forward, both);
    assert_eq!(both.records, expected.records);
    assert_eq!(both.loss(), expected.loss());
    assert_eq!(both.metrics["custom/one:mean"], 1.0);
    assert_eq!(custom.gradients, known.gradients);
    let error = custom
        .forward_backward(&[datum(8, 1)], Objective::Custom(Arc::new(Ratio)))
        .unwrap_err();
    assert!(
        error.to_string().contains("datum 0: `advantages`"),
        "{error}"
    );
    assert_eq!(custom.gradients, known.gradients);
}

#[test]
fn several_candidates_a_position_equal_one_datum_for_each() {
    let run = || lora(&ModelConfig::tiny_llama3(), 2);
    let (len, input) = (10, ModelInput::from_tokens(tokens(10, 1)));
    let columns = [tokens(len, 2), tokens(len, 3), tokens(len, 4)];
    let weights: Vec<f32> = check::values(3 * len, 8);
    let wide: Vec<i64> = (0..3 * len)
        .map(|i| i64::from(columns[i % 3][i / 3]))
        .collect();
    let shaped = |values: TensorData| values;
    let wide = Datum::new(
        input.clone(),
        BTreeMap::from([
            (
                "target_tokens".to_owned(),
                shaped(TensorData::with_shape(wide, vec![len, 3]).unwrap()),
            ),
            (
                "weights".to_owned(),
                shaped(TensorData::with_shape(weights.clone(), vec![len, 3]).unwrap()),
            ),
        ]),
    )
    .unwrap();
    let mut together = run();
    let output = together
        .forward_backward(&[wide], &LossFn::CrossEntropy)
        .unwrap();
    let (field, index) = output.field(0, "logprobs").unwrap();
    assert_eq!(field.shape(index), Some(vec![len, 3]));
    let mut apart = run();
    for (k, column) in columns.iter().enumerate() {
        let targets: Vec<i64> = column.iter().map(|&token| i64::from(token)).collect();
        let weights: Vec<f32> = (0..len).map(|i| weights[3 * i + k]).collect();
        let one = Datum::supervised(input.clone(), targets, weights).unwrap();
        let alone = apart
            .forward_backward(&[one], &LossFn::CrossEntropy)
            .unwrap();
        let expected: Vec<f32> = output
            .logprobs(0)
            .unwrap()
            .iter()
            .skip(k)
            .step_by(3)
            .copied()
            .collect();
        assert_eq!(alone.logprobs(0).unwrap(), expected, "candidate {k}");
    }
    for (a, b) in together
        .gradients
        .iter()
        .flatten()
        .zip(apart.gradients.iter().flatten())
    {
        assert!((a - b).abs() < 1e-4 + 1e-3 * b.abs(), "{a} and {b}");
    }
}

#[test]
fn bad_input_is_named_and_leaves_the_run_as_it_was() {
    let mut run = lora(&ModelConfig::tiny_llama(), 2);
    run.forward_backward(&[datum(9, 1)], &LossFn::CrossEntropy)
        .unwrap();
    let before = run.state();
    let good = datum(5, 2);
    let supervised = |tokens: Vec<u32>, targets: Vec<i64>, weights: Vec<f32>| {
        Datum::supervised(ModelInput::from_tokens(tokens), targets, weights).unwrap()
    };
    let cases = [
        (
            supervised(vec![1, 200], vec![1, 2], vec![1.0; 2]),
            "datum 1, position 1: token 200",
        ),
        (
            supervised(vec![1, 2], vec![1, -5], vec![1.0; 2]),
            "datum 1, position 1: token -5",
        ),
        (
            supervised(vec![1, 2], vec![1, 2], vec![1.0, f32::NAN]),
            "datum 1, position 1: weights",
        ),
        (supervised(vec![], vec![], vec![]), "datum 1 has no tokens"),
        (
            supervised(vec![1; 129], vec![1; 129], vec![1.0; 129]),
            "datum 1 needs 129 tokens",
        ),
    ];
    for (bad, message) in cases {
        let error = run
            .forward_backward(&[good.clone(), bad], &LossFn::CrossEntropy)
            .unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(run.state() == before, "{message}");
    }
    let overflow = policy_datum(4, 1)
        .with_input("logprobs", vec![-1e30f32; 4])
        .unwrap();
    let error = run.forward_backward(&[good, overflow], &LossFn::ImportanceSampling);
    assert!(error.is_err());
    assert!(run.state() == before);
    let error = run.optim_step(AdamParams {
        beta1: 1.5,
        ..AdamParams::new(1e-3)
    });
    assert!(error.is_err());
    assert!(run.state() == before);
}

#[test]
fn a_gradient_that_overflows_names_its_tensor_and_changes_nothing() {
    let mut run = lora(&ModelConfig::tiny_llama(), 1);
    let before = run.state();
    let huge = Datum::supervised(
        ModelInput::from_tokens(tokens(4, 1)),
        vec![1, 2, 3, 4],
        vec![f32::MAX; 4],
    )
    .unwrap();
    let error = run
        .forward_backward(&[huge], &LossFn::CrossEntropy)
        .unwrap_err()
        .to_string();
    assert!(error.contains("gradient of"), "{error}");
    assert!(run.state() == before);
}

#[test]
fn a_peft_adapter_goes_out_and_comes_back() {
    let run = lora(&ModelConfig::tiny_qwen3(), 1);
    let exported = run.to_peft("base").unwrap();
    let again = TrainingRun::from_peft(Arc::clone(run.model()), &exported).unwrap();
    assert_eq!(again.to_peft("base").unwrap(), exported);
    let data = [datum(12, 3)];
    let loss = LossFn::CrossEntropy;
    assert_eq!(
        run.forward(&data, &loss).unwrap(),
        again.forward(&data, &loss).unwrap()
    );
}

#[test]
fn a_state_alone_is_enough_to_go_on() {
    // Layers, rank and alpha that no `LoraConfig` describes.
    let mut exported = lora(&ModelConfig::tiny_qwen3(), 1).to_peft("base").unwrap();
    exported
        .layers
        .retain(|name, _| name.contains("v_proj") || name.contains("1.mlp.up"));
    exported.alpha = 7.5;
    let model = model(&ModelConfig::tiny_qwen3(), 1);
    let mut run = TrainingRun::from_peft(Arc::clone(&model), &exported).unwrap();
    let step = |run: &mut TrainingRun| {
        let output = run.forward_backward(&[datum(12, 3)], &LossFn::CrossEntropy);
        run.optim_step(AdamParams::new(1e-2)).unwrap();
        output.unwrap()
    };
    step(&mut run);
    run.forward_backward(&[datum(5, 1)], &LossFn::CrossEntropy)
        .unwrap();
    let mut again = TrainingRun::from_state(Arc::clone(&model), &run.state()).unwrap();
    assert!(again.state() == run.state());
    assert_eq!(step(&mut again), step(&mut run));
    assert_eq!(again.to_peft("base"), run.to_peft("base"));

    let other = self::model(&ModelConfig::tiny_llama(), 1);
    assert!(TrainingRun::from_state(other, &run.state()).is_err());
}

#[test]
fn a_new_adapter_changes_nothing_and_depends_on_its_seed() {
    let base = model(&ModelConfig::tiny_llama(), 1);
    let run = |seed| {
        TrainingRun::lora(
            Arc::clone(&base),
            &LoraConfig {
                seed: Some(seed),
                ..LoraConfig::new(8)
            },
        )
        .unwrap()
    };
    assert!(run(1).state() == run(1).state());
    assert!(run(1).state() != run(2).state());
    let loss = |run: TrainingRun| run.forward(&[datum(8, 1)], &LossFn::CrossEntropy).unwrap();
    assert_eq!(loss(run(1)), loss(run(2)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn log_probabilities_of_a_datum_ignore_its_neighbours(lengths in prop::collection::vec(1_usize..90, 1..6)) {
        let run = lora(&ModelConfig::tiny_qwen2(), 2);
        let data: Vec<Datum> = lengths.iter().enumerate().map(|(seed, &len)| datum(len, seed)).collect();
        let together = run.forward(&data, &LossFn::CrossEntropy).unwrap();
        for (index, datum) in data.iter().enumerate() {
            let alone = run.forward(std::slice::from_ref(datum), &LossFn::CrossEntropy).unwrap();
            prop_assert_eq!(alone.logprobs(0), together.logprobs(index));
        }
    }
}
