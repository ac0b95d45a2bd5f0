//! Trains an adapter for a few steps, saves it for PEFT, and writes the logits it gives.
//!
//! ```text
//! export_adapter MODEL FOLDER
//! ```
//!
//! MODEL is a Hugging Face folder. FOLDER gets `adapter/` and `logits.safetensors`, which
//! `tests/reference/check_peft.py` compares with what `peft` computes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use safetensors::tensor::{Dtype, TensorView};
use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn};
use tinkrs_engine::weights::HuggingFaceFolder;
use tinkrs_engine::{KvCache, Model, Precision, SequenceInput, Threads, TrainingRun, peft};

const STEPS: usize = 5;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target] = &arguments[..] else {
        anyhow::bail!("usage: export_adapter MODEL FOLDER");
    };
    let target = Path::new(target);
    let source = HuggingFaceFolder::open(source).context("could not open the model")?;
    let model = Arc::new(Model::load(&source, Precision::F32, &Threads::new(2)?)?);

    let vocab = model.config().vocab as u32;
    let tokens: Vec<u32> = (0..24).map(|i| (i * i * 7 + 3) % vocab).collect();
    let datum = Datum::from_prompt_completion(&tokens[..4], &tokens[4..])?;
    let mut run = TrainingRun::lora(Arc::clone(&model), &LoraConfig::new(8))?;
    for _ in 0..STEPS {
        run.forward_backward(std::slice::from_ref(&datum), &LossFn::CrossEntropy)?;
        run.optim_step(AdamParams::new(1e-2))?;
    }

    let adapter = run.to_peft("trained by tinkrs").context("not a LoRA run")?;
    peft::save(&target.join("adapter"), &adapter, model.config())?;

    let packed = run.adapter().context("not a LoRA run")?;
    let mut cache = KvCache::new(&model);
    let hidden = model.step(&mut [SequenceInput {
        cache: &mut cache,
        tokens: &tokens,
        adapter: Some(&packed),
        wanted: 0..tokens.len(),
    }])?;
    let logits = model.logits(&hidden, 0..tokens.len());
    write_logits(&target.join("logits.safetensors"), &tokens, &logits)
}

fn write_logits(path: &Path, tokens: &[u32], logits: &[f32]) -> anyhow::Result<()> {
    let shape = vec![tokens.len(), logits.len() / tokens.len()];
    let ids: Vec<u8> = tokens
        .iter()
        .flat_map(|&token| i64::from(token).to_le_bytes())
        .collect();
    let values: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensors = [
        (
            "tokens.0",
            TensorView::new(Dtype::I64, vec![tokens.len()], &ids)?,
        ),
        ("logits.0", TensorView::new(Dtype::F32, shape, &values)?),
    ];
    std::fs::write(path, safetensors::serialize(tensors, None)?)?;
    Ok(())
}
