//! Every recipe for two steps and more, against a local server in this process.

mod config;
mod data;
mod distill;
mod dpo;
mod evaluate;
mod keeping;
mod reward;
mod rl;
mod rl_steps;
mod sft;
mod support;
