//! Models in the folder layout of Hugging Face.
//!
//! A folder holds `config.json` and either one `model.safetensors` or several shards that
//! `model.safetensors.index.json` lists. Every tensor that the configuration calls for is found
//! and its shape checked when the folder is opened, so that loading cannot fail half-way.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::safetensors::{self, Layout, Outline, SafetensorsFile};
use super::{Dtype, Format, TensorView, WeightSource, tensor_shapes};
use crate::config::TokenIds;
use crate::model::feed_forward::FeedForward;
use crate::{Error, ModelConfig, files};

/// The weights of a Hugging Face folder, mapped into memory.
#[derive(Debug)]
pub struct HuggingFaceFolder {
    folder: PathBuf,
    config: ModelConfig,
    shards: Vec<SafetensorsFile>,
    places: HashMap<String, Place>,
    precision: Dtype,
}

/// Where a tensor is.
#[derive(Debug)]
struct Place {
    shard: usize,
    /// What the file calls it.
    stored: String,
}

/// Returns what a model for text alone calls a tensor: in models that see images, the part for text has a prefix.
fn text_name(stored: &str) -> String {
    match stored.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => stored
            .strip_prefix("language_model.")
            .unwrap_or(stored)
            .to_owned(),
    }
}

impl HuggingFaceFolder {
    /// Opens a folder and checks that it holds a whole model.
    ///
    /// End tokens come from `generation_config.json` where it names any, as in `transformers`.
    ///
    /// # Errors
    ///
    /// When a file is missing or malformed, the configuration is not supported, or a tensor is
    /// missing or has the wrong shape.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref().to_owned();
        let mut config = ModelConfig::from_hf_json(&read(&folder.join("config.json"))?)?;
        if let Some(eos) = generation_eos(&folder)? {
            config.eos = eos;
            config.validate()?;
        }

        let (shards, stored) = open_shards(&folder)?;
        let places = stored.into_iter();
        let places = places.map(|(stored, shard)| (text_name(&stored), Place { shard, stored }));
        let mut model = Self {
            folder,
            config,
            shards,
            places: places.collect(),
            precision: Dtype::F32,
        };
        for (name, expected) in tensor_shapes(&model.config) {
            let (shard, stored) = model.place(&name)?;
            let got = shard.shape(stored)?;
            if got != expected {
                return Err(Error::Shape {
                    tensor: name,
                    expected,
                    got: got.to_vec(),
                });
            }
        }
        // Norms are sometimes kept in more precision than the matrices, which are what counts.
        let probe = FeedForward::precision_probe(&model.config);
        model.precision = model.tensor(&probe.hugging_face)?.dtype();
        Ok(model)
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Finds the file that has a tensor, and its name there.
    fn place(&self, tensor: &str) -> Result<(&SafetensorsFile, &str), Error> {
        match self.places.get(tensor) {
            Some(place) => Ok((&self.shards[place.shard], &place.stored)),
            None => Err(Error::MissingTensor {
                tensor: tensor.to_owned(),
                origin: self.folder.display().to_string(),
            }),
        }
    }
}

impl WeightSource for HuggingFaceFolder {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let (shard, stored) = self.place(name)?;
        Ok(shard.tensor(stored)?.renamed(name))
    }

    fn precision(&self) -> Dtype {
        self.precision
    }

    fn format(&self, name: &str) -> Result<Format, Error> {
        Ok(self.tensor(name)?.dtype().into())
    }

    fn release(&self, name: &str) {
        if let Ok((shard, stored)) = self.place(name) {
            shard.release(stored);
        }
    }
}

/// Writes a model as a Hugging Face folder with one `model.safetensors`.
///
/// `config.json` is written last: a folder that has one is complete.
///
/// # Errors
///
/// When the folder cannot be written, or a tensor cannot be read or has the wrong shape.
pub fn save_folder(source: &dyn WeightSource, folder: impl AsRef<Path>) -> Result<(), Error> {
    let (folder, config) = (folder.as_ref(), source.config());
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let tensors = tensor_shapes(config)
        .iter()
        .map(|(name, shape)| source.tensor(name)?.expect_shape(shape))
        .collect::<Result<Vec<_>, Error>>()?;
    safetensors::save(&folder.join("model.safetensors"), &tensors)?;
    files::replace(&folder.join("config.json"), config.to_hf_json().as_bytes())
}

/// Writes a model's weights as `model.safetensors`, or as several files of at most `most_bytes` (or one tensor)
/// with `model.safetensors.index.json`. One tensor at a time is asked for and held.
///
/// `outlines` say which tensors there will be, and in which format; `on_tensor` is told the bytes of each, and ends the
/// whole by an error.
///
/// # Errors
///
/// When the folder cannot be written, or a tensor cannot be read or is not as its outline says.
pub fn save_shards(
    source: &dyn WeightSource,
    outlines: &[Outline],
    folder: &Path,
    most_bytes: usize,
    mut on_tensor: impl FnMut(&str, usize) -> io::Result<()>,
) -> Result<(), Error> {
    let shards = shards(outlines, most_bytes);
    let mut map = BTreeMap::new();
    for (number, shard) in (1..).zip(&shards) {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{number:05}-of-{count:05}.safetensors"),
        };
        let path = folder.join(&name);
        save_shard(source, shard, &path, &mut on_tensor)?;
        map.extend(shard.iter().map(|tensor| (&tensor.name, name.clone())));
    }
    if shards.len() > 1 {
        let total: usize = outlines.iter().map(Outline::size_bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        let path = folder.join("model.safetensors.index.json");
        files::replace(&path, format!("{index:#}\n").as_bytes())?;
    }
    Ok(())
}

/// Cuts a list into runs of at most so many bytes; a larger tensor is a run of its own.
fn shards(tensors: &[Outline], most_bytes: usize) -> Vec<&[Outline]> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (place, tensor) in tensors.iter().enumerate() {
        if place > start && bytes + tensor.size_bytes() > most_bytes {
            shards.push(&tensors[start..place]);
            (start, bytes) = (place, 0);
        }
        bytes += tensor.size_bytes();
    }
    shards.push(&tensors[start..]);
    shards
}

fn save_shard(
    source: &dyn WeightSource,
    tensors: &[Outline],
    path: &Path,
    on_tensor: &mut impl FnMut(&str, usize) -> io::Result<()>,
) -> Result<(), Error> {
    let layout = Layout::new(tensors)?;
    let mut failed = None;
    let written = files::replace_with(path, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        layout.write_header(&mut file)?;
        for &place in &layout.order {
            let outline = &tensors[place];
            let tensor = source
                .tensor(&outline.name)
                .and_then(|tensor| tensor.expect_shape(&outline.shape));
            let tensor = match tensor {
                Ok(tensor) if tensor.dtype() == outline.dtype => tensor,
                Ok(tensor) => {
                    let found = format!("{:?}, expected {:?}", tensor.dtype(), outline.dtype);
                    failed = Some(Error::malformed(&outline.name, found));
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Err(error) => {
                    failed = Some(error);
                    return Err(io::ErrorKind::InvalidData.into());
                }
            };
            file.write_all(tensor.bytes())?;
            on_tensor(&outline.name, tensor.bytes().len())?;
        }
        file.flush()
    });
    match failed {
        Some(error) => Err(error),
        None => written,
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<TokenIds>,
}

fn open_shards(folder: &Path) -> Result<(Vec<SafetensorsFile>, HashMap<String, usize>), Error> {
    let index_path = folder.join("model.safetensors.index.json");
    if !index_path.exists() {
        let shard = SafetensorsFile::open(&folder.join("model.safetensors"))?;
        let names = shard.names().into_iter().map(|name| (name, 0)).collect();
        return Ok((vec![shard], names));
    }

    let index: Index = parse(&index_path, &read(&index_path)?)?;
    let mut shards = Vec::new();
    let mut shard_of_file = HashMap::new();
    let mut shard_of_tensor = HashMap::new();
    for (tensor, file) in index.weight_map {
        let shard = match shard_of_file.get(&file) {
            Some(&shard) => shard,
            None => {
                // An index must not reach outside its folder.
                if Path::new(&file).file_name() != Some(file.as_ref()) {
                    let reason = format!("`{file}` is not the name of a file in this folder");
                    return Err(Error::malformed(index_path.display().to_string(), reason));
                }
                shards.push(SafetensorsFile::open(&folder.join(&file))?);
                shard_of_file.insert(file, shards.len() - 1);
                shards.len() - 1
            }
        };
        shards[shard].shape(&tensor)?;
        shard_of_tensor.insert(tensor, shard);
    }
    Ok((shards, shard_of_tensor))
}

fn generation_eos(folder: &Path) -> Result<Option<Vec<u32>>, Error> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(None);
    }
    let generation: GenerationConfig = parse(&path, &read(&path)?)?;
    Ok(generation.eos_token_id.map(TokenIds::into_vec))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|source| Error::Json {
        document: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;
    use crate::weights::RandomWeights;

    fn saved(config: ModelConfig) -> (TempDir, RandomWeights) {
        let folder = tempfile::tempdir().unwrap();
        let weights = RandomWeights::new(config, 11, Dtype::Bf16).unwrap();
        save_folder(&weights, folder.path()).unwrap();
        (folder, weights)
    }

    fn refusal(folder: &TempDir) -> String {
        HuggingFaceFolder::open(folder.path())
            .unwrap_err()
            .to_string()
    }

    /// Splits the tensors over two files, as large models are stored.
    fn shard(folder: &TempDir, weights: &RandomWeights) {
        let names = tensor_shapes(weights.config())
            .into_iter()
            .map(|(name, _)| name);
        let (first, second): (Vec<_>, Vec<_>) = names.partition(|name| name.contains("layers.0"));
        let mut map = serde_json::Map::new();
        for (file, names) in [("one.safetensors", first), ("two.safetensors", second)] {
            let tensors: Vec<_> = names
                .iter()
                .map(|name| weights.tensor(name).unwrap())
                .collect();
            fs::write(
                folder.path().join(file),
                safetensors::encode(&tensors).unwrap(),
            )
            .unwrap();
            map.extend(names.into_iter().map(|name| (name, json!(file))));
        }
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        write_index(folder, map.into());
    }

    fn write_index(folder: &TempDir, map: Value) {
        let index = json!({ "metadata": { "total_size": 0 }, "weight_map": map });
        let path = folder.path().join("model.safetensors.index.json");
        fs::write(path, index.to_string()).unwrap();
    }

    #[test]
    fn a_saved_model_opens_with_the_same_tensors() {
        for config in ModelConfig::tiny_models() {
            let (folder, weights) = saved(config.clone());
            let opened = HuggingFaceFolder::open(folder.path()).unwrap();
            assert_eq!(opened.config(), &config);
            assert_eq!(opened.precision(), Dtype::Bf16);
            for (name, _) in tensor_shapes(&config) {
                let (left, right) = (
                    opened.tensor(&name).unwrap(),
                    weights.tensor(&name).unwrap(),
                );
                assert_eq!(left.bytes(), right.bytes(), "{name}");
            }
        }
    }

    #[test]
    fn the_text_part_of_a_model_that_sees_images_is_found() {
        for prefix in ["language_model.model.", "model.language_model."] {
            let (folder, weights) = saved(ModelConfig::tiny_gemma3());
            let shapes = tensor_shapes(weights.config());
            let tensors = shapes.iter().map(|(name, _)| {
                let stored = name.replacen("model.", prefix, 1);
                weights.tensor(name).unwrap().renamed(&stored)
            });
            let image = TensorView::from_f32("vision_tower.x", Dtype::F32, vec![1], &[1.0]);
            let tensors: Vec<_> = tensors.chain(image).collect();
            let path = folder.path().join("model.safetensors");
            fs::write(path, safetensors::encode(&tensors).unwrap()).unwrap();
            let opened = HuggingFaceFolder::open(folder.path()).unwrap();
            for (name, _) in &shapes {
                let (found, expected) = (opened.tensor(name).unwrap(), weights.tensor(name));
                assert_eq!(found.name(), name);
                assert_eq!(found.bytes(), expected.unwrap().bytes(), "{name}");
            }
        }
    }

    #[test]
    fn shards_read_like_one_file() {
        let (folder, weights) = saved(ModelConfig::tiny_llama3());
        shard(&folder, &weights);
        let opened = HuggingFaceFolder::open(folder.path()).unwrap();
        for (name, _) in tensor_shapes(weights.config()) {
            let (left, right) = (
                opened.tensor(&name).unwrap(),
                weights.tensor(&name).unwrap(),
            );
            assert_eq!(left.bytes(), right.bytes(), "{name}");
        }
    }

    #[test]
    fn a_model_is_written_in_shards_one_tensor_at_a_time() {
        let config = ModelConfig::tiny_qwen3();
        let weights = RandomWeights::new(config.clone(), 11, Dtype::Bf16).unwrap();
        let outlines: Vec<_> = tensor_shapes(&config)
            .into_iter()
            .map(|(name, shape)| Outline {
                name,
                dtype: Dtype::Bf16,
                shape,
            })
            .collect();
        for (most_bytes, files) in [(usize::MAX, 1), (20_000, 4)] {
            let folder = tempfile::tempdir().unwrap();
            let mut written = 0;
            save_shards(&weights, &outlines, folder.path(), most_bytes, |_, _| {
                written += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(written, outlines.len());
            let entries = fs::read_dir(folder.path()).unwrap().count();
            assert_eq!(entries, files, "with the index");
            fs::write(folder.path().join("config.json"), config.to_hf_json()).unwrap();
            let opened = HuggingFaceFolder::open(folder.path()).unwrap();
            for (name, _) in tensor_shapes(&config) {
                let expected = weights.tensor(&name).unwrap();
                assert_eq!(opened.tensor(&name).unwrap().bytes(), expected.bytes());
            }
        }
        let wrong: Vec<_> = outlines
            .iter()
            .map(|outline| Outline {
                dtype: Dtype::F32,
                ..outline.clone()
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let refused = save_shards(&weights, &wrong, folder.path(), usize::MAX, |_, _| Ok(()));
        assert!(refused.is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let stop = |_: &str, _| Err(io::ErrorKind::Interrupted.into());
        assert!(save_shards(&weights, &outlines, folder.path(), usize::MAX, stop).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "stopped");
    }

    #[test]
    fn an_index_may_only_name_existing_files_of_its_folder_and_their_tensors() {
        let (folder, weights) = saved(ModelConfig::tiny_llama());
        shard(&folder, &weights);
        write_index(&folder, json!({ "a": "three.safetensors" }));
        assert!(
            refusal(&folder).contains("three.safetensors"),
            "{}",
            refusal(&folder)
        );
        write_index(&folder, json!({ "a": "../one.safetensors" }));
        assert!(
            refusal(&folder).contains("not the name of a file"),
            "{}",
            refusal(&folder)
        );
        write_index(&folder, json!({ "a": "one.safetensors" }));
        assert!(
            refusal(&folder).starts_with("tensor `a` is missing"),
            "{}",
            refusal(&folder)
        );
        write_index(&folder, json!({}));
        assert!(refusal(&folder).contains("`model.embed_tokens.weight` is missing from"));
    }

    #[test]
    fn a_wrong_shape_names_the_tensor_and_both_shapes() {
        let (folder, _weights) = saved(ModelConfig::tiny_llama());
        let config = ModelConfig {
            ffn: 64,
            ..ModelConfig::tiny_llama()
        };
        fs::write(folder.path().join("config.json"), config.to_hf_json()).unwrap();
        assert_eq!(
            refusal(&folder),
            "model.layers.0.mlp.gate_proj.weight: expected shape [64, 32], got [48, 32]"
        );
    }

    #[test]
    fn an_untied_head_must_be_there() {
        let (folder, _weights) = saved(ModelConfig::tiny_llama());
        let config = ModelConfig {
            tied_head: false,
            ..ModelConfig::tiny_llama()
        };
        fs::write(folder.path().join("config.json"), config.to_hf_json()).unwrap();
        assert!(refusal(&folder).starts_with("tensor `lm_head.weight` is missing from"));
    }

    #[test]
    fn missing_and_truncated_files_are_named() {
        let (folder, _weights) = saved(ModelConfig::tiny_llama());
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(refusal(&folder).contains("model.safetensors is malformed"));
        fs::remove_file(&path).unwrap();
        assert!(
            refusal(&folder).starts_with("could not open "),
            "{}",
            refusal(&folder)
        );
        fs::remove_file(folder.path().join("config.json")).unwrap();
        assert!(
            refusal(&folder).starts_with("could not read "),
            "{}",
            refusal(&folder)
        );
    }

    #[test]
    fn end_tokens_come_from_the_generation_config() {
        let (folder, _weights) = saved(ModelConfig::tiny_llama());
        let path = folder.path().join("generation_config.json");
        fs::write(&path, r#"{"eos_token_id": [5, 6], "temperature": 0.6}"#).unwrap();
        assert_eq!(
            HuggingFaceFolder::open(folder.path()).unwrap().config().eos,
            [5, 6]
        );
        fs::write(&path, r#"{"temperature": 0.6}"#).unwrap();
        assert_eq!(
            HuggingFaceFolder::open(folder.path()).unwrap().config().eos,
            [2]
        );
        fs::write(&path, "[").unwrap();
        assert!(refusal(&folder).contains("generation_config.json is not valid JSON"));
    }
}
