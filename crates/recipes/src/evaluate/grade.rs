//! Asking a model questions and judging its answers.

use crate::Error;
use crate::run::SampleRecord;
use futures_util::future::try_join_all;
use tinkrs::{SamplingClient, SamplingParams};
use tinkrs_chat::{Conversation, Renderer, Response};

/// Answers with their grades.
#[derive(Clone, Debug, PartialEq)]
pub struct Graded {
    /// The answers, in the order of the questions.
    pub answers: Vec<Response>,
    /// Their grades.
    pub scores: Vec<f64>,
}

impl Graded {
    /// Returns the mean grade; `None` without answers.
    pub fn mean(&self) -> Option<f64> {
        let count = self.scores.len();
        (count > 0).then(|| self.scores.iter().sum::<f64>() / count as f64)
    }

    /// Returns the standard error of the mean: how far off it may well be by chance.
    pub fn standard_error(&self) -> Option<f64> {
        let (count, mean) = (self.scores.len(), self.mean()?);
        let squares = self
            .scores
            .iter()
            .map(|score| (score - mean).powi(2))
            .sum::<f64>();
        (count > 1).then(|| (squares / (count - 1) as f64 / count as f64).sqrt())
    }
}

/// Asks each question once, all at the same time, and reads the answers.
///
/// # Errors
/// If a question cannot be rendered, or the server fails.
pub async fn answers(
    sampler: &SamplingClient,
    renderer: &Renderer,
    questions: &[Conversation],
    params: &SamplingParams,
) -> Result<Vec<Response>, Error> {
    let ask = |question: &Conversation| {
        let prompt = renderer.prompt(question);
        let params = params.clone();
        async move {
            let output = sampler.sample(prompt?, params).await?;
            let sequence = output
                .sequences
                .first()
                .ok_or(Error::Missing { what: "sequence" })?;
            Ok::<_, Error>(renderer.parse(&sequence.tokens)?)
        }
    };
    try_join_all(questions.iter().map(ask)).await
}

/// Asks each question and grades the answers. The grader gets the question's index and the
/// answer.
///
/// # Errors
/// As [`answers`].
pub async fn grade(
    sampler: &SamplingClient,
    renderer: &Renderer,
    questions: &[Conversation],
    params: &SamplingParams,
    grader: impl Fn(usize, &Response) -> f64,
) -> Result<Graded, Error> {
    let answers = answers(sampler, renderer, questions, params).await?;
    let scores = answers
        .iter()
        .enumerate()
        .map(|(index, answer)| grader(index, answer))
        .collect();
    Ok(Graded { answers, scores })
}

/// Returns 1 if the answer is the expected text, white space at the ends aside, else 0.
pub fn exact_match(answer: &Response, expected: &str) -> f64 {
    f64::from(u8::from(answer.message.content.trim() == expected.trim()))
}

/// Asks each question and keeps the answers for a report: what the model says after `steps`
/// steps.
///
/// # Errors
/// As [`answers`].
pub async fn sample_records(
    sampler: &SamplingClient,
    renderer: &Renderer,
    questions: &[Conversation],
    params: &SamplingParams,
    steps: usize,
) -> Result<Vec<SampleRecord>, Error> {
    let answers = answers(sampler, renderer, questions, params).await?;
    let record = |(question, answer): (&Conversation, Response)| SampleRecord {
        steps,
        prompt: question
            .messages
            .last()
            .map_or(String::new(), |last| last.content.clone()),
        answer: answer.message.content,
        score: None,
    };
    Ok(questions.iter().zip(answers).map(record).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_chat::Message;

    fn response(text: &str) -> Response {
        Response {
            message: Message::assistant(text),
            finished: true,
            malformed_calls: 0,
        }
    }

    #[test]
    fn only_the_same_text_matches() {
        assert_eq!(exact_match(&response(" 42\n"), "42"), 1.0);
        assert_eq!(exact_match(&response("42."), "42"), 0.0);
    }

    #[test]
    fn the_mean_comes_with_its_error() {
        let graded = Graded {
            answers: Vec::new(),
            scores: vec![1.0, 0.0, 1.0, 0.0],
        };
        assert_eq!(graded.mean(), Some(0.5));
        assert!((graded.standard_error().unwrap() - 0.2887).abs() < 1e-4);
        let nothing = Graded {
            answers: Vec::new(),
            scores: Vec::new(),
        };
        assert_eq!((nothing.mean(), nothing.standard_error()), (None, None));
    }
}
