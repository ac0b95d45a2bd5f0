//! `tinkrs train rl`: learning from rewards.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tinkrs_chat::Renderer;
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::{Source, Split, Store, Task, TextRow, parse_row};
use tinkrs_recipes::rl::{self, Problem};
use tinkrs_recipes::run::{Hooks, ReferenceModel};

use super::Training;
use super::options::{AnswerArgs, EvalArgs, RunArgs, announce};
use super::rate::LearnsFrom;
use crate::context::Context;
use crate::judge::{EnvArgs, EnvProgram, EnvTask, Judge, JudgeArgs, JudgedTask};
use crate::other_model::Other;
use crate::output::note;

/// Most turns of an episode in a program, unless said otherwise.
const MAX_TURNS: usize = 16;
/// Most tokens of an episode where the server does not say what a model can take.
const CONTEXT: usize = 4096;

/// Learn from rewards, on a JSONL file of questions
///
/// Each line is {"prompt": "…", "answer": "…"}, where the prompt is what a user asks, or the same with
/// "messages"; with `--env-command`, a line is a task of any form for that program. The model answers each question several times, answers are graded, and those better than
/// the others of their group become likelier. Ctrl-C saves a checkpoint; the same command continues from
/// there with the next questions.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    judge: JudgeArgs,

    #[command(flatten)]
    env: EnvArgs,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten)]
    recipe: rl::Config,

    /// What `--kl-penalty` measures the distance from: a checkpoint or the folder of a run, as for `--from`, or a base
    /// model's name. Default: what the run starts from
    #[arg(long, value_name = "MODEL", help_heading = "Loss")]
    kl_reference: Option<String>,

    #[command(flatten)]
    eval: EvalArgs,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            judge: JudgeArgs::default(),
            env: EnvArgs::default(),
            answer: AnswerArgs::default(),
            recipe: rl::Config::new(tinkrs_nano::NAME),
            kl_reference: None,
            eval: EvalArgs::default(),
        }
    }
}

pub(super) async fn run(ctx: &Context, args: &Args, rate_is_given: bool) -> anyhow::Result<()> {
    args.recipe.check().map_err(super::in_our_words)?;
    let answer_tokens = args.answer.max_tokens()?;
    let grading = match args.env.open()? {
        Some(program) => Grading::Env(program),
        None => Grading::Judge(args.judge.open()?),
    };
    let eval_file = args.eval.file(&args.run)?;
    let reference = args.kl_reference.as_deref();
    let reference = reference.map(|text| Other::new("--kl-reference", text));
    let reference = reference.transpose()?;
    ensure!(
        reference.is_none() || args.recipe.kl_penalty > 0.0,
        "kl_reference: it needs a `--kl-penalty`"
    );
    let mut others = args.judge.others()?;
    others.extend(reference.clone());
    let learn = async |training: &Training<'_>| {
        let reference = match &reference {
            Some(other) => Some(other.source(training.backend).await?),
            None => None,
        };
        learn(training, args, eval_file, answer_tokens, grading, reference).await
    };
    Training::with(ctx, &args.run, rate_is_given, &others, learn).await
}

/// What says how good an answer is.
enum Grading {
    Judge(Judge),
    Env(Arc<EnvProgram>),
}

/// What to solve, and the most tokens that it begins with.
type Problems = (Vec<Arc<dyn Problem>>, usize);

impl Grading {
    fn read(
        &self,
        sources: &[Source],
        renderer: &Renderer,
        answer_tokens: u32,
    ) -> anyhow::Result<Problems> {
        let params = renderer.sampling_params(answer_tokens);
        let renderer = renderer.clone();
        Ok(match self {
            Self::Env(program) => {
                let rows = kept(sources, |_: Value| Ok(0))?;
                let program = Arc::clone(program);
                let make = move |text: &str| {
                    let task = serde_json::from_str(text)?;
                    Ok(EnvTask::new(&program, &renderer, answer_tokens, task))
                };
                (rl::on_demand(rows, params, make), 0)
            }
            Self::Judge(judge) => {
                let judged = |task: Task| {
                    let task = JudgedTask::new(&renderer, task, answer_tokens, judge)?;
                    Ok(task.prompt_tokens())
                };
                let rows = kept(sources, judged)?;
                let (longest, judge) = (rows.longest(), judge.clone());
                let make = move |text: &str| {
                    let task = serde_json::from_str(text)?;
                    Ok(JudgedTask::new(&renderer, task, answer_tokens, &judge)?)
                };
                (rl::on_demand(rows, params, make), longest)
            }
        })
    }
}

/// Reads files row by row, and keeps those rows to be read again. `check` refuses what cannot be used, and says how
/// many tokens a row begins with.
fn kept<R: DeserializeOwned>(
    sources: &[Source],
    check: impl Fn(R) -> anyhow::Result<usize>,
) -> anyhow::Result<Store<TextRow>> {
    let mut rows = Store::default();
    for source in sources {
        for row in source.rows()? {
            let (place, text) = row?;
            let tokens = check(parse_row(&text, &place)?);
            let tokens = tokens.with_context(|| place.to_string())?;
            rows.push(TextRow { text, tokens })?;
        }
    }
    super::not_empty(rows.len(), 0, sources)?;
    Ok(rows)
}

async fn learn(
    training: &Training<'_>,
    args: &Args,
    eval_file: Option<Vec<Source>>,
    answer_tokens: u32,
    mut grading: Grading,
    kl_reference: Option<ReferenceModel>,
) -> anyhow::Result<()> {
    if let Grading::Judge(judge) = &mut grading {
        judge.connect(training.backend).await?;
    }
    let mut config = rl::Config {
        adapter: training.adapter(&args.recipe.adapter),
        learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Samples),
        kl_reference,
        ..args.recipe.clone()
    };
    let read = |sources: &[Source]| grading.read(sources, &training.renderer, answer_tokens);
    let sources = args.run.data_without_weights()?;
    announce(&sources)?;
    let (train, mut longest) = read(&sources)?;
    let eval = eval_file.map(|file| read(&file)).transpose()?;
    let (eval, eval_longest) = eval.unwrap_or_default();
    longest = longest.max(eval_longest);
    if matches!(grading, Grading::Env(_)) {
        let episodes = &mut config.episodes;
        if episodes.max_turns == 0 {
            episodes.max_turns = MAX_TURNS;
        }
        if episodes.max_episode_tokens == 0 {
            episodes.max_episode_tokens = context(training).await?;
        }
        longest = episodes.max_episode_tokens;
    }
    super::announce(train.len(), eval.len(), &config.policy);
    let turns = u32::try_from(config.episodes.max_turns.max(1)).unwrap_or(u32::MAX);
    let tokens = Tokens::of_rl(&config, longest, answer_tokens, eval.len());
    let tokens = match &grading {
        Grading::Judge(_) => tokens,
        // Each turn reads all that came before it.
        Grading::Env(_) => Tokens {
            prefill: tokens.prefill.saturating_mul(turns.into()),
            sample: tokens.sample.saturating_mul(turns.into()),
            ..tokens
        },
    };
    let problems = Split {
        train: &train,
        eval: &eval,
    };
    let finished = rl::finished(&config, problems, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        let hooks = hooks.on_failure(|reason| {
            note(format_args!(
                "an episode failed, and the run goes on without it: {reason}"
            ));
        });
        Ok(rl::train(service, &config, problems, &training.folder, hooks).await?)
    };
    let steps = config.policy.steps;
    let episodes = config
        .policy
        .problems_per_step
        .saturating_mul(config.policy.group_size);
    let longest = match &grading {
        Grading::Judge(_) => longest.saturating_add(answer_tokens as usize),
        Grading::Env(_) => longest,
    };
    let pass = super::pass_size(&config.adapter, episodes, longest);
    training
        .run("reward", &tokens, steps, pass, finished, train)
        .await
}

/// Returns how many tokens the model can have before it, or a careful guess where the server does not say.
async fn context(training: &Training<'_>) -> anyhow::Result<usize> {
    let known = training.backend.service.get_server_capabilities().await?;
    let model = &training.backend.model;
    let mut models = known.supported_models.iter();
    let model = models.find(|known| known.model_name.as_ref() == Some(model));
    let length = model.and_then(|model| model.max_context_length);
    let length = length.and_then(|length| usize::try_from(length).ok());
    Ok(length.unwrap_or(CONTEXT))
}
