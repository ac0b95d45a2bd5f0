//! `auth`, `billing` and `doctor` against the local server.

use jiff::{Timestamp, ToSpan};
use serde_json::json;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::refuse;

use crate::user::{KEY, Local, User, files};

#[tokio::test]
async fn logging_in_stores_a_key_that_later_commands_use() {
    let server = Local::start().await;
    let user = server.user().without_key();
    // A server of this machine needs none of one's own.
    user.run(&["run", "list"]).await.ok();
    let status = user.run(&["auth", "status"]).await;
    assert_eq!(status.stdout, "Credentials available: no\n");
    let stderr = status.failed(1);
    assert!(stderr.contains("tinkrs auth login"), "{stderr}");

    user.run_with_input(&["auth", "login"], "\n")
        .await
        .failed(1);
    let ran = user
        .run_with_input(&["auth", "login"], "  tml-mine \n")
        .await;
    assert!(
        ran.stderr
            .contains("/keys?new_key=true&key_name=tinker-cli-"),
        "{ran:?}"
    );
    let said = ran.ok();
    assert!(said.starts_with("Logged in as "), "{said}");
    assert!(!said.contains("tml-mine"), "{said}");
    let file = user.home().join(".tinker/credentials.json");
    assert!(std::fs::read_to_string(file).unwrap().contains("tml-mine"));

    user.run(&["run", "list"]).await.ok();
    let status = user.run(&["auth", "status"]).await.ok();
    assert_eq!(
        status,
        "Credentials available: yes\nTinker accessible: yes\n"
    );
    let listed = user.run(&["--json", "auth", "list"]).await.ok();
    assert!(
        listed.contains("\"default\": true") && !listed.contains("tml-mine"),
        "{listed}"
    );
    let stderr = user
        .run_with_input(&["auth", "login"], "tml-b\n")
        .await
        .failed(1);
    assert!(stderr.contains("already logged in"), "{stderr}");

    let said = user.run(&["auth", "logout"]).await.ok();
    assert!(said.contains("still active"), "{said}");
    user.run(&["auth", "logout"]).await.failed(1);
    let listed = user.run(&["auth", "list"]).await.ok();
    assert_eq!(listed, "No keys are stored on this machine\n");
}

#[tokio::test]
async fn a_key_that_the_server_refuses_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "tml-known somebody\n").unwrap();
    let server = Local::with(|settings| settings.key_file = Some(keys.clone())).await;
    let user = server.user().without_key();
    let ran = user
        .run_with_input(&["auth", "login"], "tml-unknown\n")
        .await;
    let stderr = ran.failed(1);
    assert!(
        stderr.contains("error: could not validate the API key"),
        "{stderr}"
    );
    assert!(
        stderr.contains("status 401") && !stderr.contains("tml-unknown"),
        "{stderr}"
    );
    assert!(files(user.home()).is_empty());

    let other = server.user();
    let status = other.run(&["auth", "status"]).await;
    assert_eq!(
        status.stdout,
        "Credentials available: yes\nTinker accessible: no\n"
    );
    assert!(status.failed(1).contains("status 401"));
}

#[tokio::test]
async fn logging_out_deletes_a_generated_key_on_the_server() {
    let server = Local::start().await;
    let user = server.user().without_key();
    user.run_with_input(&["auth", "login"], KEY).await.ok();
    let file = user.home().join(".tinker/credentials.json");
    let stored = std::fs::read_to_string(&file).unwrap();
    let mut stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
    for (_, key) in stored["keys"].as_object_mut().unwrap() {
        key["type"] = json!("generated");
        key.as_object_mut().unwrap().remove("note");
    }
    std::fs::write(&file, stored.to_string()).unwrap();
    let said = user.run(&["auth", "logout"]).await.ok();
    assert!(said.contains("was deleted"), "{said}");
    let stderr = server.user().run(&["run", "list"]).await.failed(1);
    assert!(stderr.contains("status 401"), "{stderr}");
}

#[tokio::test]
async fn whoami_says_whose_the_credential_is() {
    let server = Local::start().await;
    let user = server.user();
    let me = user.run(&["--json", "auth", "whoami"]).await.json();
    let members: Vec<_> = me.as_object().unwrap().keys().collect();
    assert_eq!(members.len(), 3, "{me}");
    assert!(
        me["org_urn"]
            .as_str()
            .unwrap()
            .starts_with("tml:organization:")
    );
    let table = user.run(&["auth", "whoami"]).await.ok();
    assert!(
        table.contains("Organization") && table.contains("Email"),
        "{table}"
    );

    // A server without tokens leaves nothing to read it from.
    let server = Local::with(|settings| settings.client.pjwt_auth_enabled = false).await;
    let stderr = server.user().run(&["auth", "whoami"]).await.failed(1);
    assert!(stderr.contains("it is a key, not a token"), "{stderr}");
}

#[tokio::test]
async fn usage_is_shown_and_written_as_csv() {
    let server = Local::start().await;
    let user = server.user();
    let trained = server.trained(&[]).await;
    let now = Timestamp::now().as_second();
    let hour = Timestamp::from_second(now - now % 3600).unwrap();
    let (start, end) = (
        (hour - 1.hour()).to_string(),
        (hour + 2.hours()).to_string(),
    );
    let usage = ["billing", "usage", &start, &end];

    let report = user.run(&[&["--json"], &usage[..]].concat()).await.json();
    assert_eq!(report["cost_data_through"], json!(null));
    assert_eq!(report["data"][0]["event_info"]["type"], "training");
    assert!(
        report["sessions"].get(&trained.session).is_some(),
        "{report}"
    );
    let table = user.run(&usage).await.ok();
    assert!(table.starts_with("1 hourly usage row\n"), "{table}");
    assert!(
        table.contains("token_count") && table.contains("null"),
        "{table}"
    );

    let both = [&usage[..], &["--csv", "u.csv", "--sessions-csv", "-"]].concat();
    let ran = user.run(&both).await;
    assert!(ran.stderr.contains("Wrote 1 row to u.csv"), "{ran:?}");
    let sessions = ran.ok();
    assert!(
        sessions.starts_with("session_id,user_metadata\n"),
        "{sessions}"
    );
    assert!(sessions.contains(&trained.session), "{sessions}");
    let csv = std::fs::read_to_string(user.home().join("u.csv")).unwrap();
    assert!(
        csv.starts_with("bucket_start,bucket_end,base_model,"),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 2);

    let empty = [
        "billing",
        "usage",
        "2020-01-01T00:00:00Z",
        "2020-01-02T00:00:00Z",
    ];
    assert_eq!(
        user.run(&empty).await.ok(),
        "No billing usage in this window\n"
    );
    let long = [
        "billing",
        "usage",
        "2020-01-01T00:00:00Z",
        "2020-02-01T00:00:00Z",
    ];
    assert!(user.run(&long).await.failed(1).contains("14 days"));
    user.run(&["billing", "usage", "today", "tomorrow"])
        .await
        .failed(2);
    trained.finish().await;
}

#[tokio::test]
async fn storage_is_shown_and_written_as_csv() {
    let server = Local::start().await;
    let user = server.user();
    let trained = server.trained(&["a"]).await;
    let report = user
        .run(&["--json", "billing", "checkpoint-storage"])
        .await
        .json();
    assert_eq!(report["effective_rate_usd_per_gigabyte_month"], json!(null));
    assert_eq!(report["data"][0]["checkpoint_count"], 1);
    let table = user.run(&["billing", "checkpoint-storage"]).await.ok();
    assert!(table.starts_with("Current checkpoint storage\n"), "{table}");
    let csv = user
        .run(&["billing", "checkpoint-storage", "--csv", "-"])
        .await
        .ok();
    assert!(
        csv.starts_with("effective_rate_usd_per_gigabyte_month,project_id,"),
        "{csv}"
    );
    let other = ["billing", "checkpoint-storage", "--project-id", "none"];
    user.run(&other).await.failed(1);
    trained.finish().await;
}

#[tokio::test]
async fn an_account_without_rights_is_told_what_to_do() {
    let server = ScriptedServer::start().await;
    let user = User::of(server.url());
    server
        .on("get_billing_usage")
        .always()
        .reply(refuse(403, "administrators only"));
    let usage = [
        "billing",
        "usage",
        "2020-01-01T00:00:00Z",
        "2020-01-02T00:00:00Z",
    ];
    let stderr = user.run(&usage).await.failed(1);
    assert!(stderr.contains("administrators only"), "{stderr}");
    assert!(
        stderr.contains("hint: this account may not do that"),
        "{stderr}"
    );
}

#[tokio::test]
async fn a_healthy_set_up_passes_the_doctor() {
    let server = Local::start().await;
    let report = server.user().run(&["--json", "doctor"]).await.json();
    assert_eq!(report["ok"], true, "{report}");
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "version",
            "url",
            "credential",
            "server",
            "clock",
            "models",
            "disk"
        ]
    );
    let models = checks[5]["detail"].as_str().unwrap();
    assert_eq!(models, "1 model: tiny");
    assert_eq!(checks[4]["status"], "ok", "{report}");
}

#[tokio::test]
async fn the_health_check_of_a_container_needs_no_key_and_fails_when_the_server_is_gone() {
    let server = Local::start().await;
    let user = server.user().without_key();
    let report = user.run(&["--json", "doctor", "--alive"]).await.json();
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 1, "{report}");
    assert_eq!(checks[0]["status"], "ok", "{report}");
    let ran = User::of("http://127.0.0.1:9").without_key();
    let ran = ran.run(&["doctor", "--alive"]).await;
    assert!(ran.stdout.contains("could not reach"), "{ran:?}");
    ran.failed(1);
    let ran = user.run(&["doctor", "--alive", "--local"]).await;
    let complaint = ran.failed(1);
    assert!(
        complaint.contains("name it with `--base-url`"),
        "{complaint}"
    );
}

#[test]
fn the_doctor_passes_on_a_machine_without_a_key_and_finds_a_broken_folder() {
    let here = crate::here::Here::new();
    let names = |report: &serde_json::Value| {
        let checks = report["checks"].as_array().unwrap().clone();
        let name = |check: &serde_json::Value| check["name"].as_str().unwrap().to_owned();
        checks.iter().map(name).collect::<Vec<_>>()
    };
    let report = here.json(&["doctor"]);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(
        names(&report),
        [
            "version",
            "processor",
            "memory",
            "data folder",
            "disk",
            "models",
            "hosted key"
        ]
    );
    assert_eq!(report["checks"][6]["status"], "note", "{report}");
    assert!(!here.path("tinkrs-data").exists(), "looking makes nothing");

    std::fs::create_dir(here.path("tinkrs-data")).unwrap();
    here.write("tinkrs-data/tinkrs.db", "this is not a database");
    let output = here.command(&["doctor"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(
        shown.contains("FAILED") && shown.contains("tinkrs data repair"),
        "{shown}"
    );
}

#[tokio::test]
async fn the_doctor_says_what_is_wrong_and_what_to_do() {
    // Nothing listens there: the port was free a moment ago, and is only ours.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let user = User::of(url).without_key();
    let ran = user.run(&["doctor"]).await;
    assert!(
        ran.stdout.contains("-> log in with `tinkrs auth login`"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("tinkrs serve"), "{ran:?}");
    assert!(ran.failed(1).contains("2 checks failed"));

    let ran = User::of("localhost:8000").run(&["--json", "doctor"]).await;
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["checks"][1]["status"], "failed", "{report}");
    ran.failed(1);
}
