//! The OpenAI API: responses, and answers that have to be JSON or a call.

use serde_json::{Value, json};

use crate::talking::{CHAT, calling, events, joined, start, talking};

#[tokio::test]
async fn responses_are_chat_completions_in_other_words() {
    let server = start(talking()).await;
    let chat = json!({
        "model": "tiny", "max_tokens": 9, "temperature": 0, "messages": [
            {"role": "system", "content": "be"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
        ],
    });
    let chat = server.ok(CHAT, chat).await;
    let mut body = json!({
        "model": "tiny", "max_output_tokens": 9, "temperature": 0, "instructions": "be", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ],
    });
    let whole = server.ok("/v1/responses", body.clone()).await;
    let said = &whole["output"][0]["content"][0]["text"];
    assert_eq!(*said, chat["choices"][0]["message"]["content"]);
    assert_eq!(
        whole["usage"]["input_tokens"],
        chat["usage"]["prompt_tokens"]
    );
    assert_eq!(whole["status"], "incomplete", "{whole}");
    body["stream"] = true.into();
    let answer = server.post("/v1/responses", body.clone()).await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let events = text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], *name.strip_prefix("event: ").unwrap());
        data
    });
    let events: Vec<Value> = events.collect();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let mut names: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    names.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(names, expected);
    let deltas = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(*said, deltas.collect::<String>());
    for (change, member) in [
        (json!({"previous_response_id": "x"}), "previous_response_id"),
        (json!({"input": null}), "input"),
        (
            json!({"input": [{"type": "image_generation_call"}]}),
            "input[0].type",
        ),
        (
            json!({"input": [{"type": "function_call_output", "output": "x"}]}),
            "input[0].call_id",
        ),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function", "name": "a b"}]}),
            "tools[0].name",
        ),
        (json!({"input": "x".repeat(200)}), "input"),
        (
            json!({"input": [
                {"role": "user", "content": "a"},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{"},
            ]}),
            "input[2].arguments",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
            "input[0].content[0].text",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "colour": "red"}]}]}),
            "input[0].content[0].colour",
        ),
        (json!({"max_output_tokens": 500}), "max_output_tokens"),
        (json!({"reasoning": {"effort": "much"}}), "reasoning.effort"),
        (json!({"reasoning": {"effort": "high"}}), "reasoning.effort"),
        (
            json!({"text": {"format": {"type": "grammar"}}}),
            "text.format.type",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "s", "schema": {"enum": []}}}}),
            "text.format.schema",
        ),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"background": true}), "background"),
    ] {
        let mut body = body.clone();
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let answer = server.post("/v1/responses", body).await;
        assert_eq!(answer.status, 400, "{change}");
        assert_eq!(answer.json()["error"]["param"], member, "{:?}", answer.body);
    }
}

#[tokio::test]
async fn answers_keep_to_the_format_that_is_asked_for() {
    let server = start(talking()).await;
    let schema = json!({
        "type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"], "additionalProperties": false,
    });
    let with_schema = |schema: &Value| {
        let schema = json!({"name": "s", "schema": schema, "strict": true});
        json!({"type": "json_schema", "json_schema": schema})
    };
    for (format, stream) in [(with_schema(&schema), false), (with_schema(&schema), true)] {
        let body = json!({
            "model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 100, "seed": 1,
            "stream": stream, "response_format": format, "logit_bias": {"4": -100, "3": -100},
        });
        let text = if stream {
            joined(&events(&server.post(CHAT, body).await), 0, |choice| {
                &choice["delta"]["content"]
            })
        } else {
            let answer = server.ok(CHAT, body).await;
            answer["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        assert!(value["b"].is_boolean() && ["x", "y"].contains(&value["a"].as_str().unwrap()));
    }
    let body = |format: &Value| json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "response_format": format});
    for (format, member) in [
        (json!({"type": "xml"}), "response_format.type"),
        (
            json!({"type": "json_schema"}),
            "response_format.json_schema",
        ),
        (
            with_schema(&json!(false)),
            "response_format.json_schema.schema",
        ),
        (
            with_schema(&json!({"type": "colour"})),
            "response_format.json_schema.schema",
        ),
    ] {
        let answer = server.post(CHAT, body(&format)).await;
        assert_eq!(answer.status, 400, "{format}");
        assert_eq!(answer.json()["error"]["param"], member, "{:?}", answer.body);
    }
}

#[tokio::test]
async fn a_call_that_has_to_be_made_keeps_to_the_schema_of_its_function() {
    let server = start(calling()).await;
    let schema = json!({
        "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "boolean"}},
        "required": ["a", "b"], "additionalProperties": false, "$defs": {"a": {"enum": ["x", "y"]}},
    });
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema, "strict": true}}]);
    for (choice, stream) in [
        (json!("required"), false),
        (json!({"type": "function", "function": {"name": "f"}}), true),
    ] {
        let body = json!({
            "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "seed": 1, "tools": tools,
            "max_tokens": 100, "stream": stream, "tool_choice": choice, "logit_bias": {"4": -100, "3": -100},
        });
        let (call, reason) = if stream {
            let events = events(&server.post(CHAT, body).await);
            let mut choices = events.iter().map(|event| &event["choices"][0]);
            let parts = choices.clone();
            let parts = parts.filter_map(|choice| choice["delta"]["tool_calls"].get(0));
            let parts: Vec<&Value> = parts.collect();
            assert!(parts.len() > 3, "the arguments come as they are drawn");
            let mut call = parts[0].clone();
            assert!(call["id"].is_string() && call["type"] == "function");
            let arguments = parts
                .iter()
                .map(|part| part["function"]["arguments"].as_str());
            call["function"]["arguments"] =
                arguments.map(Option::unwrap).collect::<String>().into();
            assert!(
                parts[1..]
                    .iter()
                    .all(|part| part["index"] == 0 && part["id"].is_null())
            );
            assert_eq!(joined(&events, 0, |choice| &choice["delta"]["content"]), "");
            (call, choices.next_back().unwrap()["finish_reason"].clone())
        } else {
            let choice = &server.ok(CHAT, body).await["choices"][0];
            assert_eq!(choice["message"]["content"], Value::Null);
            (
                choice["message"]["tool_calls"][0].clone(),
                choice["finish_reason"].clone(),
            )
        };
        assert_eq!(
            (&call["function"]["name"], &reason),
            (&json!("f"), &json!("tool_calls"))
        );
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(
            arguments["b"].is_boolean() && ["x", "y"].contains(&arguments["a"].as_str().unwrap())
        );
    }
    let refused = server.post(
        CHAT,
        json!({
            "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "tools": tools,
        }),
    );
    assert!(
        refused.await.detail().contains("strict"),
        "it may be called or not"
    );
    let body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "tools": tools, "tool_choice": "none",
        "max_tokens": 5,
    });
    server.ok(CHAT, body).await;
}
