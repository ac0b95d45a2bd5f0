//! Learning from another model, or from the same one with better instructions.

mod off_policy;
mod on_policy;
mod prompt;
mod replies;

pub use off_policy::{
    OffPolicyConfig, SoftExample, SoftTarget, ask_for_targets, off_policy, off_policy_finished,
};
pub use on_policy::{OnPolicyConfig, Teachers, on_policy, on_policy_finished};
pub use prompt::{PromptConfig, ask_teacher, prompt, prompt_finished};
