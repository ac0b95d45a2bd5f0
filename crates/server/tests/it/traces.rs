//! Traces of sessions.

use serde_json::json;

use crate::caller::TestServer;

fn count(trace: &[u8], text: &str) -> usize {
    let windows = trace.windows(text.len());
    windows.filter(|window| *window == text.as_bytes()).count()
}

#[tokio::test]
async fn a_trace_has_every_request_of_its_session_also_after_a_restart() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap().to_owned();
    let pass = server.forward_backward(&model, 1).await;
    server.loss(&pass).await;
    let step = server.optim_step(&model, 2).await;
    server.result(&step).await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = server.ok("/create_sampling_session", body).await;
    let body = json!({
        "sampling_session_id": sampler["sampling_session_id"], "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 2},
    });
    let sample = server.promise("/asample", body).await;
    server.result(&sample).await;
    let other = server.model().await;
    let other = server.forward_backward(&other, 1).await;
    server.loss(&other).await;

    let server = server.restart(|_| {}).await;
    let export = format!("/sessions/{session}/trace_export");
    let trace = server.get(&export).await;
    assert_eq!(trace["status"], "ready", "{trace}");
    let link = trace["url"].as_str().unwrap();
    let trace = server.follow(link, &[]).await;
    assert_eq!(trace.status, 200);
    for (text, expected) in [
        (pass.as_str(), 1),
        (step.as_str(), 1),
        (sample.as_str(), 1),
        (other.as_str(), 0),
        ("create_model", 1),
        ("optim_step", 1),
        // Tracks: operations of a run that waited for their results one by one need no second one.
        (model.as_str(), 1),
    ] {
        assert_eq!(count(&trace.body, text), expected, "{text}");
    }
    for forged in [
        link.replace(&session, "other"),
        link.split('?').next().unwrap().to_owned(),
    ] {
        assert_eq!(server.follow(&forged, &[]).await.status, 403, "{forged}");
    }
}
