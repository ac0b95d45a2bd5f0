//! Several rewards, each with its weight.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tinkrs::auth::Secret;
use tinkrs::{BoxError, CheckpointKind, SampleFrom, TinkerPath};
use tinkrs_chat::Response;
use tinkrs_recipes::Error;
use tinkrs_recipes::data::Task;
use tinkrs_recipes::graders::{self, JudgeSpec, Kind, LlmJudge, RewardModelSpec, RewardSpec};
use tinkrs_recipes::reward::{Asking, RewardModel, trained_question};
use tinkrs_recipes::run::{Numbers, ReferenceModel, sampler_of};

use super::command::JudgeCommand;
use super::question;
use super::sandbox::Sandbox;
use crate::backend::Backend;
use crate::other_model::Other;
use crate::output::{Hint, note};

/// The key of a table that names a model.
const MODEL: &str = "`model`";

/// Rewards that add up.
#[derive(Clone)]
pub(crate) struct Rewards(Arc<[(RewardSpec, Grader)]>);

/// What gives a score.
enum Grader {
    /// The answer and the row are enough.
    Pure,
    Tests(Sandbox),
    Llm(LlmJudge),
    Model(RewardModel),
    Command(JudgeCommand),
}

impl Rewards {
    /// Opens what grades, of which some is on the service that trains.
    pub(super) async fn open(specs: &[RewardSpec], backend: &Backend) -> anyhow::Result<Self> {
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
                    let judge = llm_judge(judge, backend).await;
                    Grader::Llm(judge.with_context(|| format!("reward `{}`", spec.name))?)
                }
                Kind::RewardModel(model) => {
                    let model = reward_model(model, backend).await;
                    Grader::Model(model.with_context(|| format!("reward `{}`", spec.name))?)
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
                Grader::Model(model) => model.score(&task.question.messages, said).await?,
                Grader::Command(command) => command.ask(&question(task, response)).await?,
            };
            sum += spec.weight * score;
            *scores.entry(format!("reward/{}", spec.name)).or_default() += score;
        }
        Ok((sum, scores))
    }
}

/// Returns the models that the rewards need besides the one that answers.
pub(super) fn others(specs: &[RewardSpec]) -> anyhow::Result<Vec<Other>> {
    let named = specs.iter().filter_map(|spec| match &spec.kind {
        Kind::RewardModel(model) => Some((spec, Other::new(MODEL, &model.model))),
        _ => None,
    });
    let named = named.map(|(spec, other)| other.with_context(|| format!("reward `{}`", spec.name)));
    named.collect()
}

/// Refuses a task that one of the rewards cannot grade.
pub(super) fn check(specs: &[RewardSpec], task: &Task) -> anyhow::Result<()> {
    for spec in specs {
        let checked = graders::check(&spec.kind, task);
        checked.map_err(|problem| anyhow!("reward `{}`: {problem}", spec.name))?;
    }
    Ok(())
}

async fn llm_judge(spec: &JudgeSpec, backend: &Backend) -> anyhow::Result<LlmJudge> {
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
        let renderer = backend.renderer_of(&base_of(backend, &path).await?).await?;
        let sampler = sampler_of(&backend.service, &path).await?;
        return Ok(LlmJudge::on_service(spec.clone(), sampler, renderer));
    }
    let model = spec.model.as_ref().unwrap_or(&backend.model);
    let renderer = backend.renderer_of(model).await?;
    let from = SampleFrom::BaseModel(model.clone());
    let sampler = backend.service.create_sampling_client(from).await;
    let sampler =
        sampler.with_context(|| format!("`model`: the service cannot sample from `{model}`"))?;
    Ok(LlmJudge::on_service(spec.clone(), sampler, renderer))
}

/// Opens a model that was trained on preferences, and asks it what it was trained to be asked.
async fn reward_model(spec: &RewardModelSpec, backend: &Backend) -> anyhow::Result<RewardModel> {
    let name = &spec.model;
    let source = Other::new(MODEL, name)?.source(backend).await?;
    let (trained, base) = match &source {
        ReferenceModel::Checkpoint(path) => {
            let question = trained_question(&backend.service, path).await;
            let question = question.with_context(|| format!("{MODEL}: {name}"))?;
            (question, base_of(backend, path).await?)
        }
        ReferenceModel::Base(model) => (None, model.clone()),
    };
    let question = match (&spec.question, trained) {
        (Some(given), Some(trained)) if *given != trained => {
            bail!("`question`: `{given}`, but {name} was trained to be asked `{trained}`")
        }
        (Some(question), _) => question.clone(),
        (None, Some(trained)) => trained,
        (None, None) => {
            let problem = match source {
                ReferenceModel::Checkpoint(_) => "was not trained by `tinkrs train reward`",
                ReferenceModel::Base(_) => "is not a run of this server",
            };
            let problem = anyhow!("{MODEL}: `{name}` is not a reward model: it {problem}");
            return Err(problem.context(Hint(
                "for a reward model that was trained elsewhere, say what it was trained to be asked: `question`, or \
                 `--reward-question`",
            )));
        }
    };
    let renderer = backend.renderer_of(&base).await?;
    let asking = Asking::new(&renderer, question).map_err(|error| match error {
        Error::Setting { problem, .. } => anyhow!("`question`: {problem}"),
        error => error.into(),
    })?;
    let sampler = match &source {
        ReferenceModel::Checkpoint(path) => sampler_of(&backend.service, path).await,
        ReferenceModel::Base(model) => {
            let from = SampleFrom::BaseModel(model.clone());
            let sampler = backend.service.create_sampling_client(from).await;
            sampler.map_err(Error::from)
        }
    };
    let sampler = sampler.with_context(|| format!("{MODEL}: could not open `{name}`"))?;
    Ok(RewardModel::new(sampler, asking))
}

/// Asks the server which model a checkpoint was trained on.
async fn base_of(backend: &Backend, path: &TinkerPath) -> anyhow::Result<String> {
    let rest = backend.service.create_rest_client();
    let info = rest.get_weights_info_by_tinker_path(path).await;
    Ok(info.with_context(|| format!("{path}"))?.base_model)
}
