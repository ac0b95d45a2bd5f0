//! What a stranger sends to the OpenAI and Anthropic endpoints: each is refused with a status and a sentence that names the member, in bounded
//! time and memory, and nothing is left running.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::talking::{CHAT, COMPLETIONS, calling, idle, start, talking};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
/// How long any of these may take, on a machine that does other work, too: it tells a bound from none.
const SOON: Duration = Duration::from_secs(60);

/// A request that each endpoint takes.
fn valid(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "ab"}]);
    match path {
        COMPLETIONS => json!({"model": "tiny", "prompt": "ab", "max_tokens": 4}),
        RESPONSES => json!({"model": "tiny", "input": "ab", "max_output_tokens": 4}),
        _ => json!({"model": "tiny", "messages": messages, "max_tokens": 4}),
    }
}

fn with(path: &str, change: &Value) -> Value {
    let mut body = valid(path);
    let members = body.as_object_mut().unwrap();
    members.extend(change.as_object().unwrap().clone());
    body
}

/// Returns the sentence of a refusal, in the form of either API.
fn sentence(body: &Value) -> String {
    body["error"]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Schemas that take time or memory, or that nothing satisfies.
fn hostile_schemas() -> Vec<(&'static str, Value)> {
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"items": deep});
    }
    let wide: Vec<Value> = (0..15_000).map(|n| json!(format!("value {n}"))).collect();
    let mut doubling = serde_json::Map::new();
    for level in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        doubling.insert(
            format!("d{level}"),
            json!({"anyOf": [{"items": next}, {"not": next}, next, next]}),
        );
    }
    let all_of: Vec<Value> = (0..200)
        .map(|n| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{n}}}$")}))
        .collect();
    vec![
        ("deep nesting", deep),
        ("a huge enum of texts", json!({"enum": wide})),
        ("a reference to itself", json!({"$ref": "#"})),
        (
            "references in a circle",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        (
            "references that double",
            json!({"$ref": "#/$defs/d0", "$defs": doubling}),
        ),
        (
            "a regex of exponential states",
            json!({"type": "string", "pattern": "^(a|b)*a(a|b){200}$"}),
        ),
        (
            "a regex of nested counts",
            json!({"type": "string", "pattern": "^((((a{1,99}){1,99}){1,99}){1,99}){1,99}$"}),
        ),
        ("many regexes at once", json!({"allOf": all_of})),
        (
            "a regex of a megabyte",
            json!({"type": "string", "pattern": "a|".repeat(500_000)}),
        ),
        (
            "nothing satisfies it",
            json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        ),
        (
            "nothing satisfies a required member",
            json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        ),
        ("a type that is none", json!({"type": "colour"})),
        ("not a schema", json!("text")),
    ]
}

#[tokio::test]
async fn hostile_schemas_end_in_bounded_time_with_their_member_named() {
    let server = start(calling()).await;
    for (what, schema) in hostile_schemas() {
        let of_chat =
            json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let of_responses = json!({"type": "json_schema", "name": "s", "schema": schema});
        let function = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"]}});
        let tool = json!({"name": "f", "input_schema": function["parameters"]});
        let cases = [
            (CHAT, json!({"response_format": of_chat}), "response_format"),
            (
                RESPONSES,
                json!({"text": {"format": of_responses}}),
                "text.format",
            ),
            (
                MESSAGES,
                json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
                "output_config",
            ),
            (
                CHAT,
                json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"}),
                "tools",
            ),
            (
                MESSAGES,
                json!({"tools": [tool], "tool_choice": {"type": "any"}}),
                "tools",
            ),
        ];
        for (path, change, member) in cases {
            let sent = server.post(path, with(path, &change));
            let answer = tokio::time::timeout(SOON, sent).await;
            let answer = answer.unwrap_or_else(|_| panic!("{what}: no answer of {path}"));
            // Some are compiled after all: then an answer keeps to the schema as far as it got.
            if answer.status == 200
                && ["a reference", "references", "a regex", "many", "a huge"]
                    .iter()
                    .any(|known| what.starts_with(known))
            {
                continue;
            }
            let said = sentence(&answer.json());
            assert_eq!(answer.status, 400, "{what} to {path}: {said}");
            assert!(said.len() <= 1100, "{what}: {} bytes", said.len());
            assert!(
                said.contains(member) || said.contains("schema") || said.contains("recursion"),
                "{what} to {path}: {said}"
            );
        }
    }
    idle(&server).await;
    let after = server.post(CHAT, valid(CHAT)).await;
    assert_eq!(after.status, 200);
}

#[tokio::test]
async fn lists_and_texts_beyond_all_measure_are_refused_by_their_name() {
    let server = start(talking()).await;
    let stops: Vec<String> = (0..5_000).map(|n| format!("stop {n}")).collect();
    let bias: serde_json::Map<_, _> = (0..50_000).map(|n| (n.to_string(), json!(1))).collect();
    let name = "x".repeat(1 << 20);
    let cases = [
        (COMPLETIONS, json!({"stop": stops}), "stop"),
        (CHAT, json!({"stop": stops}), "stop"),
        (CHAT, json!({"stop": ["x".repeat(1 << 20)]}), "stop"),
        (MESSAGES, json!({"stop_sequences": stops}), "stop_sequences"),
        (CHAT, json!({"logit_bias": bias}), "logit_bias"),
        (
            COMPLETIONS,
            json!({"n": 128, "best_of": 4_000_000_000u32}),
            "best_of",
        ),
        (
            COMPLETIONS,
            json!({"n": 4_000_000_000u32, "max_tokens": 4_000_000_000u32}),
            "n",
        ),
        (CHAT, json!({"max_tokens": 4_294_967_295u32}), "max_tokens"),
        (
            RESPONSES,
            json!({"max_output_tokens": 4_294_967_295u32}),
            "max_",
        ),
        (
            CHAT,
            json!({"stop_token_ids": vec![1; 100_000]}),
            "stop_token_ids",
        ),
        (
            CHAT,
            json!({"tools": [{"type": "function", "function": {"name": name}}]}),
            "tools[0].function.name",
        ),
        (
            MESSAGES,
            json!({"tools": [{"name": name, "input_schema": {"type": "object"}}]}),
            "tools[0].name",
        ),
        (CHAT, json!({"tool_choice": name}), "tool_choice"),
        (CHAT, json!({"model": name}), "model"),
        (MESSAGES, json!({"model": name}), "model"),
        (CHAT, json!({name.clone(): 1}), "x"),
        (
            CHAT,
            json!({"messages": [{"role": name, "content": "x"}]}),
            "messages[0].role",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "x".repeat(1 << 20)}]}),
            "messages",
        ),
        (
            CHAT,
            json!({"reasoning_effort": "\u{202e}hgih"}),
            "reasoning_effort",
        ),
        (
            RESPONSES,
            json!({"metadata": {"a": "x".repeat(2 << 20)}}),
            "metadata",
        ),
        (
            RESPONSES,
            json!({"tools": [{"type": "function", "name": "f", "description": "x".repeat(2 << 20)}]}),
            "tools",
        ),
        (COMPLETIONS, json!({"prompt": vec!["a"; 100_000]}), "prompt"),
        (COMPLETIONS, json!({"prompt": vec![5; 1_000_000]}), "prompt"),
    ];
    for (path, change, member) in cases {
        for stream in [false, true] {
            let mut body = with(path, &change);
            body["stream"] = stream.into();
            let sent = tokio::time::timeout(SOON, server.post(path, body)).await;
            let answer = sent.unwrap_or_else(|_| panic!("no answer: {member}"));
            let status = answer.status.as_u16();
            let said = sentence(&answer.json());
            assert!(
                [400, 404, 413, 429].contains(&status),
                "{member}: {status} {said}"
            );
            assert!(
                said.starts_with(&format!("`{member}")),
                "{member}: {status} {said}"
            );
            assert!(said.len() <= 1100, "{member}: {} bytes", said.len());
            assert!(!said.contains('\u{202e}'), "{member}");
        }
    }
    idle(&server).await;
}

/// Every member of a valid request, with a value of each other type.
#[tokio::test]
async fn a_wrong_type_of_any_member_is_refused_with_its_name() {
    let server = start(talking()).await;
    let members = |path: &str| match path {
        COMPLETIONS => vec![
            "model",
            "prompt",
            "max_tokens",
            "temperature",
            "top_p",
            "n",
            "stream",
            "stream_options",
            "logprobs",
            "echo",
            "stop",
            "presence_penalty",
            "frequency_penalty",
            "best_of",
            "logit_bias",
            "seed",
            "top_k",
            "min_p",
            "ignore_eos",
        ],
        CHAT => vec![
            "model",
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "n",
            "stream",
            "stream_options",
            "logprobs",
            "top_logprobs",
            "stop",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "seed",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "reasoning_effort",
            "chat_template_kwargs",
            "modalities",
        ],
        RESPONSES => vec![
            "model",
            "input",
            "instructions",
            "max_output_tokens",
            "temperature",
            "top_p",
            "stream",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "text",
            "reasoning",
            "truncation",
            "include",
        ],
        _ => vec![
            "model",
            "messages",
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "stream",
            "stop_sequences",
            "system",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
        ],
    };
    let values = [
        json!(true),
        json!(-1.5),
        json!("\u{202e}text"),
        json!([{"a": []}]),
        json!({"a": {"b": 1}}),
        json!([[["x"]]]),
    ];
    for path in [COMPLETIONS, CHAT, RESPONSES, MESSAGES] {
        for member in members(path) {
            let mut refused = 0;
            for value in &values {
                let answer = server.post(path, with(path, &json!({member: value}))).await;
                if answer.status == 200 {
                    continue;
                }
                refused += 1;
                let said = sentence(&answer.json());
                let status = if member == "model" && value.is_string() {
                    404
                } else {
                    400
                };
                assert_eq!(answer.status, status, "{path} {member} {value}: {said}");
                let names_it = said.starts_with(&format!("`{member}"));
                assert!(names_it, "{path} {member} {value}: {said}");
            }
            assert!(refused >= 4, "{path} takes almost anything as `{member}`");
        }
    }
    idle(&server).await;
}

/// Tokens of megabytes take seconds, and joining their blocks one by one took minutes.
#[tokio::test]
async fn texts_that_fit_no_context_are_refused_before_they_are_tokens() {
    let server = start(talking()).await;
    let long = "word ".repeat(2 << 20);
    let blocks = vec![json!({"type": "text", "text": "twenty letters of it"}); 200_000];
    let said = |content: &Value| json!({"messages": [{"role": "user", "content": content}]});
    let cases = [
        (COMPLETIONS, json!({"prompt": long}), "prompt"),
        (CHAT, said(&json!(long)), "messages"),
        (RESPONSES, json!({"input": long}), "input"),
        (MESSAGES, said(&json!(long)), "messages"),
        (CHAT, said(&json!(blocks)), "messages"),
        (MESSAGES, said(&json!(blocks)), "messages"),
        (MESSAGES, json!({"system": blocks}), "messages"),
        (
            MESSAGES,
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": long}]}),
            "messages",
        ),
        (
            CHAT,
            json!({"messages": vec![json!({"role": "user", "content": "x"}); 100_000]}),
            "messages",
        ),
    ];
    for (path, change, member) in cases {
        let sent = tokio::time::timeout(SOON, server.post(path, with(path, &change)));
        let answer = sent.await.unwrap_or_else(|_| panic!("no answer of {path}"));
        assert_eq!(answer.status, 400, "{path}");
        let said = sentence(&answer.json());
        assert!(said.starts_with(&format!("`{member}`: found")), "{said}");
        let is_counted = said.contains("bytes of text") || said.contains("100000 messages");
        assert!(is_counted, "{said}");
    }
    idle(&server).await;
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused_in_the_form_of_the_api() {
    let server = start(talking()).await;
    let deep = format!(
        "{{\"model\": \"tiny\", \"messages\": {}",
        "[".repeat(100_000)
    );
    let bodies: [&[u8]; 6] = [
        b"{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}",
        b"{\"model\": \"tiny\", \"model\": \"tiny\", \"max_tokens\": 1e999}",
        b"\x00\x01\x02",
        b"{\"model\": \"\\ud800\"}",
        deep.as_bytes(),
        b"{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\"",
    ];
    for path in [
        COMPLETIONS,
        CHAT,
        RESPONSES,
        MESSAGES,
        "/oai/api/v1/chat/completions",
        "/anthropic/api/v1/messages",
    ] {
        for body in bodies {
            let answer = server
                .try_send(Method::POST, path, &[], body.to_vec())
                .await
                .unwrap();
            assert_eq!(answer.status, 400, "{path}: {:?}", answer.body);
            assert!(
                !sentence(&answer.json()).is_empty(),
                "{path}: {:?}",
                answer.body
            );
        }
    }
    idle(&server).await;
}

#[tokio::test]
async fn a_body_that_is_half_sent_leaves_nothing_running() {
    let server = start(talking()).await;
    for path in [COMPLETIONS, CHAT, RESPONSES, MESSAGES] {
        let mut stream = tokio::net::TcpStream::connect(server.address())
            .await
            .unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: tml-test\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let body = valid(path).to_string();
        stream
            .write_all(&body.as_bytes()[..body.len() / 2])
            .await
            .unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    idle(&server).await;
    for path in [COMPLETIONS, CHAT, RESPONSES, MESSAGES] {
        assert_eq!(server.post(path, valid(path)).await.status, 200, "{path}");
    }
}

/// The memory of grammars is given back, also by requests that are dropped while they wait.
#[tokio::test]
async fn answers_that_keep_to_schemas_give_their_memory_back() {
    let server = start(calling()).await;
    let used = async || {
        let metrics = server
            .try_send(Method::GET, "/metrics", &[], "")
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains("kind=\"grammars\""));
        let line = line.unwrap_or_else(|| panic!("no such line in {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(used().await.abs() < 1.0);
    let asks = (0..40).map(|number| {
        let schema = json!({"enum": [format!("{number}"), "a", "b"]});
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let server = &server;
        async move {
            let sent = server.post(
                CHAT,
                with(CHAT, &json!({"response_format": format, "stream": true})),
            );
            if number % 2 == 0 {
                let answer = sent.await;
                assert!(
                    [200, 429].contains(&answer.status.as_u16()),
                    "{:?}",
                    answer.body
                );
            } else {
                // Hangs up at some moment before the answer.
                tokio::select! {
                    _ = sent => {}
                    () = async { for _ in 0..number { tokio::task::yield_now().await; } } => {}
                }
            }
        }
    });
    futures_util::future::join_all(asks).await;
    idle(&server).await;
    while used().await > 0.0 {
        tokio::task::yield_now().await;
    }
}
