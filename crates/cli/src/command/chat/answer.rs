//! An answer, shown while it is written where that is possible.

use std::cell::RefCell;

use anyhow::anyhow;
use tinkrs::sampling::StopReason;
use tinkrs::{SampleOutput, SamplingClient};
use tinkrs_chat::{AnswerStream, Conversation, Message, Renderer};
use tinkrs_server::{SessionWatch, TokenWatch, Watched};

use super::interrupts::Interrupts;
use crate::backend::Backend;
use crate::chat_api::{ApiAnswer, ChatApi};
use crate::command::sample::SamplingArgs;
use crate::context::Context;
use crate::output;

/// Why an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ended {
    Stop,
    Length,
    Interrupted,
}

impl Ended {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What the model said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) message: Message,
    pub(super) tokens: usize,
    pub(super) ended: Ended,
}

/// The model, ready to answer.
pub(super) struct Speaker<'a> {
    voice: Voice<'a>,
    /// How it draws tokens, which may change in a conversation.
    pub(super) sampling: SamplingArgs,
    interrupts: &'a Interrupts,
    /// Whether text is printed; in JSON it comes as a whole.
    prints: bool,
}

/// What the model is asked through.
pub(super) enum Voice<'a> {
    /// The Tinker API: prompts and answers are tokens.
    Tinker {
        backend: &'a Backend,
        renderer: Renderer,
        sampler: Box<SamplingClient>,
    },
    /// The OpenAI API: both are text.
    OpenAi(&'a ChatApi),
}

impl<'a> Voice<'a> {
    /// Opens a sampler.
    pub(super) async fn of_backend(
        backend: &'a Backend,
        sampling: &SamplingArgs,
    ) -> anyhow::Result<Self> {
        Ok(Self::Tinker {
            renderer: backend.renderer()?,
            sampler: Box::new(sampling.sampler(backend).await?),
            backend,
        })
    }
}

impl<'a> Speaker<'a> {
    pub(super) fn new(
        ctx: &Context,
        voice: Voice<'a>,
        sampling: &SamplingArgs,
        interrupts: &'a Interrupts,
    ) -> Self {
        Self {
            voice,
            sampling: sampling.clone(),
            interrupts,
            prints: !ctx.is_json(),
        }
    }

    /// Answers, and prints the answer. Ctrl-C ends it where it is.
    pub(super) async fn answer(&self, conversation: &Conversation) -> anyhow::Result<Answer> {
        match &self.voice {
            Voice::Tinker {
                backend,
                renderer,
                sampler,
            } => self.sample(conversation, backend, renderer, sampler).await,
            Voice::OpenAi(api) => self.ask(conversation, api).await,
        }
    }

    async fn sample(
        &self,
        conversation: &Conversation,
        backend: &Backend,
        renderer: &Renderer,
        sampler: &SamplingClient,
    ) -> anyhow::Result<Answer> {
        let prompt = renderer.prompt(conversation)?;
        let params = self
            .sampling
            .apply(renderer.sampling_params(self.sampling.max_tokens));
        let mut text = Text::new(renderer.stream(&prompt)?, self.prints);
        let mut tokens = Tokens::new(backend.watch_session(sampler));
        // Dropping the request, as an interrupt does, lets the server give it up.
        let mut sample = std::pin::pin!(sampler.sample(prompt, params).submit());
        loop {
            tokio::select! {
                biased;
                () = self.interrupts.next() => return text.finish(Ended::Interrupted),
                Some(token) = tokens.next() => text.push(token)?,
                output = &mut sample => return text.complete(&output?),
            }
        }
    }

    async fn ask(&self, conversation: &Conversation, api: &ChatApi) -> anyhow::Result<Answer> {
        let said = RefCell::new(String::new());
        let show = |words: &str| {
            said.borrow_mut().push_str(words);
            if self.prints {
                output::print(words)?;
            }
            Ok(())
        };
        let asked = tokio::select! {
            biased;
            () = self.interrupts.next() => None,
            answer = api.answer(conversation, &self.sampling, show) => Some(answer),
        };
        if self.prints && !said.borrow().is_empty() {
            output::print("\n")?;
        }
        let (answer, ended) = match asked.transpose()? {
            None => {
                let content = said.into_inner();
                let answer = ApiAnswer {
                    content,
                    ..ApiAnswer::default()
                };
                (answer, Ended::Interrupted)
            }
            Some(answer) if answer.is_cut_off => (answer, Ended::Length),
            Some(answer) => (answer, Ended::Stop),
        };
        Ok(Answer {
            message: Message::assistant(answer.content),
            tokens: answer.tokens,
            ended,
        })
    }
}

/// The tokens of an answer while a server in this process draws them.
enum Tokens {
    /// The request has not reached the server yet.
    Waiting(SessionWatch),
    Watching(TokenWatch),
    /// The server is in another process, or we were too slow: the answer comes as a whole.
    Unseen,
}

impl Tokens {
    fn new(requests: Option<SessionWatch>) -> Self {
        requests.map_or(Self::Unseen, Self::Waiting)
    }

    /// Waits for the next token; `None` if no more can be seen.
    async fn next(&mut self) -> Option<u32> {
        loop {
            match self {
                // A request that had to be sent again draws its tokens again: the first one is shown.
                Self::Waiting(requests) => match requests.next().await {
                    Some(request) => *self = Self::Watching(request),
                    None => *self = Self::Unseen,
                },
                Self::Watching(request) => match request.next().await {
                    Some(Watched::Token(drawn)) => return Some(drawn.token),
                    _ => *self = Self::Unseen,
                },
                Self::Unseen => return None,
            }
        }
    }
}

/// The text of an answer, printed as far as it is known.
struct Text {
    stream: AnswerStream,
    /// The stream before the first token.
    begin: AnswerStream,
    prints: bool,
}

impl Text {
    fn new(stream: AnswerStream, prints: bool) -> Self {
        Self {
            begin: stream.clone(),
            stream,
            prints,
        }
    }

    fn push(&mut self, token: u32) -> anyhow::Result<()> {
        let new = self.stream.push(token)?;
        self.print(&new.content)
    }

    /// Prints what has not come as single tokens.
    fn complete(mut self, output: &SampleOutput) -> anyhow::Result<Answer> {
        let sequence = output.sequences.first();
        let sequence = sequence.ok_or_else(|| anyhow!("the server's response has no sample"))?;
        if !sequence.tokens.starts_with(self.stream.tokens()) {
            self.print("\n")?;
            self.stream = self.begin.clone();
        }
        let known = self.stream.tokens().len();
        for token in sequence.tokens.iter().skip(known) {
            self.push(*token)?;
        }
        self.finish(match sequence.stop_reason {
            StopReason::Stop => Ended::Stop,
            _ => Ended::Length,
        })
    }

    fn finish(self, ended: Ended) -> anyhow::Result<Answer> {
        let tokens = self.stream.tokens().len();
        let (rest, response) = self.stream.clone().finish()?;
        self.print(&rest.content)?;
        self.print("\n")?;
        Ok(Answer {
            message: response.message,
            tokens,
            ended,
        })
    }

    fn print(&self, text: &str) -> anyhow::Result<()> {
        if self.prints && !text.is_empty() {
            output::print(text)?;
        }
        Ok(())
    }
}
