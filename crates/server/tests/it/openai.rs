//! The OpenAI API over the models of the server.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tinkrs_testkit::FakeBackend;

use crate::caller::{TestServer, base, tiny_llama};
use crate::talking::{CHAT, COMPLETIONS, events, idle, joined, start, talking, with_words};

/// Returns the numbers of a list as the sampler has them: JSON may have more digits than they do.
fn bits(numbers: &Value) -> Vec<u32> {
    let numbers = numbers.as_array().unwrap().iter();
    let number = |number: &Value| number.as_f64().unwrap_or(f64::NAN) as f32;
    numbers.map(|value| number(value).to_bits()).collect()
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_sdk_to_the_bit() {
    let server = start(base(tiny_llama())).await;
    let sample = json!({
        "base_model": "tiny", "prompt": {"chunks": [{"tokens": [1, 5, 9]}]}, "prompt_logprobs": true,
        "topk_sample_logprobs": 3, "num_samples": 2,
        "sampling_params": {"max_tokens": 8, "seed": 7, "temperature": 0.8, "stop": []},
    });
    let id = server.promise("/asample", sample).await;
    let sampled = server.result(&id).await;
    let mut body = json!({
        "model": "tiny", "prompt": [1, 5, 9], "max_tokens": 8, "seed": 7, "temperature": 0.8, "n": 2,
        "logprobs": 3, "echo": true, "ignore_eos": true, "return_token_ids": true,
    });
    let whole = server.ok(COMPLETIONS, body.clone()).await;
    body["stream"] = true.into();
    let streamed = events(&server.post(COMPLETIONS, body).await);
    for index in 0..2 {
        let sequence = &sampled["sequences"][index];
        let choice = &whole["choices"][index];
        assert_eq!(choice["token_ids"], sequence["tokens"]);
        assert_eq!(choice["prompt_token_ids"], json!([1, 5, 9]));
        let scores = &choice["logprobs"]["token_logprobs"];
        assert_eq!(scores[0], Value::Null);
        assert_eq!(bits(scores)[1..3], bits(&sampled["prompt_logprobs"])[1..3]);
        assert_eq!(bits(scores)[3..], bits(&sequence["logprobs"]));
        let parts = streamed
            .iter()
            .flat_map(|event| event["choices"].as_array().unwrap());
        let parts = parts.filter(|choice| choice["index"] == index);
        let parts = parts.flat_map(|choice| choice["logprobs"]["token_logprobs"].as_array());
        let parts: Vec<Value> = parts.flatten().cloned().collect();
        assert_eq!(json!(parts), *scores);
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let server = start(talking()).await;
    let mut chat = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "n": 3,
        "seed": 3, "stop": ["a", "e"], "stream_options": {"include_usage": true}, "logprobs": true,
        "top_logprobs": 2,
    });
    let whole = server.ok(CHAT, chat.clone()).await;
    assert_eq!(whole["object"], "chat.completion");
    chat["stream"] = true.into();
    let streamed = events(&server.post("/oai/api/v1/chat/completions", chat).await);
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let content = joined(
            &streamed,
            index as u64,
            |choice| &choice["delta"]["content"],
        );
        assert_eq!(choice["message"]["content"], content);
        assert!(!content.contains(['a', 'e']), "{content}");
        let reason = joined(&streamed, index as u64, |choice| &choice["finish_reason"]);
        assert_eq!(choice["finish_reason"], reason);
        let scores = choice["logprobs"]["content"].as_array().unwrap();
        assert!(
            scores
                .iter()
                .all(|score| score["top_logprobs"].as_array().unwrap().len() == 2)
        );
    }
    assert_eq!(
        streamed.last().unwrap()["usage"]["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );

    let mut text = json!({
        "model": "tiny", "prompt": ["ab", [5, 6]], "max_tokens": 12, "n": 2, "seed": 3, "stop": "a",
    });
    let refused = server.post(COMPLETIONS, text.clone()).await;
    assert_eq!(refused.status, 400, "texts and tokens are not mixed");
    text["prompt"] = json!(["ab", "c"]);
    let whole = server.ok(COMPLETIONS, text.clone()).await;
    text["stream"] = true.into();
    let streamed = events(&server.post(COMPLETIONS, text).await);
    assert_eq!(whole["choices"].as_array().unwrap().len(), 4);
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let said = joined(&streamed, index as u64, |choice| &choice["text"]);
        assert_eq!(choice["text"], said);
    }
}

#[tokio::test]
async fn runs_and_checkpoints_are_models_and_latest_moves_between_requests() {
    let server = start(talking()).await;
    let model = server.model().await;
    let list = async || {
        let list = server.me().get("/v1/models").await;
        let cards = list["data"].as_array().unwrap().iter();
        cards
            .map(|card| card["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(list().await, ["tiny"]);
    let run = server.get(&format!("/training_runs/{model}")).await;
    let run = run["name"].as_str().unwrap().to_owned();
    let ask = async |model: &str| {
        let body =
            json!({"model": model, "prompt": [1], "max_tokens": 1, "logprobs": 0, "seed": 1});
        let answer = server.ok(COMPLETIONS, body).await;
        answer["choices"][0]["logprobs"]["token_logprobs"][0].clone()
    };
    let body = json!({"model": run, "prompt": [1], "max_tokens": 1});
    assert_eq!(
        server.post(COMPLETIONS, body).await.status,
        404,
        "nothing is saved yet"
    );
    let mut seq_id = 1;
    let mut saved = Vec::new();
    for step in [10, 20] {
        server.forward_backward(&model, seq_id).await;
        server.optim_step(&model, seq_id + 1).await;
        let name = format!("step-{step:06}");
        let path = server.save("/save_weights_for_sampler", &model, seq_id + 2, &name);
        saved.push(path.await);
        seq_id += 3;
        assert_eq!(ask(&run).await, ask(&saved[saved.len() - 1]).await);
    }
    assert_eq!(ask(&format!("{run}@latest")).await, ask(&saved[1]).await);
    assert_eq!(ask(&format!("{run}@10")).await, ask(&saved[0]).await);
    assert_ne!(ask(&saved[0]).await, ask(&saved[1]).await);
    let all = list().await;
    for name in [
        &run,
        &format!("{run}@latest"),
        &format!("{run}@20"),
        &saved[0],
    ] {
        assert!(all.contains(name), "{name} is not in {all:?}");
    }
    let strangers = server.owner("tml-stranger").get("/v1/models").await;
    assert_eq!(
        strangers["data"].as_array().unwrap().len(),
        1,
        "{strangers}"
    );
    // As they are, and with slashes as some clients write them.
    for name in [saved[1].clone(), saved[1].replace('/', "%2F")] {
        let one = server.me().get(&format!("/v1/models/{name}")).await;
        assert_eq!(one["id"], saved[1]);
    }
    let one = server.me().get("/v1/models/tiny").await;
    assert_eq!(
        (&one["object"], &one["max_model_len"]),
        (&json!("model"), &json!(128))
    );
}

#[tokio::test]
async fn every_way_to_send_a_key_is_taken_and_none_is_refused_in_the_form_of_the_api() {
    let server = start(talking()).await;
    let get = async |headers: &[(&str, &str)]| {
        let answer = server
            .try_send(Method::GET, "/v1/models", headers, "")
            .await;
        answer.unwrap()
    };
    for headers in [
        [("x-api-key", "tml-a"), ("accept", "*/*")],
        [("x-api-key", ""), ("authorization", "Bearer tml-a")],
        [("x-api-key", ""), ("authorization", "bearer tml-a")],
    ] {
        assert_eq!(get(&headers).await.status, 200, "{headers:?}");
    }
    for headers in [
        [("x-api-key", ""), ("accept", "*/*")],
        [("x-api-key", ""), ("authorization", "Bearer sk-other")],
        [("x-api-key", ""), ("authorization", "Basic tml-a")],
    ] {
        let answer = get(&headers).await;
        assert_eq!(answer.status, 401, "{headers:?}");
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    }
    for path in [
        "/v1/embeddings",
        "/oai/api/v1/images/generations",
        "/v1/audio/speech",
        "/v1/x",
    ] {
        let answer = server.post(path, json!({})).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(
            !answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn pages_of_an_origin_that_is_named_may_call_and_no_others() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let named = "http://localhost:3000";
    let change =
        |settings: &mut tinkrs_server::Settings| settings.cors_origin = vec![named.to_owned()];
    let server = TestServer::of(talking(), data, change).await;
    let ask = async |method, path: &str, origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
        ];
        let answer = server.try_send(method, path, &headers, "").await.unwrap();
        let allowed = answer.headers.get("access-control-allow-origin").cloned();
        (
            answer.status.as_u16(),
            allowed.map(|value| value.to_str().unwrap().to_owned()),
        )
    };
    let yes = || Some(named.to_owned());
    assert_eq!(ask(Method::OPTIONS, CHAT, named).await, (204, yes()));
    assert_eq!(ask(Method::GET, "/v1/models", named).await, (200, yes()));
    assert_eq!(
        ask(Method::POST, CHAT, named).await,
        (400, yes()),
        "the page can read why"
    );
    assert_eq!(ask(Method::OPTIONS, CHAT, "http://evil").await.1, None);
    assert_eq!(
        ask(Method::GET, "/v1/models", "http://evil").await,
        (200, None)
    );
    assert_eq!(
        ask(Method::GET, "/api/v1/healthz", named).await.1,
        None,
        "not for the Tinker API"
    );
}

/// A refusal names the member, in the sentence and as `param`.
#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_its_name_and_nothing_is_left_running() {
    let server = start(talking()).await;
    let long = "x".repeat(200);
    let cases = [
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"n": "two"}), "n"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"stop": ["a", ""]}), "stop"),
        (json!({"stop": 7}), "stop"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias"),
        (json!({"logit_bias": {"500": 1}}), "logit_bias"),
        (json!({"min_tokens": 9}), "min_tokens"),
        (json!({"stop_token_ids": [500]}), "stop_token_ids"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 500}), "max_tokens"),
        (json!({"model": "other"}), "model"),
        (json!({"frequency": 3}), "frequency"),
    ];
    let of_completions = [
        (json!({"prompt": long}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": [500]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": null}), "prompt"),
        (json!({"best_of": 2, "n": 3}), "best_of"),
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"suffix": "x"}), "suffix"),
    ];
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let of_chat = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "robot", "content": "x"}]}),
            "messages[0].role",
        ),
        (user(Value::Null), "messages[0].content"),
        (
            user(json!([{"type": "image_url", "image_url": {"url": "x"}}])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{"type": "text"}])),
            "messages[0].content[0].text",
        ),
        (user(json!(long)), "messages"),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].tool_call_id",
        ),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (
            json!({"top_logprobs": 21, "logprobs": true}),
            "top_logprobs",
        ),
        (
            json!({"max_tokens": 3, "max_completion_tokens": 4}),
            "max_tokens",
        ),
        (json!({"reasoning_effort": "much"}), "reasoning_effort"),
        (
            json!({"chat_template_kwargs": {"colour": 1}}),
            "chat_template_kwargs.colour",
        ),
        (json!({"modalities": ["audio"]}), "modalities"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (
            tool(json!({"name": "f", "parameters": {"type": "string"}})),
            "tools[0].function.parameters.type",
        ),
        (
            tool(json!({"name": "f", "parameters": "x"})),
            "tools[0].function.parameters",
        ),
        (
            json!({"tools": [{"type": "web_search", "function": {"name": "f"}}]}),
            "tools[0].type",
        ),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice",
        ),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "mcp", "function": {"name": "f"}}}),
            "tool_choice.type",
        ),
        (
            user(json!([{"type": "text", "text": "x", "colour": "red"}])),
            "messages[0].content[0].colour",
        ),
        (
            user(json!([{"type": "text", "text": 5}])),
            "messages[0].content[0].text",
        ),
        (json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (
            json!({"chat_template_kwargs": {"enable_thinking": true}}),
            "chat_template_kwargs.enable_thinking",
        ),
        (json!({"functions": [{"name": "f"}]}), "functions"),
    ];
    let completion = json!({"model": "tiny", "prompt": "ab", "max_tokens": 5});
    let chat = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 5,
    });
    let completions = cases.iter().chain(&of_completions);
    let completions = completions.map(|case| (COMPLETIONS, &completion, case));
    let mut wrong = Vec::new();
    let chats = cases.iter().chain(&of_chat).map(|case| (CHAT, &chat, case));
    for (path, valid, (change, member)) in completions.chain(chats) {
        for stream in [false, true] {
            let mut body = valid.clone();
            let members = body.as_object_mut().unwrap();
            members.insert("stream".to_owned(), stream.into());
            members.extend(change.as_object().unwrap().clone());
            let answer = server.post(path, body.clone()).await;
            let error = &answer.json()["error"];
            let status = if *member == "model" { 404 } else { 400 };
            if answer.status != status || error["param"] != *member {
                wrong.push(format!(
                    "{status} {member}, not {} {error}: {body}",
                    answer.status
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for body in ["", "{", "[]", "{\"model\": \"tiny\", \"messages\": [{"] {
        let answer = server
            .try_send(Method::POST, CHAT, &[], body)
            .await
            .unwrap();
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    idle(&server).await;
}

#[tokio::test]
async fn what_cannot_change_the_answer_is_taken() {
    let server = start(talking()).await;
    let mut body = json!({
        "model": "tiny", "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "ab"}],
        "max_completion_tokens": 5, "seed": 1,
    });
    let plain = server.ok(CHAT, body.clone()).await;
    let extra = json!({
        "user": "me", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "n": 1, "presence_penalty": 0, "logit_bias": {}, "tools": [], "stop": null,
        "response_format": {"type": "text"}, "parallel_tool_calls": true, "tool_choice": "auto",
        "modalities": ["text"], "stream_options": null, "top_logprobs": null,
    });
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    let more = server.ok(CHAT, body).await;
    assert_eq!(plain["choices"], more["choices"]);
}

#[tokio::test]
async fn the_parameters_of_the_sampler_are_honoured() {
    let server = start(talking()).await;
    let text = async |change: Value| {
        let mut body = json!({"model": "tiny", "prompt": "ab", "max_tokens": 8, "seed": 5, "ignore_eos": true});
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let answer = server.ok(COMPLETIONS, body).await;
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    // `!` is token 5.
    assert_eq!(text(json!({"logit_bias": {"5": 100}})).await, "!!!!!!!!");
    assert_eq!(
        text(json!({"logit_bias": {"5": 100}, "stop_token_ids": [5]})).await,
        ""
    );
    assert_eq!(
        text(json!({"logit_bias": {"5": 100}, "stop": "!!!", "max_tokens": 8})).await,
        ""
    );
    assert_eq!(
        text(json!({"logit_bias": {"5": 100}, "echo": true})).await,
        "ab!!!!!!!!"
    );
    assert_eq!(text(json!({"echo": true, "max_tokens": 0})).await, "ab");
    let ended = json!({"logit_bias": {"2": 100}, "ignore_eos": false});
    assert_eq!(
        text(ended).await,
        "",
        "the end of a text is not a part of it"
    );
}

#[tokio::test]
async fn an_answer_goes_on_behind_ends_that_are_ignored_in_pieces_and_as_a_whole() {
    let server = start(talking()).await;
    // Token 2 ends a text, and `!` is token 5.
    let mut body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 40, "seed": 3, "ignore_eos": true,
        "logit_bias": {"2": 100, "5": 100}, "return_token_ids": true,
    });
    let whole = server.ok(CHAT, body.clone()).await;
    let choice = &whole["choices"][0];
    let tokens = choice["token_ids"].as_array().unwrap();
    let said = tokens.iter().filter(|token| **token == 5).count();
    assert!(said > 0 && said < tokens.len(), "{tokens:?}");
    assert_eq!(choice["message"]["content"], "!".repeat(said));
    body["stream"] = true.into();
    let parts = events(&server.post(CHAT, body.clone()).await);
    let streamed = joined(&parts, 0, |choice| &choice["delta"]["content"]);
    assert_eq!(streamed, "!".repeat(said));
    let members = body.as_object_mut().unwrap();
    members.remove("messages");
    members.insert("prompt".to_owned(), "a".into());
    let parts = events(&server.post(COMPLETIONS, body.clone()).await);
    body["stream"] = false.into();
    let whole = server.ok(COMPLETIONS, body).await;
    let choice = &whole["choices"][0];
    let tokens = choice["token_ids"].as_array().unwrap();
    let said = tokens.iter().filter(|token| **token == 5).count();
    assert!(said > 0 && said < tokens.len(), "{tokens:?}");
    assert_eq!(choice["text"], "!".repeat(said));
    let streamed = joined(&parts, 0, |choice| &choice["text"]);
    assert_eq!(streamed, "!".repeat(said));
}

#[tokio::test]
async fn a_client_that_hangs_up_stops_its_answer() {
    let server = start(with_words(base(FakeBackend::new()))).await;
    let body = json!({
        "model": "tiny", "prompt": "ab", "max_tokens": 100, "n": 64, "ignore_eos": true, "stream": true,
    });
    for read_some in [true, false] {
        let stream = tokio::net::TcpStream::connect(server.address())
            .await
            .unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut body = body.clone();
        body["stream"] = read_some.into();
        let request = http::Request::post(COMPLETIONS)
            .header("host", "localhost")
            .header("authorization", "Bearer tml-test")
            .body(http_body_util::Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let sent = tokio::spawn(async move { sender.send_request(request).await });
        if read_some {
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
    let after = json!({"model": "tiny", "prompt": "ab", "max_tokens": 1});
    server.ok(COMPLETIONS, after).await;
}
