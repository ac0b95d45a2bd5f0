//! `checkpoint` against the local server.

use std::path::Path;

use serde_json::json;
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{Gate, refuse};

use crate::user::{Local, User, files};

#[tokio::test]
async fn checkpoints_are_listed_over_all_runs_or_of_one() {
    let server = Local::start().await;
    let user = server.user();
    let none = user.run(&["checkpoint", "list"]).await.ok();
    assert_eq!(none, "No checkpoints found\n");
    let first = server.trained(&["a", "b"]).await;
    let second = server.trained(&["c"]).await;

    let all = user.run(&["--json", "checkpoint", "list"]).await.json();
    assert_eq!(all["checkpoints"].as_array().unwrap().len(), 3);
    assert!(all.get("run_id").is_none(), "{all}");
    assert_eq!(all["checkpoints"][0]["tinker_path"], json!(second.paths[0]));
    let some = user.run(&["checkpoint", "list", "--limit", "2"]).await.ok();
    assert!(
        some.starts_with("2 checkpoints (1 more not shown"),
        "{some}"
    );

    let of_run = ["--json", "checkpoint", "list", "--run-id", &first.run];
    let of_run = user.run(&of_run).await.json();
    assert_eq!(of_run["run_id"], first.run);
    assert_eq!(of_run["checkpoints"].as_array().unwrap().len(), 2);
    let arguments = ["checkpoint", "list", "--run-id", &second.run];
    let table = user.run(&arguments).await.ok();
    assert!(
        table.starts_with(&format!("1 checkpoint for run {}\n", second.run)),
        "{table}"
    );
    assert!(
        table.contains("weights/c") && table.contains("Never"),
        "{table}"
    );
    first.finish().await;
    second.finish().await;
}

#[tokio::test]
async fn a_checkpoint_is_shown_published_and_given_a_time_to_live() {
    let server = Local::start().await;
    let user = server.user();
    let trained = server.trained(&["a"]).await;
    let path = trained.paths[0].to_string();
    let show = ["--json", "checkpoint", "info", &path];

    let info = user.run(&show).await.json();
    assert_eq!(info["tinker_path"], path);
    assert_eq!(info["checkpoint_type"], "training");
    assert_eq!(
        (&info["is_lora"], &info["lora_rank"]),
        (&json!(true), &json!(4))
    );
    assert_eq!(
        (&info["public"], &info["expires_at"]),
        (&json!(false), &json!(null))
    );
    let table = user.run(&["checkpoint", "info", &path]).await.ok();
    assert!(table.starts_with("Checkpoint: weights/a\n"), "{table}");
    assert!(
        table.contains(&trained.run) && table.contains("Yes (Rank 4)"),
        "{table}"
    );

    let said = user.run(&["checkpoint", "publish", &path]).await.ok();
    assert_eq!(said, format!("Published {path}\n"));
    assert_eq!(user.run(&show).await.json()["public"], true);
    let again = user.run(&["checkpoint", "publish", &path]).await.failed(1);
    assert!(
        again.contains("could not publish the checkpoint"),
        "{again}"
    );
    let arguments = ["--json", "checkpoint", "unpublish", &path];
    let said = user.run(&arguments).await.json();
    assert_eq!(said, json!({"tinker_path": path, "public": false}));

    user.run(&["checkpoint", "set-ttl", &path, "--ttl", "7200"])
        .await
        .ok();
    assert!(user.run(&show).await.json()["expires_at"].is_string());
    let table = user.run(&["checkpoint", "info", &path]).await.ok();
    assert!(
        table.contains("in 1 hour") || table.contains("in 2 hours"),
        "{table}"
    );
    let forever = ["--json", "checkpoint", "set-ttl", &path, "--remove"];
    let said = user.run(&forever).await.json();
    assert_eq!(said, json!({"tinker_path": path, "ttl_seconds": null}));
    assert_eq!(user.run(&show).await.json()["expires_at"], json!(null));

    let short = ["checkpoint", "set-ttl", &path, "--ttl", "60"];
    let stderr = user.run(&short).await.failed(1);
    assert!(stderr.contains("3600"), "{stderr}");
    user.run(&["checkpoint", "set-ttl", &path]).await.failed(2);
    let both = ["checkpoint", "set-ttl", &path, "--ttl", "7200", "--remove"];
    user.run(&both).await.failed(2);
    trained.finish().await;
}

#[tokio::test]
async fn what_is_not_a_checkpoint_is_refused_with_the_form_of_one() {
    let server = Local::start().await;
    let user = server.user();
    for command in [
        "info",
        "publish",
        "unpublish",
        "download",
        "delete",
        "push-hf",
    ] {
        let ran = user.run(&["checkpoint", command, "run/weights/a"]).await;
        let stderr = ran.failed(1);
        assert!(
            stderr.contains("tinker://<run>/<kind>/<name>"),
            "{command}: {stderr}"
        );
        assert!(stderr.contains("hint: "), "{command}: {stderr}");
    }
    let trained = server.trained(&[]).await;
    let path = format!("tinker://{}/weights/none", trained.run);
    let stderr = user.run(&["checkpoint", "info", &path]).await.failed(1);
    assert!(
        stderr.contains("there is no checkpoint tinker://"),
        "{stderr}"
    );
    trained.finish().await;
}

#[tokio::test]
async fn deleting_asks_first_and_takes_only_what_was_selected() {
    let server = Local::start().await;
    let user = server.user();
    let trained = server.trained(&["a", "b", "c"]).await;
    let sampler = trained.model.save_weights_for_sampler("s").await.unwrap();
    let run = trained.run.as_str();
    let delete = ["checkpoint", "delete", "--run-id", run];
    let left = async || {
        let arguments = ["--json", "checkpoint", "list", "--run-id", run];
        let listed = user.run(&arguments).await.json();
        let ids = listed["checkpoints"].as_array().unwrap().iter();
        let mut ids: Vec<_> = ids
            .map(|c| c["checkpoint_id"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };

    let declined = user.run_with_input(&delete, "n\n").await;
    assert!(
        declined.stderr.contains("4 checkpoints to delete"),
        "{declined:?}"
    );
    assert!(declined.stderr.contains("Total size"), "{declined:?}");
    assert!(declined.stderr.contains("Cancelled"), "{declined:?}");
    assert_eq!(declined.ok(), "");
    user.run(&delete).await.failed(1); // there is nobody to answer
    assert_eq!(left().await.len(), 4);

    let dry = [
        &["--json"],
        &delete[..],
        &["--dry-run", "--type", "sampler"],
    ]
    .concat();
    assert_eq!(
        user.run(&dry).await.json(),
        json!({"deleted_count": 0, "failed": [], "would_delete": [sampler]})
    );
    let before = [&delete[..], &["--before", "2020-01-01", "-y"]].concat();
    let said = user.run(&before).await.ok();
    assert_eq!(said, "No checkpoints match: there is nothing to delete\n");
    let after = [
        &["--json"],
        &delete[..],
        &["--after", "2999-01-01T00:00:00Z", "-y"],
    ]
    .concat();
    assert_eq!(
        user.run(&after).await.json(),
        json!({"deleted_count": 0, "failed": []})
    );
    assert_eq!(left().await.len(), 4);

    let samplers = [
        &["--json"],
        &delete[..],
        &["--type", "sampler_weights", "--yes"],
    ]
    .concat();
    let ran = user.run(&samplers).await.ok();
    assert_eq!(ran, "{\"deleted_count\":1,\"failed\":[]}\n");
    assert_eq!(left().await, ["weights/a", "weights/b", "weights/c"]);

    let (a, b) = (trained.paths[0].to_string(), trained.paths[1].to_string());
    let confirmed = user
        .run_with_input(&["checkpoint", "delete", &a], "y\n")
        .await;
    assert_eq!(confirmed.ok(), "Deleted 1 checkpoint\n");

    // One is there and one is not: the first is deleted all the same.
    let mixed = user
        .run(&["--json", "checkpoint", "delete", "-y", &a, &b])
        .await;
    assert_eq!(mixed.code, 1, "{mixed:?}");
    let outcome: serde_json::Value = serde_json::from_str(&mixed.stdout).unwrap();
    assert_eq!(outcome["deleted_count"], 1);
    assert_eq!(outcome["failed"][0]["tinker_path"], a);
    assert!(
        outcome["failed"][0]["error"]
            .as_str()
            .unwrap()
            .contains("404")
    );
    assert_eq!(left().await, ["weights/c"]);
    trained.finish().await;
}

#[tokio::test]
async fn deleting_needs_one_selection() {
    let user = User::of("http://127.0.0.1:9");
    let path = "tinker://r:train:0/weights/a";
    for arguments in [
        &["checkpoint", "delete"][..],
        &["checkpoint", "delete", path, "--run-id", "r"],
        &["checkpoint", "delete", path, "--type", "weights"],
        &["checkpoint", "delete", path, "--before", "2020-01-01"],
        &["checkpoint", "delete", "--run-id", "r", "--type", "all"],
        &["checkpoint", "delete", "--run-id", "r", "--after", "soon"],
    ] {
        user.run(arguments).await.failed(2);
    }
}

#[tokio::test]
async fn training_and_external_checkpoints_are_downloaded() {
    let server = Local::start().await;
    let user = server.user();
    let trained = server.trained(&["a"]).await;
    let path = trained.paths[0].to_string();
    let folder = format!("{}_weights_a", trained.run);

    let report = user
        .run(&["--json", "checkpoint", "download", &path, "-o", "out"])
        .await
        .json();
    assert_eq!(report["checkpoint_path"], path);
    assert_eq!(report["destination"], format!("out/{folder}"));
    assert!(report["file_size_bytes"].as_u64().unwrap() > 0);
    let target = user.home().join("out").join(&folder);
    let names: Vec<_> = files(&target)
        .iter()
        .map(|file| file.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert!(
        names.contains(&"adapter_config.json".to_owned()),
        "{names:?}"
    );
    assert!(
        names.contains(&"adapter_model.safetensors".to_owned()),
        "{names:?}"
    );

    // The export was temporary.
    let all = user.run(&["--json", "checkpoint", "list"]).await.json();
    assert_eq!(all["checkpoints"].as_array().unwrap().len(), 1, "{all}");

    let again = ["checkpoint", "download", &path, "-o", "out"];
    let stderr = user.run(&again).await.failed(1);
    assert!(
        stderr.contains("exists already") && stderr.contains("--force"),
        "{stderr}"
    );
    let table = user.run(&[&again[..], &["--force"]].concat()).await.ok();
    assert!(table.contains("Downloaded to"), "{table}");

    let external = trained
        .model
        .save_weights_external("files")
        .await
        .unwrap()
        .path;
    let external = external.to_string();
    user.run(&["checkpoint", "download", &external]).await.ok();
    let target = user
        .home()
        .join(format!("{}_external_weights_files", trained.run));
    assert!(target.join("adapter_config.json").exists());

    let sampler = trained
        .model
        .save_weights_for_sampler("s")
        .await
        .unwrap()
        .to_string();
    let stderr = user
        .run(&["checkpoint", "download", &sampler])
        .await
        .failed(1);
    assert!(stderr.contains("sampler checkpoint"), "{stderr}");
    trained.finish().await;
}

#[tokio::test]
async fn a_failed_download_leaves_nothing_behind() {
    let server = ScriptedServer::start().await;
    let user = User::of(server.url());
    server
        .on("get_external_weights_urls")
        .always()
        .reply(refuse(404, "no such checkpoint"));
    let path = "tinker://r:train:0/external_weights/x";
    let stderr = user.run(&["checkpoint", "download", path]).await.failed(1);
    assert!(
        stderr.contains("could not download the checkpoint"),
        "{stderr}"
    );
    assert!(files(user.home()).is_empty());
}

#[tokio::test]
async fn an_adapter_made_by_peft_is_imported_and_trained_on() {
    let server = Local::start().await;
    let user = server.user();
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/reference");
    let folder = engine.join("imported-adapter").display().to_string();
    let import = [
        "--json",
        "checkpoint",
        "import",
        &folder,
        "--base-model",
        "tiny",
    ];
    let imported = user.run(&import).await.json();
    let path = imported["tinker_path"].as_str().unwrap();
    assert!(path.ends_with("/weights/imported"), "{imported}");
    let named = [
        "checkpoint",
        "import",
        &folder,
        "--base-model",
        "tiny",
        "--name",
        "mine",
    ];
    let table = user.run(&named).await.ok();
    assert!(table.contains("/sampler_weights/mine"), "{table}");

    let info = user
        .run(&["--json", "checkpoint", "info", path])
        .await
        .json();
    assert_eq!(info["lora_rank"], 6);
    // Which trains it for a moment: the files come from a run that was made of it.
    let said = user
        .run(&["checkpoint", "download", path, "-o", "out"])
        .await
        .ok();
    assert!(said.contains("Downloaded to"), "{said}");

    let import = ["checkpoint", "import", &folder, "--base-model", "huge"];
    let stderr = user.run(&import).await.failed(1);
    assert!(stderr.contains("could not import the adapter"), "{stderr}");
    assert!(stderr.contains("`huge`, expected one of: tiny"), "{stderr}");
    let import = ["checkpoint", "import", "nowhere", "--base-model", "tiny"];
    let stderr = user.run(&import).await.failed(1);
    assert!(stderr.contains("nowhere/adapter_config.json"), "{stderr}");
}

#[tokio::test]
async fn an_interrupted_download_leaves_nothing_behind() {
    let server = ScriptedServer::start().await;
    let user = User::of(server.url());
    let never = Gate::closed();
    server
        .on("get_external_weights_urls")
        .always()
        .stall_until(&never);
    let download = [
        "checkpoint",
        "download",
        "tinker://r:train:0/external_weights/x",
    ];
    let asked = server.received("get_external_weights_urls", 1);
    let stderr = user.interrupt(&download, asked).await.failed(130);
    assert!(stderr.contains("error: aborted"), "{stderr}");
    assert!(files(user.home()).is_empty());
}
