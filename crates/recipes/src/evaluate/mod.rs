//! Measuring a model: how surprised it is by text, how good its answers are, and whether it is
//! the same model when it samples as when it trains.

mod answer_file;
mod check;
mod grade;
mod interval;
mod logprobs;
mod nll;
mod suite;

pub use answer_file::{AnswerFile, KeptAnswer};
pub use check::Check;
pub(crate) use check::last_number;
pub use grade::{Graded, answers, exact_match, grade, sample_records};
pub use interval::Interval;
pub use logprobs::{LogprobCheck, check_logprobs};
pub(crate) use nll::target_weights;
pub use nll::{Surprise, mean_nll, surprise};
pub use suite::{Suite, SuiteTask, SuiteTasks};
