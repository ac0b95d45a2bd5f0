//! Models in the folder layout of Hugging Face.
//!
//! A folder holds `config.json` and either one `model.safetensors` or several shards that
//! `model.safetensors.index.json` lists. Every tensor that the configuration calls for is found
//! and its shape checked when the folder is opened, so that loading cannot fail half-way.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::experts::{self, ExpertTensor, Stacking};
use super::safetensors::{self, Layout, Outline, SafetensorsFile};
use super::{Dtype, Format, StoredTensor, TensorView, WeightSource, tensor_shapes};
use crate::config::{Architecture, TokenIds};
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
        let mut places = HashMap::with_capacity(stored.len());
        for (stored, shard) in stored {
            let place = Place { shard, stored };
            if let Some(other) = places.insert(text_name(&place.stored), place) {
                let reason = format!("it has `{}` under two names", text_name(&other.stored));
                return Err(Error::malformed(folder.display().to_string(), reason));
            }
        }
        let mut model = Self {
            folder,
            config,
            shards,
            places,
            precision: Dtype::F32,
        };
        let mut expected = Vec::new();
        for (name, shape) in tensor_shapes(&model.config) {
            match model.shared_experts(&name) {
                None => expected.push((name, shape)),
                Some(tensor) => {
                    let [plain, mxfp4] = tensor.sources(&model.config);
                    let is_plain = model.places.contains_key(&plain[0].0);
                    expected.extend(if is_plain { plain } else { mxfp4 });
                }
            }
        }
        for (name, expected) in expected {
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
        // So that what cannot be read is refused before anything is.
        for (name, _) in tensor_shapes(&model.config) {
            model.format(&name)?;
        }
        // Norms are sometimes kept in more precision than the matrices, which are what counts.
        let probe = FeedForward::precision_probe(&model.config);
        let format = model.format(&probe.hugging_face)?;
        model.precision = format.as_dtype().unwrap_or(Dtype::F32);
        Ok(model)
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Tells what a tensor of an expert is made of, where the folder has all experts of a layer in one.
    fn shared_experts(&self, name: &str) -> Option<ExpertTensor> {
        let stacking = match self.config.architecture {
            Architecture::GptOss => Stacking::InputsFirst,
            _ => Stacking::OutputsFirst,
        };
        if self.config.features.experts.is_none() || self.places.contains_key(name) {
            return None;
        }
        let tensor = ExpertTensor::parse(name, stacking)?;
        // Where there is neither, the plain name is the one that is missing.
        let [plain, _] = tensor.sources(&self.config);
        let is_here = stacking == Stacking::InputsFirst || self.places.contains_key(&plain[0].0);
        is_here.then_some(tensor)
    }

    /// The plain tensor that has a tensor of an expert; `None` if that is in MXFP4.
    fn plain_experts(&self, tensor: &ExpertTensor) -> Option<Result<TensorView<'_>, Error>> {
        let [plain, _] = tensor.sources(&self.config);
        let (shard, stored) = self.place(&plain[0].0).ok()?;
        Some(shard.tensor(stored))
    }

    /// Reads a tensor of an expert that is in MXFP4.
    fn take_mxfp4(&self, name: &str, tensor: &ExpertTensor) -> Result<StoredTensor<'_>, Error> {
        let [_, mxfp4] = tensor.sources(&self.config);
        let [(blocks, _), (scales, _)] = &mxfp4[..] else {
            return Err(Error::MissingTensor {
                tensor: name.to_owned(),
                origin: self.folder.display().to_string(),
            });
        };
        tensor.take_mxfp4(name, self.place(blocks)?, self.place(scales)?)
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
        if let Some(tensor) = self.shared_experts(name) {
            return match self.plain_experts(&tensor) {
                Some(all) => tensor.plain(name, all?),
                None => experts::widened(&self.take_mxfp4(name, &tensor)?),
            };
        }
        let (shard, stored) = self.place(name)?;
        Ok(shard.tensor(stored)?.renamed(name))
    }

    fn precision(&self) -> Dtype {
        self.precision
    }

    fn stored(&self, name: &str) -> Result<StoredTensor<'_>, Error> {
        match self.shared_experts(name) {
            Some(tensor) if self.plain_experts(&tensor).is_none() => self.take_mxfp4(name, &tensor),
            _ => Ok(self.tensor(name)?.into()),
        }
    }

    fn format(&self, name: &str) -> Result<Format, Error> {
        if let Some(tensor) = self.shared_experts(name) {
            return match self.plain_experts(&tensor) {
                Some(all) => Ok(all?.dtype().into()),
                None => Ok(Format::Q5_0),
            };
        }
        Ok(self.tensor(name)?.dtype().into())
    }

    fn release(&self, name: &str) {
        if let Some(tensor) = self.shared_experts(name) {
            for (source, shape) in tensor.sources(&self.config).iter().flatten() {
                if let Ok((shard, stored)) = self.place(source) {
                    shard.release_part(stored, tensor.expert, shape[0]);
                }
            }
        }
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
