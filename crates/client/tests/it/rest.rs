//! Runs, checkpoints, sessions, and what administrators may see.

use crate::support::{RealServer, builder, datums, sampling, service, settle, training};
use anyhow::Result;
use futures_util::future::try_join_all;
use serde_json::json;
use std::time::Duration;
use tinkrs::admin::AuditEventType;
use tinkrs::rest::{AccessScope, SessionSearch, StatusQuery};
use tinkrs::{
    AdamParams, AdminClient, Error, FinishReason, ModelId, RestClient, TinkerPath, TrainingClient,
};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{BASE_MODEL, ManualClock, Reply, refuse, status};

fn rest(server: &ScriptedServer) -> RestClient {
    service(server).create_rest_client()
}

/// Makes runs, all in one session.
async fn runs(server: &RealServer, count: usize) -> Result<Vec<TrainingClient>> {
    let service = service(server);
    let run = || service.create_lora_training_client(BASE_MODEL).rank(32);
    Ok(try_join_all((0..count).map(|_| run().into_future())).await?)
}

async fn save(run: &TrainingClient, names: &[&str]) -> Result<Vec<TinkerPath>> {
    let saved = names.iter().map(|name| run.save_state(*name).submit());
    Ok(try_join_all(saved).await?)
}

#[tokio::test]
async fn clients_with_the_same_settings_share_one_connection() -> Result<()> {
    let server = RealServer::start().await?;
    let opened = || server.requests_to("client_config").len();
    let clients: Vec<_> = (0..4)
        .map(|_| RestClient::with_settings(builder(&server)))
        .collect();
    let lists = clients
        .iter()
        .map(|client| client.list_sessions().into_future());
    try_join_all(lists).await?;
    assert_eq!(opened(), 1, "however many want it at the same time");
    let admin = AdminClient::with_settings(builder(&server));
    admin.get_current_checkpoint_storage_usage(None).await?;
    assert_eq!(opened(), 1);
    let [list, usage] = ["list_sessions", "get_current_checkpoint_storage_usage"]
        .map(|endpoint| server.requests_to(endpoint));
    let lists: Vec<_> = list.iter().map(|request| request.connection).collect();
    assert!(lists.contains(&usage[0].connection), "{lists:?}");

    for other in [
        builder(&server).api_key("tml-another"),
        builder(&server).header("x-own", "1"),
        builder(&server).on_retry(|_| {}),
        builder(&server).http_timeout(Duration::from_secs(7)),
    ] {
        let before = opened();
        let other = RestClient::with_settings(other);
        other.list_sessions().await?;
        assert_eq!(opened(), before + 1);
        other.clone().list_sessions().await?;
        assert_eq!(opened(), before + 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_shared_connection_ends_with_the_last_client_and_stays_on_its_runtime() -> Result<()> {
    let server = RealServer::start().await?;
    let opened = || server.requests_to("client_config").len();
    let list = async |settings| RestClient::with_settings(settings).list_sessions().await;
    list(builder(&server)).await?;
    list(builder(&server)).await?;
    assert_eq!(opened(), 2, "nothing is kept for nobody");

    let client = RestClient::with_settings(builder(&server));
    client.list_sessions().await?;
    let settings = builder(&server);
    let elsewhere = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = RestClient::with_settings(settings);
        Ok::<_, anyhow::Error>(runtime.block_on(async { client.list_sessions().await })?)
    });
    elsewhere.await??;
    assert_eq!(opened(), 4);
    // The other runtime is gone, with the tasks of its connection; ours is not.
    list(builder(&server)).await?;
    assert_eq!(opened(), 4);
    Ok(())
}

#[tokio::test]
async fn pages_stream_lazily() -> Result<()> {
    let server = RealServer::start().await?;
    let _runs = runs(&server, 250).await?;
    let mut runs = rest(&server).all_training_runs();
    settle().await;
    assert!(
        server.requests_to("list_training_runs").is_empty(),
        "nothing is asked for yet"
    );
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
    let server = RealServer::start().await?;
    let names: Vec<_> = (0..120).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let run = training(&server).await?;
    save(&run, &names).await?;
    let _others = try_join_all((1..101).map(|_| sampling(&server))).await?;
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
    assert_eq!(counts, [120, 101, 101]);
    assert_eq!(server.requests_to("search_sessions").len(), 3);
    let pages = server.requests_to("list_user_checkpoints");
    let limits: Vec<_> = pages
        .iter()
        .map(|page| page.query()["limit"].clone())
        .collect();
    assert_eq!(limits, ["1000"], "all of them in one page");
    Ok(())
}

#[tokio::test]
async fn an_error_ends_a_stream() -> Result<()> {
    let server = RealServer::start().await?;
    let _runs = runs(&server, 150).await?;
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
    let server = RealServer::start().await?;
    let runs = runs(&server, 3).await?;
    let mut paths = Vec::new();
    for run in &runs {
        paths.push(save(run, &["step-0", "step-1"]).await?);
    }
    let (run, path): (&ModelId, _) = (runs[1].model_id(), paths[1][1].clone());
    let rest = rest(&server);
    let before = server.requests().len();
    assert_eq!(rest.get_training_run(run).await?.training_run_id, *run);
    assert_eq!(
        rest.get_training_run_by_tinker_path(&path)
            .await?
            .training_run_id,
        *run
    );
    let page = rest.list_training_runs().limit(2).offset(1).await?;
    assert_eq!((page.training_runs.len(), page.cursor.total_count), (2, 3));
    assert_eq!(rest.list_checkpoints(run).await?.len(), 2);
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
    assert!(rest.list_checkpoints(run).await?[0].public);
    rest.unpublish_checkpoint(&path).await?;
    rest.set_checkpoint_ttl(&path, Some(Duration::from_secs(7_200)))
        .await?;
    assert!(rest.list_checkpoints(run).await?[0].expires_at.is_some());
    rest.set_checkpoint_ttl(&path, None).await?;
    let ttl = server.requests_to("set_checkpoint_ttl");
    assert_eq!(
        ttl[1].json(),
        json!({"ttl_seconds": null}),
        "null is written"
    );
    rest.delete_checkpoint(&path).await?;
    assert_eq!(rest.list_checkpoints(run).await?.len(), 1);
    let error = rest.delete_checkpoint(&path).await.unwrap_err();
    assert_eq!(error.status(), Some(404));

    let methods: Vec<_> = server
        .requests()
        .iter()
        .skip(before)
        .filter(|request| !request.endpoint.contains("config") && request.endpoint != "auth_token")
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
async fn whose_things_are_asked_for_is_part_of_the_question() -> Result<()> {
    let server = RealServer::start().await?;
    let run = training(&server).await?;
    let (id, session) = (run.model_id(), run.session_id());
    let path = run.save_state("one").await?;
    let rest = rest(&server);
    let all = AccessScope::Accessible;
    let same = [
        rest.get_training_run(id).access_scope(all).await?,
        rest.get_training_run_by_tinker_path(&path)
            .access_scope(all)
            .await?,
    ];
    assert!(same.iter().all(|run| run.training_run_id == *id));
    let info = rest.get_session(session).access_scope(all).await?;
    assert_eq!(info.training_run_ids, std::slice::from_ref(id));
    let listed = rest.list_sessions().access_scope(all).await?;
    assert_eq!(listed, std::slice::from_ref(session));
    let mut sessions = rest.list_sessions().access_scope(all).all();
    assert_eq!(&sessions.next().await.unwrap()?, session);
    let mut runs = rest.list_training_runs().access_scope(all);
    runs = runs.project_id("local");
    assert_eq!(runs.clone().await?.training_runs.len(), 1);
    assert_eq!(runs.all().next().await.unwrap()?.training_run_id, *id);
    let elsewhere = rest.list_training_runs().project_id("p2").await;
    assert_eq!(elsewhere.unwrap_err().status(), Some(403));

    let asked = |endpoint: &str| server.requests_to(endpoint);
    let counts = [
        "get_training_run",
        "get_session",
        "list_sessions",
        "list_training_runs",
    ];
    for endpoint in counts {
        let scope = asked(endpoint)[0].query()["access_scope"].clone();
        assert_eq!(scope, "accessible", "{endpoint}");
    }
    for request in &asked("list_training_runs")[..2] {
        assert_eq!(request.query()["project_id"], "local");
    }
    Ok(())
}

#[tokio::test]
async fn sessions_are_found_moved_and_exported() -> Result<()> {
    let server = RealServer::start().await?;
    let service = service(&server);
    let client = service.create_lora_training_client(BASE_MODEL).await?;
    let id = client.session_id().clone();
    let rest = service.create_rest_client();
    assert_eq!(
        rest.get_session(&id).await?.training_run_ids,
        [client.model_id().clone()]
    );
    assert_eq!(rest.list_sessions().limit(10).await?.first(), Some(&id));
    rest.assign_session_project(&id, "local".into()).await?;
    let elsewhere = rest.assign_session_project(&id, "p2".into()).await;
    assert_eq!(elsewhere.unwrap_err().status(), Some(403));
    let search = SessionSearch {
        project_ids: Some(vec!["local".into()]),
        statuses: Some(vec![StatusQuery::Active]),
        ..SessionSearch::default()
    };
    assert_eq!(rest.search_sessions(&search).await?.sessions.len(), 1);
    let url = rest.export_session_trace(&id).await?;
    assert!(url.starts_with(&server.url()), "{url}");
    service.close(FinishReason::Success, None).await?;
    let rest = self::rest(&server);
    assert_eq!(rest.search_sessions(&search).await?.sessions.len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_trace_is_asked_for_until_it_is_ready() -> Result<()> {
    let clock = ManualClock::start();
    let server = ScriptedServer::start().await;
    let rest = rest(&server);
    let (id, export) = ("s-1".into(), "export_session_trace");
    let pending = json!({"status": "pending"});
    let ready = json!({"status": "ready", "url": "http://there/trace"});
    server.on(export).times(2).reply(Reply::json(&pending));
    server.on(export).reply(Reply::json(&ready));
    let url = clock.advance_until(rest.export_session_trace(&id)).await?;
    assert_eq!(url, "http://there/trace");
    assert_eq!(server.requests_to(export).len(), 3);
    let failed = json!({"status": "failed", "error": "too large"});
    server.on(export).reply(Reply::json(&failed));
    assert!(rest.export_session_trace(&id).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_copy_is_made_once_however_often_it_is_asked_for() -> Result<()> {
    let server = RealServer::start().await?;
    let run = training(&server).await?;
    let path = run.save_state("one").await?;
    let rest = rest(&server);
    let soon = status(500).header("retry-after-ms", "1");
    server.on("copy_weights").executed().reset();
    server.on("copy_weights").executed().reply(soon);
    let copied = rest.copy_weights(path.clone()).to_project("local").await?;
    assert_ne!(copied, path);
    let tries = server.requests_to("copy_weights");
    assert_eq!(tries.len(), 3);
    let keys: Vec<_> = tries
        .iter()
        .map(|r| r.header("x-idempotency-key"))
        .collect();
    assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]));
    let listed = rest.list_user_checkpoints().limit(10).await?;
    assert_eq!(listed.checkpoints.len(), 2);
    Ok(())
}

#[tokio::test]
async fn another_accounts_checkpoint_is_copied_with_that_accounts_token() -> Result<()> {
    let server = ScriptedServer::start().await;
    let copy = json!({"tinker_path": "tinker://c:train:0/weights/x"});
    server.on("copy_weights").reply(Reply::json(&copy));
    rest(&server)
        .copy_weights("tinker://r:train:0/weights/x".parse::<TinkerPath>()?)
        .to_project("p")
        .weights_access_token("tml-theirs")
        .await?;
    let request = &server.requests_to("copy_weights")[0];
    assert_eq!(
        request.header("x-tinker-weights-access-token"),
        Some("tml-theirs")
    );
    assert!(!String::from_utf8_lossy(&request.body).contains("theirs"));
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
    let server = RealServer::start().await?;
    let runs = runs(&server, 2).await?;
    for run in &runs {
        run.forward_backward(datums([5])).await?;
        run.optim_step(AdamParams::new(0.1)).await?;
        let paths = save(run, &["one", "two"]).await?;
        rest(&server).publish_checkpoint(&paths[0]).await?;
    }
    let admin = service(&server).create_admin_client();
    let log = admin.get_audit_log(AuditEventType::All, None).await?;
    assert_eq!(log.entries.len(), 6, "saved and published");
    let log = admin.get_audit_log(AuditEventType::Teams, None).await?;
    assert!(log.entries.is_empty());
    let now = jiff::Timestamp::now().as_second();
    let hour = |from_now: i64| jiff::Timestamp::from_second(now - now % 3600 + 3600 * from_now);
    let usage = admin.get_billing_usage(hour(-1)?, hour(2)?).await?;
    assert_eq!(usage.sessions.len(), 1);
    assert!(!usage.data.is_empty());
    let asked = server.requests_to("get_billing_usage").len();
    let error = admin
        .get_billing_usage(hour(-1_000)?, hour(2)?)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    assert_eq!(server.requests_to("get_billing_usage").len(), asked);
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
    for there in [&server, &elsewhere] {
        let location = format!("{}/files/audit", there.url());
        let redirect = refuse(307, "over there").header("location", &location);
        server.on("get_audit_log").reply(redirect);
        let log = Reply::json(&json!({"entries": []}));
        there.on("file").reply(log);
        admin
            .get_audit_log(AuditEventType::Checkpoints, None)
            .await?;
    }
    assert!(server.requests_to("file")[0].key().is_some());
    let there = elsewhere.requests_to("file");
    assert_eq!(there.len(), 1);
    assert_eq!(there[0].key(), None, "the key stays at home");
    Ok(())
}

#[tokio::test]
async fn external_weights_have_urls_that_need_no_key() -> Result<()> {
    let server = RealServer::start().await?;
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
