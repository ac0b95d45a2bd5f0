//! The tasks of an environment that is a program: a line of the file is a task, and the program plays it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tinkrs::{BoxError, SamplingParams};
use tinkrs_chat::{Conversation, Message, Renderer, Response};
use tinkrs_recipes::rl::{Dialogue, Env, EnvFuture, MessageEnv, Problem, Reply, Turn};
use tinkrs_recipes::run::Numbers;
use tinkrs_server::units::duration;

use super::env_program::{EnvProgram, Process};

const GRADING: &str = "Grading answers";
const ENV_TIMEOUT: &str = "1m";

/// An environment that is a program
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct EnvArgs {
    /// Program that is an environment of several turns, such as 'python env.py'
    ///
    /// It speaks JSON lines: docs/environments.md has the protocol. Each line of the file of `--data` is a task of
    /// any form, which the program is given. It is started once, runs in a shell, and plays many episodes at a time.
    #[arg(
        long,
        value_name = "COMMAND",
        conflicts_with_all = ["grader", "reward", "rewards", "reward_model", "reward_command"],
        help_heading = GRADING
    )]
    env_command: Option<String>,

    /// How long that program may take for an answer, such as 90s or 5m; a bare number is seconds
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration::parse,
        default_value = ENV_TIMEOUT,
        help_heading = GRADING
    )]
    #[serde(with = "duration")]
    env_timeout: Duration,
}

impl Default for EnvArgs {
    fn default() -> Self {
        Self {
            env_command: None,
            env_timeout: duration::parse(ENV_TIMEOUT).expect("a duration"),
        }
    }
}

impl EnvArgs {
    /// Starts the program, if there is one.
    pub(crate) fn open(&self) -> anyhow::Result<Option<Arc<EnvProgram>>> {
        ensure!(
            !self.env_timeout.is_zero(),
            "--env-timeout: 0s, expected more"
        );
        let Some(command) = &self.env_command else {
            return Ok(None);
        };
        let program = EnvProgram::start(command, self.env_timeout)?;
        Ok(Some(Arc::new(program)))
    }
}

/// A task that a program plays again and again.
#[derive(Clone)]
pub(crate) struct EnvTask {
    program: Arc<EnvProgram>,
    renderer: Renderer,
    params: SamplingParams,
    task: Value,
}

impl EnvTask {
    pub(crate) fn new(
        program: &Arc<EnvProgram>,
        renderer: &Renderer,
        max_tokens: u32,
        task: Value,
    ) -> Self {
        Self {
            program: Arc::clone(program),
            params: renderer.sampling_params(max_tokens),
            renderer: renderer.clone(),
            task,
        }
    }
}

impl Problem for EnvTask {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        Box::pin(async move {
            let process = self.program.process()?;
            let answer = process
                .ask(json!({"type": "start", "task": self.task}))
                .await?;
            // The id of its first request is the name of an episode.
            let episode = answer["id"].as_u64().unwrap_or_default();
            let opening = Conversation {
                messages: member(&answer, "messages")?.unwrap_or_default(),
                tools: member(&answer, "tools")?.unwrap_or_default(),
            };
            let game = Game {
                process,
                episode,
                is_over: false,
            };
            if opening.messages.is_empty() {
                return Err("the answer to `start` has no `messages`".into());
            }
            let dialogue = Dialogue::new(&self.renderer, opening, game);
            Ok(Box::new(dialogue) as Box<dyn Env>)
        })
    }

    fn params(&self) -> SamplingParams {
        self.params.clone()
    }

    fn identity(&self) -> Vec<u32> {
        self.task.to_string().bytes().map(u32::from).collect()
    }
}

/// An episode in the program.
struct Game {
    process: Arc<Process>,
    episode: u64,
    is_over: bool,
}

impl MessageEnv for Game {
    fn reply<'a>(&'a mut self, answer: &'a Response) -> EnvFuture<'a, Reply> {
        Box::pin(async move {
            let request = json!({
                "type": "step",
                "episode": self.episode,
                "message": answer.message,
                "finished": answer.finished,
                "malformed_calls": answer.malformed_calls,
            });
            let reply = self.process.ask(request).await?;
            let messages: Vec<Message> = member(&reply, "messages")?.unwrap_or_default();
            let done = member(&reply, "done")?.unwrap_or(false);
            if !done && messages.is_empty() {
                return Err("the answer to `step` has neither `messages` nor `done`".into());
            }
            let turn = Turn {
                reward: member(&reply, "reward")?.unwrap_or(0.0),
                done,
                metrics: member::<Numbers>(&reply, "metrics")?.unwrap_or_default(),
            };
            self.is_over = done;
            Ok(Reply { messages, turn })
        })
    }
}

impl Drop for Game {
    fn drop(&mut self) {
        if !self.is_over {
            let notice = json!({"type": "end", "episode": self.episode});
            self.process.tell(&notice);
        }
    }
}

/// Reads a member of an answer, which may be missing.
fn member<T: DeserializeOwned>(answer: &Value, name: &str) -> Result<Option<T>, BoxError> {
    match answer.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|error| format!("`{name}` of an answer of the environment: {error}").into()),
    }
}
