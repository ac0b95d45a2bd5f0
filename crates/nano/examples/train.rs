//! Trains `tinkrs/nano` from nothing: makes up text, learns a vocabulary from it, and trains all
//! weights with the engine.
//!
//! ```sh
//! cargo run --release -p tinkrs-nano --example train -- FOLDER [STEPS]
//! ```
//!
//! With the default of 2600 steps it takes half an hour on two busy cores. The same number of steps
//! gives the same bits on machines of one kind.

#![expect(clippy::print_stdout, reason = "it says how far it is")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow};
use fastrand::Rng;
use serde_json::json;
use tinkrs_engine::config::{Architecture, Features, Rope};
use tinkrs_engine::weights::{Dtype, RandomWeights, TensorView, WeightSource, save_folder};
use tinkrs_engine::{Error, FullWeights, ModelConfig, Threads, TrainingRun};
use tinkrs_nano::text;
use tinkrs_types::{AdamParams, Datum, LossFn};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

const SEED: u64 = 1;
const VOCABULARY: usize = 768;
const CONVERSATIONS: usize = 48;
const LEARNING_RATE: f64 = 4e-3;
const WARM_UP: usize = 100;
/// What the user says is worth learning too, though less: it teaches the same words.
const PROMPT_WEIGHT: f32 = 0.1;

const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
const PAD: &str = "<|endoftext|>";

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().context("usage: train FOLDER [STEPS]")?);
    let steps: usize = match args.next() {
        Some(steps) => steps.parse().context("STEPS is not a number")?,
        None => 2600,
    };
    std::fs::create_dir_all(&folder)?;
    let tokenizer = learn_vocabulary(&folder)?;
    let config = shape(&tokenizer)?;
    let source = RandomWeights::new(config, SEED, Dtype::F32)?;
    let mut run = TrainingRun::full(&source, &Threads::all_cores()?)?;
    println!("{} weights", run.parameters());

    let mut random = Rng::with_seed(SEED);
    let start = Instant::now();
    let mut tokens = 0;
    for step in 0..steps {
        let batch = (0..CONVERSATIONS).map(|_| datum(&tokenizer, &mut random));
        let batch = batch.collect::<anyhow::Result<Vec<_>>>()?;
        let weight: f32 = batch.iter().map(weight).sum();
        tokens += batch
            .iter()
            .filter_map(|datum| datum.model_input().len())
            .sum::<usize>();
        let output = run.forward_backward(&batch, &LossFn::CrossEntropy)?;
        let params = AdamParams {
            beta2: 0.98,
            weight_decay: 0.01,
            grad_clip_norm: 1.0 * f64::from(weight),
            ..AdamParams::new(learning_rate(step, steps))
        };
        run.optim_step(params)?;
        if step % 50 == 49 || step + 1 == steps {
            let loss = output.metrics.get("loss:sum").copied().unwrap_or(f64::NAN);
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "step {:5}  loss {:.4}  {:.0} tokens/s  {seconds:.0} s",
                step + 1,
                loss / f64::from(weight),
                tokens as f64 / seconds,
            );
        }
    }
    let weights = run
        .full_weights()
        .ok_or_else(|| anyhow!("every weight was trained"))?;
    save_folder(&Halved(weights), &folder)?;
    println!("saved {}", folder.display());
    Ok(())
}

/// Learns pieces of words from made-up text, and writes the tokenizer.
fn learn_vocabulary(folder: &Path) -> anyhow::Result<Tokenizer> {
    let failed = |error: tokenizers::Error| anyhow!("the tokenizer failed: {error}");
    let special = [PAD, START, END].map(|text| AddedToken::from(text, true));
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)))
        .with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(VOCABULARY)
        .special_tokens(special.to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut trainer = TrainerWrapper::from(trainer);
    let mut random = Rng::with_seed(SEED + 1);
    let text: Vec<String> = (0..20_000)
        .flat_map(|_| text::exchange(&mut random))
        .chain(["user\n", "assistant\n", "system\n"].map(|role| role.repeat(1000)))
        .collect();
    tokenizer
        .train(&mut trainer, text.into_iter())
        .map_err(failed)?;
    tokenizer
        .save(folder.join("tokenizer.json"), false)
        .map_err(failed)?;
    let template = format!(
        "{{% for message in messages %}}{{{{ '{START}' + message['role'] + '\\n' + message['content'] + '{END}\\n' }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '{START}assistant\\n' }}}}{{% endif %}}"
    );
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD,
        "clean_up_tokenization_spaces": false, "model_max_length": 512, "chat_template": template,
    });
    let settings = serde_json::to_string_pretty(&settings)?;
    std::fs::write(folder.join("tokenizer_config.json"), settings + "\n")?;
    Ok(tokenizer)
}

fn shape(tokenizer: &Tokenizer) -> anyhow::Result<ModelConfig> {
    let end = tokenizer
        .token_to_id(END)
        .context("the vocabulary has an end")?;
    Ok(ModelConfig {
        architecture: Architecture::Llama,
        hidden: 192,
        layers: 4,
        heads: 6,
        kv_heads: 2,
        head_dim: 32,
        ffn: 512,
        vocab: tokenizer.get_vocab_size(true),
        max_context: 512,
        rms_eps: 1e-5,
        rope: Rope::plain(10_000.0),
        tied_head: true,
        qkv_bias: false,
        attention_output_bias: false,
        qk_norm: false,
        bos: None,
        eos: vec![end],
        features: Features::default(),
    })
}

/// Writes a made-up conversation as the chat template does, with more weight on the answers.
fn datum(tokenizer: &Tokenizer, random: &mut Rng) -> anyhow::Result<Datum> {
    let (mut tokens, mut weights) = (Vec::new(), Vec::new());
    let mut write = |text: &str, weight: f32| {
        let encoded = tokenizer.encode(text, false);
        let encoded = encoded.map_err(|error| anyhow!("the tokenizer failed: {error}"))?;
        tokens.extend_from_slice(encoded.get_ids());
        weights.resize(tokens.len(), weight);
        anyhow::Ok(())
    };
    for [question, answer] in text::conversation(random) {
        write(&format!("{START}user\n"), 0.0)?;
        write(&question, PROMPT_WEIGHT)?;
        write(&format!("{END}\n{START}assistant\n"), 0.0)?;
        write(&answer, 1.0)?;
        write(END, 1.0)?;
        write("\n", 0.0)?;
    }
    // Each position predicts the next token.
    let targets: Vec<i64> = tokens[1..].iter().copied().map(i64::from).collect();
    Ok(Datum::supervised(
        &tokens[..targets.len()],
        targets,
        weights.split_off(1),
    )?)
}

fn weight(datum: &Datum) -> f32 {
    let weights = datum.weights().and_then(|weights| weights.as_f32());
    weights.unwrap_or_default().iter().sum()
}

/// Rises for a while, then falls along a cosine.
fn learning_rate(step: usize, steps: usize) -> f64 {
    let warm = ((step + 1) as f64 / WARM_UP as f64).min(1.0);
    let way = step as f64 / steps as f64;
    LEARNING_RATE * warm * (0.02 + 0.98 * 0.5 * (1.0 + (std::f64::consts::PI * way).cos()))
}

/// Weights in half as many bytes.
struct Halved(FullWeights);

impl WeightSource for Halved {
    fn config(&self) -> &ModelConfig {
        self.0.config()
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let tensor = self.0.tensor(name)?;
        let (shape, values) = (tensor.shape().to_vec(), tensor.to_f32());
        TensorView::from_f32(name, Dtype::Bf16, shape, &values)
    }

    fn precision(&self) -> Dtype {
        Dtype::Bf16
    }
}
