//! Metrics by step: those of the server, for any client, and those that clients report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::caller::{TestServer, fake, pass, step};

/// The values of a run's metrics by name and step.
pub(super) async fn curves(server: &TestServer, run: &str) -> BTreeMap<String, Vec<(i64, f64)>> {
    let found = server.get(&format!("/training_runs/{run}/metrics")).await;
    let series = found["series"].as_array().unwrap();
    let points = |series: &Value| {
        let points = series["points"].as_array().unwrap().iter();
        let pair = |point: &Value| (point[0].as_i64().unwrap(), point[1].as_f64().unwrap());
        points.map(pair).collect::<Vec<_>>()
    };
    series
        .iter()
        .map(|series| (series["name"].as_str().unwrap().to_owned(), points(series)))
        .collect()
}

/// Two passes and a step for each of these.
async fn train(server: &TestServer, run: &str, steps: std::ops::Range<i64>) {
    for number in steps {
        let first = 3 * number + 1;
        server.forward_backward(run, first).await;
        server.forward_backward(run, first + 1).await;
        let id = server.optim_step(run, first + 2).await;
        server.result(&id).await;
    }
}

#[tokio::test]
async fn every_step_of_any_client_is_measured() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let first = server.forward_backward(&run, 1).await;
    let loss = server.loss(&first).await;
    let second = server.forward_backward(&run, 2).await;
    let loss = loss + server.loss(&second).await;
    let id = server.optim_step(&run, 3).await;
    server.result(&id).await;
    train(&server, &run, 1..5).await;

    let curves = curves(&server, &run).await;
    let steps = |name: &str| {
        let points = curves
            .get(name)
            .unwrap_or_else(|| panic!("{name}: {curves:?}"));
        points.iter().map(|point| point.0).collect::<Vec<_>>()
    };
    for name in [
        "loss",
        "loss_per_datum",
        "loss_sum",
        "tokens",
        "datums",
        "learning_rate",
        "tokens_per_second",
        "forward_backward_ms",
        "optim_step_ms",
        "queue_ms",
    ] {
        assert_eq!(steps(name), [1, 2, 3, 4, 5], "{name}");
    }
    let at_first = |name: &str| curves[name][0].1;
    // Each pass has one datum of three tokens, two of which count.
    assert_eq!((at_first("datums"), at_first("tokens")), (2.0, 6.0));
    assert!((at_first("loss_sum") - loss).abs() < 1e-9);
    assert!((at_first("loss") - loss / 4.0).abs() < 1e-9);
    assert_eq!(at_first("learning_rate"), 0.01);
    let losses = &curves["loss"];
    assert!(losses[4].1 < losses[0].1, "it learns: {losses:?}");
    assert!(
        !curves.contains_key("advantage_mean"),
        "no policy is trained"
    );

    let runs = server.get("/studio/runs").await;
    assert_eq!(runs["total"], 1);
    let summary = &runs["runs"][0];
    assert_eq!(summary["step"], 5);
    assert_eq!(summary["state"], "idle");
    assert_eq!(summary["cost"]["tokens"], 30);
    assert_eq!(summary["client"], "0.36.0");
    assert!((summary["last"]["loss"].as_f64().unwrap() - losses[4].1).abs() < 1e-12);
}

#[tokio::test]
async fn a_policy_loss_has_its_metrics_too() {
    let server = TestServer::real(|_| {}).await;
    let run = server.model().await;
    let mut body = pass(&run, 1);
    let input = &mut body["forward_backward_input"];
    input["loss_fn"] = json!("importance_sampling");
    input["data"][0]["loss_fn_inputs"] = json!({
        "target_tokens": {"data": [5, 9, 2], "dtype": "int64", "shape": [3]},
        "logprobs": {"data": [0.0, -1.0, -2.0], "dtype": "float32", "shape": [3]},
        "advantages": {"data": [0.0, 1.0, -0.5], "dtype": "float32", "shape": [3]},
    });
    server.promise("/forward_backward", body).await;
    let id = server.optim_step(&run, 2).await;
    server.result(&id).await;
    let curves = curves(&server, &run).await;
    assert_eq!(curves["entropy_estimate"], [(1, 1.5)]);
    assert_eq!(curves["advantage_mean"], [(1, 0.25)]);
    assert!(curves["kl_sampler_trainer"][0].1 > 0.0, "{curves:?}");
    assert!(curves["grad_norm"][0].1 > 0.0, "{curves:?}");
}

#[tokio::test]
async fn an_evaluation_adds_nothing_to_the_step() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let mut forward = pass(&run, 1);
    forward["forward_input"] = forward["forward_backward_input"].take();
    forward
        .as_object_mut()
        .unwrap()
        .remove("forward_backward_input");
    server.promise("/forward", forward).await;
    server.forward_backward(&run, 2).await;
    let failing = json!({"model_id": run, "seq_id": 3, "adam_params": {"learning_rate": -1.0}});
    server.promise("/optim_step", failing).await;
    let id = server.optim_step(&run, 4).await;
    server.result(&id).await;
    let curves = curves(&server, &run).await;
    assert_eq!(
        curves["datums"],
        [(1, 1.0)],
        "and a step that failed is none"
    );
}

/// The values that do not depend on the clock.
fn exact(curves: BTreeMap<String, Vec<(i64, f64)>>) -> BTreeMap<String, Vec<(i64, u64)>> {
    let timeless = [
        "loss",
        "loss_sum",
        "loss_per_datum",
        "tokens",
        "datums",
        "learning_rate",
    ];
    let curves = curves.into_iter();
    let kept = curves.filter(|(name, _)| timeless.contains(&name.as_str()));
    let bits = |points: Vec<(i64, f64)>| points.into_iter().map(|(s, v)| (s, v.to_bits()));
    kept.map(|(name, points)| (name, bits(points).collect()))
        .collect()
}

/// Copies a folder as it is at this moment, which is what a killed server leaves behind.
fn copy(from: &std::path::Path) -> Arc<tempfile::TempDir> {
    fn database(from: &std::path::Path, to: &std::path::Path) -> Vec<u8> {
        let _ = std::fs::remove_file(to);
        let open = rusqlite::Connection::open(from.join("tinkrs.db")).unwrap();
        let copied = open.execute("VACUUM INTO ?", [to.to_str().unwrap()]);
        copied.unwrap();
        std::fs::read(to).unwrap()
    }

    fn copy_all(from: &std::path::Path, to: &std::path::Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                copy_all(&entry.path(), &to);
            } else if !entry.file_name().to_string_lossy().starts_with("tinkrs.db") {
                // Some of them end in the meantime.
                let _ = std::fs::copy(entry.path(), to);
            }
        }
    }
    // Until nothing was written meanwhile.
    loop {
        let copied = tempfile::tempdir().unwrap();
        let to = copied.path().join("tinkrs.db");
        let before = database(from, &to);
        copy_all(from, copied.path());
        if database(from, &to) == before {
            return Arc::new(copied);
        }
    }
}

#[tokio::test]
async fn a_server_that_is_killed_between_any_operations_counts_each_step_once() {
    let plain = TestServer::start().await;
    let run = plain.model().await;
    train(&plain, &run, 0..6).await;
    let expected = exact(curves(&plain, &run).await);
    assert_eq!(expected["loss"].len(), 6);
    // With a snapshot after every operation, after some, and never.
    for operations in [1, 2, u32::MAX] {
        let change = move |settings: &mut tinkrs_server::Settings| {
            settings.snapshot_interval = Duration::MAX;
            settings.snapshot_operations = operations;
        };
        let mut server = TestServer::with(change).await;
        let run = server.model().await;
        for number in 0..6 {
            let first = 3 * number + 1;
            let pass = server.forward_backward(&run, first).await;
            server.loss(&pass).await;
            // Killed with a pass that no step has taken in yet.
            server = TestServer::of(fake(), copy(server.data()), change).await;
            server.forward_backward(&run, first + 1).await;
            let id = server.optim_step(&run, first + 2).await;
            server.result(&id).await;
            let before = curves(&server, &run).await;
            // And with all operations to be repeated.
            server = TestServer::of(fake(), copy(server.data()), change).await;
            // The result of an operation behind all of them: they have been repeated.
            assert_eq!(
                curves(&server, &run).await,
                before,
                "nothing changed by itself"
            );
        }
        let found = exact(curves(&server, &run).await);
        assert_eq!(found, expected, "snapshot after {operations}");
        let pass = server.forward_backward(&run, 19).await;
        server.loss(&pass).await;
        assert_eq!(exact(curves(&server, &run).await), expected);
    }
}

#[tokio::test]
async fn a_client_reports_what_it_has_computed() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let path = format!("/training_runs/{run}/metrics");
    for step in 0..3 {
        let body = json!({"step": step, "metrics": {"reward": step, "env/all": 0.5}});
        assert_eq!(server.ok(&path, body).await, json!({}));
    }
    let again = json!({"step": 1, "metrics": {"reward": 10}});
    server.ok(&path, again).await;
    let found = server.get(&path).await;
    assert_eq!(found["last_step"], 2);
    let reward = &found["series"][1];
    assert_eq!(reward["name"], "reward");
    assert_eq!(reward["source"], "client");
    assert_eq!(reward["count"], 3);
    let values: Vec<_> = reward["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it[1].clone())
        .collect();
    assert_eq!(values, [json!(0.0), json!(10.0), json!(2.0)]);
    let one = server
        .get(&format!("{path}?names=reward,none&from=1&to=1"))
        .await;
    assert_eq!(one["series"].as_array().unwrap().len(), 1);
    assert_eq!(one["series"][0]["points"][0][0], 1);
    // By the run's name as well, after a restart as before.
    let name = server.get("/studio/runs").await["runs"][0]["name"].clone();
    let server = server.restart(|_| {}).await;
    let named = format!("/training_runs/{}/metrics", name.as_str().unwrap());
    assert_eq!(server.get(&named).await, found);
}

#[tokio::test]
async fn a_report_that_is_not_right_is_refused_with_what_is_wrong() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let path = format!("/training_runs/{run}/metrics");
    let many: serde_json::Map<_, _> = (0..65).map(|n| (format!("m{n}"), json!(1))).collect();
    let cases = [
        (json!({"metrics": {"a": 1}}).to_string(), "step"),
        (json!({"step": -1, "metrics": {"a": 1}}).to_string(), "step"),
        (
            json!({"step": 1.5, "metrics": {"a": 1}}).to_string(),
            "step",
        ),
        (
            json!({"step": u64::MAX, "metrics": {"a": 1}}).to_string(),
            "step",
        ),
        (json!({"step": 1}).to_string(), "metrics"),
        (
            json!({"step": 1, "metrics": {"a": "x"}}).to_string(),
            "metrics",
        ),
        (
            json!({"step": 1, "metrics": {"a": null}}).to_string(),
            "metrics",
        ),
        (
            json!({"step": 1, "metrics": many}).to_string(),
            "at most 64",
        ),
        (
            json!({"step": 1, "metrics": {"": 1}}).to_string(),
            "metrics",
        ),
        (
            json!({"step": 1, "metrics": {"a,b": 1}}).to_string(),
            "without commas",
        ),
        (
            json!({"step": 1, "metrics": {"a\nb": 1}}).to_string(),
            "a\\nb",
        ),
        (
            json!({"step": 1, "metrics": {"x".repeat(129): 1}}).to_string(),
            "129 bytes",
        ),
        (r#"{"step": 1, "metrics": {"a": NaN}}"#.to_owned(), "JSON"),
        (r#"{"step": 1, "metrics": {"a": 1e999}}"#.to_owned(), ""),
        (
            json!({"step": 1, "metrics": {"a": 1}, "x": 1}).to_string(),
            "x",
        ),
    ];
    for (body, why) in cases {
        let headers = [("content-type", "application/json")];
        let answer = server
            .send(Method::POST, &path, &headers, body.clone())
            .await;
        assert_eq!(answer.status, 400, "{body}: {:?}", answer.body);
        assert!(answer.detail().contains(why), "{body}: {}", answer.detail());
    }
    let none = server.get(&path).await;
    assert_eq!(none["series"], json!([]), "nothing of them is stored");
    for query in ["points=x", "from=", "unknown=1"] {
        let answer = server
            .send(Method::GET, &format!("{path}?{query}"), &[], "")
            .await;
        assert_eq!(answer.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_step_of_the_optimizer_alone_counts() {
    let server = TestServer::start().await;
    let run = server.model().await;
    server.promise("/optim_step", step(&run, 1)).await;
    let id = server.promise("/optim_step", step(&run, 2)).await;
    server.result(&id).await;
    let curves = curves(&server, &run).await;
    assert_eq!(curves["learning_rate"], [(1, 0.01), (2, 0.01)]);
    assert!(!curves.contains_key("loss"));
}
