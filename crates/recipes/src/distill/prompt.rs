//! Prompt distillation: a model learns to do without its instructions what it does with them.
//!
//! The teacher gets long instructions and the question; the student learns the teacher's answer
//! from the question alone.

use crate::data::{Examples, Record, TooLong, read_jsonl};
use crate::run::{
    self, Adam, Adapter, Checkpoints, Entry, Evaluation, Hooks, Journal, Outcome, Passes,
    make_folder,
};
use crate::{Error, Schedule, sft};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs::{SamplingClient, SamplingParams, ServiceClient};
use tinkrs_chat::{Conversation, Message, Renderer, Role, TrainOn};

/// Where the teacher's answers are kept, in the run folder.
const ANSWERS: &str = "distilled.jsonl";

/// Settings of prompt distillation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct PromptConfig {
    /// Which adapter of which student.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default = "sft::default_learning_rate")]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub learning_rate: Schedule,
    /// How it goes through the teacher's answers.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub passes: Passes,
    /// Instructions that the teacher gets and the student does not.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TEXT"))]
    pub instructions: String,
    /// Answers of the teacher to each question.
    #[serde(default = "default_answers")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub answers: u32,
    /// Most tokens of an answer.
    #[serde(default = "default_max_tokens")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub max_tokens: u32,
    /// Temperature of the teacher.
    #[serde(default = "default_temperature")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "T"))]
    pub temperature: f64,
    /// Seed for the order of the answers, and for sampling.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub seed: u64,
    /// Save a checkpoint every so many steps, and one at the end; 0 saves the last one only.
    #[serde(default = "sft::default_checkpoint_every")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub checkpoint_every: usize,
    /// Which checkpoints stay.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub checkpoints: Checkpoints,
    /// Other settings of the optimizer.
    #[serde(default)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adam: Adam,
}

impl PromptConfig {
    /// Makes the default settings for a student and the teacher's instructions.
    pub fn new(student: impl Into<String>, instructions: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(student),
            learning_rate: sft::default_learning_rate(),
            passes: Passes::default(),
            instructions: instructions.into(),
            answers: default_answers(),
            max_tokens: default_max_tokens(),
            temperature: default_temperature(),
            seed: 0,
            checkpoint_every: sft::default_checkpoint_every(),
            checkpoints: Checkpoints::default(),
            adam: Adam::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names the setting.
    pub fn check(&self) -> Result<(), Error> {
        run::at_least_one("answers", self.answers as usize)?;
        run::at_least_one("max_tokens", self.max_tokens as usize)?;
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let problem = format!("{}, expected 0 or more", self.temperature);
            return Err(Error::setting("temperature", problem));
        }
        self.as_sft().check()
    }

    /// Returns the supervised run on the teacher's answers. None of them is set aside for evaluation.
    fn as_sft(&self) -> sft::Config {
        sft::Config {
            adapter: self.adapter.clone(),
            learning_rate: self.learning_rate,
            passes: self.passes,
            seed: self.seed,
            checkpoint_every: self.checkpoint_every,
            checkpoints: self.checkpoints,
            evaluation: Evaluation::NEVER,
            adam: self.adam,
        }
    }
}

pub(super) fn default_answers() -> u32 {
    1
}

pub(super) fn default_max_tokens() -> u32 {
    128
}

pub(super) fn default_temperature() -> f64 {
    1.0
}

/// Asks the teacher each question under the instructions, and returns what the student shall
/// learn: the questions without them, answered.
///
/// Answers that ran out of tokens are left out: they would teach not to stop.
///
/// # Errors
/// If a question cannot be rendered, or the server fails.
pub async fn ask_teacher(
    teacher: &SamplingClient,
    renderer: &Renderer,
    config: &PromptConfig,
    questions: &[Conversation],
) -> Result<Vec<Record>, Error> {
    let params = SamplingParams {
        temperature: config.temperature,
        ..renderer.sampling_params(config.max_tokens)
    };
    let ask = |(index, question): (usize, &Conversation)| {
        let prompt = renderer.prompt(&instructed(question, &config.instructions));
        let params = SamplingParams {
            seed: Some(question_seed(config.seed, index)),
            ..params.clone()
        };
        async move {
            let sample = teacher.sample(prompt?, params).num_samples(config.answers);
            Ok::<_, Error>(sample.await?.sequences)
        }
    };
    let answers = try_join_all(questions.iter().enumerate().map(ask)).await?;
    let mut records = Vec::new();
    for (question, sequences) in questions.iter().zip(answers) {
        for sequence in sequences {
            let response = renderer.parse(&sequence.tokens)?;
            if response.finished {
                let mut taught = question.clone();
                taught.messages.push(response.message);
                records.push(Record::Chat(taught));
            }
        }
    }
    Ok(records)
}

/// Returns the seed of the answers to a question, each with another one. It is not negative, which not every server
/// takes.
fn question_seed(seed: u64, index: usize) -> i64 {
    (seed.wrapping_add(index as u64) & i64::MAX as u64) as i64
}

/// Returns how the run in a folder ended, if it did: [`prompt`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn prompt_finished(
    config: &PromptConfig,
    renderer: &Renderer,
    questions: &[Conversation],
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    match kept(config, renderer, questions, folder.as_ref())? {
        Some(records) => sft::finished(&config.as_sft(), &examples(&records, renderer)?, folder),
        None => Ok(None),
    }
}

/// Distills instructions into a student, in a run folder.
///
/// The teacher's answers are kept in the folder as `distilled.jsonl`, so that a run which resumes
/// learns the same ones.
///
/// # Errors
/// If no answer ended within the token limit, the answers in the folder are to other questions or
/// instructions, and as [`ask_teacher`] and [`sft::train`].
pub async fn prompt(
    service: &ServiceClient,
    config: &PromptConfig,
    teacher: &SamplingClient,
    renderer: &Renderer,
    questions: &[Conversation],
    folder: impl AsRef<Path>,
    hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    config.check()?;
    let folder = folder.as_ref();
    make_folder(folder)?;
    let records = match kept(config, renderer, questions, folder)? {
        Some(records) => records,
        None => {
            let data = asked(config, renderer, questions)?;
            Journal::open(folder.join("journal.jsonl"))?.write(Entry::Asked { data })?;
            let records = ask_teacher(teacher, renderer, config, questions).await?;
            if records.is_empty() {
                let limit = config.max_tokens;
                let problem = format!("no answer of the teacher ended within {limit}");
                return Err(Error::setting("max_tokens", problem));
            }
            write_all(&folder.join(ANSWERS), &records)?;
            records
        }
    };
    let examples = examples(&records, renderer)?;
    sft::train(service, &config.as_sft(), &examples, folder, hooks).await
}

/// Returns what the teacher said in an earlier part of the run.
fn kept(
    config: &PromptConfig,
    renderer: &Renderer,
    questions: &[Conversation],
    folder: &Path,
) -> Result<Option<Vec<Record>>, Error> {
    let path = folder.join(ANSWERS);
    if !path.exists() {
        return Ok(None);
    }
    let earlier = Journal::open(folder.join("journal.jsonl"))?.asked();
    let now = asked(config, renderer, questions)?;
    if earlier.is_some_and(|earlier| earlier != now) {
        let problem = "its teacher was asked other questions, or told something else";
        return Err(Error::resume(folder, problem));
    }
    read_jsonl(&path).map(Some)
}

/// Returns a hash of what decides the teacher's answers.
pub(super) fn asked(
    config: &PromptConfig,
    renderer: &Renderer,
    questions: &[Conversation],
) -> Result<u64, Error> {
    let temperature = config.temperature.to_bits();
    let mut words = vec![
        config.answers,
        config.max_tokens,
        (temperature >> 32) as u32,
        temperature as u32,
    ];
    for question in questions {
        let prompt = renderer.prompt(&instructed(question, &config.instructions))?;
        words.extend(run::counted(&prompt));
    }
    Ok(run::hash(words))
}

fn examples(records: &[Record], renderer: &Renderer) -> Result<Examples, Error> {
    let train_on = TrainOn::LastAssistantMessage;
    Examples::new(records, renderer, train_on, usize::MAX, TooLong::Refuse)
}

/// Puts the instructions in front, if there are some, joined with a system message that is there already.
pub(super) fn instructed(question: &Conversation, instructions: &str) -> Conversation {
    let mut instructed = question.clone();
    if instructions.is_empty() {
        return instructed;
    }
    match instructed.messages.first_mut() {
        Some(first) if first.role == Role::System => {
            first.content = format!("{instructions}\n\n{}", first.content);
        }
        _ => instructed.messages.insert(0, Message::system(instructions)),
    }
    instructed
}

/// Writes the whole file or none of it.
pub(super) fn write_all(path: &Path, records: &[impl Serialize]) -> Result<(), Error> {
    let lines: Result<Vec<String>, _> = records.iter().map(serde_json::to_string).collect();
    let text = lines
        .map_err(std::io::Error::from)
        .map(|lines| lines.join("\n") + "\n");
    let beside = path.with_extension("part");
    let written = text.and_then(|text| std::fs::write(&beside, text));
    let written = written.and_then(|()| std::fs::rename(&beside, path));
    written.map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_has_a_seed_of_its_own() {
        for seed in [0, 1, i64::MAX as u64, u64::MAX] {
            let seeds: Vec<i64> = (0..8).map(|index| question_seed(seed, index)).collect();
            assert!(seeds.iter().all(|seed| *seed >= 0), "{seeds:?}");
            let different: std::collections::BTreeSet<_> = seeds.iter().collect();
            assert_eq!(different.len(), seeds.len(), "{seeds:?}");
        }
    }

    #[test]
    fn instructions_join_a_system_message() {
        let plain = Conversation::from([Message::user("q")]);
        assert_eq!(
            instructed(&plain, "Rhyme.").messages[0],
            Message::system("Rhyme.")
        );
        let own = Conversation::from([Message::system("Be brief."), Message::user("q")]);
        let joined = instructed(&own, "Rhyme.");
        assert_eq!(joined.messages[0].content, "Rhyme.\n\nBe brief.");
        assert_eq!(joined.messages.len(), 2);
    }
}
