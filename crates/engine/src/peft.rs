//! Adapters in the folder layout of PEFT: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A linear layer `y = W x` with an adapter computes `y = W x + (alpha / rank) · B (A x)`. PEFT
//! names its tensors after the layer: `base_model.model.<layer>.lora_A.weight` is `A`,
//! `rank × inputs`, and `lora_B.weight` is `B`, `outputs × rank`.
//!
//! Everything that would change this arithmetic (DoRA, biases, ranks of single layers) is refused
//! by name; rank-stabilised scaling is honoured by adjusting `alpha`.
//!
//! The hosted service writes the same files with one other name: the head is `model.unembed_tokens`, and
//! tools for its checkpoints know which layer of a model that is, also where the head is tied to the
//! embedding. `peft` does not, and would leave the head's adapter out. So there are two ways to
//! [save](save_as), either is [loaded](load), and a file [gets](name_head) the other name.

mod head_name;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

pub use head_name::{HeadName, name_head};
use head_name::{UNEMBEDDING, is_head};
use settings::{Settings, Targets};

use crate::model::tensor_table::{EMBEDDING, HEAD, TensorTable};
use crate::weights::TensorView;
use crate::weights::safetensors::{self, SafetensorsFile};
use crate::{Error, ModelConfig, files};

const PREFIX: &str = "base_model.model.";

/// An adapter as PEFT stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeftAdapter {
    /// Name or path of the model that the adapter was trained on; informative only.
    pub base_model: String,
    /// Inner size of every pair of matrices.
    pub rank: usize,
    /// Scale of the adapter, times `rank`.
    pub alpha: f32,
    /// The adapted layers, by name: `model.layers.0.self_attn.q_proj`, `lm_head`.
    pub layers: BTreeMap<String, LoraPair>,
}

/// The two matrices of one adapted layer, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// `rank × inputs`
    pub a: Vec<f32>,
    /// `outputs × rank`
    pub b: Vec<f32>,
}

/// Writes an adapter for a model of the given shape, so that `peft` and others can load it.
///
/// # Errors
///
/// As [`save_as`].
pub fn save(folder: &Path, adapter: &PeftAdapter, config: &ModelConfig) -> Result<(), Error> {
    save_as(folder, adapter, config, HeadName::Peft)
}

/// Writes an adapter for a model of the given shape.
///
/// `target_modules` says `lm_head` either way: `peft` then warns that the head's tensors are missing
/// when it reads a file with the other name, instead of leaving them out without a word.
///
/// Each file is written under a temporary name, synced and renamed; `adapter_config.json` comes
/// last, so a folder that has one is complete.
///
/// # Errors
///
/// When a layer is not one of the model's, a matrix has the wrong size, or the disk refuses.
pub fn save_as(
    folder: &Path,
    adapter: &PeftAdapter,
    config: &ModelConfig,
    head: HeadName,
) -> Result<(), Error> {
    let linears = linears(config);
    let mut tensors = Vec::with_capacity(2 * adapter.layers.len());
    for (name, pair) in &adapter.layers {
        let Some(&(outputs, inputs)) = linears.get(name) else {
            return Err(unknown_layer(name));
        };
        let name = if is_head(name) { head.as_str() } else { name };
        for (part, values, shape) in [
            ("lora_A", &pair.a, vec![adapter.rank, inputs]),
            ("lora_B", &pair.b, vec![outputs, adapter.rank]),
        ] {
            let name = format!("{PREFIX}{name}.{part}.weight");
            tensors.push(TensorView::borrow_f32(name, shape, values)?);
        }
    }
    let settings = Settings {
        base_model: adapter.base_model.clone(),
        rank: adapter.rank,
        alpha: adapter.alpha,
        targets: Targets::Named(target_modules(adapter, &linears)),
        layers_to_transform: None,
    };

    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    safetensors::save(&folder.join("adapter_model.safetensors"), &tensors)?;
    files::replace(
        &folder.join("adapter_config.json"),
        settings.to_json().as_bytes(),
    )
}

/// Reads an adapter for a model of the given shape.
///
/// Copies of the frozen embedding and head, which `peft` adds when the head is adapted, are
/// ignored.
///
/// # Errors
///
/// When a file is missing or malformed, a setting is not supported, or a tensor is missing,
/// unknown, of the wrong shape, or not finite.
pub fn load(folder: &Path, config: &ModelConfig) -> Result<PeftAdapter, Error> {
    let settings = read_settings(folder)?;
    let file = SafetensorsFile::open(&folder.join("adapter_model.safetensors"))?;

    let linears = linears(config);
    let mut names = BTreeSet::new();
    // The name that the head has in the file, if it is there.
    let mut head = None;
    for tensor in file.names() {
        match layer_of(&tensor) {
            Some(layer) if layer == UNEMBEDDING || is_head(layer) => {
                if head
                    .replace(layer.to_owned())
                    .is_some_and(|other| other != layer)
                {
                    return Err(Error::unsupported(
                        "adapter tensor",
                        tensor,
                        "one adapter of the head, as lm_head or as model.unembed_tokens",
                    ));
                }
            }
            Some(layer) if linears.contains_key(layer) => {
                names.insert(layer.to_owned());
            }
            Some(layer) => return Err(unknown_layer(layer)),
            None if is_frozen_copy(&tensor) => {}
            None => {
                return Err(Error::unsupported(
                    "adapter tensor",
                    tensor,
                    "lora_A and lora_B of linear layers",
                ));
            }
        }
    }
    let head_layer = HEAD.in_hugging_face();
    if head.is_some() {
        names.insert(head_layer.to_owned());
    }
    if let Some(mut promised) = settings.promised_layers(linears.keys())? {
        // The hosted service's `target_modules` are not about what it calls the unembedding.
        if head.as_deref() == Some(UNEMBEDDING) {
            promised.insert(head_layer.to_owned());
        }
        // `peft` leaves such tensors alone, so they are not what the adapter computes.
        if let Some(extra) = names.difference(&promised).next() {
            let supported = "tensors of the layers that target_modules names";
            return Err(Error::unsupported("adapted layer", extra, supported));
        }
        names = promised;
    }

    let mut layers = BTreeMap::new();
    for name in names {
        let (outputs, inputs) = linears[&name];
        let stored = head.as_deref().filter(|_| name == head_layer);
        let stored = stored.unwrap_or(&name);
        let read = |part: &str, shape: [usize; 2]| {
            let tensor = file.tensor(&format!("{PREFIX}{stored}.{part}.weight"))?;
            finite(tensor.expect_shape(&shape)?)
        };
        let a = read("lora_A", [settings.rank, inputs])?;
        let b = read("lora_B", [outputs, settings.rank])?;
        layers.insert(name, LoraPair { a, b });
    }
    Ok(PeftAdapter {
        base_model: settings.base_model,
        rank: settings.rank,
        alpha: settings.alpha,
        layers,
    })
}

/// Reads the rank of an adapter without its tensors, whose size it decides.
///
/// # Errors
///
/// When `adapter_config.json` is missing or malformed, or a setting is not supported.
pub fn rank(folder: &Path) -> Result<usize, Error> {
    read_settings(folder).map(|settings| settings.rank)
}

fn read_settings(folder: &Path) -> Result<Settings, Error> {
    let path = folder.join("adapter_config.json");
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    Settings::from_json(&path, &text)
}

/// Returns every linear layer that can be adapted, with its `(outputs, inputs)`.
fn linears(config: &ModelConfig) -> BTreeMap<String, (usize, usize)> {
    let table = TensorTable::new(config);
    let sites = table.sites().iter();
    sites
        .map(|site| (site.name.clone(), (site.outputs, site.inputs)))
        .collect()
}

/// Names the adapted layers the short way (`q_proj`) if that means the same layers, else in full.
fn target_modules(
    adapter: &PeftAdapter,
    linears: &BTreeMap<String, (usize, usize)>,
) -> Vec<String> {
    let short: BTreeSet<&str> = adapter.layers.keys().map(|name| last_part(name)).collect();
    let meant = linears
        .keys()
        .filter(|name| short.contains(last_part(name)));
    if meant.eq(adapter.layers.keys()) {
        short.into_iter().map(str::to_owned).collect()
    } else {
        adapter.layers.keys().cloned().collect()
    }
}

fn last_part(layer: &str) -> &str {
    layer.rsplit_once('.').map_or(layer, |(_, last)| last)
}

fn layer_of(tensor: &str) -> Option<&str> {
    let name = tensor.strip_prefix(PREFIX)?;
    name.strip_suffix(".lora_A.weight")
        .or_else(|| name.strip_suffix(".lora_B.weight"))
}

fn is_frozen_copy(tensor: &str) -> bool {
    let (head, embedding) = (HEAD.in_model(), EMBEDDING.in_model());
    let copies = [
        head.weight().hugging_face,
        format!("{}.base_layer.weight", head.hugging_face),
        embedding.weight().hugging_face,
    ];
    tensor
        .strip_prefix(PREFIX)
        .is_some_and(|name| copies.iter().any(|copy| copy == name))
}

fn finite(tensor: TensorView<'_>) -> Result<Vec<f32>, Error> {
    let values = tensor.to_f32();
    match values.iter().position(|x| !x.is_finite()) {
        None => Ok(values),
        Some(index) => Err(Error::NonFiniteTensor {
            operation: "load adapter",
            tensor: tensor.name().to_owned(),
            index,
            value: values[index],
        }),
    }
}

fn unknown_layer(layer: &str) -> Error {
    Error::unsupported(
        "adapted layer",
        layer,
        "the model's attention and MLP projections and lm_head",
    )
}

#[cfg(test)]
mod tests;
