//! Pages for people.

use http::Method;
use serde_json::json;

use crate::caller::{Answer, KEY, TestServer};

async fn page(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Answer {
    let without_key = [&[("x-api-key", "")], headers].concat();
    let headers = if headers.iter().any(|(name, _)| *name == "x-api-key") {
        headers
    } else {
        &without_key
    };
    let answer = server.try_send(Method::GET, path, headers, "").await;
    answer.unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[tokio::test]
async fn pages_show_their_owner_what_there_is_and_nobody_else() {
    let server = TestServer::start().await;
    let body = json!({"tags": [], "sdk_version": "0.36.0", "display_name": "<b>mine</b>"});
    let session = server.ok("/create_session", body).await["session_id"].clone();
    let session = session.as_str().unwrap();
    let body = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
    });
    let id = server.promise("/create_model", body).await;
    server.result(&id).await;
    let run = format!("{session}:train:0");
    server.save("/save_weights", &run, 1, "step-1").await;

    let pages = [
        ("/sessions".to_owned(), session),
        (format!("/sessions/{session}"), run.as_str()),
        (format!("/training_runs/{run}"), "weights/step-1"),
        (format!("/checkpoints/{run}/weights%2Fstep-1"), "tinker://"),
    ];
    for (path, expected) in &pages {
        let answer = page(&server, path, &[("x-api-key", KEY)]).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert_eq!(answer.status, 200, "{path}: {text}");
        assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
        assert!(text.contains(expected), "{path}: {text}");
        assert!(!text.contains("<b>"), "{path}: {text}");

        // A browser is sent to the page that logs in; HTTP's own dialogue works, too: here `me:tml-test`.
        let refused = page(&server, path, &[]).await;
        assert_eq!(refused.status, 303, "{path}");
        let login = refused.headers["location"].to_str().unwrap();
        assert!(login.starts_with("/login?next=/"), "{login}");
        let login = [("authorization", "Basic bWU6dG1sLXRlc3Q=")];
        assert_eq!(page(&server, path, &login).await.status, 200, "{path}");
        for bad in ["Basic !", "Basic bWU=", "Bearer tml-test", "Basic bWU6eA=="] {
            let answer = page(&server, path, &[("authorization", bad)]).await;
            assert_eq!(answer.status, 401, "{path}: {bad}");
            let asks = answer.headers["www-authenticate"].to_str().unwrap();
            assert!(asks.starts_with("Basic "), "{asks}");
        }

        let stranger = page(&server, path, &[("x-api-key", "tml-stranger")]).await;
        let text = String::from_utf8(stranger.body.to_vec()).unwrap();
        assert!(!text.contains(expected) || stranger.status == 404, "{text}");
        if path != "/sessions" {
            assert_eq!(stranger.status, 404, "{path}: {text}");
        }
    }
    for path in ["/sessions/none", "/training_runs/none", "/checkpoints/x/y"] {
        let answer = page(&server, path, &[("x-api-key", KEY)]).await;
        assert_eq!(answer.status, 404, "{path}");
    }
}
