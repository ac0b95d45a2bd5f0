//! Quantised models: every format, in both kinds of activations, keeps what the engine promises.

use std::sync::Arc;

use tinkrs_backend::{Backend, Objective, PassProgress, PassRequest, StatePart};
use tinkrs_engine::sample::{Event, SampleRequest, Sampler, SamplerSettings};
use tinkrs_engine::types::sampling::Stop;
use tinkrs_engine::types::training::OptimizerConfig;
use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn};
use tinkrs_engine::weights::{
    Dtype, GgufFile, GgufFormat, RandomWeights, StoredTensor, TensorView, WeightSource,
};
use tinkrs_engine::{
    Activations, CpuBackend, Error, Model, ModelConfig, Numerics, Precision, Threads, TrainingRun,
};

use crate::reference;

const FORMATS: [GgufFormat; 8] = [
    GgufFormat::Q4_0,
    GgufFormat::Q4_1,
    GgufFormat::Q5_0,
    GgufFormat::Q5_1,
    GgufFormat::Q8_0,
    GgufFormat::Q4K,
    GgufFormat::Q5K,
    GgufFormat::Q6K,
];

/// A model whose matrices are blocks of a format, of the size that weights have.
struct Blocks {
    inner: RandomWeights,
    format: GgufFormat,
}

impl Blocks {
    fn new(format: GgufFormat) -> Self {
        let config = ModelConfig {
            hidden: 256,
            head_dim: 64,
            ffn: 256,
            layers: 1,
            vocab: 80,
            max_context: 96,
            ..ModelConfig::tiny_qwen3()
        };
        let inner = RandomWeights::new(config, 5, Dtype::F32).unwrap();
        Self { inner, format }
    }
}

impl WeightSource for Blocks {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn precision(&self) -> Dtype {
        Dtype::F32
    }

    fn format(&self, _: &str) -> Result<GgufFormat, Error> {
        Ok(self.format)
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let plain = self.inner.tensor(name)?;
        if plain.shape().len() < 2 {
            return Ok(plain);
        }
        let mut values = vec![0.0; plain.elements()];
        self.format.dequantise(&self.blocks(&plain), &mut values);
        TensorView::from_f32(name, Dtype::F32, plain.shape().to_vec(), &values)
    }

    fn stored(&self, name: &str) -> Result<StoredTensor<'_>, Error> {
        let plain = self.inner.tensor(name)?;
        let blocks = self.blocks(&plain);
        StoredTensor::new(name, self.format, plain.shape().to_vec(), blocks)
    }
}

impl Blocks {
    /// Codes are the bits of random numbers; scales make weights of about their size.
    fn blocks(&self, plain: &TensorView<'_>) -> Vec<u8> {
        let (elements, size) = self.format.block();
        let values = plain.to_f32();
        let small = |x: f32| half::f16::from_f32(x).to_le_bytes();
        let blocks = values.chunks_exact(elements).flat_map(|values| {
            let bytes =
                (0..size).map(|i| (values[i % elements].to_bits() >> (i / elements * 8)) as u8);
            let mut block: Vec<u8> = bytes.collect();
            let (scale, addend) = match self.format {
                GgufFormat::Q8_0 => (0.0006, 0.0),
                GgufFormat::Q4_0 | GgufFormat::Q5_0 => (0.008, 0.0),
                GgufFormat::Q4_1 | GgufFormat::Q5_1 => (0.006, -0.06),
                GgufFormat::Q6K => (0.00003, 0.0),
                _ => (0.0002, 0.001),
            };
            if self.format == GgufFormat::Q6K {
                block[208..210].copy_from_slice(&small(scale));
            } else {
                block[..2].copy_from_slice(&small(scale));
            }
            if addend != 0.0 {
                block[2..4].copy_from_slice(&small(addend));
            }
            block
        });
        blocks.collect()
    }
}

fn load(source: &dyn WeightSource, numerics: impl Into<Numerics>, threads: usize) -> Arc<Model> {
    Arc::new(Model::load(source, numerics, &Threads::new(threads).unwrap()).unwrap())
}

fn lora() -> LoraConfig {
    LoraConfig {
        seed: Some(3),
        ..LoraConfig::new(4)
    }
}

fn data() -> Vec<Datum> {
    let text = |seed: u32, len: u32| -> Vec<u32> {
        (0..len)
            .map(|i| (i * 31 + seed * 17 + i * i) % 80)
            .collect()
    };
    [(1, 9), (2, 33), (3, 2)]
        .map(|(seed, len)| {
            let text = text(seed, len);
            Datum::from_prompt_completion(&text[..1], &text[1..]).unwrap()
        })
        .into()
}

/// The log-probabilities of two steps, and everything that the run holds after them.
fn train(model: &Arc<Model>) -> (Vec<Vec<f32>>, Vec<u8>) {
    let mut run = TrainingRun::lora(Arc::clone(model), &lora()).unwrap();
    let mut logprobs = Vec::new();
    for _ in 0..2 {
        let output = run
            .forward_backward(&data(), &LossFn::CrossEntropy)
            .unwrap();
        logprobs.extend((0..3).map(|datum| output.logprobs(datum).unwrap().to_vec()));
        run.optim_step(AdamParams::new(2e-2)).unwrap();
    }
    run.forward_backward(&data(), &LossFn::CrossEntropy)
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    run.state().write(&path).unwrap();
    (logprobs, std::fs::read(path).unwrap())
}

fn both_activations(format: GgufFormat) -> [(Arc<Model>, Arc<Model>, String); 2] {
    [Activations::F32, Activations::Int8].map(|activations| {
        let numerics = Numerics {
            weights: Precision::Stored,
            activations,
            ..Numerics::default()
        };
        let source = Blocks::new(format);
        let model = |threads| load(&source, numerics, threads);
        (model(1), model(3), format!("{format:?}, {activations:?}"))
    })
}

#[test]
fn with_f32_activations_training_is_that_of_the_dequantised_model_bit_for_bit() {
    for format in FORMATS {
        let source = Blocks::new(format);
        let numerics = Numerics {
            weights: Precision::Stored,
            activations: Activations::F32,
            ..Numerics::default()
        };
        let quantised = train(&load(&source, numerics, 2));
        let widened = train(&load(&source, Precision::F32, 2));
        assert!(quantised == widened, "{format:?}");
    }
}

#[test]
fn threads_and_slices_do_not_change_a_bit_of_training() {
    for format in FORMATS {
        for (one, three, case) in both_activations(format) {
            let expected = train(&one);
            assert!(expected == train(&three), "{case}: threads");
            assert!(expected.0.iter().flatten().all(|x| x.is_finite()), "{case}");

            let backend = CpuBackend::new(three);
            let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
            let mut pass = run
                .begin(PassRequest {
                    data: data(),
                    objective: Objective::BuiltIn(LossFn::CrossEntropy),
                    backward: true,
                })
                .unwrap();
            let output = loop {
                if let PassProgress::Done(output) = pass.advance(1).unwrap() {
                    break output;
                }
            };
            for datum in 0..3 {
                let sliced = output.logprobs(datum).unwrap();
                assert!(sliced == expected.0[datum], "{case}: slices");
            }
        }
    }
}

#[test]
fn a_resumed_run_continues_with_the_same_bits() {
    for (model, _, case) in both_activations(GgufFormat::Q4K) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let backend = CpuBackend::new(model);
        let step = |run: &mut dyn tinkrs_backend::TrainingRun| {
            let mut pass = run
                .begin(PassRequest {
                    data: data(),
                    objective: Objective::BuiltIn(LossFn::CrossEntropy),
                    backward: true,
                })
                .unwrap();
            while pass.advance(64).unwrap() == PassProgress::Continue {}
            drop(pass);
            run.optim_step(&AdamParams::new(1e-2).into()).unwrap();
        };
        let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
        step(&mut *run);
        run.save_state(&path).unwrap();
        let mut resumed = backend.restore(&path, StatePart::Everything).unwrap();
        let saved = [&mut run, &mut resumed].map(|run| {
            step(&mut **run);
            run.save_state(&path).unwrap();
            std::fs::read(&path).unwrap()
        });
        assert!(saved[0] == saved[1], "{case}");
    }
}

#[test]
fn sampled_log_probabilities_are_those_of_a_training_pass() {
    for format in FORMATS {
        for (_, model, case) in both_activations(format) {
            let mut run = TrainingRun::lora(Arc::clone(&model), &lora()).unwrap();
            run.forward_backward(&data(), &LossFn::CrossEntropy)
                .unwrap();
            run.optim_step(AdamParams::new(2e-2)).unwrap();
            let settings = SamplerSettings {
                prefill_tokens: 5,
                ..SamplerSettings::default()
            };
            let mut sampler = Sampler::new(Arc::clone(&model), settings);
            let weights = sampler.add_adapter(run.adapter().unwrap()).unwrap();
            let prompts = [vec![3], vec![7; 19], (0..40).collect::<Vec<u32>>()];
            let mut tickets = Vec::new();
            for prompt in &prompts {
                let mut request = SampleRequest {
                    weights,
                    num_samples: 2,
                    ..SampleRequest::new(prompt.clone(), 6)
                };
                request.params.stop = Some(Stop::Never);
                tickets.push(sampler.submit(request).unwrap());
            }
            let mut finished = 0;
            while !sampler.is_idle() {
                for event in sampler.step() {
                    let Event::Finished { ticket, output } = event else {
                        continue;
                    };
                    let at = tickets.iter().position(|known| *known == ticket);
                    let prompt = &prompts[at.unwrap()];
                    for sequence in &output.sequences {
                        let datum = Datum::from_prompt_completion(prompt, &sequence.tokens);
                        let data = [datum.unwrap()];
                        let trained = run.forward(&data, &LossFn::CrossEntropy).unwrap();
                        let expected = &trained.logprobs(0).unwrap()[prompt.len() - 1..];
                        assert!(sequence.logprobs.as_deref() == Some(expected), "{case}");
                        finished += 1;
                    }
                }
            }
            assert_eq!(finished, 6, "{case}");
        }
    }
}

#[test]
fn a_gguf_file_stays_as_it_is_stored_and_is_the_widened_model_bit_for_bit() {
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3"] {
        let file = GgufFile::open(reference::path(&format!("gguf/{name}.gguf"))).unwrap();
        let numerics = Numerics {
            weights: Precision::Stored,
            activations: Activations::F32,
            ..Numerics::default()
        };
        let (stored, widened) = (load(&file, numerics, 2), load(&file, Precision::F32, 2));
        assert!(stored.size_bytes() < widened.size_bytes() * 2 / 3, "{name}");
        assert!(train(&stored) == train(&widened), "{name}");
    }
}

#[test]
fn quantising_at_load_leaves_rows_that_are_no_whole_blocks_alone() {
    let config = ModelConfig {
        hidden: 48,
        ffn: 64,
        ..ModelConfig::tiny_llama()
    };
    let source = RandomWeights::new(config, 1, Dtype::Bf16).unwrap();
    let bytes = |precision: Precision| {
        let planned = CpuBackend::weight_bytes(&source, precision.into()).unwrap();
        assert_eq!(
            CpuBackend::new(load(&source, precision, 1)).memory(&tinkrs_backend::Need::Weights),
            planned
        );
        planned
    };
    let [stored, q8_0, q4_k] = [Precision::Stored, Precision::Q8_0, Precision::Q4K].map(bytes);
    assert!(
        q8_0 < stored && q4_k < q8_0,
        "only rows of 64 are quantised"
    );
    let described = CpuBackend::describe_source(&source, Precision::Q8_0.into()).unwrap();
    assert_eq!(
        (&*described.weight_format, &*described.activations),
        ("bf16", "f32")
    );
}
