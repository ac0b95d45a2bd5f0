//! Tools that a model may call in an episode.

use super::env::{EnvFuture, Grader, Turn};
use super::message_env::{MessageEnv, Reply};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tinkrs::BoxError;
use tinkrs_chat::{Json, Message, Response, ToolCall};

/// A function that a model may call. The JSON schema of its arguments comes from their type.
pub trait Tool: Send + Sync + 'static {
    /// The arguments. Doc comments of the fields describe them to the model.
    type Arguments: DeserializeOwned + JsonSchema + Send;

    /// Returns the name that the model calls.
    fn name(&self) -> &str;

    /// Returns what the model is told about it.
    fn description(&self) -> &str;

    /// Does it, and returns what the model sees.
    ///
    /// # Errors
    /// If it cannot be done: the model sees why, and may try something else.
    fn call(
        &self,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<String, BoxError>> + Send;
}

/// A tool of any arguments.
trait AnyTool: Send + Sync {
    fn definition(&self) -> Json;
    fn call<'a>(&'a self, arguments: &'a Json) -> EnvFuture<'a, String>;
}

impl<T: Tool> AnyTool for T {
    fn definition(&self) -> Json {
        let mut schema = schemars::schema_for!(T::Arguments).to_value();
        if let Some(members) = schema.as_object_mut() {
            members.remove("$schema");
            members.remove("title");
        }
        let schema = Json::parse(&schema.to_string()).unwrap_or_default();
        let function = Json::object([
            ("name", Json::from(self.name())),
            ("description", Json::from(self.description())),
            ("parameters", schema),
        ]);
        Json::object([("type", Json::from("function")), ("function", function)])
    }

    fn call<'a>(&'a self, arguments: &'a Json) -> EnvFuture<'a, String> {
        Box::pin(async move {
            let arguments = serde_json::from_str(&arguments.to_string())
                .map_err(|error| format!("the arguments do not fit: {error}"))?;
            Tool::call(self, arguments).await
        })
    }
}

/// Tools by name.
#[derive(Clone, Default)]
pub struct Tools(BTreeMap<String, Arc<dyn AnyTool>>);

impl Tools {
    /// Adds a tool; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, tool: impl Tool) -> Self {
        self.0.insert(tool.name().to_owned(), Arc::new(tool));
        self
    }

    /// Returns the definitions, for [`Conversation::tools`](tinkrs_chat::Conversation).
    pub fn definitions(&self) -> Vec<Json> {
        self.0.values().map(|tool| tool.definition()).collect()
    }

    /// Does what a call asks for.
    ///
    /// # Errors
    /// If there is no such tool, its arguments do not fit, or it fails.
    pub async fn call(&self, call: &ToolCall) -> Result<String, BoxError> {
        match self.0.get(&call.name) {
            Some(tool) => tool.call(&call.arguments).await,
            None => {
                let names: Vec<_> = self.0.keys().map(String::as_str).collect();
                let names = names.join(", ");
                Err(format!("there is no tool `{}`, only {names}", call.name).into())
            }
        }
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// An episode in which the model calls tools until it answers, and the answer is graded.
///
/// Its numbers are `tool_calls` and `tool_errors`.
pub struct ToolUse {
    tools: Tools,
    calls_left: usize,
    grader: Grader,
}

impl ToolUse {
    /// Lets the model make so many calls before it must answer. One that calls more has earned nothing.
    pub fn new(
        tools: &Tools,
        max_calls: usize,
        grader: impl Fn(&Response) -> f64 + Send + Sync + 'static,
    ) -> Self {
        Self {
            tools: tools.clone(),
            calls_left: max_calls,
            grader: Arc::new(grader),
        }
    }
}

impl fmt::Debug for ToolUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolUse")
            .field("tools", &self.tools)
            .field("calls_left", &self.calls_left)
            .finish_non_exhaustive()
    }
}

impl MessageEnv for ToolUse {
    fn reply<'a>(&'a mut self, answer: &'a Response) -> EnvFuture<'a, Reply> {
        Box::pin(async move {
            let calls = &answer.message.tool_calls;
            let turn = match calls.len() {
                0 => Turn::end((self.grader)(answer)),
                more if more > self.calls_left => Turn::end(0.0),
                _ => Turn::go_on(),
            };
            if turn.done {
                let (messages, turn) = (Vec::new(), turn.metric("tool_calls", 0.0));
                return Ok(Reply { messages, turn });
            }
            self.calls_left -= calls.len();
            let (mut messages, mut errors) = (Vec::new(), 0.0);
            for call in calls {
                let result = self.tools.call(call).await.unwrap_or_else(|error| {
                    errors += 1.0;
                    format!("error: {error}")
                });
                let mut message = Message::tool(result);
                message.tool_call_id.clone_from(&call.id);
                message.name = Some(call.name.clone());
                messages.push(message);
            }
            let turn = turn.metric("tool_calls", calls.len() as f64);
            let turn = turn.metric("tool_errors", errors);
            Ok(Reply { messages, turn })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    struct Add;

    #[derive(Deserialize, JsonSchema)]
    struct Terms {
        /// What to add up.
        terms: Vec<f64>,
    }

    impl Tool for Add {
        type Arguments = Terms;

        fn name(&self) -> &str {
            "add"
        }

        fn description(&self) -> &str {
            "Adds numbers"
        }

        async fn call(&self, arguments: Terms) -> Result<String, BoxError> {
            tokio::task::yield_now().await;
            Ok(arguments.terms.iter().sum::<f64>().to_string())
        }
    }

    fn answer(message: Message) -> Response {
        Response {
            message,
            finished: true,
            malformed_calls: 0,
        }
    }

    fn call(arguments: &str) -> Response {
        let call = ToolCall::new("add", Json::parse(arguments).unwrap());
        answer(Message::assistant("").call(call))
    }

    #[test]
    fn the_schema_comes_from_the_type() {
        let definitions = Tools::default().with(Add).definitions();
        let text = definitions[0].to_string();
        assert!(text.contains(r#""name": "add""#), "{text}");
        assert!(text.contains("What to add up."), "{text}");
        assert!(text.contains(r#""required": ["terms"]"#), "{text}");
    }

    #[tokio::test]
    async fn calls_are_answered_until_there_are_too_many() {
        let tools = Tools::default().with(Add);
        let mut env = ToolUse::new(&tools, 3, |said| f64::from(said.message.content == "5"));
        let reply = env.reply(&call(r#"{"terms": [2, 3]}"#)).await.unwrap();
        assert_eq!(reply.messages[0].content, "5");
        assert!(!reply.turn.done);
        // Mistakes are the model's to see.
        let reply = env.reply(&call(r#"{"terms": "all"}"#)).await.unwrap();
        assert!(
            reply.messages[0]
                .content
                .starts_with("error: the arguments do not fit")
        );
        assert_eq!(reply.turn.metrics["tool_errors"], 1.0);
        let unknown = ToolCall::new("divide", Json::Null);
        let reply = env
            .reply(&answer(Message::assistant("").call(unknown)))
            .await;
        let said = &reply.unwrap().messages[0].content;
        assert_eq!(said, "error: there is no tool `divide`, only add");
        let reply = env.reply(&answer(Message::assistant("5"))).await.unwrap();
        assert_eq!((reply.turn.reward, reply.turn.done), (1.0, true));
        let reply = env.reply(&call("{}")).await.unwrap();
        assert_eq!((reply.turn.reward, reply.turn.done), (0.0, true));
    }
}
