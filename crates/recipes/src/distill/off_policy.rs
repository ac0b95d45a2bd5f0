//! Off-policy distillation: the teacher writes, and says at each token how likely the others would have been.
//!
//! The student learns the teacher's `K` likeliest tokens at each place as soft targets, by cross-entropy:
//!
//! ```text
//! L = − Σ_places Σ_k p_k · log q(token_k)        with p_k the teacher's probabilities, Σ_k p_k = 1
//! ```
//!
//! On the wire these are target tokens and weights of the shape `[places, K]`. The least that the loss can be is the
//! entropy of the targets; the rest is the divergence `KL(teacher ‖ student)`, which goes to 0.

use super::prompt::{self, PromptConfig, instructed};
use super::replies::{self, Asked, Reply};
use crate::data::{Batches, Record};
use crate::run::{
    self, Adam, Adapter, Checkpoints, Evaluation, Goal, Hooks, Numbers, Outcome, Passes, Plan, Run,
    make_folder,
};
use crate::{Error, Schedule, sft};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs::{Datum, SamplingClient, SamplingParams, ServiceClient, TensorData};
use tinkrs_chat::{Conversation, Example, Renderer, Role, TrainOn};

/// Where the targets are kept, in the run folder.
const TARGETS: &str = "soft_targets.jsonl";
/// Most tokens at a place: what hosted servers and ours compute.
const MOST: u32 = 1024;

/// Settings of off-policy distillation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct OffPolicyConfig {
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
    /// How many of the teacher's likeliest tokens are learned at each place.
    #[serde(default = "default_top_k")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "K"))]
    pub top_k: u32,
    /// Instructions that the teacher gets and the student does not.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TEXT"))]
    pub instructions: String,
    /// Answers of the teacher to each question.
    #[serde(default = "super::prompt::default_answers")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub answers: u32,
    /// Most tokens of an answer.
    #[serde(default = "super::prompt::default_max_tokens")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    pub max_tokens: u32,
    /// Temperature of the teacher.
    #[serde(default = "super::prompt::default_temperature")]
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

impl OffPolicyConfig {
    /// Makes the default settings for a student.
    pub fn new(student: impl Into<String>) -> Self {
        let prompt = PromptConfig::new(student, "");
        Self {
            adapter: prompt.adapter,
            learning_rate: prompt.learning_rate,
            passes: prompt.passes,
            top_k: default_top_k(),
            instructions: prompt.instructions,
            answers: prompt.answers,
            max_tokens: prompt.max_tokens,
            temperature: prompt.temperature,
            seed: prompt.seed,
            checkpoint_every: prompt.checkpoint_every,
            checkpoints: prompt.checkpoints,
            adam: prompt.adam,
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names the setting.
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=MOST).contains(&self.top_k) {
            let problem = format!("{}, expected 1 to {MOST}", self.top_k);
            return Err(Error::setting("top_k", problem));
        }
        self.as_prompt().check()
    }

    /// Returns how the teacher is asked for answers.
    pub(crate) fn as_prompt(&self) -> PromptConfig {
        PromptConfig {
            adapter: self.adapter.clone(),
            learning_rate: self.learning_rate,
            passes: self.passes,
            instructions: self.instructions.clone(),
            answers: self.answers,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            seed: self.seed,
            checkpoint_every: self.checkpoint_every,
            checkpoints: self.checkpoints,
            adam: self.adam,
        }
    }
}

fn default_top_k() -> u32 {
    20
}

/// A sequence with the teacher's likeliest tokens at the places that are learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftExample {
    /// What the student reads, question and answer.
    pub tokens: Vec<u32>,
    /// What it learns.
    pub targets: Vec<SoftTarget>,
}

/// What may come at a place, and how likely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftTarget {
    /// The place in the sequence, which is never the first.
    pub place: usize,
    /// The teacher's likeliest tokens.
    pub tokens: Vec<u32>,
    /// Their probabilities, which add up to 1.
    pub weights: Vec<f32>,
}

impl SoftTarget {
    fn new(place: usize, likeliest: impl Iterator<Item = (u32, f32)>) -> Option<Self> {
        let (tokens, logprobs): (Vec<u32>, Vec<f32>) = likeliest.unzip();
        let weights: Vec<f64> = logprobs.iter().map(|lp| f64::from(*lp).exp()).collect();
        let all: f64 = weights.iter().sum();
        (all > 0.0 && all.is_finite()).then(|| Self {
            place,
            tokens,
            weights: weights.iter().map(|weight| (weight / all) as f32).collect(),
        })
    }

    /// Returns the least that the loss can be here.
    fn entropy(&self) -> f64 {
        let weights = self.weights.iter().map(|weight| f64::from(*weight));
        let used = weights.filter(|weight| *weight > 0.0);
        used.map(|weight| -weight * weight.ln()).sum()
    }
}

impl SoftExample {
    /// Makes the datum: `[places, K]` target tokens with their weights.
    ///
    /// # Errors
    /// If there are fewer than two tokens, or a place is not in the sequence.
    pub fn to_datum(&self) -> Result<Datum, Error> {
        let places = self.tokens.len().saturating_sub(1);
        let columns = self.targets.iter().map(|target| target.tokens.len()).max();
        let columns = columns.unwrap_or(1).max(1);
        let mut tokens = vec![0_i64; places * columns];
        let mut weights = vec![0_f32; places * columns];
        for target in &self.targets {
            if !(1..=places).contains(&target.place) || target.tokens.len() != target.weights.len()
            {
                let problem = format!("a target at {}, of {places}", target.place);
                return Err(Error::Conversation { problem });
            }
            // The position before it predicts it.
            let row = (target.place - 1) * columns;
            for (column, (token, weight)) in target.tokens.iter().zip(&target.weights).enumerate() {
                tokens[row + column] = i64::from(*token);
                weights[row + column] = *weight;
            }
        }
        let shape = [places, columns];
        let inputs = [
            (
                "target_tokens".to_owned(),
                TensorData::with_shape(tokens, shape)?,
            ),
            (
                "weights".to_owned(),
                TensorData::with_shape(weights, shape)?,
            ),
        ];
        let seen = self.tokens[..places].to_vec();
        Ok(Datum::new(seen, inputs.into_iter().collect())?)
    }

    fn words(&self) -> impl Iterator<Item = u32> {
        let targets = self.targets.iter().flat_map(|target| {
            let weights = target.weights.iter().map(|weight| weight.to_bits());
            run::counted(&target.tokens).chain(weights)
        });
        run::counted(&self.tokens).chain(targets)
    }
}

/// Asks the teacher for answers, where questions have none, and for its likeliest tokens in all of them.
///
/// # Errors
/// If a question cannot be rendered, no answer ended within the token limit, or the server fails.
pub async fn ask_for_targets(
    teacher: &SamplingClient,
    renderer: &Renderer,
    config: &OffPolicyConfig,
    questions: &[Conversation],
) -> Result<Vec<SoftExample>, Error> {
    let questions = in_order(questions);
    let ask = questions
        .iter()
        .map(|question| targets_of_question(teacher, renderer, config, question));
    let replies = try_join_all(ask).await?.into_iter();
    let examples: Vec<_> = replies.flat_map(|reply| reply.learned).collect();
    if examples.is_empty() {
        return Err(replies::no_answer(config.max_tokens));
    }
    Ok(examples)
}

/// A question in the order in which targets are learned.
struct Question<'q> {
    chat: &'q Conversation,
    /// Its place among those without an answer, if it is one.
    open: Option<usize>,
}

/// Returns the questions that have an answer, and then the others.
fn in_order(questions: &[Conversation]) -> Vec<Question<'_>> {
    let has_answer = |chat: &&Conversation| {
        let last = chat.messages.last();
        last.is_some_and(|last| last.role == Role::Assistant)
    };
    let (given, open): (Vec<_>, Vec<_>) = questions.iter().partition(has_answer);
    let given = given.into_iter().map(|chat| (chat, None));
    let open = open.into_iter().enumerate();
    let open = open.map(|(index, chat)| (chat, Some(index)));
    let all = given.chain(open);
    all.map(|(chat, open)| Question { chat, open }).collect()
}

/// Asks the teacher for an answer, if the question has none, and for its likeliest tokens in what the answer is.
async fn targets_of_question(
    teacher: &SamplingClient,
    renderer: &Renderer,
    config: &OffPolicyConfig,
    question: &Question<'_>,
) -> Result<Reply<SoftExample>, Error> {
    let Some(index) = question.open else {
        let targets = targets_of(teacher, renderer, config, question.chat).await?;
        return Ok(Reply::of(targets));
    };
    let prompt = config.as_prompt();
    let answers = prompt::answers(teacher, renderer, &prompt, index, question.chat).await?;
    let chats = answers.learned.iter().filter_map(|record| match record {
        Record::Chat(chat) => Some(chat),
        Record::Pair { .. } => None,
    });
    let targets = chats.map(|chat| targets_of(teacher, renderer, config, chat));
    Ok(Reply {
        learned: try_join_all(targets).await?,
        unfinished: answers.unfinished,
    })
}

async fn targets_of(
    teacher: &SamplingClient,
    renderer: &Renderer,
    config: &OffPolicyConfig,
    chat: &Conversation,
) -> Result<SoftExample, Error> {
    let train_on = TrainOn::LastAssistantMessage;
    let student = renderer.example(chat, train_on)?;
    let told = renderer.example(&instructed(chat, &config.instructions), train_on)?;
    let places = |example: &Example| -> Vec<usize> {
        let weights = example.weights.iter().enumerate();
        weights
            .filter(|(place, weight)| *place > 0 && **weight != 0.0)
            .map(|(place, _)| place)
            .collect()
    };
    let (ours, theirs) = (places(&student), places(&told));
    let same = ours.iter().map(|place| student.tokens[*place]);
    if !same.eq(theirs.iter().map(|place| told.tokens[*place])) {
        return Err(Error::Conversation {
            problem: "the answer has other tokens behind the teacher's instructions".to_owned(),
        });
    }
    let one = SamplingParams::new(1);
    let sample = teacher
        .sample(told.tokens.clone(), one)
        .topk_prompt_logprobs(config.top_k);
    let likeliest = sample.await?.topk_prompt_logprobs;
    let missing = Error::Missing {
        what: "likeliest tokens of a prompt",
    };
    let Some(likeliest) = likeliest else {
        return Err(missing);
    };
    let target = |(ours, theirs): (usize, usize)| {
        likeliest
            .row(theirs)
            .and_then(|row| SoftTarget::new(ours, row))
    };
    let targets: Option<Vec<_>> = ours.into_iter().zip(theirs).map(target).collect();
    Ok(SoftExample {
        tokens: student.tokens,
        targets: targets.ok_or(missing)?,
    })
}

fn plan(config: &OffPolicyConfig, examples: &[SoftExample]) -> Plan {
    Plan::new(examples.len(), config.passes.batch_size, config.seed)
        .of_words(examples.iter().flat_map(SoftExample::words))
        .starting_from(config.adapter.from.clone())
}

/// Returns how the run in a folder ended, if it did: [`off_policy`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn off_policy_finished(
    config: &OffPolicyConfig,
    renderer: &Renderer,
    questions: &[Conversation],
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let asked = asked(config, renderer, questions)?;
    match replies::kept::<SoftExample>(folder.as_ref(), TARGETS, asked)? {
        Some(examples) => {
            let steps = config.passes.steps(examples.len())?;
            let plan = plan(config, &examples);
            Run::already_finished(folder, &plan, steps, Evaluation::NEVER, Goal::LOSS)
        }
        None => Ok(None),
    }
}

/// Teaches the student of `config` the teacher's likeliest tokens, in a run folder.
///
/// Questions that end with an answer keep it, and the teacher says what it thinks of that; to the others it answers
/// itself. The targets are kept in the folder as `soft_targets.jsonl`, so that a run which resumes learns the same
/// ones. The number to watch is `kl_teacher`. The two models must share a tokenizer.
///
/// # Errors
/// If the targets in the folder are of other questions, and as [`ask_for_targets`].
pub async fn off_policy(
    service: &ServiceClient,
    config: &OffPolicyConfig,
    teacher: &SamplingClient,
    renderer: &Renderer,
    questions: &[Conversation],
    folder: impl AsRef<Path>,
    mut hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    config.check()?;
    let folder = folder.as_ref();
    if let Some(outcome) = off_policy_finished(config, renderer, questions, folder)? {
        return Ok(outcome);
    }
    make_folder(folder)?;
    let all = asked(config, renderer, questions)?;
    let examples = match replies::kept(folder, TARGETS, all)? {
        Some(examples) => examples,
        None => {
            let ordered = in_order(questions);
            let chats: Vec<_> = ordered.iter().map(|one| one.chat.clone()).collect();
            let prompt = config.as_prompt();
            let each = prompt::asked_each(teacher, renderer, &prompt, &chats).await?;
            let each = each.into_iter().map(|hash| with_top_k(hash, config.top_k));
            let asked = Asked {
                all,
                each: each.collect(),
                max_tokens: config.max_tokens,
            };
            let ask =
                |index: usize| targets_of_question(teacher, renderer, config, &ordered[index]);
            replies::ask(folder, TARGETS, &asked, ask, &mut hooks).await?
        }
    };
    let batches = Batches::new(examples.len(), config.passes.batch_size, config.seed)?;
    let steps = config.passes.steps(examples.len())?;
    let plan = plan(config, &examples);
    let mut run = Run::open(service, &config.adapter, plan, config, folder)
        .await?
        .keeping(config.checkpoints);
    while run.steps_done() < steps && !hooks.interrupt.is_set() {
        let step = run.steps_done();
        let batch = batches.batch(step);
        let chosen = || batch.iter().map(|index| &examples[*index]);
        let datums = chosen().map(SoftExample::to_datum);
        let datums = datums.collect::<Result<Vec<_>, _>>()?;
        let weights: Vec<Vec<f32>> = datums
            .iter()
            .map(|datum| datum.weights().and_then(|weights| weights.as_f32()))
            .map(|weights| weights.unwrap_or_default().to_vec())
            .collect();
        let adam = config
            .adam
            .with_rate(config.learning_rate.rate(step, steps));
        let pass = run.training.forward_backward(datums).submit();
        let update = run.training.optim_step(adam).submit();
        let loss = run.loss(&pass.await?, &weights)?;
        let update = update.await?;
        let targets = || chosen().flat_map(|example| &example.targets);
        let places = targets().count().max(1) as f64;
        let entropy: f64 = targets().map(SoftTarget::entropy).sum();
        let tokens: usize = chosen().map(|example| example.tokens.len()).sum();
        let mut numbers = Numbers::from([
            ("loss".to_owned(), loss / places),
            ("kl_teacher".to_owned(), (loss - entropy) / places),
            ("learning_rate".to_owned(), adam.learning_rate),
        ]);
        numbers.extend(run.speed(tokens as f64));
        numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
        let save = run.save_due(step + 1, config.checkpoint_every);
        run.finish_step(batch, numbers, steps, save, &mut hooks)
            .await?;
    }
    let finished = run.steps_done() >= steps;
    run.end(finished).await
}

/// Returns a hash of what decides the targets.
fn asked(
    config: &OffPolicyConfig,
    renderer: &Renderer,
    questions: &[Conversation],
) -> Result<u64, Error> {
    let prompt = super::prompt::asked(&config.as_prompt(), renderer, questions)?;
    Ok(with_top_k(prompt, config.top_k))
}

fn with_top_k(hash: u64, top_k: u32) -> u64 {
    run::hash([(hash >> 32) as u32, hash as u32, top_k])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_targets_stand_where_they_are_predicted() {
        let likeliest = [(7, 0.5_f32.ln()), (8, 0.25_f32.ln())];
        let target = SoftTarget::new(2, likeliest.into_iter()).unwrap();
        assert!((target.weights[0] - 2.0 / 3.0).abs() < 1e-6);
        let third = 1.0_f64 / 3.0;
        let entropy = -third * third.ln() - 2.0 * third * (2.0 * third).ln();
        assert!((target.entropy() - entropy).abs() < 1e-6);
        let example = SoftExample {
            tokens: vec![1, 2, 7],
            targets: vec![target],
        };
        let datum = example.to_datum().unwrap();
        assert_eq!(datum.model_input().to_tokens().unwrap(), [1, 2]);
        let targets = datum.target_tokens().unwrap();
        assert_eq!(targets.shape(), Some(&[2, 2][..]));
        assert_eq!(targets.as_i64().unwrap(), [0, 0, 7, 8]);
        let weights = datum.weights().unwrap().as_f32().unwrap();
        assert_eq!(weights[..2], [0.0, 0.0]);
        assert!((weights[2] + weights[3] - 1.0).abs() < 1e-6);

        let beyond = SoftExample {
            tokens: vec![1, 2],
            ..example
        };
        assert!(beyond.to_datum().is_err());
        assert_eq!(SoftTarget::new(1, std::iter::empty()), None);
    }

    #[test]
    fn how_many_tokens_is_checked_by_name() {
        for top_k in [0, 2000] {
            let config = OffPolicyConfig {
                top_k,
                ..OffPolicyConfig::new("tiny")
            };
            let error = config.check().unwrap_err().to_string();
            assert_eq!(error, format!("top_k: {top_k}, expected 1 to 1024"));
        }
    }
}
