//! How a language model says what an answer is worth.
//!
//! The model is asked after the answer whether it is good, and what it is worth is
//!
//! ```text
//! r = log p("Yes") − log p("No")
//! ```
//!
//! That is a logit that every model has from the start: no layer is added, so a reward model is an adapter like
//! any other, and every server can train it, keep it and sample from it.

use crate::Error;
use crate::data::{DataSet, Source, Stored, TooLong};
use crate::dpo::Preference;
use crate::run::counted;
use std::path::Path;
use tinkrs::{Datum, SamplingClient, ServiceClient, TensorData, TinkerPath};
use tinkrs_chat::{Conversation, Message, Renderer};

/// What is asked after an answer, unless told otherwise.
pub const QUESTION: &str = "Is this a good answer? Reply with Yes or No.";

/// The label of a run that trained a reward model: what it was trained to be asked.
pub const QUESTION_LABEL: &str = "reward_question";

/// Returns what the run of a checkpoint was trained to be asked, if it trained a reward model.
///
/// # Errors
/// If the server cannot be asked.
pub async fn trained_question(
    service: &ServiceClient,
    path: &TinkerPath,
) -> Result<Option<String>, Error> {
    let rest = service.create_rest_client();
    let run = rest.get_training_run(path.run()).await?;
    let mut labels = run.user_metadata.unwrap_or_default();
    Ok(labels.remove(QUESTION_LABEL))
}

/// The tokens that a model says what an answer is worth with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdicts {
    pub(super) yes: u32,
    pub(super) no: u32,
}

/// Asks what answers are worth.
#[derive(Clone, Debug)]
pub struct Asking {
    renderer: Renderer,
    question: String,
    verdicts: Verdicts,
}

impl Asking {
    /// Asks a question that is to be answered with Yes or No.
    ///
    /// # Errors
    /// If the question is empty, or the model's tokens for both answers begin alike.
    pub fn new(renderer: &Renderer, question: impl Into<String>) -> Result<Self, Error> {
        let question = question.into();
        if question.trim().is_empty() {
            return Err(Error::setting("question", "it is empty"));
        }
        let first = |text: &str| {
            let tokens = renderer.vocabulary().encode_text(text)?;
            tokens.first().copied().ok_or(Error::Missing {
                what: "token for a verdict",
            })
        };
        let verdicts = Verdicts {
            yes: first("Yes")?,
            no: first("No")?,
        };
        if verdicts.yes == verdicts.no {
            let problem = "the model's tokens for `Yes` and `No` begin alike";
            return Err(Error::setting("question", problem));
        }
        Ok(Self {
            renderer: renderer.clone(),
            question,
            verdicts,
        })
    }

    /// Returns the tokens in front of the verdict about an answer.
    ///
    /// # Errors
    /// If the chat format cannot write them.
    pub fn prompt(&self, before: &[Message], answer: &str) -> Result<Vec<u32>, Error> {
        let asked = [Message::assistant(answer), Message::user(&self.question)];
        let messages: Vec<_> = before.iter().cloned().chain(asked).collect();
        Ok(self.renderer.prompt(&Conversation::from(messages))?)
    }

    /// Renders both answers of a preference. A prompt of plain text is what a user asks.
    ///
    /// # Errors
    /// If the chat format cannot write them, or there is not exactly one of `messages` and `prompt`.
    pub fn pair(&self, preference: &Preference) -> Result<JudgedPair, Error> {
        let before = match (&preference.messages, &preference.prompt) {
            (Some(messages), None) => messages.clone(),
            (None, Some(prompt)) => vec![Message::user(prompt)],
            _ => {
                return Err(Error::Conversation {
                    problem: "needs either `messages` or a `prompt`".to_owned(),
                });
            }
        };
        let asked = |answer: &str| self.prompt(&before, answer);
        Ok(JudgedPair {
            chosen: asked(&preference.chosen)?,
            rejected: asked(&preference.rejected)?,
            verdicts: self.verdicts,
        })
    }

    /// Reads and renders the preferences of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is no preference, cannot be rendered, or is too long and that is
    /// refused; the error names the line.
    pub fn read(
        &self,
        path: impl AsRef<Path>,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<DataSet<JudgedPair>, Error> {
        self.read_all(&[Source::new(path.as_ref())], max_tokens, too_long)
    }

    /// Reads and renders the preferences of several files or folders, as [`read`](Self::read) does.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_all(
        &self,
        sources: &[Source],
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<DataSet<JudgedPair>, Error> {
        DataSet::gather(sources, |preference: Preference| {
            let pair = self.pair(&preference)?;
            match pair.longest() {
                longest if longest <= max_tokens => Ok(Some(pair)),
                _ if too_long == TooLong::Skip => Ok(None),
                // The verdict comes last, so there is nothing to cut off.
                longest => Err(Error::Conversation {
                    problem: format!("{longest} tokens, which cannot be cut to {max_tokens}"),
                }),
            }
        })
    }
}

/// Two answers, each with the question what it is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedPair {
    /// The better answer.
    pub chosen: Vec<u32>,
    /// The worse one.
    pub rejected: Vec<u32>,
    pub(super) verdicts: Verdicts,
}

impl JudgedPair {
    /// Returns the data of both answers: better, worse.
    pub(super) fn datums(&self) -> Result<[Datum; 2], Error> {
        Ok([
            datum(&self.chosen, self.verdicts)?,
            datum(&self.rejected, self.verdicts)?,
        ])
    }
}

/// Both answers, each behind its number of tokens, and the tokens of both verdicts.
impl Stored for JudgedPair {
    fn tokens(&self) -> usize {
        self.chosen.len() + self.rejected.len()
    }

    fn longest(&self) -> usize {
        self.chosen.len().max(self.rejected.len())
    }

    fn write(&self, words: &mut Vec<u32>) {
        words.extend(self.identity());
    }

    fn read(words: &mut impl Iterator<Item = u32>) -> Option<Self> {
        let mut counted = || {
            let length = words.next()? as usize;
            let tokens: Vec<u32> = words.by_ref().take(length).collect();
            (tokens.len() == length).then_some(tokens)
        };
        let (chosen, rejected) = (counted()?, counted()?);
        let verdicts = Verdicts {
            yes: words.next()?,
            no: words.next()?,
        };
        Some(Self {
            chosen,
            rejected,
            verdicts,
        })
    }

    fn identity(&self) -> impl Iterator<Item = u32> {
        let tokens = counted(&self.chosen).chain(counted(&self.rejected));
        tokens.chain([self.verdicts.yes, self.verdicts.no])
    }
}

/// Makes a datum whose last position has both verdicts as targets. The others have none that count.
fn datum(prompt: &[u32], verdicts: Verdicts) -> Result<Datum, Error> {
    let length = prompt.len();
    let mut targets = vec![0_i64; 2 * length];
    let mut weights = vec![0_f32; 2 * length];
    if length > 0 {
        targets[2 * length - 2] = i64::from(verdicts.yes);
        targets[2 * length - 1] = i64::from(verdicts.no);
        weights[2 * length - 2..].fill(1.0);
    }
    let shape = [length, 2];
    let inputs = [
        (
            "target_tokens".to_owned(),
            TensorData::with_shape(targets, shape)?,
        ),
        (
            "weights".to_owned(),
            TensorData::with_shape(weights, shape)?,
        ),
    ];
    Ok(Datum::new(prompt.to_vec(), inputs.into_iter().collect())?)
}

/// Returns what an answer is worth, by the log-probabilities of its datum.
pub(super) fn worth(logprobs: &[f32]) -> Option<f64> {
    let [.., yes, no] = logprobs else { return None };
    Some(f64::from(*yes) - f64::from(*no))
}

/// A trained reward model, ready to say what answers are worth.
#[derive(Clone, Debug)]
pub struct RewardModel {
    sampler: SamplingClient,
    asking: Asking,
}

impl RewardModel {
    /// Asks what `sampler` samples from.
    pub fn new(sampler: SamplingClient, asking: Asking) -> Self {
        Self { sampler, asking }
    }

    /// Says what an answer is worth: `log p("Yes") − log p("No")`, the higher the better.
    ///
    /// # Errors
    /// If the chat format cannot write the conversation, or the server fails.
    pub async fn score(&self, before: &[Message], answer: &str) -> Result<f64, Error> {
        let prompt = self.asking.prompt(before, answer)?;
        let logprob = |verdict: u32| {
            let mut tokens = prompt.clone();
            tokens.push(verdict);
            let ask = self.sampler.compute_logprobs(tokens);
            async move {
                let last = ask.await?.last().copied().filter(|last| last.is_finite());
                last.map(f64::from).ok_or(Error::Missing {
                    what: "log-probability of a verdict",
                })
            }
        };
        let Verdicts { yes, no } = self.asking.verdicts;
        let (yes, no) = futures_util::future::try_join(logprob(yes), logprob(no)).await?;
        Ok(yes - no)
    }
}
