//! What an adapter of the head is called.

use std::path::Path;

use super::{PREFIX, layer_of};
use crate::Error;
use crate::model::tensor_table::HEAD;
use crate::weights::safetensors;

/// The head in files of the hosted service.
pub(super) const UNEMBEDDING: &str = "model.unembed_tokens";

/// Whose name the head has in the file of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadName {
    /// `lm_head`, as `peft` calls it.
    Peft,
    /// `model.unembed_tokens`, as in checkpoints of the hosted service.
    Tinker,
}

impl HeadName {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Peft => HEAD.in_hugging_face(),
            Self::Tinker => UNEMBEDDING,
        }
    }
}

pub(super) fn is_head(layer: &str) -> bool {
    layer == HEAD.in_hugging_face()
}

/// Gives the adapter of the head the name that its reader expects, in a folder of anyone's making. Returns
/// whether it had the other one. Only the file of tensors is read.
///
/// # Errors
///
/// When `adapter_model.safetensors` is missing or malformed, or cannot be written.
pub fn name_head(folder: &Path, name: HeadName) -> Result<bool, Error> {
    let new_name = |tensor: &str| {
        let layer = layer_of(tensor)?;
        let is_other = (is_head(layer) || layer == UNEMBEDDING) && layer != name.as_str();
        let part = tensor.strip_prefix(PREFIX)?.strip_prefix(layer)?;
        is_other.then(|| format!("{PREFIX}{}{part}", name.as_str()))
    };
    safetensors::rename(&folder.join("adapter_model.safetensors"), new_name)
}
