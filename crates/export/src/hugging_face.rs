//! A merged model as a Hugging Face folder.

use std::path::Path;

use serde_json::{Value, json};
use tinkrs_engine::weights::{Dtype, Outline, WeightSource, save_shards};

use crate::merged::Merged;
use crate::{Base, Error, Progress};

/// The most bytes of one file, as `transformers` has it. Rounded to what fits a 32-bit size.
pub(crate) const SHARD_BYTES: usize = 4_000_000_000;

pub(crate) struct Folder<'a> {
    base: &'a Base,
    merged: Merged<'a>,
    outlines: Vec<Outline>,
    files: Vec<(&'static str, Vec<u8>)>,
    shard_bytes: usize,
}

impl<'a> Folder<'a> {
    pub(crate) fn plan(
        base: &'a Base,
        merged: Merged<'a>,
        shard_bytes: usize,
    ) -> Result<Self, Error> {
        // Its tensors have other names in the files that such a configuration is for.
        if base.config_json().contains_key("text_config") {
            return Err(Error::Unsupported(
                "the base model sees images, and only its part for text is known here: export as `peft`".to_owned(),
            ));
        }
        Ok(Self {
            outlines: merged.outlines()?,
            files: base.text_files()?,
            base,
            merged,
            shard_bytes,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        let weights = self.outlines.iter().map(Outline::size_bytes);
        let files = self.files.iter().map(|(_, bytes)| bytes.len());
        weights.chain(files).map(|bytes| bytes as u64).sum()
    }

    pub(crate) fn write(&self, folder: &Path, progress: &Progress<'_>) -> Result<(), Error> {
        for (name, bytes) in &self.files {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(Error::io("write", &path))?;
        }
        save_shards(
            &self.merged,
            &self.outlines,
            folder,
            self.shard_bytes,
            |name, bytes| progress.wrote(name, bytes as u64),
        )?;
        let path = folder.join("config.json");
        std::fs::write(&path, self.config()).map_err(Error::io("write", &path))
    }

    /// Returns the base model's own settings, with what has changed.
    fn config(&self) -> String {
        let mut config = self.base.config_json();
        config.insert(
            "tie_word_embeddings".to_owned(),
            json!(self.merged.config().tied_head),
        );
        // Both names are in use; the one that is there is kept.
        let dtype = json!(dtype_name(self.merged.precision()));
        let named: Vec<_> = ["dtype", "torch_dtype"]
            .into_iter()
            .filter(|name| config.contains_key(*name))
            .collect();
        for name in if named.is_empty() {
            vec!["torch_dtype"]
        } else {
            named
        } {
            config.insert(name.to_owned(), dtype.clone());
        }
        format!("{:#}\n", Value::Object(config))
    }
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        _ => "float32",
    }
}
