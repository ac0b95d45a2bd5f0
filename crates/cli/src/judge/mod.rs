//! Grading answers: by comparison with the right one, or by a program of the user's.

mod command;
mod env_program;
mod env_task;
mod group;
mod shell;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Message, Renderer, Response};
use tinkrs_recipes::data::Task;
use tinkrs_recipes::evaluate::Check;
use tinkrs_recipes::reward::RewardModel;
use tinkrs_recipes::rl::{Env, EnvFuture, Problem, Turn};
use tinkrs_server::units::duration;

use command::JudgeCommand;
pub(crate) use env_program::EnvProgram;
pub(crate) use env_task::{EnvArgs, EnvTask};
pub(crate) use group::end_all;

const GRADING: &str = "Grading answers";

/// How answers are graded
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct JudgeArgs {
    /// How an answer is compared with the line's `answer`; it earns 1 or 0
    #[arg(long, value_name = "NAME", value_enum, help_heading = GRADING)]
    grader: Option<Check>,

    /// Program that grades instead, such as 'python reward.py'
    ///
    /// It reads lines {"prompt": …, "messages": …, "completion": …, "answer": …} from its stdin and
    /// writes a number for each to its stdout, in the same order and at once: it must not wait for the
    /// end of its input. It is started once and runs in a shell.
    #[arg(long, value_name = "COMMAND", conflicts_with = "grader", help_heading = GRADING)]
    reward_command: Option<String>,

    /// How long the program may take for an answer, such as 90s or 5m; a bare number is seconds
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration::parse,
        default_value = REWARD_TIMEOUT,
        help_heading = GRADING
    )]
    #[serde(with = "duration")]
    reward_timeout: Duration,
}

const REWARD_TIMEOUT: &str = "1m";

impl Default for JudgeArgs {
    fn default() -> Self {
        Self {
            grader: None,
            reward_command: None,
            reward_timeout: duration::parse(REWARD_TIMEOUT).expect("a duration"),
        }
    }
}

/// What grades answers.
#[derive(Clone)]
pub(crate) enum Judge {
    Check(Check),
    Command(Arc<JudgeCommand>),
    Model(Arc<RewardModel>),
}

impl JudgeArgs {
    /// Returns whether a grader was chosen.
    pub(crate) fn is_given(&self) -> bool {
        self.grader.is_some() || self.reward_command.is_some()
    }

    /// Starts the program that grades, if there is one.
    pub(crate) fn open(&self) -> anyhow::Result<Judge> {
        ensure!(
            !self.reward_timeout.is_zero(),
            "--reward-timeout: 0s, expected more"
        );
        match (self.grader, &self.reward_command) {
            (Some(check), _) => Ok(Judge::Check(check)),
            (None, Some(command)) => {
                let command = JudgeCommand::start(command, self.reward_timeout)?;
                Ok(Judge::Command(Arc::new(command)))
            }
            (None, None) => Err(anyhow::anyhow!(NO_GRADER)),
        }
    }
}

/// What is missing where answers cannot be graded.
pub(crate) const NO_GRADER: &str = "no grader: choose --grader or --reward-command";

impl Judge {
    /// Refuses a task that cannot be graded.
    pub(crate) fn check(&self, task: &Task) -> anyhow::Result<()> {
        match (self, &task.answer) {
            (Self::Command(_) | Self::Model(_), _) => Ok(()),
            (Self::Check(_), None) => bail!("no `answer` to compare with"),
            (Self::Check(check), Some(answer)) if !check.accepts(answer) => {
                bail!("the answer `{answer}` has nothing that could be compared")
            }
            (Self::Check(_), Some(_)) => Ok(()),
        }
    }

    /// Grades an answer.
    pub(crate) async fn score(&self, task: &Task, response: &Response) -> Result<f64, BoxError> {
        match self {
            Self::Check(check) => {
                let answer = task.answer.as_deref().unwrap_or_default();
                Ok(check.grade(response, answer))
            }
            Self::Model(model) => {
                let answer = &response.message.content;
                Ok(model.score(&task.question.messages, answer).await?)
            }
            Self::Command(command) => {
                let question = json!({
                    "prompt": task.prompt(),
                    "messages": task.question.messages,
                    "completion": response.message.content,
                    "answer": task.answer,
                });
                command.ask(&question).await
            }
        }
    }
}

/// A task that is asked again and again.
#[derive(Clone)]
pub(crate) struct JudgedTask {
    renderer: Renderer,
    prompt: Arc<Vec<u32>>,
    params: SamplingParams,
    task: Arc<Task>,
    judge: Judge,
    said: Option<Response>,
}

impl JudgedTask {
    pub(crate) fn new(
        renderer: &Renderer,
        task: Task,
        max_tokens: u32,
        judge: &Judge,
    ) -> anyhow::Result<Self> {
        judge.check(&task)?;
        Ok(Self {
            prompt: Arc::new(renderer.prompt(&task.question)?),
            params: renderer.sampling_params(max_tokens),
            renderer: renderer.clone(),
            task: Arc::new(task),
            judge: judge.clone(),
            said: None,
        })
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }
}

impl Problem for JudgedTask {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let asked: Box<dyn Env> = Box::new(self.clone());
        Box::pin(async { Ok(asked) })
    }

    fn params(&self) -> SamplingParams {
        self.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        let answer = self.task.answer.iter().flat_map(|answer| answer.bytes());
        let length = self.prompt.len() as u32;
        let prompt = std::iter::once(length).chain(self.prompt.iter().copied());
        prompt.chain(answer.map(u32::from)).collect()
    }
}

impl Env for JudgedTask {
    fn observe(&self) -> Result<Vec<u32>, BoxError> {
        Ok(self.prompt.to_vec())
    }

    fn act<'a>(&'a mut self, tokens: &'a [u32]) -> EnvFuture<'a, Turn> {
        Box::pin(async move {
            let said = self.renderer.parse(tokens)?;
            let reward = self.judge.score(&self.task, &said).await?;
            self.said = Some(said);
            Ok(Turn::end(reward))
        })
    }

    fn transcript(&self) -> Vec<Message> {
        let asked = self.task.question.messages.iter();
        let said = self.said.iter().map(|said| &said.message);
        asked.chain(said).cloned().collect()
    }
}
