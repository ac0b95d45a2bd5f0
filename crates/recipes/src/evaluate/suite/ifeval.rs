//! IFEval: prompts with instructions whose keeping can be checked.

use super::instructions::Instruction;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A row of the published file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Prompt {
    pub(super) prompt: String,
    instruction_id_list: Vec<String>,
    kwargs: Vec<Map<String, Value>>,
}

/// The instruction that is not checked.
const LANGUAGE: &str = "language:response_language";

impl Prompt {
    /// Returns the instructions; `None` if one of them cannot be checked here.
    pub(super) fn instructions(&self) -> Result<Option<Vec<Instruction>>, String> {
        if self.instruction_id_list.len() != self.kwargs.len() {
            return Err(format!(
                "`kwargs` has {} entries, and `instruction_id_list` has {}",
                self.kwargs.len(),
                self.instruction_id_list.len()
            ));
        }
        if self.instruction_id_list.is_empty() {
            return Err("`instruction_id_list` is empty".to_owned());
        }
        if self.instruction_id_list.iter().any(|id| id == LANGUAGE) {
            return Ok(None);
        }
        let pairs = self.instruction_id_list.iter().zip(&self.kwargs);
        let instructions = pairs.map(|(id, kwargs)| Instruction::new(id, kwargs));
        instructions.collect::<Result<_, _>>().map(Some)
    }
}
