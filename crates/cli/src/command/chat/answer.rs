//! An answer, shown while it is written where that is possible.

use anyhow::anyhow;
use tinkrs::sampling::StopReason;
use tinkrs::{SampleOutput, SamplingClient};
use tinkrs_chat::{AnswerStream, Conversation, Message, Renderer};
use tinkrs_server::DrawnToken;
use tinkrs_types::RequestId;
use tokio::sync::mpsc::UnboundedReceiver;

use super::interrupts::Interrupts;
use crate::backend::Backend;
use crate::command::sample::SamplingArgs;
use crate::context::Context;
use crate::report;

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
    backend: &'a Backend,
    sampling: &'a SamplingArgs,
    renderer: Renderer,
    interrupts: &'a Interrupts,
    sampler: SamplingClient,
    /// The tokens that a server in this process draws for the sampler.
    drawn: Option<UnboundedReceiver<DrawnToken>>,
    /// Whether text is printed; in JSON it comes as a whole.
    prints: bool,
}

impl<'a> Speaker<'a> {
    pub(super) async fn new(
        ctx: &Context,
        backend: &'a Backend,
        sampling: &'a SamplingArgs,
        renderer: Renderer,
        interrupts: &'a Interrupts,
    ) -> anyhow::Result<Self> {
        let sampler = sampling.sampler(backend).await?;
        Ok(Self {
            drawn: backend.watch_tokens(&sampler),
            backend,
            sampling,
            renderer,
            interrupts,
            sampler,
            prints: !ctx.is_json(),
        })
    }

    /// Answers, and prints the answer. Ctrl-C ends it where it is.
    pub(super) async fn answer(&mut self, conversation: &Conversation) -> anyhow::Result<Answer> {
        let prompt = self.renderer.prompt(conversation)?;
        let params = self
            .sampling
            .apply(self.renderer.sampling_params(self.sampling.max_tokens));
        let mut text = Text::new(self.renderer.stream(&prompt)?, self.prints);
        let sample = self.sampler.sample(prompt, params).submit();
        let mut sample = std::pin::pin!(sample);
        let output = loop {
            tokio::select! {
                biased;
                () = self.interrupts.next() => break None,
                Some(drawn) = next(&mut self.drawn) => text.push(&drawn)?,
                output = &mut sample => break Some(output),
            }
        };
        match output {
            Some(Ok(output)) => {
                // They are part of the result.
                while self
                    .drawn
                    .as_mut()
                    .is_some_and(|drawn| drawn.try_recv().is_ok())
                {}
                text.complete(&output)
            }
            Some(Err(error)) => {
                self.leave().await?;
                Err(error.into())
            }
            None => {
                self.leave().await?;
                text.finish(Ended::Interrupted)
            }
        }
    }

    /// Opens another sampler, so that tokens of an answer that was given up go where nobody listens.
    async fn leave(&mut self) -> anyhow::Result<()> {
        self.sampler = self.sampling.sampler(self.backend).await?;
        self.drawn = self.backend.watch_tokens(&self.sampler);
        Ok(())
    }
}

async fn next(drawn: &mut Option<UnboundedReceiver<DrawnToken>>) -> Option<DrawnToken> {
    match drawn {
        Some(drawn) => drawn.recv().await,
        None => None,
    }
}

/// The text of an answer, printed as far as it is known.
struct Text {
    stream: AnswerStream,
    /// The stream before the first token.
    begin: AnswerStream,
    /// The request whose tokens are shown.
    request: Option<RequestId>,
    prints: bool,
}

impl Text {
    fn new(stream: AnswerStream, prints: bool) -> Self {
        Self {
            begin: stream.clone(),
            stream,
            request: None,
            prints,
        }
    }

    fn push(&mut self, drawn: &DrawnToken) -> anyhow::Result<()> {
        // A request that had to be sent again draws its tokens again, and perhaps others.
        let request = self.request.get_or_insert_with(|| drawn.request_id.clone());
        if *request == drawn.request_id {
            let new = self.stream.push(drawn.token)?;
            self.print(&new.content)?;
        }
        Ok(())
    }

    /// Prints what has not come as single tokens.
    fn complete(mut self, output: &SampleOutput) -> anyhow::Result<Answer> {
        let sequence = output.sequences.first();
        let sequence = sequence.ok_or_else(|| anyhow!("the server sent no answer"))?;
        if !sequence.tokens.starts_with(self.stream.tokens()) {
            self.print("\n")?;
            self.stream = self.begin.clone();
        }
        let known = self.stream.tokens().len();
        for token in sequence.tokens.iter().skip(known) {
            let new = self.stream.push(*token)?;
            self.print(&new.content)?;
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
            report::print(text)?;
        }
        Ok(())
    }
}
