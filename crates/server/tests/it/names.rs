//! Runs have names, which stand wherever a path does.

use http::Method;
use serde_json::{Value, json};

use crate::caller::{Owner, TestServer};

async fn named(server: &TestServer, name: &str) -> String {
    let body = json!({
        "session_id": server.session().await, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1}, "user_metadata": {"name": name, "other": "label"},
    });
    let id = server.promise("/create_model", body).await;
    let created = server.result(&id).await;
    created["model_id"].as_str().unwrap().to_owned()
}

async fn run(owner: &Owner<'_>, id: &str) -> Value {
    owner.get(&format!("/training_runs/{id}")).await
}

#[tokio::test]
async fn a_run_is_found_by_the_name_that_it_was_given_or_got() {
    let server = TestServer::start().await;
    let (first, second) = (
        named(&server, "my run").await,
        named(&server, "my-run").await,
    );
    let unnamed = server.model().await;
    let me = server.me();
    assert_eq!(run(&me, &first).await["name"], "my-run");
    assert_eq!(
        run(&me, &first).await["user_metadata"],
        json!({"name": "my-run", "other": "label"})
    );
    // The same script, run twice, does not fail.
    let again = run(&me, &second).await;
    assert_eq!(again["name"], "my-run-2");
    assert_eq!(again["user_metadata"]["name"], "my-run-2");
    let made_up = run(&me, &unnamed).await;
    assert_eq!(made_up["user_metadata"], Value::Null);
    let made_up = made_up["name"].as_str().unwrap().to_owned();
    let server = server.restart(|_| ()).await;
    let me = server.me();
    for (name, id) in [
        ("my-run", &first),
        ("my-run-2", &second),
        (made_up.as_str(), &unnamed),
    ] {
        assert_eq!(run(&me, name).await["training_run_id"], **id, "{name}");
    }
    assert_eq!(named(&server, "my-run").await.len(), first.len());
    let third = server.get("/training_runs").await;
    let names = third["training_runs"].as_array().unwrap().iter();
    assert!(
        names.clone().any(|run| run["name"] == "my-run-3"),
        "{third}"
    );
    // What somebody else has called a run is nobody's business.
    let other = server.owner("tml-other");
    let answer = other
        .call(Method::GET, "/training_runs/my-run", &Value::Null)
        .await;
    assert_eq!(answer.status, 404, "{answer:?}");
}

#[tokio::test]
async fn a_name_stands_for_a_path_in_every_endpoint() {
    let server = TestServer::start().await;
    let model = named(&server, "mine").await;
    let state = server.save("/save_weights", &model, 1, "step-000120").await;
    let weights = server
        .save("/save_weights_for_sampler", &model, 2, "final")
        .await;
    let session = server.session().await;
    for (number, path) in ["mine", "mine@latest", "mine@final", "tinker://mine"]
        .iter()
        .enumerate()
    {
        let body = json!({
            "session_id": session, "sampling_session_seq_id": number, "model_path": path,
        });
        let opened = server.ok("/create_sampling_session", body).await;
        let sampler = opened["sampling_session_id"].as_str().unwrap();
        let info = server.get(&format!("/samplers/{sampler}")).await;
        assert_eq!(info["model_path"], weights.as_str(), "{path}");
    }
    let load = json!({
        "session_id": session, "model_seq_id": 0, "path": "mine@120", "optimizer": true,
    });
    let id = server.promise("/load_weights", load).await;
    server.result(&id).await;
    let into =
        json!({"model_id": model, "seq_id": 3, "path": "tinker://mine@120", "optimizer": true});
    let id = server.promise("/load_weights", into).await;
    assert_eq!(server.result(&id).await["path"], state.as_str());
    let info = server
        .ok("/weights_info", json!({"tinker_path": "mine@120"}))
        .await;
    assert_eq!(info["base_model"], "tiny");
    for (name, kind) in [("mine", "weights"), ("mine@final", "sampler_weights")] {
        let copy = server.ok("/copy_weights", json!({"source_path": name}));
        let copy = copy.await["tinker_path"].clone();
        let part = format!("/{kind}/");
        assert!(copy.as_str().unwrap().contains(&part), "{name}: {copy}");
    }

    let refused = |path: &'static str| {
        let server = &server;
        let body = json!({
            "session_id": session, "sampling_session_seq_id": 9, "model_path": path,
        });
        async move { server.post("/create_sampling_session", body).await }
    };
    // There is a state of that step, and nothing to sample from.
    let answer = refused("mine@120").await;
    assert_eq!(answer.status, 400);
    assert!(
        answer
            .detail()
            .contains("sampler_weights/final, weights/step-000120"),
        "{answer:?}"
    );
    assert_eq!(refused("nobody").await.status, 404);
    let other = server.owner("tml-other");
    let body = json!({"tinker_path": "mine@120"});
    let answer = other.call(Method::POST, "/weights_info", &body).await;
    assert_eq!(answer.status, 404, "{answer:?}");

    let me = server.me();
    let address = "/training_runs/mine/checkpoints/sampler_weights/final";
    let publish = me
        .call(Method::POST, &format!("{address}/publish"), &Value::Null)
        .await;
    assert_eq!(publish.status, 200, "{publish:?}");
    let ttl = json!({"ttl_seconds": 7200});
    let set = me.call(Method::PUT, &format!("{address}/ttl"), &ttl).await;
    assert_eq!(set.status, 200, "{set:?}");
    let deleted = me.call(Method::DELETE, address, &Value::Null).await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let left = server.get("/training_runs/mine/checkpoints").await;
    assert_eq!(left["checkpoints"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_run_that_goes_on_from_a_checkpoint_keeps_the_name() {
    let server = TestServer::start().await;
    let first = named(&server, "mine").await;
    let state = server.save("/save_weights", &first, 1, "a").await;
    let load = json!({
        "session_id": server.session().await, "model_seq_id": 0, "path": state, "optimizer": true,
        "user_metadata": {"name": "mine"},
    });
    let id = server.promise("/load_weights", load).await;
    server.result(&id).await;
    let server = server.restart(|_| ()).await;
    let me = server.me();
    assert_eq!(run(&me, &first).await["name"], "mine-2");
    assert_ne!(run(&me, "mine").await["training_run_id"], first.as_str());
    assert_eq!(run(&me, "mine-2").await["training_run_id"], first.as_str());
}

/// Creates a run as a client does that resumes: with `create_model`, and the name and id of the training.
async fn attempt(owner: &Owner<'_>, name: &str, resume_id: &str) -> String {
    let session = json!({"tags": [], "user_metadata": {}, "sdk_version": "t", "project_id": null});
    let session = owner.ok("/create_session", session).await;
    let body = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1},
        "user_metadata": {"name": name, "resume_id": resume_id},
    });
    let created = owner.result("/create_model", body).await;
    created["model_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_newest_attempt_of_a_training_has_its_name_and_what_the_earlier_ones_saved() {
    let server = TestServer::start().await;
    let (me, other) = (server.me(), server.owner("tml-other"));
    let first = attempt(&me, "mine", "t1").await;
    let state = server.save("/save_weights", &first, 1, "step-000010").await;
    // One that is killed before it saves anything is an attempt, too.
    let second = attempt(&me, "mine", "t1").await;
    let third = attempt(&me, "mine", "t1").await;
    // Another training, of the same owner or of another one, takes nothing.
    let stranger = attempt(&me, "mine", "t2").await;
    let theirs = attempt(&other, "mine", "t1").await;
    let server = server.restart(|_| ()).await;
    let (me, other) = (server.me(), server.owner("tml-other"));
    for (id, name) in [
        (&first, "mine-2"),
        (&second, "mine-3"),
        (&third, "mine"),
        (&stranger, "mine-4"),
    ] {
        assert_eq!(run(&me, id).await["name"], name);
        assert_eq!(run(&me, name).await["training_run_id"], id.as_str());
    }
    assert_eq!(
        run(&other, "mine").await["training_run_id"],
        theirs.as_str()
    );

    let load = |seq_id: i64, path: &str| {
        let body = json!({"model_id": third, "seq_id": seq_id, "path": path, "optimizer": true});
        me.result("/load_weights", body)
    };
    assert_eq!(load(1, "mine@10").await["path"], state.as_str());
    let body = json!({"tinker_path": "mine@10"});
    let nothing = other.call(Method::POST, "/weights_info", &body).await;
    assert!(
        nothing.detail().contains("saved nothing yet"),
        "{nothing:?}"
    );
    let newer = server.save("/save_weights", &third, 2, "step-000010").await;
    assert_eq!(load(3, "mine@10").await["path"], newer.as_str());
}
