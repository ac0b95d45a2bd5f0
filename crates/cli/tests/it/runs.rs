//! `run`, `model` and `session` against the local server.

use serde_json::json;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{Reply, refuse};

use crate::user::{Local, User};

#[tokio::test]
async fn runs_are_listed_newest_first_and_shown_one_by_one() {
    let server = Local::start().await;
    let user = server.user();
    let none = user.run(&["run", "list"]).await.ok();
    assert_eq!(none, "No training runs found\n");
    assert_eq!(
        user.run(&["--json", "run", "list"]).await.json(),
        json!({"runs": []})
    );

    let first = server.trained(&["a"]).await;
    let second = server.trained(&[]).await;
    let listed = user.run(&["run", "list", "--format", "json"]).await.json();
    let runs = listed["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["training_run_id"], second.run);
    // Nothing is left out of an object because it is not set.
    assert_eq!(runs[0]["last_checkpoint"], json!(null));
    assert_eq!(runs[1]["last_checkpoint"]["checkpoint_id"], "weights/a");
    assert!(
        runs[1]["last_request_time"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );

    let one = user.run(&["run", "list", "--limit", "1"]).await.ok();
    assert!(one.starts_with("1 training run (1 more not shown"), "{one}");
    let columns = ["run", "list", "-c", "id, lora,checkpoint"];
    let table = user.run(&columns).await.ok();
    assert!(
        table.contains("Run ID") && table.contains("Rank 4"),
        "{table}"
    );
    assert!(
        !table.contains("Base Model") && table.contains("None"),
        "{table}"
    );

    let run = user
        .run(&["-f", "json", "run", "info", &first.run])
        .await
        .json();
    assert_eq!(run["base_model"], "tiny");
    let table = user.run(&["run", "info", &first.run]).await.ok();
    assert!(
        table.starts_with(&format!("Training Run: {}\n", first.run)),
        "{table}"
    );
    assert!(
        table.contains("Yes (Rank 4)") && table.contains("  - Path"),
        "{table}"
    );
    first.finish().await;
    second.finish().await;
}

#[tokio::test]
async fn a_run_that_is_not_there_is_a_failure_and_a_column_wrong_usage() {
    let server = Local::start().await;
    let user = server.user();
    let stderr = user.run(&["run", "info", "nobody:train:0"]).await.failed(1);
    assert!(
        stderr.contains("\nerror: could not show the training run\n"),
        "{stderr}"
    );
    assert!(
        stderr.contains("status 404") && stderr.contains("hint: "),
        "{stderr}"
    );
    let stderr = user.run(&["run", "list", "-c", "rank"]).await.failed(2);
    assert!(stderr.contains("checkpoint_time"), "{stderr}");
    user.run(&["run", "list", "--limit", "many"])
        .await
        .failed(2);
    user.run(&["--format", "xml", "run", "list"])
        .await
        .failed(2);
}

#[tokio::test]
async fn long_listings_come_in_pages() {
    let server = Local::start().await;
    let front = ScriptedServer::in_front_of(server.url()).await;
    let _runs = server.runs(250).await;
    let user = User::of(front.url());
    let all = user
        .run(&["--json", "run", "list", "--limit", "0"])
        .await
        .json();
    assert_eq!(all["runs"].as_array().unwrap().len(), 250);
    assert_eq!(front.requests_to("list_training_runs").len(), 3);
    let some = user
        .run(&["--json", "run", "list", "--limit", "120"])
        .await
        .json();
    assert_eq!(some["runs"].as_array().unwrap().len(), 120);
}

#[tokio::test]
async fn models_are_listed_and_filtered() {
    let server = Local::start().await;
    let user = server.user();
    let listed = user.run(&["--json", "model", "list"]).await.json();
    let model = &listed["models"][0];
    assert_eq!(model["model_name"], "tiny");
    assert_eq!(model["trainable"], true);
    assert!(model["max_context_length"].is_u64(), "{model}");
    let table = user.run(&["model", "list", "TIN"]).await.ok();
    assert!(
        table.contains("Max Context") && table.contains("tiny"),
        "{table}"
    );
    let stderr = user.run(&["model", "list", "large"]).await.failed(1);
    assert!(stderr.contains("tml:organization:"), "{stderr}");
    assert!(stderr.contains("`large`"), "{stderr}");
}

#[tokio::test]
async fn what_the_client_logs_is_shown_if_asked_for() {
    let server = ScriptedServer::start().await;
    let busy = refuse(503, "busy").header("retry-after-ms", "1");
    let capabilities = || server.on("get_server_capabilities").reply(busy.clone());
    capabilities();
    let user = User::of(server.url());
    let quiet = user.run(&["model", "list"]).await;
    assert!(!quiet.stderr.contains("DEBUG"), "{quiet:?}");
    // The reason is told either way.
    let told = "failed with status 503: busy; retrying for 20 s";
    assert!(quiet.stderr.contains(told), "{quiet:?}");
    quiet.ok();
    capabilities();
    let user = user.variable("TINKER_LOG", "debug");
    let logged = user.run(&["model", "list"]).await;
    assert!(logged.stderr.contains("DEBUG"), "{logged:?}");
    logged.ok();
}

#[tokio::test]
async fn sessions_are_listed_and_shown() {
    let server = Local::start().await;
    let user = server.user();
    let trained = server.trained(&["a"]).await;
    let listed = user.run(&["--json", "session", "list"]).await.json();
    let session = &listed["sessions"][0];
    assert_eq!(session["session_id"], trained.session);
    assert_eq!(session["checkpoints_count"], 1);
    let table = user.run(&["session", "list", "--name", "test"]).await.ok();
    assert!(
        table.contains("a test") && table.contains("active"),
        "{table}"
    );
    let none = user.run(&["session", "list", "--name", "other"]).await.ok();
    assert_eq!(none, "No sessions found\n");

    let info = user
        .run(&["--json", "session", "info", &trained.session])
        .await
        .json();
    assert_eq!(info["training_run_ids"], json!([trained.run]));
    let table = user.run(&["session", "info", &trained.session]).await.ok();
    assert!(table.contains(&trained.run), "{table}");
    user.run(&["session", "list", "--limit", "0"])
        .await
        .failed(2);
    user.run(&["session", "info", "a/b"]).await.failed(1);

    let export = ["session", "export-trace", &trained.session];
    user.run(&export).await.ok();
    let trace = user.home().join(format!("{}.pftrace", trained.session));
    let trace = std::fs::read(trace).unwrap();
    let kind = b"forward_backward";
    assert!(trace.windows(kind.len()).any(|window| window == kind));
    trained.finish().await;
}

#[tokio::test]
async fn a_trace_is_downloaded_or_its_link_is_printed() {
    let server = ScriptedServer::start().await;
    let url = serve_file("trace.bin", b"perfetto").await;
    let ready = json!({"status": "ready", "url": url, "error": null});
    server
        .on("export_session_trace")
        .always()
        .reply(Reply::json(&ready));
    let user = User::of(server.url());

    let link = user
        .run(&["session", "export-trace", "s-1", "--url-only"])
        .await
        .ok();
    assert_eq!(link, format!("{url}\n"));
    let arguments = ["--json", "session", "export-trace", "s-1", "--url-only"];
    assert_eq!(
        user.run(&arguments).await.json(),
        json!({"session_id": "s-1", "url": url})
    );

    let table = user.run(&["session", "export-trace", "s-1"]).await.ok();
    assert!(
        table.starts_with("Trace Export: s-1\n") && table.contains("8 B"),
        "{table}"
    );
    let file = user.home().join("s-1.pftrace");
    assert_eq!(std::fs::read(file).unwrap(), b"perfetto");
    let arguments = [
        "--json",
        "session",
        "export-trace",
        "s-1",
        "-o",
        "new/t.bin",
    ];
    assert_eq!(
        user.run(&arguments).await.json(),
        json!({"session_id": "s-1", "destination": "new/t.bin", "file_size_bytes": 8})
    );

    let gone = json!({"status": "ready", "url": format!("{url}.gone"), "error": null});
    let server = ScriptedServer::start().await;
    server
        .on("export_session_trace")
        .always()
        .reply(Reply::json(&gone));
    let ran = User::of(server.url())
        .run(&["session", "export-trace", "s-1"])
        .await;
    let stderr = ran.failed(1);
    assert!(
        stderr.contains("status 404") && stderr.contains("an hour"),
        "{stderr}"
    );
    // A link is as good as a key.
    assert!(!stderr.contains(".gone"), "{stderr}");
}

/// Serves one file, as a store of signed links would.
async fn serve_file(name: &str, bytes: &'static [u8]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/{name}", listener.local_addr().unwrap());
    let file = axum::routing::get(move || async move { bytes });
    let router = axum::Router::new().route(&format!("/{name}"), file);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}
