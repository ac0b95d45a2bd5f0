//! Owners know nothing of each other, whatever endpoint they ask.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use http::Method;
use serde_json::{Value, json};
use tinkrs_wire::endpoint::{self, Endpoint};

use crate::caller::{Owner, TestServer, address, pass, step};
use crate::endpoints::assert_covers;
use crate::losses::{custom_pass, upload};

/// A request for something that somebody else has.
struct Case {
    endpoint: &'static Endpoint,
    path: String,
    body: Value,
}

/// What one owner has.
struct Things {
    session: String,
    model: String,
    sampler: String,
    /// Requests: one that has ended, and one that waits.
    done: String,
    waiting: String,
    weights: String,
    sampler_weights: String,
    external: String,
}

impl Things {
    async fn make(server: &TestServer) -> Self {
        let model = server.model().await;
        let session = model.split(':').next().unwrap().to_owned();
        let done = server.forward_backward(&model, 1).await;
        server.loss(&done).await;
        let weights = server.save("/save_weights", &model, 2, "a").await;
        let sampler_weights = server
            .save("/save_weights_for_sampler", &model, 3, "a")
            .await;
        let external = server.save("/save_weights_external", &model, 4, "a").await;
        let body = json!({
            "session_id": session, "sampling_session_seq_id": 0, "model_path": sampler_weights,
        });
        let sampler = server.ok("/create_sampling_session", body).await;
        Self {
            sampler: sampler["sampling_session_id"].as_str().unwrap().to_owned(),
            // Number 5 never comes.
            waiting: server.forward_backward(&model, 6).await,
            session,
            model,
            done,
            weights,
            sampler_weights,
            external,
        }
    }

    fn case(&self, endpoint: &'static Endpoint, body: Value) -> Case {
        let path = self.at(endpoint);
        Case {
            endpoint,
            path,
            body,
        }
    }

    /// Returns an endpoint's path behind the prefix, with this owner's ids in it.
    fn at(&self, endpoint: &Endpoint) -> String {
        let path = endpoint.path.strip_prefix(endpoint::PREFIX);
        let path = path.unwrap_or(endpoint.path);
        let kind = if path.contains("external") {
            "external_weights"
        } else {
            "weights"
        };
        path.replace("{session_id}", &self.session)
            .replace("{run_id}", &self.model)
            .replace("{sampler_id}", &self.sampler)
            .replace("{kind}", kind)
            .replace("{name}", "a")
            .replace("{step}", "1")
            .replace("{model}", &self.sampler_weights.replace('/', "%2F"))
    }

    /// Every request that names something of this owner; `theirs` are a session and a model of
    /// whoever sends it.
    fn cases(&self, their_session: &str) -> Vec<Case> {
        let (session, model, sampler) = (&self.session, &self.model, &self.sampler);
        let sampling = |mut body: Value| {
            body["prompt"] = json!({"chunks": [{"tokens": [1]}]});
            body["sampling_params"] = json!({"max_tokens": 1});
            body
        };
        let forward = {
            let mut body = pass(model, 5);
            body["forward_input"] = body["forward_backward_input"].take();
            body.as_object_mut()
                .unwrap()
                .remove("forward_backward_input");
            body
        };
        let lora = json!({"rank": 4});
        let finish = json!({"reason": {"type": "success"}, "detail": null});
        let save = json!({"model_id": model, "seq_id": 5, "path": "b"});
        let target = json!({
            "type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0,
        });
        let news =
            json!({"target": target, "prev_cursor": 0, "retrieved_request_ids": [self.done]});
        let load = json!({"model_id": model, "seq_id": 5, "path": self.weights, "optimizer": true});
        let create = json!({
            "session_id": their_session, "model_seq_id": 9, "path": self.weights, "optimizer": true,
        });
        let create_here = json!({
            "session_id": session, "model_seq_id": 9, "path": self.weights, "optimizer": true,
        });
        let none = Value::Null;
        vec![
            self.case(&endpoint::SESSION_HEARTBEAT, json!({"session_id": session})),
            self.case(&endpoint::FINISH_SESSION, finish),
            self.case(&endpoint::CREATE_MODEL, json!({
                "session_id": session, "model_seq_id": 9, "base_model": "tiny", "lora_config": lora,
            })),
            self.case(&endpoint::CREATE_CUSTOM_LOSS, upload(session)),
            self.case(&endpoint::GET_INFO, json!({"model_id": model})),
            self.case(&endpoint::UNLOAD_MODEL, json!({"model_id": model})),
            self.case(&endpoint::FORWARD_BACKWARD, pass(model, 5)),
            // A repetition of a request that was accepted.
            self.case(&endpoint::FORWARD_BACKWARD, pass(model, 1)),
            self.case(&endpoint::FORWARD, forward),
            self.case(&endpoint::OPTIM_STEP, step(model, 5)),
            self.case(&endpoint::SAVE_WEIGHTS, save.clone()),
            self.case(&endpoint::SAVE_WEIGHTS_FOR_SAMPLER, save.clone()),
            self.case(&endpoint::SAVE_WEIGHTS_EXTERNAL, save),
            self.case(&endpoint::LOAD_WEIGHTS, load),
            self.case(&endpoint::LOAD_WEIGHTS, create),
            self.case(&endpoint::LOAD_WEIGHTS, create_here),
            self.case(&endpoint::WEIGHTS_INFO, json!({"tinker_path": self.weights})),
            self.case(&endpoint::CREATE_SAMPLING_SESSION, json!({
                "session_id": session, "sampling_session_seq_id": 9, "base_model": "tiny",
            })),
            // A repetition of one that was made.
            self.case(&endpoint::CREATE_SAMPLING_SESSION, json!({
                "session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny",
            })),
            self.case(&endpoint::CREATE_SAMPLING_SESSION, json!({
                "session_id": their_session, "sampling_session_seq_id": 9,
                "model_path": self.sampler_weights,
            })),
            self.case(&endpoint::JOIN_SAMPLING_SESSION, json!({"sampling_session_id": sampler})),
            self.case(&endpoint::GET_SAMPLER, none.clone()),
            self.case(&endpoint::ASAMPLE,
                sampling(json!({"sampling_session_id": sampler, "seq_id": 0}))),
            self.case(&endpoint::ASAMPLE, sampling(json!({"model_path": self.sampler_weights}))),
            self.case(&endpoint::RETRIEVE_FUTURE, json!({"request_id": self.done})),
            self.case(&endpoint::RETRIEVE_FUTURE, json!({"request_id": self.waiting})),
            self.case(&endpoint::RETRIEVE_FUTURES, news),
            self.case(&endpoint::GET_TRAINING_RUN, none.clone()),
            self.case(&endpoint::SHARE_RUN, json!({"hours": 1})),
            self.case(&endpoint::GET_RUN_METRICS, none.clone()),
            self.case(&endpoint::LOG_RUN_METRICS, json!({"step": 1, "metrics": {"a": 1.0}})),
            self.case(&endpoint::LIST_RUN_OPERATIONS, none.clone()),
            self.case(&endpoint::GET_RUN_STEP, none.clone()),
            self.case(&endpoint::LIST_CHECKPOINTS, none.clone()),
            self.case(&endpoint::LIST_MODEL_CHECKPOINTS, none.clone()),
            self.case(&endpoint::DELETE_CHECKPOINT, none.clone()),
            self.case(&endpoint::PUBLISH_CHECKPOINT, none.clone()),
            self.case(&endpoint::UNPUBLISH_CHECKPOINT, none.clone()),
            self.case(&endpoint::SET_CHECKPOINT_TTL, json!({"ttl_seconds": 3600})),
            self.case(&endpoint::GET_CHECKPOINT_ARCHIVE, none.clone()),
            self.case(&endpoint::GET_EXTERNAL_WEIGHTS_URLS, none.clone()),
            self.case(&endpoint::COPY_WEIGHTS, json!({"source_path": self.weights})),
            self.case(&endpoint::GET_SESSION, none.clone()),
            self.case(&endpoint::ASSIGN_SESSION_PROJECT, json!({"project_id": "local"})),
            self.case(&endpoint::EXPORT_SESSION_TRACE, none.clone()),
            self.case(&endpoint::OPENAI_MODEL, none),
            self.case(&endpoint::OPENAI_COMPLETIONS, json!({
                "model": self.sampler_weights, "prompt": [1], "max_tokens": 1,
            })),
            self.case(&endpoint::OPENAI_COMPLETIONS, json!({
                "model": format!("{}@latest", self.model), "prompt": [1], "max_tokens": 1,
            })),
            self.case(&endpoint::OPENAI_RESPONSES, json!({
                "model": self.sampler_weights, "input": "x",
            })),
            self.case(&endpoint::OPENAI_CHAT_COMPLETIONS, json!({
                "model": self.sampler_weights, "messages": [{"role": "user", "content": "x"}],
            })),
            self.case(&endpoint::ANTHROPIC_MESSAGES, json!({
                "model": self.sampler_weights, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
            })),
            self.case(&endpoint::ANTHROPIC_COUNT_TOKENS, json!({
                "model": self.sampler_weights, "messages": [{"role": "user", "content": "x"}],
            })),
        ]
    }

    /// Everything that this owner can see of them.
    async fn view(&self, owner: Owner<'_>) -> Vec<Value> {
        let mut view = Vec::new();
        for path in [
            "/training_runs".to_owned(),
            "/checkpoints".to_owned(),
            "/sessions".to_owned(),
            "/billing/usage/checkpoints/current".to_owned(),
            self.at(&endpoint::GET_SESSION),
            self.at(&endpoint::GET_SAMPLER),
        ] {
            view.push(owner.get(&path).await);
        }
        view.push(owner.ok("/sessions/search", json!({})).await);
        let done = json!({"request_id": self.done});
        view.push(owner.ok("/retrieve_future", done).await);
        view
    }
}

/// Lists of the asker's own things, as the path to ask and the member that is empty.
static LISTS: [(&Endpoint, &str, &str); 6] = [
    (&endpoint::LIST_RUN_SUMMARIES, "/studio/runs", "runs"),
    (
        &endpoint::LIST_TRAINING_RUNS,
        "/training_runs",
        "training_runs",
    ),
    (
        &endpoint::LIST_TRAINING_RUNS,
        "/training_runs?access_scope=accessible",
        "training_runs",
    ),
    (
        &endpoint::LIST_USER_CHECKPOINTS,
        "/checkpoints",
        "checkpoints",
    ),
    (&endpoint::GET_AUDIT_LOG, "/audit", "entries"),
    (
        &endpoint::GET_BILLING_USAGE,
        "/billing/usage/events?starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-02T00:00:00Z",
        "data",
    ),
];

/// Endpoints whose requests name nothing that an owner has, and those of the next test.
static NAMELESS: [&Endpoint; 40] = [
    // With tests of their own.
    &endpoint::STUDIO_EVENTS,
    &endpoint::GET_SERVER_VIEW,
    &endpoint::CLIENT_CONFIG,
    &endpoint::CLIENT_DYNAMIC_CONFIG,
    &endpoint::AUTH_TOKEN,
    &endpoint::TELEMETRY,
    &endpoint::CREATE_SESSION,
    // What it makes is the sender's own; an id of another's cannot be named.
    &endpoint::IMPORT_WEIGHTS,
    &endpoint::GET_API_KEY,
    &endpoint::DELETE_API_KEY,
    &endpoint::GET_SERVER_CAPABILITIES,
    // Of a base model, which all have.
    &endpoint::TOKENIZER,
    &endpoint::HEALTHZ,
    // Counts of all owners together.
    &endpoint::GET_METRICS,
    // The same for every caller.
    &endpoint::OPENAPI,
    // Says something only to those who have read the data folder.
    &endpoint::DATA_FOLDER,
    // Answers any id in the same way, and harms nothing of others.
    &endpoint::CANCEL_FUTURE,
    // Of the asker's own; looked at by itself.
    &endpoint::LIST_SESSIONS,
    &endpoint::SEARCH_SESSIONS,
    &endpoint::GET_CURRENT_CHECKPOINT_STORAGE_USAGE,
    // Base models, and of the asker's own; with a test of its own.
    &endpoint::OPENAI_MODELS,
    // The signature of a link is the permission.
    &endpoint::DOWNLOAD_FILE,
    &endpoint::DOWNLOAD_TRACE,
    // Pages, with a test of their own.
    &endpoint::SESSIONS_PAGE,
    &endpoint::SESSION_PAGE,
    &endpoint::TRAINING_RUN_PAGE,
    &endpoint::CHECKPOINT_PAGE,
    &endpoint::STUDIO_PAGE,
    &endpoint::RUN_PAGE,
    &endpoint::PLAYGROUND_PAGE,
    &endpoint::SERVER_PAGE,
    &endpoint::STUDIO_ASSET,
    &endpoint::LOGIN_PAGE,
    &endpoint::LOGIN,
    &endpoint::LOGOUT,
    // Trains as the asker.
    &endpoint::START_DEMO,
    // Logs in as the asker.
    &endpoint::CREATE_LOGIN_LINK,
    // Of the server's operator.
    &endpoint::GET_FAULTS,
    &endpoint::REPLACE_FAULTS,
    &endpoint::CLEAR_FAULTS,
];

fn files_in(folder: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for name in ["checkpoints", "samplers", "bodies", "results"] {
        let mut folders = vec![folder.join(name)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    files.insert(entry.path());
                }
            }
        }
    }
    files
}

async fn session_of(owner: Owner<'_>) -> String {
    let body = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = owner.ok("/create_session", body).await;
    session["session_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_somebody_else_has_does_not_exist() {
    let mut server = TestServer::start().await;
    let things = Things::make(&server).await;
    let their_session = session_of(server.owner("tml-stranger")).await;
    for restarted in [false, true] {
        let before = (things.view(server.me()).await, files_in(server.data()));
        let stranger = server.owner("tml-stranger");
        for case in things.cases(&their_session) {
            let answer = stranger
                .call(case.endpoint.method.clone(), &case.path, &case.body)
                .await;
            let what = format!("{} {} {}", case.endpoint.name, case.path, case.body);
            assert_eq!(answer.status, 404, "{what}: {:?}", answer.body);
            assert!(!answer.detail().is_empty(), "{what}");
        }
        for (_, path, member) in LISTS {
            assert_eq!(stranger.get(path).await[member], json!([]), "{path}");
        }
        assert_eq!(
            stranger.get("/sessions").await["sessions"],
            json!([their_session])
        );
        for owner in [
            json!({"type": "own"}),
            json!({"type": "accessible"}),
            json!({"type": "user", "owner_urns": [before.0[6]["sessions"][0]["owner"]]}),
        ] {
            let found = stranger
                .ok("/sessions/search", json!({"owner": owner}))
                .await;
            assert!(
                !found.to_string().contains(&things.session),
                "{owner}: {found}"
            );
        }
        let storage = stranger.get("/billing/usage/checkpoints/current").await;
        assert_eq!(storage["data"][0]["size_bytes"], 0);
        for id in [&things.waiting, &things.done, "none"] {
            let answer = stranger
                .ok("/cancel_future", json!({"request_id": id}))
                .await;
            assert_eq!(answer, json!({}), "the same for every id");
        }
        assert_eq!(
            (things.view(server.me()).await, files_in(server.data())),
            before
        );
        if !restarted {
            server = server.restart(|_| {}).await;
        }
    }
    // Nobody took a number, a place or a place in line.
    let join = json!({"sampling_session_id": things.sampler});
    assert_eq!(
        server.ok("/join_sampling_session", join).await["client_counter"],
        1
    );
    let fifth = server.forward_backward(&things.model, 5).await;
    server.loss(&fifth).await;
    server.loss(&things.waiting).await;
}

#[tokio::test]
async fn a_sample_of_somebody_else_cannot_be_cancelled() {
    let server = TestServer::start().await;
    let body = json!({
        "base_model": "tiny", "num_samples": 64, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 100, "stop": []},
    });
    let id = server.promise("/asample", body).await;
    let cancel = json!({"request_id": id});
    server
        .owner("tml-stranger")
        .ok("/cancel_future", cancel)
        .await;
    let result = server.result(&id).await;
    assert_eq!(
        result["sequences"].as_array().map(Vec::len),
        Some(64),
        "{result}"
    );
}

#[tokio::test]
async fn a_result_that_is_not_kept_any_longer_was_never_there_for_others() {
    let server = TestServer::start().await;
    let things = Things::make(&server).await;
    let target = json!({
        "type": "sampling_session", "sampling_session_id": things.sampler, "cloned_sampler_id": 0,
    });
    let release = json!({
        "target": target, "prev_cursor": 0, "retrieved_request_ids": [things.done], "timeout": 0.0,
    });
    server.ok("/retrieve_futures", release).await;
    let server = server.restart(|_| {}).await;
    let poll = json!({"request_id": things.done});
    for (owner, status) in [(server.me(), 410), (server.owner("tml-stranger"), 404)] {
        let answer = owner.call(Method::POST, "/retrieve_future", &poll).await;
        assert_eq!(answer.status, status, "{}", answer.detail());
    }
}

#[tokio::test]
async fn a_loss_of_somebody_else_cannot_be_used() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let uploaded = server
        .promise("/create_custom_loss", upload(&session))
        .await;
    let loss_id = server.result(&uploaded).await["loss_id"].clone();
    let stranger = server.owner("tml-stranger");
    let session = session_of(stranger).await;
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
    });
    let created = stranger.result("/create_model", create).await;
    let model = created["model_id"].as_str().unwrap();
    let theirs = stranger
        .result("/forward_backward", custom_pass(model, 1, &loss_id))
        .await;
    let none = stranger
        .result("/forward_backward", custom_pass(model, 2, &json!("none")))
        .await;
    assert_eq!(theirs["category"], "user", "{theirs}");
    let error = |result: &Value| result["error"].as_str().unwrap().to_owned();
    let expected = error(&none).replace("none", loss_id.as_str().unwrap());
    assert_eq!(error(&theirs), expected, "as if there were none");
}

#[tokio::test]
async fn the_counts_of_the_server_name_nobody() {
    let server = TestServer::start().await;
    let things = Things::make(&server).await;
    let answer = server
        .try_send(Method::GET, "/metrics", &[("x-api-key", "")], "")
        .await;
    let text = String::from_utf8(answer.unwrap().body.to_vec()).unwrap();
    assert!(text.contains("# TYPE"), "{text}");
    for secret in [&things.session, "owner-", "tml-"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[tokio::test]
async fn a_published_checkpoint_is_read_by_all_and_changed_by_its_owner_only() {
    let server = TestServer::start().await;
    let things = Things::make(&server).await;
    for path in [&things.weights, &things.sampler_weights, &things.external] {
        let publish = format!("{}/publish", address(path));
        let answer = server.me().call(Method::POST, &publish, &Value::Null).await;
        assert_eq!(answer.status, 200);
    }
    let server = server.restart(|_| {}).await;
    let stranger = server.owner("tml-stranger");
    let session = session_of(stranger).await;

    let info = json!({"tinker_path": things.weights});
    assert_eq!(stranger.ok("/weights_info", info).await["lora_rank"], 4);
    let create = json!({
        "session_id": session, "model_seq_id": 0, "path": things.weights, "optimizer": true,
    });
    let created = stranger.result("/load_weights", create).await;
    assert_eq!(created["path"], json!(things.weights));
    let load = json!({
        "model_id": format!("{session}:train:0"), "seq_id": 1, "path": things.weights,
    });
    assert_eq!(
        stranger.result("/load_weights", load).await["path"],
        json!(things.weights)
    );
    let sample = json!({
        "model_path": things.sampler_weights, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
    });
    assert!(stranger.result("/asample", sample).await["sequences"].is_array());
    let copy = json!({"source_path": things.weights});
    let copied = stranger.ok("/copy_weights", copy).await["tinker_path"].clone();
    let archive = things.at(&endpoint::GET_CHECKPOINT_ARCHIVE);
    let answer = stranger.call(Method::GET, &archive, &Value::Null).await;
    assert_eq!(answer.status, 302);
    let links = stranger
        .get(&things.at(&endpoint::GET_EXTERNAL_WEIGHTS_URLS))
        .await;
    assert!(links["urls"].is_object());

    let before = things.view(server.me()).await;
    let ttl = json!({"ttl_seconds": 3600});
    for case in [
        things.case(&endpoint::DELETE_CHECKPOINT, Value::Null),
        things.case(&endpoint::PUBLISH_CHECKPOINT, Value::Null),
        things.case(&endpoint::UNPUBLISH_CHECKPOINT, Value::Null),
        things.case(&endpoint::SET_CHECKPOINT_TTL, ttl),
        things.case(&endpoint::GET_TRAINING_RUN, Value::Null),
        things.case(&endpoint::LIST_CHECKPOINTS, Value::Null),
    ] {
        let method = case.endpoint.method.clone();
        let answer = stranger.call(method, &case.path, &case.body).await;
        assert_eq!(answer.status, 404, "{} {}", case.endpoint.name, case.path);
    }
    assert_eq!(things.view(server.me()).await, before);
    let listed = stranger.get("/checkpoints").await["checkpoints"].clone();
    assert_eq!(
        listed.as_array().unwrap().len(),
        1,
        "the copy is theirs: {listed}"
    );
    assert_eq!(listed[0]["tinker_path"], copied);

    // What was public is private again, and the copy stays.
    for path in [&things.weights, &things.sampler_weights] {
        let publish = format!("{}/publish", address(path));
        server
            .me()
            .call(Method::DELETE, &publish, &Value::Null)
            .await;
    }
    let info = json!({"tinker_path": things.weights});
    let answer = stranger.call(Method::POST, "/weights_info", &info).await;
    assert_eq!(answer.status, 404);
    stranger
        .ok("/weights_info", json!({"tinker_path": copied}))
        .await;
}

#[test]
fn every_endpoint_is_covered() {
    let things = Things {
        session: String::new(),
        model: String::new(),
        sampler: String::new(),
        done: String::new(),
        waiting: String::new(),
        weights: String::new(),
        sampler_weights: String::new(),
        external: String::new(),
    };
    let cases = things.cases("").into_iter().map(|case| case.endpoint);
    let lists = LISTS.iter().map(|(endpoint, ..)| *endpoint);
    let covered = cases.chain(lists).chain(NAMELESS);
    let covered = covered.map(|endpoint| endpoint.name).collect();
    assert_covers(&covered, |_| true);
}
