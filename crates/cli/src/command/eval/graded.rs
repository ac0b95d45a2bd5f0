//! Asking questions, grading the answers, and comparing those who answered.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow, ensure};
use futures_util::StreamExt as _;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tinkrs::{BoxError, CheckpointRef, SamplingClient, SamplingParams};
use tinkrs_chat::{Conversation, Renderer, Response};
use tinkrs_recipes::data::{Place, Task, read_numbered};
use tinkrs_recipes::evaluate::{AnswerFile, Interval, KeptAnswer, SuiteTask, answers};
use tinkrs_recipes::{Error, Tokens};

use super::{Args, sampler};
use crate::backend::Backend;
use crate::context::Context;
use crate::cost;
use crate::human::counted;
use crate::judge::Judge;
use crate::output::note;
use crate::table::Table;

/// Questions that are under way at a time.
const IN_FLIGHT: usize = 64;

/// What is asked, and how answers are graded.
enum Asked {
    Tasks(Vec<(Place, Task)>, Judge),
    Suite(Vec<(Place, SuiteTask)>),
}

/// How good the answers of one are.
#[derive(Debug, Serialize)]
struct Grades {
    model: String,
    checkpoint: Option<CheckpointRef>,
    data: std::path::PathBuf,
    metric: &'static str,
    questions: usize,
    mean: f64,
    standard_error: Option<f64>,
    /// Where the mean may well be, by chance: 95 %.
    interval: Option<Interval>,
    /// Answers that ran out of tokens.
    unfinished: usize,
    /// Answers that could not be graded.
    ungraded: usize,
    items: Vec<Item>,
}

#[derive(Debug, Serialize)]
struct Item {
    line: usize,
    prompt: String,
    completion: String,
    answer: Option<String>,
    score: f64,
}

/// How much better one is than the first, on the same questions.
#[derive(Debug, Serialize)]
struct Difference {
    checkpoint: Option<CheckpointRef>,
    than: Option<CheckpointRef>,
    questions: usize,
    mean: f64,
    interval: Option<Interval>,
}

impl Asked {
    fn read(args: &Args) -> anyhow::Result<Self> {
        let path = args.file();
        let limit = args.limit.unwrap_or(usize::MAX);
        let asked = match args.suite {
            Some(suite) => {
                let mut read = suite.read(path)?;
                if let Some((count, reason)) = read.left_out {
                    let tasks = counted(count as u64, "task");
                    note(format_args!("{tasks} left out: {reason}"));
                }
                read.tasks.truncate(limit);
                Self::Suite(read.tasks)
            }
            None => {
                let judge = args.judge.open()?;
                let mut tasks = read_numbered::<Task>(path)?;
                tasks.truncate(limit);
                for (place, task) in &tasks {
                    judge.check(task).with_context(|| place.to_string())?;
                }
                Self::Tasks(tasks, judge)
            }
        };
        ensure!(asked.len() > 0, "{} has no lines", path.display());
        Ok(asked)
    }

    fn len(&self) -> usize {
        match self {
            Self::Tasks(tasks, _) => tasks.len(),
            Self::Suite(tasks) => tasks.len(),
        }
    }

    fn question(&self, index: usize) -> (&Place, &Conversation, Option<&String>) {
        match self {
            Self::Tasks(tasks, _) => {
                let (place, task) = &tasks[index];
                (place, &task.question, task.answer.as_ref())
            }
            Self::Suite(tasks) => {
                let (place, task) = &tasks[index];
                (place, &task.question, task.answer.as_ref())
            }
        }
    }

    async fn score(&self, index: usize, said: &Response) -> Result<f64, BoxError> {
        match self {
            Self::Tasks(tasks, judge) => Ok(judge.score(&tasks[index].1, said).await?.0),
            Self::Suite(tasks) => Ok(tasks[index].1.score(said)),
        }
    }

    /// Returns a number that other questions would not have.
    fn fingerprint(&self) -> String {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for index in 0..self.len() {
            let (_, question, answer) = self.question(index);
            let messages = serde_json::to_string(&question.messages).unwrap_or_default();
            let answer = answer.map_or("", String::as_str);
            for byte in messages.bytes().chain([0]).chain(answer.bytes()).chain([1]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        format!("{hash:016x}")
    }
}

pub(super) async fn run(
    ctx: &Context,
    args: &Args,
    backend: &Backend,
    renderer: &Renderer,
) -> anyhow::Result<()> {
    let mut asked = Asked::read(args)?;
    let max_tokens = args.max_tokens;
    let max_tokens = max_tokens.unwrap_or(args.suite.map_or(128, |suite| suite.max_tokens()));
    let mut prompt_tokens = 0;
    for index in 0..asked.len() {
        let (place, question, _) = asked.question(index);
        let prompt = renderer.prompt(question);
        prompt_tokens += prompt.map_err(|e| Error::from(e).at(place))?.len() as u64;
    }
    let mut answering: Vec<Option<CheckpointRef>> = Vec::new();
    if args.checkpoint.is_empty() || args.with_base {
        answering.push(None);
    }
    answering.extend(args.checkpoint.iter().cloned().map(Some));

    let mut file = match &args.out {
        Some(path) => {
            let open = AnswerFile::open(path, &settings(args, backend, &asked, max_tokens));
            Some(open?)
        }
        None => None,
    };
    let left: usize = answering
        .iter()
        .map(|who| missing(&asked, file.as_ref(), backend, who).len())
        .sum();
    let all = asked.len() * answering.len();
    let tokens = Tokens {
        prefill: prompt_tokens.saturating_mul(left as u64) / asked.len() as u64,
        sample: left as u64 * u64::from(max_tokens),
        ..Tokens::default()
    };
    cost::confirm(&cost::CostArgs::default(), backend, &tokens, args.yes).await?;
    if left < all {
        note(format_args!(
            "{} of {all} answers are there already",
            all - left
        ));
    }
    note(format_args!("asking {}", counted(left as u64, "question")));
    if let Asked::Tasks(_, judge) = &mut asked {
        judge.connect(backend).await?;
    }
    let params = SamplingParams {
        temperature: args.temperature,
        seed: args.seed,
        ..renderer.sampling_params(max_tokens)
    };
    let (mut results, mut failure) = (Vec::new(), None);
    for who in &answering {
        let name = name(backend, who);
        let open = missing(&asked, file.as_ref(), backend, who);
        let mut kept = BTreeMap::new();
        for index in 0..asked.len() {
            let answer = file.as_ref().and_then(|file| file.answer(&name, index));
            kept.extend(answer.map(|answer| (index, answer.clone())));
        }
        if !open.is_empty() {
            let sampler = sampler(who.as_ref(), backend).await?;
            let ask = |index: usize| one(&asked, &name, &sampler, renderer, &params, index);
            let mut answers = futures_util::stream::iter(open)
                .map(ask)
                .buffer_unordered(IN_FLIGHT);
            while let Some(answer) = answers.next().await {
                match answer? {
                    Ok(answer) => {
                        if let Some(file) = &mut file {
                            file.add(answer.clone())?;
                        }
                        kept.insert(answer.question, answer);
                    }
                    Err(problem) => failure = Some(problem),
                }
            }
        }
        results.push((grades(args, backend, who, &asked, &kept), kept));
    }
    show(ctx, args, &results)?;
    let ungraded: usize = results.iter().map(|(grades, _)| grades.ungraded).sum();
    match failure {
        Some(problem) => {
            let answers = counted(ungraded as u64, "answer");
            Err(anyhow!("{problem}")
                .context(format!("{answers} could not be graded, and do not count")))
        }
        None => Ok(()),
    }
}

/// Asks one question. The inner error is the grader's: the others go on without it.
async fn one(
    asked: &Asked,
    name: &str,
    sampler: &SamplingClient,
    renderer: &Renderer,
    params: &SamplingParams,
    index: usize,
) -> anyhow::Result<Result<KeptAnswer, BoxError>> {
    let (_, question, _) = asked.question(index);
    let said = answers(sampler, renderer, std::slice::from_ref(question), params).await?;
    let said = said.into_iter().next().context("no answer came")?;
    Ok(asked.score(index, &said).await.map(|score| KeptAnswer {
        asked: name.to_owned(),
        question: index,
        completion: said.message.content,
        finished: said.finished,
        score,
    }))
}

fn name(backend: &Backend, who: &Option<CheckpointRef>) -> String {
    who.as_ref()
        .map_or(backend.model.clone(), ToString::to_string)
}

/// Returns the questions that were not answered yet.
fn missing(
    asked: &Asked,
    file: Option<&AnswerFile>,
    backend: &Backend,
    who: &Option<CheckpointRef>,
) -> Vec<usize> {
    let name = name(backend, who);
    let is_open = |index: &usize| file.is_none_or(|file| file.answer(&name, *index).is_none());
    (0..asked.len()).filter(is_open).collect()
}

/// Returns what answers and their scores depend on.
fn settings(args: &Args, backend: &Backend, asked: &Asked, max_tokens: u32) -> Map<String, Value> {
    let settings = json!({
        "model": backend.model,
        "questions": asked.fingerprint(),
        "suite": args.suite.map(|suite| suite.name()),
        "grading": serde_json::to_value(&args.judge).unwrap_or_default(),
        "max_tokens": max_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
    });
    settings.as_object().cloned().unwrap_or_default()
}

fn grades(
    args: &Args,
    backend: &Backend,
    who: &Option<CheckpointRef>,
    asked: &Asked,
    kept: &BTreeMap<usize, KeptAnswer>,
) -> Grades {
    let scores: Vec<f64> = kept.values().map(|answer| answer.score).collect();
    let count = scores.len().max(1) as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
    let standard_error = (scores.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
    let item = |(index, answer): (&usize, &KeptAnswer)| {
        let (place, question, right) = asked.question(*index);
        let prompt = question
            .messages
            .last()
            .map_or("", |message| &message.content);
        Item {
            line: place.number(),
            prompt: prompt.to_owned(),
            completion: answer.completion.clone(),
            answer: right.cloned(),
            score: answer.score,
        }
    };
    Grades {
        model: backend.model.clone(),
        checkpoint: who.clone(),
        data: args.file().to_owned(),
        metric: args.suite.map_or("grade", |suite| suite.name()),
        questions: asked.len(),
        mean,
        standard_error,
        interval: Interval::of_mean(&scores),
        unfinished: kept.values().filter(|answer| !answer.finished).count(),
        ungraded: asked.len() - kept.len(),
        items: kept.iter().map(item).collect(),
    }
}

type Answered = (Grades, BTreeMap<usize, KeptAnswer>);

/// Compares the others with the first, on the questions that both have answered.
fn differences(results: &[Answered]) -> Vec<Difference> {
    let Some(((first, answers), others)) = results.split_first() else {
        return Vec::new();
    };
    let difference = |(grades, kept): &Answered| {
        let pairs = kept.iter().filter_map(|(index, answer)| {
            let before = answers.get(index)?;
            Some(answer.score - before.score)
        });
        let pairs: Vec<f64> = pairs.collect();
        Difference {
            checkpoint: grades.checkpoint.clone(),
            than: first.checkpoint.clone(),
            questions: pairs.len(),
            mean: pairs.iter().sum::<f64>() / pairs.len().max(1) as f64,
            interval: Interval::bootstrap(&pairs),
        }
    };
    others.iter().map(difference).collect()
}

fn range(interval: Option<Interval>) -> String {
    interval.map_or(String::new(), |Interval { low, high, method }| {
        format!(" (95 %: {low:.4} to {high:.4}, {method})")
    })
}

fn show(ctx: &Context, args: &Args, results: &[Answered]) -> anyhow::Result<()> {
    let title = format!("Evaluation on {}", args.file().display());
    if let [(grades, _)] = results {
        return ctx.show(grades, || {
            let mut table = Table::properties().title(title.clone());
            table.row(["Model", &grades.model]);
            if let Some(checkpoint) = &grades.checkpoint {
                table.row(["Checkpoint", &checkpoint.to_string()]);
            }
            table.row(["Questions", &grades.questions.to_string()]);
            table.row(["Answers cut short", &grades.unfinished.to_string()]);
            if grades.ungraded > 0 {
                table.row(["Not graded", &grades.ungraded.to_string()]);
            }
            let error = grades.standard_error;
            let error = error.map_or(String::new(), |error| format!(" ± {error:.4}"));
            let mean = format!("{:.4}{error}{}", grades.mean, range(grades.interval));
            table.row(["Mean grade", &mean]);
            table
        });
    }
    let compared = differences(results);
    let shown = json!({
        "data": args.file(),
        "results": results.iter().map(|(grades, _)| grades).collect::<Vec<_>>(),
        "differences": compared,
    });
    ctx.show(&shown, || {
        let mut table = Table::new([
            "Who",
            "Questions",
            "Not graded",
            "Mean grade",
            "Than the first",
        ])
        .title(title.clone());
        for (place, (grades, _)) in results.iter().enumerate() {
            let who = grades.checkpoint.as_ref();
            let who = who.map_or(grades.model.clone(), ToString::to_string);
            let mean = format!("{:.4}{}", grades.mean, range(grades.interval));
            let than = place.checked_sub(1).map(|place| &compared[place]);
            let than = than.map_or(String::new(), |difference| {
                format!("{:+.4}{}", difference.mean, range(difference.interval))
            });
            let (asked, not) = (grades.questions.to_string(), grades.ungraded.to_string());
            table.row([&who, &asked, &not, &mean, &than]);
        }
        table
    })
}
