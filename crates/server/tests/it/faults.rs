//! Faults on purpose, over real connections, and our own client that gets through them.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};
use tinkrs::{AdamParams, Datum, ModelInput, SamplingParams, ServiceClient};

use crate::caller::{ADMIN_KEY, Answer, TestServer, fake};

async fn admin(server: &TestServer, method: Method, body: &Value) -> Answer {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let headers = [
        ("content-type", "application/json"),
        ("x-api-key", ADMIN_KEY),
    ];
    let answer = server
        .try_send(method, "/admin/faults", &headers, body)
        .await;
    answer.expect("rules never strike the route that ends them")
}

/// Asks for the models on offer: an answer, or the end of the connection.
async fn ask(server: &TestServer) -> Result<Answer, hyper::Error> {
    let path = "/api/v1/get_server_capabilities";
    server.try_send(Method::GET, path, &[], "").await
}

fn rules_file(folder: &tempfile::TempDir, rules: &Value) -> PathBuf {
    let path = folder.path().join("faults.json");
    std::fs::write(&path, rules.to_string()).unwrap();
    path
}

#[tokio::test]
async fn a_file_of_rules_is_in_force_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let rules = json!({"rules": [
        {"endpoint": "get_server_capabilities", "fault": 429, "first": 2, "retry_after": 0.5},
        {"endpoint": "get_server_capabilities", "fault": 503, "first": 1},
        {"endpoint": "get_server_capabilities", "fault": "reset", "first": 1},
        {"endpoint": "get_server_capabilities", "fault": "cut", "first": 1},
    ]});
    let path = rules_file(&folder, &rules);
    let server = TestServer::with(|settings| settings.faults = Some(path)).await;
    for _ in 0..2 {
        let answer = ask(&server).await.unwrap();
        assert_eq!(answer.status, 429);
        assert_eq!(answer.headers["retry-after"], "0.5");
        assert!(answer.detail().contains("rules[0]"), "{}", answer.detail());
    }
    assert_eq!(ask(&server).await.unwrap().status, 503);
    let reset = ask(&server).await.expect_err("no answer");
    assert!(!reset.is_parse_status(), "{reset:?}");
    let cut = ask(&server).await.expect_err("half an answer");
    assert!(!cut.is_incomplete_message(), "the status came: {cut:?}");
    assert_eq!(ask(&server).await.unwrap().status, 200, "that was all");
    // Other endpoints were never struck.
    server.session().await;
    let shown = admin(&server, Method::GET, &Value::Null).await.json();
    assert_eq!(shown["rules"].as_array().map(Vec::len), Some(4), "{shown}");
}

#[tokio::test]
async fn rules_are_changed_and_ended_while_the_server_runs() {
    let server = TestServer::start().await;
    let rules = |fault: Value| json!({"seed": 3, "rules": [{"endpoint": "**", "fault": fault}]});
    for status in [400, 402, 404, 408, 409, 410, 429, 500, 502, 503, 504] {
        let answer = admin(&server, Method::PUT, &rules(json!(status))).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        assert_eq!(ask(&server).await.unwrap().status, status);
    }
    for fault in ["reset", "cut"] {
        admin(&server, Method::PUT, &rules(json!(fault))).await;
        assert!(ask(&server).await.is_err(), "{fault}");
    }
    // A request that hangs is let go by the end of its rule.
    admin(&server, Method::PUT, &rules(json!("hang"))).await;
    let (hung, cleared) = tokio::join!(ask(&server), async {
        loop {
            let shown = admin(&server, Method::GET, &Value::Null).await.json();
            if shown["rules"][0]["injected"] == 1 {
                return admin(&server, Method::DELETE, &Value::Null).await;
            }
        }
    });
    assert_eq!(
        (hung.unwrap().status, cleared.status.as_u16()),
        (http::StatusCode::SERVICE_UNAVAILABLE, 200)
    );
    assert_eq!(ask(&server).await.unwrap().status, 200);

    for (bad, named) in [
        (
            json!({"rules": [{"endpoint": "x", "fault": 200}]}),
            "rules[0].fault",
        ),
        (
            json!({"rules": [{"endpoint": "x", "fault": "explode"}]}),
            "explode",
        ),
        (
            json!({"rules": [{"endpoint": "x", "fault": 500, "chance": 1}]}),
            "chance",
        ),
        (json!({"rules": [{"fault": 500}]}), "endpoint"),
        (json!([]), ""),
    ] {
        let answer = admin(&server, Method::PUT, &bad).await;
        assert_eq!(answer.status, 400, "{bad}");
        assert!(
            answer.detail().contains(named),
            "{bad}: {}",
            answer.detail()
        );
    }
    assert_eq!(
        ask(&server).await.unwrap().status,
        200,
        "bad rules change nothing"
    );
}

#[tokio::test]
async fn a_file_that_makes_no_sense_keeps_the_server_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let path = rules_file(
        &folder,
        &json!({"rules": [{"endpoint": "x", "fault": "explode"}]}),
    );
    let mut settings = tinkrs_server::Settings::new(folder.path().join("data"));
    settings.faults = Some(path);
    let error = tinkrs_server::Server::start(vec![fake()], settings).unwrap_err();
    assert!(error.to_string().contains("rules[0].fault"), "{error}");
}

/// What a client gets from a training loop.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<f64>,
    tokens: Vec<Vec<u32>>,
    steps: f64,
}

/// Trains, saves, loads and samples with our own client.
async fn run(server: &TestServer, key: &str) -> Result<Outcome, tinkrs::Error> {
    let service = ServiceClient::builder()
        .base_url(server.url())
        .api_key(key)
        .telemetry(false)
        .build();
    let client = service
        .create_lora_training_client("tiny")
        .rank(4)
        .seed(1)
        .await?;
    let batch = vec![
        Datum::from_prompt_completion(&[5, 6], &[7, 8])?,
        Datum::from_prompt_completion(&[9, 2], &[3])?,
    ];
    let mut losses = Vec::new();
    let mut steps = 0.0;
    for _ in 0..3 {
        let pass = client.forward_backward(batch.clone()).submit();
        let step = client.optim_step(AdamParams::new(1e-2)).submit();
        losses.push(pass.await?.loss().unwrap_or(f64::NAN));
        steps = step.await?.metrics.unwrap_or_default()["optimizer_step"];
    }
    let state = client.save_state("state").await?;
    let sampling = client.save_weights_and_get_sampling_client().await?;
    client.forward_backward(batch.clone()).await?;
    client.optim_step(AdamParams::new(1e-2)).await?;
    client.load_state(state).with_optimizer().await?;
    losses.push(
        client
            .forward_backward(batch)
            .await?
            .loss()
            .unwrap_or(f64::NAN),
    );
    let mut tokens = Vec::new();
    for seed in 0..4 {
        let params = SamplingParams {
            seed: Some(seed),
            ..SamplingParams::new(6)
        };
        let sample = sampling.sample(ModelInput::from_tokens([5, 6]), params);
        tokens.extend(
            sample
                .await?
                .sequences
                .into_iter()
                .map(|sequence| sequence.tokens),
        );
    }
    Ok(Outcome {
        losses,
        tokens,
        steps,
    })
}

/// Adds up the tokens that an owner was counted for, by kind.
async fn used(server: &TestServer, key: &str) -> Vec<(String, u64)> {
    let hour = jiff::Timestamp::now().as_second() / 3600 * 3600;
    let time = |second| jiff::Timestamp::from_second(second).unwrap();
    let (start, end) = (time(hour - 24 * 3600), time(hour + 7200));
    let path = format!("/billing/usage/events?starting_on={start}&ending_before={end}");
    let usage = server.owner(key).get(&path).await;
    let mut sums = std::collections::BTreeMap::new();
    for event in usage["data"].as_array().unwrap() {
        let info = &event["event_info"];
        let kind = info["type"].as_str().unwrap().to_owned();
        *sums.entry(kind).or_default() += info["token_count"].as_u64().unwrap();
    }
    sums.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_gets_the_same_results_through_any_faults_with_each_operation_run_once() {
    let server = TestServer::start().await;
    let plain = run(&server, "tml-plain").await.unwrap();
    assert!(plain.losses[2] < plain.losses[0], "{plain:?}");
    assert_eq!(plain.steps, 3.0);
    let expected = used(&server, "tml-plain").await;
    let endpoints = [
        "create_model",
        "forward_backward",
        "optim_step",
        "save_weights",
        "save_weights_for_sampler",
        "load_weights",
        "asample",
    ];
    // What the client meets, and whether the request was handled before.
    let faults = [
        (json!(429), false),
        (json!(503), false),
        (json!(503), true),
        (json!("reset"), false),
        (json!("reset"), true),
        (json!("cut"), true),
    ];
    for (number, (fault, after)) in faults.iter().enumerate() {
        let mut rules = Vec::new();
        for endpoint in endpoints {
            rules.push(json!({"endpoint": endpoint, "fault": fault, "first": 1, "after": after}));
        }
        rules.push(
            json!({"endpoint": "retrieve_future", "fault": fault, "every": 7, "after": after}),
        );
        if fault.is_number() {
            for rule in &mut rules {
                rule["retry_after"] = json!(0.01);
            }
        }
        let rules = json!({"seed": number, "rules": rules});
        let answer = admin(&server, Method::PUT, &rules).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let key = format!("tml-{number}");
        let found = run(&server, &key).await;
        let found = found.unwrap_or_else(|error| panic!("{fault}, after: {after}: {error:?}"));
        let shown = admin(&server, Method::DELETE, &Value::Null).await;
        assert_eq!(shown.status, 200);
        assert_eq!(found, plain, "{fault}, after: {after}");
        assert_eq!(
            used(&server, &key).await,
            expected,
            "{fault}, after: {after}"
        );
    }
}
