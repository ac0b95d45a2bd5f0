//! Learning from another model, or from the same one with better instructions.

mod on_policy;
mod prompt;

pub use on_policy::{OnPolicyConfig, on_policy, on_policy_finished};
pub use prompt::{PromptConfig, ask_teacher, prompt, prompt_finished};
