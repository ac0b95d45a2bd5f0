//! A word in a box, and a model that learns to look before it answers.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Deserialize;
use tinkrs::{BoxError, SamplingParams, ServiceClient};
use tinkrs_chat::format::ChatTemplate;
use tinkrs_chat::{Conversation, Json, Message, Renderer, ToolCall, TrainOn};
use tinkrs_recipes::data::Examples;
use tinkrs_recipes::rl::{self, Dialogue, Env, EnvFuture, Problem, Tool, ToolUse, Tools};
use tinkrs_recipes::run::{Hooks, Outcome, Passes, Start, StepReport};
use tinkrs_recipes::{Decay, Schedule, report, sft};

/// What can be in the box.
pub const WORDS: [&str; 4] = ["milk", "a cat", "bread", "a fish"];

const QUESTION: &str = "What is in the box?";

/// The tool: tells what is in one box.
pub struct Look {
    word: &'static str,
}

/// It needs no arguments. Those of another tool are fields here, with doc comments for the model.
#[derive(Deserialize, JsonSchema)]
pub struct Nothing {}

impl Tool for Look {
    type Arguments = Nothing;

    fn name(&self) -> &str {
        "look"
    }

    fn description(&self) -> &str {
        "Look into the box"
    }

    async fn call(&self, _: Nothing) -> Result<String, BoxError> {
        Ok(self.word.to_owned())
    }
}

/// A box with a word in it. Each episode is a conversation about it.
struct WordBox {
    renderer: Renderer,
    word: &'static str,
}

impl Problem for WordBox {
    fn start(&self) -> EnvFuture<'_, Box<dyn Env>> {
        let word = self.word;
        let tools = Tools::default().with(Look { word });
        let mut opening = Conversation::from(vec![Message::user(QUESTION)]);
        opening.tools = tools.definitions();
        let env = ToolUse::new(&tools, 1, move |answer| {
            f64::from(answer.message.content.trim() == word)
        });
        let dialogue: Box<dyn Env> = Box::new(Dialogue::new(&self.renderer, opening, env));
        Box::pin(async { Ok(dialogue) })
    }

    fn params(&self) -> SamplingParams {
        self.renderer.sampling_params(56)
    }

    fn identity(&self) -> Vec<u32> {
        self.word.bytes().map(u32::from).collect() // a run does not go on with other words
    }
}

/// Returns a problem for each word.
pub fn problems(renderer: &Renderer) -> Vec<Arc<dyn Problem>> {
    let boxed = |word| {
        let renderer = renderer.clone();
        Arc::new(WordBox { renderer, word }) as Arc<dyn Problem>
    };
    WORDS.into_iter().map(boxed).collect()
}

/// Returns the chat format of the program, with the tokenizer of the model that a server has.
///
/// # Errors
/// If the server does not have the model, or its tokenizer is not to be found.
pub async fn renderer(service: &ServiceClient, model: &str) -> Result<Renderer> {
    let base = tinkrs::sampling::SampleFrom::BaseModel(model.to_owned());
    let sampling = service.create_sampling_client(base).await?;
    let template = ChatTemplate::new(include_str!("../chat.jinja"))?;
    Ok(Renderer::new(sampling.get_tokenizer().await?, template)?)
}

/// Conversations in which the assistant guesses, and others in which it looks first.
fn habits(renderer: &Renderer) -> Result<Examples> {
    let mut examples = Examples::default();
    for word in WORDS {
        let guess = vec![Message::user(QUESTION), Message::assistant(word)];
        let look = Message::assistant("").call(ToolCall::new("look", Json::object([])));
        let looked = vec![
            Message::user(QUESTION),
            look,
            Message::tool(word),
            Message::assistant(word),
        ];
        for talk in [guess, looked] {
            let talk = Conversation::from(talk);
            examples
                .train
                .push(renderer.example(&talk, TrainOn::AllAssistantMessages)?)?;
        }
    }
    Ok(examples)
}

/// Gives the model the two habits.
///
/// # Errors
/// If the training fails. What was saved is gone on from by the next call with this folder.
pub async fn learn_habits(
    service: &ServiceClient,
    model: &str,
    renderer: &Renderer,
    folder: &Path,
) -> Result<Outcome> {
    let mut config = sft::Config::new(model);
    config.adapter.rank = Some(16);
    config.learning_rate = Schedule {
        decay: Decay::Linear,
        ..Schedule::new(5e-3)
    };
    config.passes = Passes {
        batch_size: 8,
        epochs: 90,
        ..Passes::default()
    };
    let outcome = sft::train(
        service,
        &config,
        &habits(renderer)?,
        folder,
        Hooks::default(),
    )
    .await?;
    report::write(folder)?;
    Ok(outcome)
}

/// Rewards the right word, and calls `on_step` with the numbers of each step.
///
/// # Errors
/// As [`learn_habits`].
pub async fn learn_to_look(
    service: &ServiceClient,
    model: &str,
    renderer: &Renderer,
    habits: &Outcome,
    folder: &Path,
    on_step: impl FnMut(&StepReport) + Send + 'static,
) -> Result<Outcome> {
    let start = habits
        .checkpoint
        .clone()
        .context("the first phase saved nothing")?;
    let mut config = rl::Config::new(model);
    config.adapter.from = Some(Start::new(start));
    config.learning_rate = Schedule {
        decay: Decay::Constant,
        ..Schedule::new(3e-4)
    };
    config.policy.steps = 12;
    config.policy.problems_per_step = WORDS.len();
    config.policy.group_size = 12;
    config.policy.max_staleness = 0; // for the same numbers every time
    config.episodes.max_turns = 3;
    let problems = problems(renderer);
    let hooks = Hooks::default().on_step(on_step);
    let outcome = rl::train(service, &config, &problems, folder, hooks).await?;
    report::write(folder)?;
    Ok(outcome)
}
