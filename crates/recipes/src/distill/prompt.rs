//! Prompt distillation: a model learns to do without its instructions what it does with them.
//!
//! The teacher gets long instructions and the question; the student learns the teacher's answer
//! from the question alone.

use super::replies::{self, Asked, Reply};
use crate::data::{Examples, Record, TooLong};
use crate::run::{
    self, Adam, Adapter, Checkpoints, Evaluation, Hooks, Outcome, Passes, make_folder,
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
    let ask = questions.iter().enumerate();
    let ask = ask.map(|(index, question)| answers(teacher, renderer, config, index, question));
    let replies = try_join_all(ask).await?.into_iter();
    Ok(replies.flat_map(|reply| reply.learned).collect())
}

/// Asks the teacher one question, whose place in the order decides the seed.
pub(super) async fn answers(
    teacher: &SamplingClient,
    renderer: &Renderer,
    config: &PromptConfig,
    index: usize,
    question: &Conversation,
) -> Result<Reply<Record>, Error> {
    let params = SamplingParams {
        temperature: config.temperature,
        seed: Some(question_seed(config.seed, index)),
        ..renderer.sampling_params(config.max_tokens)
    };
    let prompt = renderer.prompt(&instructed(question, &config.instructions))?;
    let sample = teacher.sample(prompt, params).num_samples(config.answers);
    let mut reply = Reply {
        learned: Vec::new(),
        unfinished: 0,
    };
    for sequence in sample.await?.sequences {
        let response = renderer.parse(&sequence.tokens)?;
        if !response.finished {
            reply.unfinished += 1;
            continue;
        }
        let mut taught = question.clone();
        taught.messages.push(response.message);
        reply.learned.push(Record::Chat(taught));
    }
    Ok(reply)
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
    let asked = asked(config, renderer, questions)?;
    match replies::kept(folder.as_ref(), ANSWERS, asked)? {
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
    mut hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    config.check()?;
    let folder = folder.as_ref();
    make_folder(folder)?;
    let all = asked(config, renderer, questions)?;
    let records = match replies::kept(folder, ANSWERS, all)? {
        Some(records) => records,
        None => {
            let asked = Asked {
                all,
                each: asked_each(teacher, renderer, config, questions).await?,
                max_tokens: config.max_tokens,
            };
            let ask = |index: usize| answers(teacher, renderer, config, index, &questions[index]);
            replies::ask(folder, ANSWERS, &asked, ask, &mut hooks).await?
        }
    };
    let examples = examples(&records, renderer)?;
    sft::train(service, &config.as_sft(), &examples, folder, hooks).await
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

/// Returns for each question a hash of what decides the teacher's reply, and of which teacher it is.
pub(super) async fn asked_each(
    teacher: &SamplingClient,
    renderer: &Renderer,
    config: &PromptConfig,
    questions: &[Conversation],
) -> Result<Vec<u64>, Error> {
    // Not every server says what it samples from.
    let info = teacher.get_info().await.ok();
    let path = info.as_ref().and_then(|info| info.model_path.as_ref());
    let path = path.map(ToString::to_string).unwrap_or_default();
    let model = info.map_or_else(String::new, |info| info.base_model);
    let teacher: Vec<u32> = format!("{model} {path}").bytes().map(u32::from).collect();
    let hash = |question: &Conversation| {
        let asked = asked(config, renderer, std::slice::from_ref(question))?;
        let words = [(asked >> 32) as u32, asked as u32];
        Ok::<_, Error>(run::hash(words.into_iter().chain(teacher.iter().copied())))
    };
    questions.iter().map(hash).collect()
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
