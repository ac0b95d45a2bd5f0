//! Several rewards, each with its weight.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tinkrs::auth::Secret;
use tinkrs::{BoxError, CheckpointKind, SampleFrom};
use tinkrs_chat::{Renderer, Response};
use tinkrs_recipes::data::Task;
use tinkrs_recipes::graders::{self, JudgeSpec, Kind, LlmJudge, RewardSpec};
use tinkrs_recipes::run::{Numbers, sampler_of};

use super::command::JudgeCommand;
use super::question;
use super::sandbox::Sandbox;
use crate::backend::{self, Backend};
use crate::output::note;

/// Rewards that add up.
#[derive(Clone)]
pub(crate) struct Rewards(Arc<[(RewardSpec, Grader)]>);

/// What gives a score.
enum Grader {
    /// The answer and the row are enough.
    Pure,
    Tests(Sandbox),
    Llm(LlmJudge),
    Command(JudgeCommand),
}

impl Rewards {
    /// Opens what grades, of which some is on the service that trains.
    pub(super) async fn open(
        specs: &[RewardSpec],
        backend: &Backend,
        renderer: &Renderer,
    ) -> anyhow::Result<Self> {
        let mut rewards = Vec::with_capacity(specs.len());
        for spec in specs {
            let grader = match &spec.kind {
                Kind::UnitTests(tests) => {
                    let sandbox = Sandbox::open(tests.clone()).await?;
                    if let Some(warning) = sandbox.warning() {
                        note(warning);
                    }
                    Grader::Tests(sandbox)
                }
                Kind::Judge(judge) => {
                    let judge = llm_judge(judge, backend, renderer).await;
                    Grader::Llm(judge.with_context(|| format!("reward `{}`", spec.name))?)
                }
                Kind::Command(command) => {
                    let patience = Duration::from_secs(command.seconds);
                    Grader::Command(JudgeCommand::start(&command.command, patience)?)
                }
                _ => Grader::Pure,
            };
            rewards.push((spec.clone(), grader));
        }
        Ok(Self(rewards.into()))
    }

    /// Grades an answer. Returns the sum, and each score by name.
    pub(super) async fn score(
        &self,
        task: &Task,
        response: &Response,
    ) -> Result<(f64, Numbers), BoxError> {
        let (mut sum, mut scores) = (0.0, Numbers::new());
        for (spec, grader) in self.0.iter() {
            let said = &response.message.content;
            let score = match grader {
                Grader::Pure => graders::grade(&spec.kind, task, response).unwrap_or_default(),
                Grader::Tests(sandbox) => sandbox.score(task, said).await?,
                Grader::Llm(judge) => judge.score(task, said).await?,
                Grader::Command(command) => command.ask(&question(task, response)).await?,
            };
            sum += spec.weight * score;
            *scores.entry(format!("reward/{}", spec.name)).or_default() += score;
        }
        Ok((sum, scores))
    }
}

/// Refuses a task that one of the rewards cannot grade.
pub(super) fn check(specs: &[RewardSpec], task: &Task) -> anyhow::Result<()> {
    for spec in specs {
        let checked = graders::check(&spec.kind, task);
        checked.map_err(|problem| anyhow!("reward `{}`: {problem}", spec.name))?;
    }
    Ok(())
}

async fn llm_judge(
    spec: &JudgeSpec,
    backend: &Backend,
    renderer: &Renderer,
) -> anyhow::Result<LlmJudge> {
    if spec.url.is_some() {
        let key = match &spec.api_key_env {
            None => None,
            Some(name) => {
                let key = std::env::var(name).ok().filter(|key| !key.is_empty());
                let key = key.with_context(|| format!("`api_key_env`: {name} is not set"))?;
                Some(Secret::from(key))
            }
        };
        return Ok(LlmJudge::at_endpoint(spec.clone(), key));
    }
    if let Some(checkpoint) = &spec.checkpoint {
        let checkpoint = checkpoint.parse();
        let checkpoint = checkpoint.context("`checkpoint` is no checkpoint")?;
        let kinds = [CheckpointKind::Sampler, CheckpointKind::Training];
        let path = backend.resolve_as(&checkpoint, &kinds).await?;
        let sampler = sampler_of(&backend.service, &path).await?;
        return Ok(LlmJudge::on_service(
            spec.clone(),
            sampler,
            renderer.clone(),
        ));
    }
    let model = spec.model.as_ref().unwrap_or(&backend.model);
    let renderer = if *model == backend.model {
        renderer.clone()
    } else {
        backend::renderer(model, None, None)?
    };
    let from = SampleFrom::BaseModel(model.clone());
    let sampler = backend.service.create_sampling_client(from).await;
    let sampler =
        sampler.with_context(|| format!("`model`: the service cannot sample from `{model}`"))?;
    Ok(LlmJudge::on_service(spec.clone(), sampler, renderer))
}
