//! `tinkrs chat`: a conversation with a model.

mod answer;
mod interrupts;
mod lines;
mod talk;

use std::io::IsTerminal;

use serde_json::json;
use tinkrs_chat::{Conversation, Message};

use super::sample::SamplingArgs;
use crate::backend::{Backend, BackendArgs};
use crate::chat_api::ChatApi;
use crate::context::Context;
use crate::output::{self, Aborted, note, say};
use answer::{Ended, Speaker, Voice};
use interrupts::Interrupts;
use lines::Lines;
use talk::{Said, Talk};

/// Talk to a model
///
/// Reads what you say line by line, until the end of the input (Ctrl-D). On this machine an answer
/// appears while it is written; other servers of the Tinker API send it as a whole. Ctrl-C stops an answer,
/// or ends the conversation when it is your turn.
///
/// With `--base-url`, any server of the OpenAI API can be asked as well: a URL that ends in /v1, or one whose
/// server has no Tinker API. Its key is that in OPENAI_API_KEY. A line may also be a command:
///
///   /regenerate     answer your last message anew
///   /undo           take back your last message and its answer
///   /reset          forget what was said, but not the system message
///   /system TEXT    set the system message and start anew; without TEXT there is none
///   /set NAME X     change temperature, top-p, top-k, max-tokens or seed; without NAME show them
///   /save FILE      add the conversation to a file that `tinkrs train sft --data` reads
///   /help           show these commands
///   /exit           end the conversation
///
/// On a terminal, lines are edited as in a shell; earlier ones are kept in ~/.tinkrs/chat_history, except for those
/// that begin with a space or have a key in them.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// System prompt: what the model is told first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

const COMMANDS: &str = "\
/regenerate     answer your last message anew
/undo           take back your last message and its answer
/reset          forget what was said, but not the system message
/system TEXT    set the system message and start anew; without TEXT there is none
/set NAME X     change temperature, top-p, top-k, max-tokens or seed; without NAME show them
/save FILE      add the conversation to a file that `tinkrs train sft --data` reads
/help           show these commands
/exit           end the conversation
Ctrl-C stops an answer; Ctrl-D ends the conversation.";

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    args.sampling.check()?;
    if let Some(api) = ChatApi::find(&args.backend, &args.sampling).await? {
        let interrupts = Interrupts::listen()?;
        return talk(ctx, args, Voice::OpenAi(&api), &interrupts).await;
    }
    let checkpoint = args.sampling.checkpoint.as_ref();
    let backend = Backend::open_for(ctx, &args.backend, checkpoint, Vec::new()).await?;
    let result = talk_to(ctx, args, &backend).await;
    backend.end(result).await
}

async fn talk_to(ctx: &Context, args: &Args, backend: &Backend) -> anyhow::Result<()> {
    let interrupts = Interrupts::listen()?;
    let voice = tokio::select! {
        biased;
        () = interrupts.next() => return Err(Aborted.into()),
        voice = Voice::of_backend(backend, &args.sampling) => voice?,
    };
    talk(ctx, args, voice, &interrupts).await
}

async fn talk(
    ctx: &Context,
    args: &Args,
    voice: Voice<'_>,
    interrupts: &Interrupts,
) -> anyhow::Result<()> {
    let mut speaker = Speaker::new(ctx, voice, &args.sampling, interrupts);
    let mut talk = Talk::new(args.system.clone());
    if std::io::stdin().is_terminal() {
        note("/help shows what else you can say; Ctrl-D ends");
    }
    let mut lines = Lines::open();
    while let Some(line) = lines.next(interrupts).await? {
        match talk::read(&line) {
            Said::Nothing => {}
            Said::Words(words) => {
                talk.messages.push(Message::user(words));
                answer_to(ctx, &speaker, &mut talk).await?;
            }
            Said::Regenerate if talk.take_back_answer() => {
                speaker.sampling.draw_anew();
                answer_to(ctx, &speaker, &mut talk).await?;
            }
            Said::Undo if talk.take_back_answer() => {
                talk.messages.pop();
                note("taken back");
            }
            Said::Regenerate | Said::Undo => note("nothing was answered yet"),
            Said::Set(None) => note(&speaker.sampling),
            Said::Set(Some((name, value))) => match speaker.sampling.set(name, value) {
                Ok(()) => note(&speaker.sampling),
                Err(error) => note(error),
            },
            Said::Exit => break,
            Said::Reset => {
                talk.reset();
                note("forgotten");
            }
            Said::System(text) => {
                talk = Talk::new(text.map(str::to_owned));
                note("a new conversation");
            }
            Said::Save(path) => match talk.save(path) {
                Ok(()) => note(format_args!("added to {}", path.display())),
                Err(error) => output::error(&error),
            },
            Said::Help => note(COMMANDS),
            Said::Unknown(problem) => note(problem),
        }
    }
    Ok(())
}

/// Has the model answer, and keeps what it said. A request that the server refuses is taken back.
async fn answer_to(ctx: &Context, speaker: &Speaker<'_>, talk: &mut Talk) -> anyhow::Result<()> {
    let conversation = Conversation::from(talk.messages.clone());
    match speaker.answer(&conversation).await {
        Ok(answer) => {
            if ctx.is_json() {
                let line = json!({
                    "role": "assistant",
                    "content": answer.message.content,
                    "tokens": answer.tokens,
                    "stop_reason": answer.ended.name(),
                });
                say(crate::context::ascii(&line.to_string()))?;
            }
            match answer.ended {
                Ended::Interrupted => note("(stopped)"),
                Ended::Length => note("(cut off: --max-tokens allows no more)"),
                Ended::Stop => {}
            }
            talk.messages.push(answer.message);
            Ok(())
        }
        // The reader of our output has closed it.
        Err(error) if output::is_closed_pipe(&error) => Err(error),
        Err(error) => {
            talk.messages.pop();
            let error = error
                .context("could not answer; your last message was removed from the conversation");
            output::error(&error.context(output::Hint(
                "if the conversation is too long for the model, /reset starts anew",
            )));
            Ok(())
        }
    }
}
