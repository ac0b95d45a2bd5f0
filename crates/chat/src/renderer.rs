//! A tokenizer and a chat format, joined.

use crate::format::{self, Format, RenderOptions};
use crate::{
    Conversation, Error, Example, Rendered, Response, Script, Tokenizer, TrainOn, Vocabulary,
};
use std::sync::Arc;
use tinkrs_types::SamplingParams;
use tinkrs_types::sampling::Stop;

/// Writes and reads conversations in the format of one model.
///
/// It is cheap to clone and can be used from any thread.
#[derive(Clone, Debug)]
pub struct Renderer {
    vocabulary: Vocabulary,
    format: Arc<dyn Format>,
    /// The tokens that end an answer.
    stops: Arc<[u32]>,
}

impl Renderer {
    /// Joins a tokenizer and a format.
    ///
    /// # Errors
    /// If the tokenizer lacks a control token that the format is made of.
    pub fn new(
        tokenizer: impl Into<Arc<Tokenizer>>,
        format: impl Format + 'static,
    ) -> Result<Self, Error> {
        Self::with_format(tokenizer, Arc::new(format))
    }

    /// Joins a tokenizer and a format that was found by name.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_format(
        tokenizer: impl Into<Arc<Tokenizer>>,
        format: Arc<dyn Format>,
    ) -> Result<Self, Error> {
        let vocabulary = Vocabulary::new(tokenizer.into());
        for token in format.needs() {
            if vocabulary.control(token).is_none() {
                return Err(Error::MissingToken {
                    token: (*token).to_owned(),
                    format: format.name(),
                });
            }
        }
        Ok(Self {
            stops: format.stop_tokens(&vocabulary)?.into(),
            vocabulary,
            format,
        })
    }

    /// Joins the tokenizer of a model and its format.
    ///
    /// # Errors
    /// If the model's family is not known, and as [`new`](Self::new).
    pub fn of_model(model: &str, tokenizer: impl Into<Arc<Tokenizer>>) -> Result<Self, Error> {
        let unknown = || Error::UnknownFormat {
            model: model.to_owned(),
        };
        Self::with_format(tokenizer, format::of_model(model).ok_or_else(unknown)?)
    }

    /// Loads the tokenizer and the chat template of a model's folder or GGUF file.
    ///
    /// # Errors
    /// If it lacks either, or they do not fit each other.
    #[cfg(feature = "templates")]
    pub fn from_path(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        let tokenizer = Tokenizer::from_path(path.as_ref())?;
        Self::new(tokenizer, format::ChatTemplate::from_path(path)?)
    }

    /// Returns the vocabulary, to encode and decode text outside of a conversation.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Returns the tokens of a text outside of a conversation, as a document begins: behind the
    /// token that the tokenizer puts there, if it does.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    pub fn document(&self, text: &str) -> Result<Vec<u32>, Error> {
        let text = self.vocabulary.encode_text(text)?;
        let begin = self.vocabulary.begin_token();
        Ok(begin.into_iter().chain(text).collect())
    }

    /// Returns what a model wrote behind a document, without the token that ends it.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn continuation(&self, tokens: &[u32]) -> Result<String, Error> {
        let ends = |token: &u32| self.stops.contains(token);
        let end = tokens.iter().position(ends).unwrap_or(tokens.len());
        self.vocabulary.decode(&tokens[..end])
    }

    /// Returns the format.
    pub fn format(&self) -> &dyn Format {
        &*self.format
    }

    /// Returns the tokens of a conversation, up to where the assistant is to speak.
    ///
    /// # Errors
    /// If the format cannot write the conversation.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Vec<u32>, Error> {
        Ok(self.render(conversation, true)?.tokens)
    }

    /// Returns the tokens of a conversation and how much each counts in training.
    ///
    /// # Errors
    /// If the format cannot write the conversation, cannot tell where an answer that counts is,
    /// or there is none.
    pub fn example(
        &self,
        conversation: &Conversation,
        train_on: TrainOn,
    ) -> Result<Example, Error> {
        self.example_with(conversation, train_on, &RenderOptions::default())
    }

    /// Returns the tokens of a conversation and how much each counts in training, written with
    /// these options.
    ///
    /// # Errors
    /// As [`example`](Self::example), and if the format has no way to write one of the options.
    pub fn example_with(
        &self,
        conversation: &Conversation,
        train_on: TrainOn,
        options: &RenderOptions,
    ) -> Result<Example, Error> {
        if let Some((message, what)) = self.format.leaves_out(conversation) {
            let name = self.format.name();
            return Err(match message {
                Some(index) => Error::Message {
                    index,
                    problem: format!("it has {what}, which {name} leaves out"),
                },
                None => Error::Conversation {
                    problem: format!("has {what}, which {name} leaves out"),
                },
            });
        }
        let mut script = Script::new(&self.vocabulary, &self.stops);
        if train_on.counts_contents() {
            script = script.marking_contents();
        }
        let rendered = self.write(script, conversation, options)?;
        Example::new(rendered, conversation, train_on)
    }

    /// Returns the tokens of a conversation and who made each; `open` begins an answer.
    ///
    /// # Errors
    /// If the format cannot write the conversation.
    pub fn render(&self, conversation: &Conversation, open: bool) -> Result<Rendered, Error> {
        let options = RenderOptions {
            open,
            ..RenderOptions::default()
        };
        self.render_with(conversation, &options)
    }

    /// Returns the tokens of a conversation and who made each, with all that can be asked of a format.
    ///
    /// An answer behind a prefilled prompt is read with [`parse_after`](Self::parse_after).
    ///
    /// # Errors
    /// If the format cannot write the conversation, or has no way to write one of the options.
    pub fn render_with(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<Rendered, Error> {
        let script = Script::new(&self.vocabulary, &self.stops);
        self.write(script, conversation, options)
    }

    fn write(
        &self,
        mut script: Script<'_>,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<Rendered, Error> {
        if conversation.messages.is_empty() {
            return Err(Error::Conversation {
                problem: "has no messages".to_owned(),
            });
        }
        self.format.write(&mut script, conversation, options)?;
        if let Some(prefill) = &options.prefill {
            if !options.open {
                return Err(Error::Conversation {
                    problem: "has a prefilled answer, but is not a prompt for one".to_owned(),
                });
            }
            script.text(prefill);
        }
        let found = script.text_bytes();
        if let Some(most) = options.max_text_bytes.filter(|most| found > *most) {
            return Err(Error::TooLong { found, most });
        }
        script.finish()
    }

    /// Returns what ends an answer.
    pub fn stop(&self) -> Stop {
        match self.format.stop_text() {
            Some(text) => Stop::Text(text.to_owned()),
            None => Stop::AnyToken(self.stops.to_vec()),
        }
    }

    /// Returns parameters to sample an answer with.
    pub fn sampling_params(&self, max_tokens: u32) -> SamplingParams {
        // Where nothing is known to end an answer, the server knows what ends a document.
        let stop = match self.stop() {
            Stop::AnyToken(none) if none.is_empty() => None,
            stop => Some(stop),
        };
        SamplingParams {
            stop,
            ..SamplingParams::new(max_tokens)
        }
    }

    /// Reads what a model wrote behind a prompt.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn parse(&self, tokens: &[u32]) -> Result<Response, Error> {
        self.parse_after("", tokens)
    }

    /// Reads what a model wrote behind a text that the prompt had begun its answer with.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn parse_after(&self, begun: &str, tokens: &[u32]) -> Result<Response, Error> {
        let end = self.end_of_answer(tokens);
        let said = self
            .vocabulary
            .decode(&tokens[..end.unwrap_or(tokens.len())])?;
        Ok(self.format.parse(&format!("{begun}{said}"), end.is_some()))
    }

    /// Returns where the first token is that ends an answer.
    pub(crate) fn end_of_answer(&self, tokens: &[u32]) -> Option<usize> {
        tokens.iter().position(|token| {
            self.format
                .ends_answer(*token, &self.stops, &self.vocabulary)
        })
    }
}
