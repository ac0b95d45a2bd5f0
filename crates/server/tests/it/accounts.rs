//! What an owner did and used, and the key that stands for the owner.

use http::Method;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};
use tinkrs_wire::op::asample;

use crate::caller::{ADMIN_KEY, TestServer, address};

fn today() -> jiff::civil::Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

/// The query of the day around now.
fn usage_query() -> String {
    let hour = Timestamp::from_second(Timestamp::now().as_second() / 3600 * 3600).unwrap();
    let (start, end) = (hour - 24.hours(), hour + 2.hours());
    format!("/billing/usage/events?starting_on={start}&ending_before={end}")
}

/// Adds up the tokens of a kind in a session.
fn tokens(usage: &Value, session: &Value, kind: &str, cached: Option<bool>) -> u64 {
    let events = usage["data"].as_array().unwrap().iter();
    let events = events.filter(|event| {
        let info = &event["event_info"];
        event["session_id"] == *session
            && info["type"] == kind
            && cached.is_none_or(|cached| info["cached"] == cached)
    });
    events
        .map(|event| event["event_info"]["token_count"].as_u64().unwrap())
        .sum()
}

#[tokio::test]
async fn the_audit_log_lists_what_was_done_with_checkpoints_on_a_day() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = server.save("/save_weights", &model, 1, "a").await;
    let at = address(&path);
    server
        .ok("/copy_weights", json!({"source_path": path}))
        .await;
    for (method, path, body) in [
        (Method::POST, format!("{at}/publish"), Value::Null),
        (Method::DELETE, format!("{at}/publish"), Value::Null),
        (
            Method::PUT,
            format!("{at}/ttl"),
            json!({"ttl_seconds": 3600}),
        ),
        (Method::GET, format!("{at}/archive"), Value::Null),
        (Method::DELETE, at, Value::Null),
    ] {
        let answer = server.me().call(method, &path, &body).await;
        assert!(
            answer.status.is_success() || answer.status.is_redirection(),
            "{path}"
        );
    }
    let day = today();
    let events = |log: &Value| -> Vec<String> {
        let entries = log["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["event"].as_str().unwrap().to_owned())
            .collect()
    };
    let log = server
        .get(&format!("/audit?day={day}&event_type=checkpoints"))
        .await;
    let done = events(&log);
    for expected in [
        "checkpoint_create",
        "checkpoint_copy",
        "checkpoint_publish",
        "checkpoint_unpublish",
        "checkpoint_set_ttl",
        "checkpoint_read",
        "checkpoint_delete",
    ] {
        assert!(
            done.iter().any(|event| event == expected),
            "{expected} in {done:?}"
        );
    }
    for entry in log["entries"].as_array().unwrap() {
        assert_eq!(entry["tinker_path"], json!(path), "{entry}");
        assert_eq!(entry["event_details"]["model_id"], json!(model), "{entry}");
    }
    let times: Vec<_> = log["entries"].as_array().unwrap().iter().collect();
    assert!(times.is_sorted_by_key(|entry| entry["timestamp"].as_str().unwrap()));
    let server = server.restart(|_| {}).await;
    assert_eq!(
        server
            .get(&format!("/audit?day={day}&event_type=all"))
            .await,
        log
    );
    assert_eq!(server.get(&format!("/audit?day={day}")).await, log);
    let yesterday = day.yesterday().unwrap();
    for nothing in [
        format!("/audit?day={yesterday}"),
        format!("/audit?day={day}&event_type=teams"),
        format!("/audit?day={day}&event_type=organizations"),
        "/audit?day=0001-01-01".to_owned(),
    ] {
        assert_eq!(
            server.get(&nothing).await["entries"],
            json!([]),
            "{nothing}"
        );
    }
    for bad in [
        "day=2024-13-01",
        "day=soon",
        "event_type=jokes",
        "page=2",
        "day=9999-12-31",
    ] {
        let path = format!("/audit?{bad}");
        let answer = server.me().call(Method::GET, &path, &Value::Null).await;
        assert_eq!(answer.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn usage_counts_the_tokens_of_passes_samples_and_cache_hits() {
    let server = TestServer::real(|_| {}).await;
    let model = server.model().await;
    let session = json!(model.split(':').next().unwrap());
    for number in [1, 2] {
        let pass = server.forward_backward(&model, number).await;
        server.loss(&pass).await;
    }
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = server.ok("/create_sampling_session", body).await;
    let prompt: Vec<u32> = (0..100).map(|token| 1 + token % 50).collect();
    let (mut hits, mut sampled) = (0, 0);
    for number in 0..3 {
        let body = json!({
            "sampling_session_id": sampler["sampling_session_id"], "seq_id": number,
            "num_samples": 2, "prompt": {"chunks": [{"tokens": prompt}]},
            "sampling_params": {"max_tokens": 5, "stop": []},
        });
        let id = server.promise("/asample", body).await;
        let message = server.poll(&id, "application/x-protobuf").await;
        let result = asample::decode_result("application/x-protobuf", message.body).unwrap();
        hits += u64::from(result.prompt_cache_hit_tokens);
        let lengths = result
            .sequences
            .iter()
            .map(|sequence| sequence.tokens.len() as u64);
        sampled += lengths.sum::<u64>();
    }
    assert!(hits > 0, "the prompt was the same");
    let server = server.restart(|_| {}).await;
    let usage = server.get(&usage_query()).await;
    assert_eq!(
        tokens(&usage, &session, "training", None),
        6,
        "two passes of three tokens"
    );
    assert_eq!(
        tokens(&usage, &session, "sampling_prefill", Some(true)),
        hits
    );
    assert_eq!(
        tokens(&usage, &session, "sampling_prefill", Some(false)),
        300 - hits
    );
    assert_eq!(tokens(&usage, &session, "sampling_sample", None), sampled);
    assert_eq!(
        usage["sessions"][session.as_str().unwrap()]["user_metadata"],
        json!({})
    );
    assert_eq!(usage["cost_data_through"], Value::Null);
    for event in usage["data"].as_array().unwrap() {
        assert_eq!(event["base_model"], "tiny", "{event}");
        assert_eq!(event["estimated_cost_usd"], Value::Null, "{event}");
    }
}

#[tokio::test]
async fn usage_is_asked_for_in_full_hours_of_at_most_two_weeks() {
    let server = TestServer::start().await;
    for query in [
        "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-15T00:00:00Z",
        "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-01T01:00:00Z",
    ] {
        let usage = server.get(&format!("/billing/usage/events?{query}")).await;
        assert_eq!(usage["data"], json!([]), "{query}");
    }
    for query in [
        "",
        "starting_on=2024-01-01T00:00:00Z",
        "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-15T01:00:00Z",
        "starting_on=2024-01-01T00:30:00Z&ending_before=2024-01-02T00:00:00Z",
        "starting_on=2024-01-01T00:00:00.5Z&ending_before=2024-01-02T00:00:00Z",
        "starting_on=2024-01-02T00:00:00Z&ending_before=2024-01-01T00:00:00Z",
        "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-01T00:00:00Z",
        "starting_on=9998-01-01T00:00:00Z&ending_before=9998-01-02T00:00:00Z",
        "starting_on=never&ending_before=2024-01-02T00:00:00Z",
        "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-02T00:00:00Z&currency=eur",
    ] {
        let path = format!("/billing/usage/events?{query}");
        let answer = server.me().call(Method::GET, &path, &Value::Null).await;
        assert_eq!(answer.status, 400, "{query}: {:?}", answer.body);
        assert!(!answer.detail().is_empty());
    }
}

#[tokio::test]
async fn storage_counts_what_is_on_the_disk_now() {
    let server = TestServer::start().await;
    let path = "/billing/usage/checkpoints/current";
    let row = |usage: Value| usage["data"][0].clone();
    assert_eq!(row(server.get(path).await)["checkpoint_count"], 0);
    let model = server.model().await;
    let saved = server.save("/save_weights", &model, 1, "a").await;
    let size = server.get("/checkpoints").await["checkpoints"][0]["size_bytes"].clone();
    let server = server.restart(|_| {}).await;
    let usage = row(server.get(&format!("{path}?project_id=local")).await);
    assert_eq!(
        (&usage["checkpoint_count"], &usage["size_bytes"]),
        (&json!(1), &size)
    );
    assert_eq!(
        usage["size_gigabytes"].as_f64(),
        size.as_f64().map(|bytes| bytes / 1e9)
    );
    server
        .me()
        .call(Method::DELETE, &address(&saved), &Value::Null)
        .await;
    assert_eq!(row(server.get(path).await)["size_bytes"], 0);
    let other = server
        .me()
        .call(Method::GET, &format!("{path}?project_id=x"), &Value::Null)
        .await;
    assert_eq!(other.status, 403);
}

#[tokio::test]
async fn a_token_stands_for_the_owner_of_its_key() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let token = server.ok("/auth/token", json!({})).await["jwt"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(token.starts_with("eyJ"));
    let server = server.restart(|_| {}).await;
    let owner = server.owner(&token);
    let runs = owner.get("/training_runs").await;
    assert_eq!(runs["training_runs"][0]["training_run_id"], json!(model));
    assert_eq!(
        owner.get("/auth/apikey/me").await,
        server.get("/auth/apikey/me").await
    );
    // And can be exchanged again before it ends.
    let next = owner.ok("/auth/token", json!({})).await["jwt"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(server.owner(&next).get("/training_runs").await, runs);
    let mut forged = token.clone();
    forged.replace_range(
        token.len() - 4..,
        if token.ends_with("AAAA") {
            "BBBB"
        } else {
            "AAAA"
        },
    );
    let answer = server
        .owner(&forged)
        .call(Method::GET, "/training_runs", &Value::Null)
        .await;
    assert_eq!(answer.status, 401);
    assert!(!answer.detail().contains(&forged));
}

#[tokio::test]
async fn a_key_describes_itself_and_is_revoked_for_good() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let me = server.get("/auth/apikey/me").await;
    assert!(
        me["key_id"].is_u64() && me["name"].is_string() && me["note"].is_string(),
        "{me}"
    );
    assert!(me["details"]["org_details"]["name"].is_string(), "{me}");
    assert!(
        me["details"]["user_details"]["email"]
            .as_str()
            .unwrap()
            .contains('@'),
        "{me}"
    );
    let token = server.ok("/auth/token", json!({})).await["jwt"]
        .as_str()
        .unwrap()
        .to_owned();
    let deleted = server
        .me()
        .call(Method::DELETE, "/auth/apikey/me", &Value::Null)
        .await;
    assert_eq!(deleted.status, 200);
    for server in [server.restart(|_| {}).await] {
        for key in [crate::caller::KEY, &token] {
            let path = format!("/training_runs/{model}");
            let answer = server
                .owner(key)
                .call(Method::GET, &path, &Value::Null)
                .await;
            assert_eq!(answer.status, 401);
            assert!(answer.detail().contains("revoked"), "{}", answer.detail());
        }
        server.owner("tml-other").get("/training_runs").await;
    }
}

#[tokio::test]
async fn only_the_keys_of_the_file_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "# ours\ntml-one ana\ntml-two\n").unwrap();
    let path = file.clone();
    let server = TestServer::with(|settings| settings.key_file = Some(path)).await;
    assert_eq!(
        server.owner("tml-one").get("/auth/apikey/me").await["name"],
        "ana"
    );
    server
        .owner("tml-two")
        .ok("/create_session", json!({"tags": [], "sdk_version": "1"}))
        .await;
    let ana = server.owner("tml-one").ok("/auth/token", json!({})).await["jwt"].clone();
    for key in ["tml-three", "eyJhbGciOiJub25lIn0.e30.", "tml-ONE"] {
        let answer = server
            .owner(key)
            .call(Method::GET, "/training_runs", &Value::Null)
            .await;
        assert_eq!(answer.status, 401, "{key}");
    }
    // Nor do owners inject faults: that takes a key of its own, which owns nothing.
    for (key, status) in [
        ("tml-three", 401),
        ("", 401),
        ("tml-one", 401),
        (ADMIN_KEY, 200),
    ] {
        let headers = [("x-api-key", key)];
        let answer = server
            .try_send(Method::GET, "/admin/faults", &headers, "")
            .await;
        assert_eq!(answer.unwrap().status, status, "{key}");
    }
    let admin = server
        .owner(ADMIN_KEY)
        .call(Method::GET, "/training_runs", &Value::Null)
        .await;
    assert_eq!(admin.status, 401);
    // Whoever leaves the file is out, with all tokens.
    std::fs::write(&file, "tml-two\n").unwrap();
    let server = server
        .restart(|settings| settings.key_file = Some(file))
        .await;
    for key in ["tml-one", ana.as_str().unwrap()] {
        let answer = server
            .owner(key)
            .call(Method::GET, "/training_runs", &Value::Null)
            .await;
        assert_eq!(answer.status, 401, "{key}");
    }
    let sessions = server.owner("tml-two").get("/sessions").await;
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
}
