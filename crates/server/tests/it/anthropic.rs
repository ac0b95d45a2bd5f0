//! The Anthropic API over the models of the server.

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::caller::{Answer, TestServer};
use crate::talking::{calling, idle, start, talking};

const MESSAGES: &str = "/v1/messages";
const HOSTED: &str = "/anthropic/api/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn request() -> Value {
    json!({
        "model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
    })
}

fn with(change: &Value) -> Value {
    let mut body = request();
    let members = body.as_object_mut().unwrap();
    members.extend(change.as_object().unwrap().clone());
    body
}

/// Returns the events of a stream, each of which has its type as its name.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let text = std::str::from_utf8(&answer.body).unwrap();
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["type"], name.strip_prefix("event: ").unwrap());
        event
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// Puts the events of a stream together, as clients do.
fn message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(blocks.len(), index);
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (member, new) = match event["delta"]["type"].as_str().unwrap() {
                    "text_delta" => ("text", &event["delta"]["text"]),
                    "input_json_delta" => ("input", &event["delta"]["partial_json"]),
                    _ => panic!("{event}"),
                };
                let text = &mut message["content"][index][member];
                let new = new.as_str().unwrap();
                // The input of a call begins as an empty object.
                *text = json!(format!("{}{new}", text.as_str().unwrap_or_default()));
            }
            "content_block_stop" => {
                let block = &mut message["content"][index];
                if block["type"] == "tool_use" {
                    let input = block["input"].as_str().unwrap_or("{}");
                    block["input"] = serde_json::from_str(input).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

#[tokio::test]
async fn a_stream_says_what_the_whole_message_says_in_the_documented_order() {
    let server = start(talking()).await;
    let changes = [
        json!({}),
        json!({"max_tokens": 3}),
        json!({"stop_sequences": ["a", "e", "i", "o"]}),
        json!({"system": "s", "top_k": 5, "top_p": 0.5}),
        json!({"max_tokens": 100_000}),
    ];
    for change in changes {
        let mut body = with(&change);
        let mut whole = server.ok(MESSAGES, body.clone()).await;
        assert_eq!(
            (&whole["type"], &whole["role"]),
            (&json!("message"), &json!("assistant"))
        );
        body["stream"] = true.into();
        let streamed = events(&server.post(HOSTED, body).await);
        let names: Vec<_> = streamed
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            names[..3],
            ["message_start", "content_block_start", "ping"],
            "{change}"
        );
        let end = ["content_block_stop", "message_delta", "message_stop"];
        assert_eq!(names[names.len() - 3..], end, "{change}");
        let between = &names[3..names.len() - 3];
        assert!(!between.is_empty() && between.iter().all(|name| *name == "content_block_delta"));
        let mut joined = message(&streamed);
        for message in [&mut whole, &mut joined] {
            assert!(message["id"].as_str().unwrap().starts_with("msg_"));
            message["id"] = Value::Null;
            // The second request finds the prompt of the first one in the cache.
            let usage = message["usage"].as_object_mut().unwrap();
            let cached = usage
                .remove("cache_read_input_tokens")
                .unwrap()
                .as_u64()
                .unwrap();
            let computed = usage["input_tokens"].as_u64().unwrap();
            usage["input_tokens"] = json!(cached + computed);
        }
        assert_eq!(joined, whole, "{change}");
    }
}

#[tokio::test]
async fn an_answer_keeps_to_its_schema() {
    let server = start(talking()).await;
    let schema = json!({"enum": ["yes", "no"]});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let answer = server.ok(MESSAGES, with(&format)).await;
    let text = answer["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{answer}"));
    assert!(value == "yes" || value == "no", "{value}");
    assert_eq!(answer["stop_reason"], "end_turn");
}

#[tokio::test]
async fn a_call_that_has_to_be_made_keeps_to_the_schema_of_its_tool() {
    let server = start(calling()).await;
    let tool = |name: &str, letter: &str| {
        json!({"name": name, "strict": true, "input_schema": {
            "type": "object", "properties": {"a": {"enum": [letter]}, "b": {"type": "boolean"}},
            "required": ["a", "b"], "additionalProperties": false,
        }})
    };
    let tools = json!([tool("f", "x"), tool("g", "y")]);
    for choice in [
        json!({"type": "any"}),
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "g"}),
    ] {
        let mut body = with(&json!({"tools": tools, "tool_choice": choice, "max_tokens": 100}));
        let whole = server.ok(MESSAGES, body.clone()).await;
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let [call] = whole["content"].as_array().unwrap().as_slice() else {
            panic!("{whole}");
        };
        let letter = if call["name"] == "g" { "y" } else { "x" };
        assert!(choice["name"].is_null() || call["name"] == "g", "{call}");
        assert_eq!(call["input"]["a"], letter);
        assert!(call["input"]["b"].is_boolean());
        assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
        body["stream"] = true.into();
        let streamed = message(&events(&server.post(MESSAGES, body).await));
        assert_eq!(streamed["stop_reason"], "tool_use");
        for member in ["name", "input"] {
            assert_eq!(streamed["content"][0][member], call[member]);
        }
    }
    let begun = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]);
    for (change, member) in [
        (json!({"messages": begun}), "messages"),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
            "output_config.format",
        ),
    ] {
        let mut body = with(&json!({"tools": tools, "tool_choice": {"type": "any"}}));
        let members = body.as_object_mut().unwrap();
        members.extend(change.as_object().unwrap().clone());
        let answer = server.post(MESSAGES, body).await;
        assert_eq!(answer.status, 400);
        let text = answer.json()["error"]["message"].to_string();
        assert!(text.contains(&format!("`{member}`")), "{text}");
    }
}

#[tokio::test]
async fn an_end_has_its_reason() {
    let server = start(talking()).await;
    let reason = async |change: Value| {
        let answer = server.ok(MESSAGES, with(&change)).await;
        (
            answer["stop_reason"].clone(),
            answer["stop_sequence"].clone(),
        )
    };
    assert_eq!(
        reason(json!({"max_tokens": 1})).await,
        (json!("max_tokens"), Value::Null)
    );
    let all: Vec<String> = ('a'..='p').map(String::from).collect();
    let (why, text) = reason(json!({"stop_sequences": all, "max_tokens": 90})).await;
    assert_eq!(why, "stop_sequence");
    assert!(all.iter().any(|letter| text == letter.as_str()), "{text}");
    // The context of the model is 128, and the prompt fills most of it.
    let near = json!([{"role": "user", "content": "x".repeat(100)}]);
    let long = reason(json!({"max_tokens": 4_000_000, "messages": near})).await;
    assert_eq!(long, (json!("model_context_window_exceeded"), Value::Null));
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_used() {
    let server = start(talking()).await;
    for change in [
        json!({}),
        json!({"system": "Be brief."}),
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The"}]}),
    ] {
        let mut body = with(&change);
        let usage = &server.ok(MESSAGES, body.clone()).await["usage"];
        let members = body.as_object_mut().unwrap();
        members.remove("max_tokens");
        members.remove("temperature");
        let count = server.ok(COUNT, body).await["input_tokens"]
            .as_u64()
            .unwrap();
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(
            count,
            usage["input_tokens"].as_u64().unwrap() + cached,
            "{change}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_its_name_in_the_form_of_the_api() {
    let server = start(talking()).await;
    let long = "x".repeat(200);
    let cases = [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": long}]}),
            "messages",
        ),
        (
            json!({"messages": [{"role": "robot", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "colour": "red"}]}]}),
            "messages[0].content[0].colour",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"temperature": 1.1}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": vec!["x"; 17]}), "stop_sequences"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
        (
            json!({"output_config": {"format": {"type": "grammar"}}}),
            "output_config.format.type",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"enum": []}}}}),
            "output_config.format.schema",
        ),
        (json!({"mcp_servers": [{"type": "url"}]}), "mcp_servers"),
        (
            json!({"context_management": {"edits": [{"type": "x"}]}}),
            "context_management",
        ),
        (json!({"container": "x"}), "container"),
    ];
    for (change, member) in cases {
        for stream in [false, true] {
            let mut body = with(&change);
            body["stream"] = stream.into();
            let answer = server.post(MESSAGES, body).await;
            let refused = answer.json();
            assert_eq!(answer.status, 400, "{change}: {refused}");
            assert_eq!(refused["type"], "error");
            assert_eq!(refused["error"]["type"], "invalid_request_error");
            let text = refused["error"]["message"].as_str().unwrap();
            assert!(text.contains(&format!("`{member}`")), "{change}: {text}");
        }
    }
    for (path, body, status, kind) in [
        (
            MESSAGES,
            with(&json!({"model": "other"})),
            404,
            "not_found_error",
        ),
        (
            COUNT,
            json!({"model": "other", "messages": [{"role": "user", "content": "x"}]}),
            404,
            "not_found_error",
        ),
        ("/v1/messages/batches", json!({}), 404, "not_found_error"),
        (COUNT, request(), 400, "invalid_request_error"),
    ] {
        let answer = server.post(path, body).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["type"]),
            (status, &json!(kind)),
            "{path}"
        );
    }
    for body in ["", "{", "[]", "{\"model\": \"tiny\", \"messages\": [{"] {
        let answer = server
            .try_send(Method::POST, MESSAGES, &[], body)
            .await
            .unwrap();
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    idle(&server).await;
}

#[tokio::test]
async fn keys_and_versions_are_taken_as_clients_send_them() {
    let server = start(talking()).await;
    let body = request().to_string();
    let post = async |path: &str, headers: &[(&str, &str)]| {
        let answer = server
            .try_send(Method::POST, path, headers, body.clone())
            .await;
        answer.unwrap()
    };
    let version = ("anthropic-version", "2023-06-01");
    for headers in [
        vec![("x-api-key", "tml-a"), version],
        vec![("x-api-key", "tml-a")],
        vec![("x-api-key", "tml-a"), ("anthropic-version", "2026-10-21")],
        vec![
            ("x-api-key", ""),
            ("authorization", "Bearer tml-a"),
            version,
        ],
        vec![
            ("x-api-key", "tml-a"),
            version,
            ("anthropic-beta", "interleaved-thinking-2025-05-14"),
        ],
    ] {
        assert_eq!(post(HOSTED, &headers).await.status, 200, "{headers:?}");
    }
    let beta = format!("{MESSAGES}?beta=true");
    assert_eq!(post(&beta, &[("x-api-key", "tml-a")]).await.status, 200);
    for (headers, status, kind) in [
        (vec![("x-api-key", "")], 401, "authentication_error"),
        (
            vec![("x-api-key", "sk-ant-other")],
            401,
            "authentication_error",
        ),
        (
            vec![("x-api-key", "tml-a"), ("anthropic-version", "2022-01-01")],
            400,
            "invalid_request_error",
        ),
    ] {
        let answer = post(MESSAGES, &headers).await;
        let refused = answer.json();
        assert_eq!(answer.status, status, "{refused}");
        assert_eq!(
            (&refused["type"], &refused["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
    }
}

#[tokio::test]
async fn an_answer_goes_on_from_the_last_message_of_the_assistant() {
    let server = start(talking()).await;
    let begun = json!({"messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer"},
    ]});
    let mut body = with(&begun);
    let whole = server.ok(MESSAGES, body.clone()).await;
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert!(!text.contains("answer"), "{text}");
    body["stream"] = true.into();
    let streamed = message(&events(&server.post(MESSAGES, body).await));
    assert_eq!(streamed["content"], whole["content"]);
}

/// As with "```json" before the answer and "```" behind it.
#[tokio::test]
async fn stop_texts_are_looked_for_behind_what_the_request_begins_the_answer_with() {
    let server = start(talking()).await;
    let mut body = with(&json!({"messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer"},
    ]}));
    let plain = server.ok(MESSAGES, body.clone()).await;
    body["stop_sequences"] = json!(["answer"]);
    let whole = server.ok(MESSAGES, body.clone()).await;
    for member in ["content", "stop_reason", "stop_sequence"] {
        assert_eq!(whole[member], plain[member], "{whole}");
    }
    body["stream"] = true.into();
    let streamed = message(&events(&server.post(MESSAGES, body).await));
    assert_eq!(streamed["content"], plain["content"]);
    assert_eq!(streamed["stop_reason"], plain["stop_reason"]);
}

/// Which is how a format without thoughts answers anyway.
#[tokio::test]
async fn thoughts_can_be_turned_off_where_there_are_none_and_not_on() {
    let server = start(talking()).await;
    let off = json!({"thinking": {"type": "disabled"}});
    let plain = server.ok(MESSAGES, request()).await;
    let answer = server.ok(MESSAGES, with(&off)).await;
    assert_eq!(answer["content"], plain["content"]);
    let on = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000});
    for (change, member) in [
        (on, "thinking"),
        (
            json!({"output_config": {"effort": "high"}}),
            "output_config.effort",
        ),
    ] {
        let answer = server.post(MESSAGES, with(&change)).await;
        assert_eq!(answer.status, 400);
        let refused = answer.json();
        let said = refused["error"]["message"].as_str().unwrap();
        assert!(said.starts_with(&format!("`{member}`: ")), "{said}");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_stops_its_answer() {
    let server = start(talking()).await;
    for stream in [true, false] {
        let connection = tokio::net::TcpStream::connect(server.address())
            .await
            .unwrap();
        let io = hyper_util::rt::TokioIo::new(connection);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        let connection = tokio::spawn(connection);
        let body = with(&json!({"stream": stream, "max_tokens": 100}));
        let request = http::Request::post(MESSAGES)
            .header("host", "localhost")
            .header("x-api-key", "tml-test")
            .body(http_body_util::Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let sent = tokio::spawn(async move { sender.send_request(request).await });
        if stream {
            let mut answer = sent.await.unwrap().unwrap();
            assert!(answer.frame().await.is_some());
            drop(answer);
        } else {
            tokio::task::yield_now().await;
            sent.abort();
        }
        connection.abort();
        idle(&server).await;
    }
    server.ok(MESSAGES, request()).await;
}

/// Another owner's checkpoint does not exist, and one's own is a model.
#[tokio::test]
async fn checkpoints_are_models_of_their_owner_only() {
    let server: TestServer = start(talking()).await;
    let model = server.model().await;
    let path = server
        .save("/save_weights_for_sampler", &model, 1, "a")
        .await;
    let body = with(&json!({"model": path}));
    let answer = server.ok(MESSAGES, body.clone()).await;
    assert_eq!(answer["model"], path);
    for endpoint in [MESSAGES, COUNT] {
        let stranger = [("x-api-key", "tml-stranger")];
        let body = json!({"model": path, "messages": body["messages"]});
        let mut body = body;
        if endpoint == MESSAGES {
            body["max_tokens"] = json!(5);
        }
        let answer = server
            .try_send(Method::POST, endpoint, &stranger, body.to_string())
            .await;
        assert_eq!(answer.unwrap().status, 404);
    }
}
