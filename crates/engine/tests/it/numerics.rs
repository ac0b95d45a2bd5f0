//! How far the engine is from `transformers`, `peft` and PyTorch: the table of `docs/numerics.md`.
//!
//! The test measures every cell and compares it with its tolerance. With `TINKRS_WRITE_NUMERICS` set it
//! also writes the page; that needs `TINKRS_MODELS`, for the real models.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tinkrs_engine::peft::{LoraPair, PeftAdapter};
use tinkrs_engine::types::{AdamParams, Datum, LossFn};
use tinkrs_engine::weights::HuggingFaceFolder;
use tinkrs_engine::{Adapter, Threads, TrainingRun, peft};

use crate::forward::{load, logits, logprobs, sequences};
use crate::reference::{self, TINY_MODELS, Tensors, largest_difference, relative_difference};
use crate::training::{ENDING, PREFIX, adapted, data, gradients, transpose};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/numerics.md");
/// Where the part about exports begins.
const EXPORTS: &str = "\n## Exports\n";
/// As `real_models.py` has them.
const RANK: usize = 4;
const LOGITS: usize = 32;
const ELEMENTS: usize = 8;

/// The differences of one model; what was not compared is `None`.
#[derive(Default)]
struct Row {
    logits: f32,
    logprobs: f32,
    adapted_logits: Option<f32>,
    lora_gradients: f32,
    all_gradients: Option<f32>,
    three_steps: Option<f32>,
}

impl Row {
    /// Each cell with the name of its column.
    fn cells(&self) -> [(&'static str, Option<f32>); 6] {
        [
            ("logits", Some(self.logits)),
            ("log-probabilities", Some(self.logprobs)),
            ("logits with an adapter", self.adapted_logits),
            ("LoRA gradients", Some(self.lora_gradients)),
            ("gradients of all weights", self.all_gradients),
            ("adapter after three steps", self.three_steps),
        ]
    }
}

/// What a cell may be. Thirty layers in f32 add up to more than two.
fn tolerance(column: &str, real: bool) -> f32 {
    match (column, real) {
        ("adapter after three steps", _) => 5e-5,
        (_, false) => 1e-5,
        (_, true) => 1e-3,
    }
}

#[test]
fn every_difference_is_within_the_tolerance_of_its_column() {
    let mut rows: Vec<(String, bool, Row)> = Vec::new();
    for name in TINY_MODELS {
        rows.push((name.to_owned(), false, tiny(name)));
    }
    let models = tinkrs_testkit::skip::models("numerics of real models");
    if let Some(folder) = &models {
        for (name, expected) in real_references() {
            if folder.join(&name).is_dir() {
                let row = real(&folder.join(&name), &name, &expected);
                rows.push((name, true, row));
            }
        }
    }
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let write = std::env::var_os("TINKRS_WRITE_NUMERICS").is_some();
    for (name, real, row) in &rows {
        for (column, cell) in row.cells() {
            let Some(cell) = cell else { continue };
            println!("{name}: {column} differ by {cell:.1e}");
            let bound = match (name.as_str(), column) {
                // PyTorch computes the gated delta rule in chunks, the engine token by token.
                ("tiny-qwen35", "LoRA gradients") => 3e-5,
                _ => tolerance(column, *real),
            };
            assert!(cell <= bound, "{name}, {column}: {cell}, more than {bound}");
        }
        assert!(
            write || page.contains(&format!("| {name} |")),
            "docs/numerics.md has no row for {name}"
        );
    }
    if write {
        assert!(models.is_some(), "the page needs TINKRS_MODELS");
        // What `conformance/export/run` has written stays.
        let exports = page.find(EXPORTS).map_or("", |at| &page[at..]);
        std::fs::write(PAGE, render(&rows) + exports).unwrap();
    }
}

fn tiny(name: &str) -> Row {
    let (folder, expected) = (reference::path(name), Tensors::expected(name));
    let model = load(&folder);
    let sequences = sequences(&expected);
    let mut row = Row::default();
    for (s, ours) in logits(&model, None, &sequences).iter().enumerate() {
        raise(
            &mut row.logits,
            ours,
            &expected.floats(&format!("logits.{s}")),
        );
        let ours = logprobs(ours, &expected.tokens(&format!("targets.{s}")));
        raise(
            &mut row.logprobs,
            &ours,
            &expected.floats(&format!("logprobs.{s}")),
        );
    }

    let adapter = peft::load(&folder.join("adapter"), model.config()).unwrap();
    let adapter = Adapter::from_peft(&model, &adapter).unwrap();
    let mut worst = 0.0;
    for (s, ours) in logits(&model, Some(&adapter), &sequences)
        .iter()
        .enumerate()
    {
        raise(
            &mut worst,
            ours,
            &expected.floats(&format!("adapted.logits.{s}")),
        );
    }
    row.adapted_logits = Some(worst);

    let data = data(&expected);
    let mut run = adapted(name);
    run.forward_backward(&data, &LossFn::CrossEntropy).unwrap();
    let ours = gradients(&run);
    for parameter in expected.names("grad.") {
        let theirs = expected.floats(&format!("grad.{parameter}"));
        let layer = parameter.strip_prefix(PREFIX).unwrap();
        let ours = lora_gradient(&ours, layer.strip_suffix(ENDING).unwrap());
        row.lora_gradients = row.lora_gradients.max(relative_difference(&ours, &theirs));
    }
    row.all_gradients = Some(all_gradients(&folder, &expected, &data));
    row.three_steps = Some(three_steps(name, &expected, &data));
    row
}

/// Compares the gradients of all weights, each relative to the largest element of its tensor.
fn all_gradients(folder: &Path, expected: &Tensors, data: &[Datum]) -> f32 {
    let source = HuggingFaceFolder::open(folder).unwrap();
    let mut run = TrainingRun::full(&source, &Threads::new(2).unwrap()).unwrap();
    run.forward_backward(data, &LossFn::CrossEntropy).unwrap();
    let gradients = gradients(&run);
    let mut worst = 0f32;
    for tensor in expected.names("full.grad.") {
        let mut ours = gradients.floats(&format!("gradients.{tensor}"));
        if tensor == "model.embed_tokens.weight" && run.model().config().tied_head {
            // The two uses of a tied table are summed apart, and joined by the step.
            let head = gradients.floats("gradients.lm_head.weight");
            ours.iter_mut()
                .zip(head)
                .for_each(|(sum, head)| *sum += head);
        }
        let theirs = expected.floats(&format!("full.grad.{tensor}"));
        worst = worst.max(relative_difference(&ours, &theirs));
    }
    worst
}

/// Compares the adapter after three steps of AdamW at a rate of 1e-2.
fn three_steps(name: &str, expected: &Tensors, data: &[Datum]) -> f32 {
    let mut run = adapted(name);
    for _ in 0..3 {
        run.forward_backward(data, &LossFn::CrossEntropy).unwrap();
        run.optim_step(AdamParams::new(1e-2)).unwrap();
    }
    let mut worst = 0.0;
    for (layer, pair) in &run.to_peft(name).unwrap().layers {
        for (part, ours) in [("lora_A", &pair.a), ("lora_B", &pair.b)] {
            let key = format!("adamw.plain.{PREFIX}{layer}.{part}{ENDING}");
            raise(&mut worst, ours, &expected.floats(&key));
        }
    }
    worst
}

/// What `real_models.py` wrote of one model.
#[derive(Deserialize)]
struct Real {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    gradients: BTreeMap<String, Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    largest: f32,
    norm: f64,
    elements: Vec<f32>,
}

fn real_references() -> BTreeMap<String, Real> {
    let text = std::fs::read_to_string(reference::path("real_gradients.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn real(folder: &Path, name: &str, expected: &Real) -> Row {
    let model = load(folder);
    let vocabulary = model.config().vocab;
    let inputs = expected.tokens[..expected.tokens.len() - 1].to_vec();
    let ours = logits(&model, None, std::slice::from_ref(&inputs)).remove(0);
    let mut row = Row::default();
    for (ours, theirs) in ours.chunks_exact(vocabulary).zip(&expected.logits) {
        raise(&mut row.logits, &some(ours, LOGITS), theirs);
    }
    row.logprobs = crate::real_models::largest_logprob_difference(&model, name);

    let mut layers = BTreeMap::new();
    let linears = expected.gradients.keys();
    for layer in linears.filter_map(|name| name.strip_suffix(".lora_A")) {
        let [outputs, inputs] = shape(folder, layer);
        let pair = LoraPair {
            a: drawn(&format!("{layer}.lora_A"), RANK * inputs, 0.1),
            b: drawn(&format!("{layer}.lora_B"), outputs * RANK, 0.02),
        };
        layers.insert(layer.to_owned(), pair);
    }
    let adapter = PeftAdapter {
        base_model: name.to_owned(),
        rank: RANK,
        alpha: 32.0,
        layers,
    };
    let mut run = TrainingRun::from_peft(Arc::new(model), &adapter).unwrap();
    let targets: Vec<i64> = expected.tokens[1..].iter().map(|&t| t.into()).collect();
    let weights = vec![1.0; targets.len()];
    let datum = Datum::supervised(inputs, targets, weights).unwrap();
    run.forward_backward(&[datum], &LossFn::CrossEntropy)
        .unwrap();
    let gradients = gradients(&run);
    for (parameter, theirs) in &expected.gradients {
        let ours = lora_gradient(&gradients, parameter);
        let difference = largest_difference(&some(&ours, ELEMENTS), &theirs.elements);
        row.lora_gradients = row.lora_gradients.max(difference / theirs.largest);
        // The norm is of all elements, those included that the file leaves out.
        let norm = ours
            .iter()
            .map(|&x| f64::from(x).powi(2))
            .sum::<f64>()
            .sqrt();
        let difference = (norm / theirs.norm - 1.0).abs() as f32;
        row.lora_gradients = row.lora_gradients.max(difference);
    }
    row
}

/// Returns the outputs and inputs of a layer.
fn shape(folder: &Path, layer: &str) -> [usize; 2] {
    use tinkrs_engine::weights::WeightSource;
    let source = HuggingFaceFolder::open(folder).unwrap();
    let config = source.config();
    let (query, key_value) = (
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    let (hidden, inner) = (config.hidden, config.ffn);
    match layer.rsplit('.').next().unwrap() {
        "q_proj" => [query, hidden],
        "k_proj" | "v_proj" => [key_value, hidden],
        "o_proj" => [hidden, query],
        "gate_proj" | "up_proj" => [inner, hidden],
        "down_proj" => [hidden, inner],
        other => panic!("unknown layer {other}"),
    }
}

/// Returns the numbers that `drawn` in `real_models.py` returns, to the last bit.
fn drawn(name: &str, count: usize, scale: f32) -> Vec<f32> {
    let seed = name.bytes().fold(2_166_136_261_u32, |seed, byte| {
        (seed ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    let number = |index: u64| {
        let mixed = index * 2_654_435_761 + u64::from(seed);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519) as u32;
        let mixed = mixed ^ (mixed >> 13);
        ((mixed >> 8) as f32 / (1 << 24) as f32 - 0.5) * scale
    };
    (0..count as u64).map(number).collect()
}

/// Returns as many elements as wanted, evenly spread.
fn some(values: &[f32], wanted: usize) -> Vec<f32> {
    (0..wanted)
        .map(|i| values[i * values.len() / wanted])
        .collect()
}

/// Returns a gradient in PEFT's layout.
fn lora_gradient(gradients: &Tensors, parameter: &str) -> Vec<f32> {
    let values = gradients.floats(&format!("gradients.{parameter}"));
    if parameter.ends_with("lora_B") {
        transpose(&values, RANK)
    } else {
        values
    }
}

fn raise(worst: &mut f32, ours: &[f32], theirs: &[f32]) {
    *worst = worst.max(largest_difference(ours, theirs));
}

fn render(rows: &[(String, bool, Row)]) -> String {
    let columns = Row::default().cells().map(|(column, _)| column);
    let mut text = format!("{}\n| model | {} |\n", INTRODUCTION, columns.join(" | "));
    text += &format!("|---|{}\n", "---|".repeat(columns.len()));
    for (name, _, row) in rows {
        let cells = row.cells().map(|(_, cell)| match cell {
            Some(cell) => format!("{cell:.1e}"),
            None => "–".to_owned(),
        });
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    for (kind, real) in [("small random", false), ("real", true)] {
        let bounds = columns.map(|column| format!("{:.0e}", tolerance(column, real)));
        text += &format!("| allowed, {kind} models | {} |\n", bounds.join(" | "));
    }
    text + NOTES
}

const INTRODUCTION: &str = "# Numerics

How far the engine is from `transformers` 5.22.2, `peft` 0.21.2 and PyTorch 2.15.0, all in f32 on a CPU: the greatest difference
in each cell. This page is written by a test: do not edit it.

```sh
TINKRS_MODELS=FOLDER TINKRS_WRITE_NUMERICS=1 cargo test -p tinkrs-engine --test it numerics
```

`FOLDER` holds the real models, as `conformance/models/get-models` fetches them. Without the second variable the test only checks that every
difference is within the last two rows; without the first it leaves out the real models.
";

const NOTES: &str = "
Differences of logits, log-probabilities and parameters are absolute; those of gradients are relative to the largest element of
their tensor. The small models are random ones with two layers: Llama with and without the scaled rotary embedding of
Llama 3, Qwen2 with its biases, Qwen3 with its norms of queries and keys, Mistral with a window of seven tokens, Phi-3 with fused
projections and half of each head rotated, Gemma 2 and 3 with sliding and full layers in turn, Qwen3-MoE with two of five experts, gpt-oss with sinks and two of four experts, Qwen3.5 with a layer of the gated delta rule and one of gated attention, without experts and with two of five and a shared one,
each with its own adapter of rank 4 by `peft` (of experts, which `peft` does not adapt one by one, by PyTorch); every
element is compared. Of the real models all log-probabilities of three texts are compared (two for SmolLM2), and for the first
text 32 logits of each position and, with an adapter of rank 4 on every linear layer, the norm and eight elements of every
gradient. LoRA gradients of Qwen3.5 may differ by 3e-5: PyTorch computes the gated delta rule in chunks, the engine token by token.
The reference numbers and the scripts that made them are in `crates/engine/tests/reference`.
";
