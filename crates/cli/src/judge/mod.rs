//! Grading answers: by comparison with the right one, or by a program of the user's.

mod command;
mod env_program;
mod env_task;
mod group;
mod rewards;
mod sandbox;
pub(crate) mod shell;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Message, Renderer, Response};
use tinkrs_recipes::data::Task;
use tinkrs_recipes::evaluate::Check;
use tinkrs_recipes::graders::RewardSpec;
use tinkrs_recipes::rl::{Env, EnvFuture, Problem, Turn};
use tinkrs_recipes::run::Numbers;
use tinkrs_server::units::duration;

use command::JudgeCommand;
pub(crate) use env_program::EnvProgram;
pub(crate) use env_task::{EnvArgs, EnvTask};
pub(crate) use group::end_all;
use rewards::Rewards;

use crate::backend::Backend;
use crate::other_model::Other;

const GRADING: &str = "Grading answers";

/// How answers are graded
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct JudgeArgs {
    /// How an answer is compared with the line's `answer`; it earns 1 or 0
    #[arg(long, value_name = "NAME", value_enum, help_heading = GRADING)]
    grader: Option<Check>,

    /// A reward as a TOML table: a type such as `math`, or 'type = "number", tolerance = 0.1, weight = 0.5'
    ///
    /// May be repeated: weighted scores add up. The types are exact, words, contains, number, regex, math,
    /// json_schema, unit_tests, judge, reward_model and command; docs/rl.md has their keys. In a `--config` file each is a table
    /// `[[reward]]`.
    #[arg(
        long,
        value_name = "TABLE",
        conflicts_with_all = ["grader", "reward_command"],
        help_heading = GRADING
    )]
    reward: Vec<RewardSpec>,

    /// TOML file with rewards, each a table `[[reward]]`
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["grader", "reward_command", "reward"],
        help_heading = GRADING
    )]
    rewards: Option<PathBuf>,

    /// Reward model that grades instead: a run of `tinkrs train reward`, its folder, or a checkpoint. An answer earns
    /// log p(Yes) − log p(No)
    #[arg(
        long,
        value_name = "MODEL",
        conflicts_with_all = ["grader", "reward_command", "reward", "rewards"],
        help_heading = GRADING
    )]
    reward_model: Option<String>,

    /// What the reward model was trained to be asked, if its run does not say that
    #[arg(long, value_name = "TEXT", help_heading = GRADING)]
    reward_question: Option<String>,

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
            reward: Vec::new(),
            rewards: None,
            reward_model: None,
            reward_question: None,
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
    /// Rewards, of which some can be had when the server is there.
    Planned(Arc<[RewardSpec]>),
    Rewards(Arc<[RewardSpec]>, Rewards),
}

impl JudgeArgs {
    /// Returns whether a grader was chosen.
    pub(crate) fn is_given(&self) -> bool {
        self.grader.is_some()
            || self.reward_command.is_some()
            || self.rewards.is_some()
            || self.reward_model.is_some()
            || !self.reward.is_empty()
    }

    /// Returns the models besides the one that answers that the server must have.
    pub(crate) fn others(&self) -> anyhow::Result<Vec<Other>> {
        rewards::others(&self.specs()?)
    }

    /// Starts the program that grades, if there is one.
    pub(crate) fn open(&self) -> anyhow::Result<Judge> {
        ensure!(
            !self.reward_timeout.is_zero(),
            "--reward-timeout: 0s, expected more"
        );
        ensure!(
            self.reward_question.is_none() || self.reward_model.is_some(),
            "--reward-question: it needs a `--reward-model`"
        );
        let specs = self.specs()?;
        if !specs.is_empty() {
            return Ok(Judge::Planned(specs.into()));
        }
        match (self.grader, &self.reward_command) {
            (Some(check), _) => Ok(Judge::Check(check)),
            (None, Some(command)) => {
                let command = JudgeCommand::start(command, self.reward_timeout)?;
                Ok(Judge::Command(Arc::new(command)))
            }
            (None, None) => Err(anyhow::anyhow!(NO_GRADER)),
        }
    }

    /// Returns the rewards that were given as tables, wherever they stand.
    fn specs(&self) -> anyhow::Result<Vec<RewardSpec>> {
        if let Some(path) = &self.rewards {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("could not read {}", path.display()))?;
            let rewards = RewardSpec::read_toml(&text);
            return rewards.map_err(|problem| anyhow!("{}: {problem}", path.display()));
        }
        if let Some(model) = &self.reward_model {
            let question = self.reward_question.as_deref();
            let spec = RewardSpec::reward_model(model, question);
            return Ok(vec![spec.map_err(anyhow::Error::msg)?]);
        }
        Ok(self.reward.clone())
    }
}

/// What is missing where answers cannot be graded.
pub(crate) const NO_GRADER: &str =
    "no grader: choose --grader, --reward, --rewards, --reward-model or --reward-command";

impl Judge {
    /// Opens what grades with the help of a server.
    pub(crate) async fn connect(&mut self, backend: &Backend) -> anyhow::Result<()> {
        if let Self::Planned(specs) = self {
            let rewards = Rewards::open(specs, backend).await?;
            *self = Self::Rewards(Arc::clone(specs), rewards);
        }
        Ok(())
    }

    /// Refuses a task that cannot be graded.
    pub(crate) fn check(&self, task: &Task) -> anyhow::Result<()> {
        match (self, &task.answer) {
            (Self::Command(_), _) => Ok(()),
            (Self::Planned(specs) | Self::Rewards(specs, _), _) => rewards::check(specs, task),
            (Self::Check(_), None) => bail!("no `answer` to compare with"),
            (Self::Check(check), Some(answer)) if !check.accepts(answer) => {
                bail!("the answer `{answer}` has nothing that could be compared")
            }
            (Self::Check(_), Some(_)) => Ok(()),
        }
    }

    /// Grades an answer. Also returns the parts of the score by name, if it has some.
    pub(crate) async fn score(
        &self,
        task: &Task,
        response: &Response,
    ) -> Result<(f64, Numbers), BoxError> {
        let score = match self {
            Self::Check(check) => {
                let answer = task.answer.as_deref().unwrap_or_default();
                check.grade(response, answer)
            }
            Self::Command(command) => command.ask(&question(task, response)).await?,
            Self::Rewards(_, rewards) => return rewards.score(task, response).await,
            Self::Planned(_) => return Err("the graders are not connected".into()),
        };
        Ok((score, Numbers::new()))
    }
}

/// Returns what a program is asked that grades.
fn question(task: &Task, response: &Response) -> serde_json::Value {
    json!({
        "prompt": task.prompt(),
        "messages": task.question.messages,
        "completion": response.message.content,
        "answer": task.answer,
    })
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
            let (reward, scores) = self.judge.score(&self.task, &said).await?;
            self.said = Some(said);
            let turn = Turn::end(reward);
            Ok(scores
                .into_iter()
                .fold(turn, |turn, (name, score)| turn.metric(name, score)))
        })
    }

    fn transcript(&self) -> Vec<Message> {
        let asked = self.task.question.messages.iter();
        let said = self.said.iter().map(|said| &said.message);
        asked.chain(said).cloned().collect()
    }
}
