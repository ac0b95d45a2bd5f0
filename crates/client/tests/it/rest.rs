//! Runs, checkpoints, sessions, and what administrators may see.

use crate::support::{service, settle, training};
use anyhow::Result;
use serde_json::json;
use std::time::Duration;
use tinkrs::admin::AuditEventType;
use tinkrs::rest::{SessionSearch, StatusQuery};
use tinkrs::{Error, FinishReason, RestClient, TinkerPath};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{ManualClock, Reply, status};

fn rest(server: &ScriptedServer) -> RestClient {
    service(server).create_rest_client()
}

#[tokio::test]
async fn pages_stream_lazily() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.add_runs(250, 1);
    let mut runs = rest(&server).all_training_runs();
    settle().await;
    assert!(server.requests().is_empty(), "nothing is asked for yet");
    for _ in 0..100 {
        runs.next().await.unwrap()?;
    }
    assert_eq!(server.requests_to("list_training_runs").len(), 1);
    runs.next().await.unwrap()?;
    assert_eq!(server.requests_to("list_training_runs").len(), 2);
    let mut count = 101;
    while let Some(run) = runs.next().await {
        run?;
        count += 1;
    }
    assert_eq!(count, 250);
    assert_eq!(server.requests_to("list_training_runs").len(), 3);
    Ok(())
}

#[tokio::test]
async fn all_listings_stream_to_their_end() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.add_runs(120, 1);
    let rest = rest(&server);
    let mut checkpoints = rest.all_user_checkpoints();
    let mut sessions = rest.all_sessions();
    let search = SessionSearch {
        limit: 50,
        ..SessionSearch::default()
    };
    let mut found = rest.all_found_sessions(search);
    let mut counts = [0; 3];
    while let Some(checkpoint) = checkpoints.next().await {
        checkpoint?;
        counts[0] += 1;
    }
    while let Some(session) = sessions.next().await {
        session?;
        counts[1] += 1;
    }
    while let Some(session) = found.next().await {
        session?;
        counts[2] += 1;
    }
    assert_eq!(counts, [120, 120, 120]);
    assert_eq!(server.requests_to("search_sessions").len(), 3);
    Ok(())
}

#[tokio::test]
async fn an_error_ends_a_stream() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.add_runs(150, 0);
    server.on("list_training_runs").nth(2).reply(status(403));
    let mut runs = rest(&server).all_training_runs();
    for _ in 0..100 {
        runs.next().await.unwrap()?;
    }
    assert_eq!(runs.next().await.unwrap().unwrap_err().status(), Some(403));
    assert!(runs.next().await.is_none());
    Ok(())
}

#[tokio::test]
async fn runs_and_checkpoints_are_read_and_changed() -> Result<()> {
    let server = ScriptedServer::start().await;
    let run = server.add_runs(3, 2).remove(1);
    let path: TinkerPath = format!("tinker://{run}/weights/step-1").parse()?;
    let rest = rest(&server);
    assert_eq!(rest.get_training_run(&run).await?.training_run_id, run);
    assert_eq!(
        rest.get_training_run_by_tinker_path(&path)
            .await?
            .training_run_id,
        run
    );
    let page = rest.list_training_runs().limit(2).offset(1).await?;
    assert_eq!((page.training_runs.len(), page.cursor.total_count), (2, 3));
    assert_eq!(rest.list_checkpoints(&run).await?.len(), 2);
    assert_eq!(
        rest.list_user_checkpoints()
            .limit(4)
            .await?
            .checkpoints
            .len(),
        4
    );
    let info = rest.get_weights_info_by_tinker_path(&path).await?;
    assert_eq!(info.lora_rank, Some(32));

    rest.publish_checkpoint(&path).await?;
    assert!(rest.list_checkpoints(&run).await?[0].public);
    rest.unpublish_checkpoint(&path).await?;
    rest.set_checkpoint_ttl(&path, Some(Duration::from_secs(7_200)))
        .await?;
    assert!(rest.list_checkpoints(&run).await?[0].expires_at.is_some());
    rest.set_checkpoint_ttl(&path, None).await?;
    let ttl = server.requests_to("set_checkpoint_ttl");
    assert_eq!(
        ttl[1].json(),
        json!({"ttl_seconds": null}),
        "null is written"
    );
    rest.delete_checkpoint(&path).await?;
    assert_eq!(rest.list_checkpoints(&run).await?.len(), 1);
    let error = rest.delete_checkpoint(&path).await.unwrap_err();
    assert_eq!(error.status(), Some(404));

    let methods: Vec<_> = server
        .requests()
        .iter()
        .filter_map(|request| request.header("x-sdk-method").map(str::to_owned))
        .collect();
    assert_eq!(methods[0], "get_training_run");
    assert!(methods.contains(&"delete_checkpoint_from_tinker_path".to_owned()));
    let publish = &server.requests_to("publish_checkpoint")[0];
    assert_eq!(publish.header("content-type"), Some("application/json"));
    assert!(publish.body.is_empty());
    Ok(())
}

#[tokio::test]
async fn sessions_are_found_moved_and_exported() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let service = service(&server);
    let client = service.create_lora_training_client("test/model").await?;
    let id = client.session_id().clone();
    let rest = service.create_rest_client();
    assert_eq!(
        rest.get_session(&id).await?.training_run_ids,
        [client.model_id().clone()]
    );
    assert_eq!(rest.list_sessions().limit(10).await?.first(), Some(&id));
    rest.assign_session_project(&id, "p2".into()).await?;
    let search = SessionSearch {
        project_ids: Some(vec!["p2".into()]),
        statuses: Some(vec![StatusQuery::Active]),
        ..SessionSearch::default()
    };
    assert_eq!(rest.search_sessions(&search).await?.sessions.len(), 1);
    let pending = json!({"status": "pending"});
    server
        .on("export_session_trace")
        .times(2)
        .reply(Reply::json(&pending));
    let url = clock.advance_until(rest.export_session_trace(&id)).await?;
    assert!(url.contains("/files/"), "{url}");
    assert_eq!(server.requests_to("export_session_trace").len(), 3);
    let failed = json!({"status": "failed", "error": "too large"});
    server
        .on("export_session_trace")
        .reply(Reply::json(&failed));
    assert!(rest.export_session_trace(&id).await.is_err());
    service.close(FinishReason::Success, None).await?;
    Ok(())
}

#[tokio::test]
async fn a_copy_is_made_once_however_often_it_is_asked_for() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let run = server.add_runs(1, 1).remove(0);
    let path: TinkerPath = format!("tinker://{run}/weights/step-0").parse()?;
    let rest = rest(&server);
    server.on("copy_weights").executed().reset();
    server.on("copy_weights").executed().reply(status(500));
    let copy = rest
        .copy_weights(path.clone())
        .to_project("p")
        .weights_access_token("tml-theirs");
    let copied = clock.advance_until(copy.into_future()).await?;
    assert_ne!(copied, path);
    let tries = server.requests_to("copy_weights");
    assert_eq!(tries.len(), 3);
    let keys: Vec<_> = tries
        .iter()
        .map(|r| r.header("x-idempotency-key"))
        .collect();
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_eq!(
        tries[0].header("x-tinker-weights-access-token"),
        Some("tml-theirs")
    );
    assert!(!String::from_utf8_lossy(&tries[0].body).contains("theirs"));
    assert_eq!(
        rest.list_user_checkpoints()
            .limit(10)
            .await?
            .checkpoints
            .len(),
        2
    );
    Ok(())
}

#[tokio::test]
async fn a_copy_needs_a_project() -> Result<()> {
    let server = ScriptedServer::start().await;
    let path: TinkerPath = "tinker://r/weights/x".parse()?;
    let error = rest(&server).copy_weights(path).await.unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    Ok(())
}

#[tokio::test]
async fn administrators_read_logs_bills_and_storage() -> Result<()> {
    let server = ScriptedServer::start().await;
    server.add_runs(2, 2);
    let admin = service(&server).create_admin_client();
    let log = admin.get_audit_log(AuditEventType::All, None).await?;
    assert_eq!(log.entries.len(), 2);
    let start = "2026-01-01T00:00:00Z".parse()?;
    let usage = admin
        .get_billing_usage(start, "2026-01-02T00:00:00Z".parse()?)
        .await?;
    assert_eq!(usage.data.len(), 1);
    let error = admin
        .get_billing_usage(start, "2026-03-01T00:00:00Z".parse()?)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    let storage = admin.get_current_checkpoint_storage_usage(None).await?;
    assert_eq!(storage.data[0].checkpoint_count, 4);
    let query = server.requests_to("get_audit_log")[0].query();
    assert_eq!(query["event_type"], "all");
    Ok(())
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_followed_without_the_key() -> Result<()> {
    let (server, elsewhere) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let admin = service(&server).create_admin_client();
    for origin in [server.url(), elsewhere.url()] {
        server.redirect_audit(&origin);
        let log = admin
            .get_audit_log(AuditEventType::Checkpoints, None)
            .await?;
        assert_eq!(log.entries.len(), 1);
    }
    let there = elsewhere.requests_to("file");
    assert_eq!(there.len(), 1);
    assert_eq!(there[0].key(), None, "the key stays at home");
    Ok(())
}

#[tokio::test]
async fn external_weights_have_urls_that_need_no_key() -> Result<()> {
    let server = ScriptedServer::start().await;
    let client = training(&server).await?;
    let saved = client.save_weights_external("final").await?;
    let urls = rest(&server).get_external_weights_urls(&saved.path).await?;
    assert_eq!(urls.urls.len(), 2);
    let wrong: TinkerPath = "tinker://r/weights/x".parse()?;
    let error = rest(&server)
        .get_external_weights_urls(&wrong)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    Ok(())
}
