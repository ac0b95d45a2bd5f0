//! Logging in, cookies, and requests that other sites make a browser send.

use http::Method;
use serde_json::{Value, json};

use super::browser::Browser;
use crate::caller::{KEY, TestServer};

const PAGES: [&str; 4] = ["/", "/runs/x", "/playground", "/server"];

#[tokio::test]
async fn whoever_is_not_logged_in_is_sent_to_the_page_that_does_it() {
    let server = TestServer::start().await;
    let mut browser = Browser::new(&server);
    for path in PAGES {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, 303, "{path}");
        let location = answer.headers["location"].to_str().unwrap();
        assert!(location.starts_with("/login"), "{path}: {location}");
        // From a link on another site the browser holds the cookie back, and has it when it asks again.
        let answer = browser
            .send(Method::GET, path, &[("sec-fetch-site", "cross-site")], "")
            .await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(text.contains(&format!("0; url={path}")), "{text}");
    }
    let answer = browser.get("/login?next=/server").await;
    assert_eq!(answer.status, 200);
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers["cache-control"], "no-store");
}

#[tokio::test]
async fn a_key_logs_in_until_the_browser_logs_out() {
    let server = TestServer::start().await;
    let mut browser = Browser::new(&server);
    let refused = browser.log_in("sk-wrong", &[]).await;
    assert_eq!(refused.status, 401);
    assert!(browser.cookies.is_empty());
    let answer = browser.log_in(KEY, &[]).await;
    assert_eq!(answer.headers["location"], "/server");
    assert!(!browser.cookies.contains("tml-"), "{}", browser.cookies);
    for path in ["/", "/playground", "/server"] {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer", "{path}");
    }
    let run = server.model().await;
    let listed = browser.get("/api/v1/training_runs").await;
    assert_eq!(listed.headers["cache-control"], "no-store");
    assert_eq!(listed.json()["training_runs"][0]["training_run_id"], run);
    // Another owner's browser sees nothing of it.
    let mut stranger = Browser::logged_in(&server, "tml-stranger").await;
    let path = format!("/api/v1/training_runs/{run}");
    assert_eq!(stranger.get(&path).await.status, 404);

    let out = browser.send(Method::POST, "/logout", &[], "").await;
    assert_eq!(out.status, 303);
    assert!(browser.cookies.is_empty(), "{}", browser.cookies);
    assert_eq!(browser.get("/api/v1/training_runs").await.status, 401);
    assert_eq!(browser.get("/").await.status, 303);
}

#[tokio::test]
async fn a_cookie_is_secure_behind_tls() {
    let server = TestServer::start().await;
    let mut browser = Browser::new(&server);
    let plain = browser.log_in(KEY, &[]).await;
    let proxied = browser.log_in(KEY, &[("x-forwarded-proto", "https")]).await;
    for (answer, secure) in [(plain, false), (proxied, true)] {
        let cookie = answer.headers["set-cookie"].to_str().unwrap();
        assert_eq!(cookie.contains("; Secure"), secure, "{cookie}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_can_neither_write_nor_read_nor_log_in() {
    let server = TestServer::start().await;
    let mut browser = Browser::logged_in(&server, KEY).await;
    let own = format!("http://{}", server.address());
    let mark = ("x-tinkrs-studio", "1");
    let body = json!({"tags": [], "sdk_version": "1"}).to_string();
    let path = "/api/v1/create_session";
    let ours: [&[(&str, &str)]; 3] = [
        &[mark, ("origin", &own)],
        &[mark, ("sec-fetch-site", "same-origin")],
        &[mark, ("origin", &own), ("sec-fetch-site", "same-origin")],
    ];
    for headers in ours {
        let answer = browser.send(Method::POST, path, headers, &body).await;
        assert_eq!(answer.status, 200, "{headers:?}: {:?}", answer.body);
    }
    let others: [&[(&str, &str)]; 8] = [
        &[],
        &[mark],
        &[("origin", &own)],
        &[("sec-fetch-site", "same-origin")],
        &[mark, ("origin", "http://127.0.0.1:1")],
        &[mark, ("origin", "null")],
        &[mark, ("sec-fetch-site", "same-site")],
        &[mark, ("sec-fetch-site", "none")],
    ];
    for headers in others {
        for method in [Method::POST, Method::DELETE] {
            let answer = browser.send(method, path, headers, &body).await;
            assert_eq!(answer.status, 403, "{headers:?}: {:?}", answer.body);
        }
    }
    for site in ["cross-site", "same-site"] {
        let headers = [("sec-fetch-site", site)];
        let answer = browser
            .send(Method::GET, "/api/v1/sessions", &headers, "")
            .await;
        assert_eq!(answer.status, 403, "{site}");
        assert_eq!(browser.log_in(KEY, &headers).await.status, 403, "{site}");
    }
    // With a key nothing changes, whatever else is in the request.
    let headers = [("x-api-key", KEY), ("origin", "http://evil.example")];
    let answer = server.send(Method::POST, "/create_session", &headers, body);
    assert_eq!(answer.await.status, 200);
}

#[tokio::test]
async fn a_link_logs_in_once() {
    let server = TestServer::start().await;
    assert_eq!(server.server().login_path("sk-wrong"), None);
    let made = server.server().login_path(KEY).unwrap();
    let asked = server.ok("/studio/login_link", json!({})).await["path"].clone();
    for path in [made.as_str(), asked.as_str().unwrap()] {
        // A page that sends its reader there does not log them in as somebody.
        let mut tricked = Browser::new(&server);
        let other = [("sec-fetch-site", "cross-site")];
        tricked.send(Method::GET, path, &other, "").await;
        assert!(tricked.cookies.is_empty());

        let mut browser = Browser::new(&server);
        let answer = browser
            .send(Method::GET, path, &[("sec-fetch-site", "none")], "")
            .await;
        assert_eq!(answer.status, 303, "{path}");
        assert_eq!(browser.get("/").await.status, 200);
        let mut second = Browser::new(&server);
        let answer = second.get(path).await;
        assert_eq!(answer.status, 200, "the page that asks for a key");
        assert!(second.cookies.is_empty());
    }
}

#[tokio::test]
async fn a_shared_link_reads_one_run_and_nothing_else() {
    let server = TestServer::start().await;
    let (run, other) = (server.model().await, server.model().await);
    let path = format!("/training_runs/{run}/share");
    let url = server.ok(&path, json!({"hours": 2})).await["url"].clone();
    for hours in [json!(0), json!(721), json!(-1), json!(1.5), Value::Null] {
        let answer = server.post(&path, json!({"hours": hours})).await;
        assert_eq!(answer.status, 400, "{hours}");
        assert!(answer.detail().contains("hours"), "{}", answer.detail());
    }
    let link = url.as_str().unwrap().strip_prefix(&server.url()).unwrap();
    let mut guest = Browser::new(&server);
    // It is followed from anywhere.
    let answer = guest
        .send(Method::GET, link, &[("sec-fetch-site", "cross-site")], "")
        .await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.contains(&format!("0; url=/runs/{run}")), "{text}");
    assert_eq!(guest.get(&format!("/runs/{run}")).await.status, 200);
    let read = format!("/api/v1/training_runs/{run}");
    assert_eq!(guest.get(&read).await.status, 200);
    for path in ["/", "/playground", "/server", &format!("/runs/{other}")] {
        assert_eq!(guest.get(path).await.status, 303, "{path}");
    }
    for path in [
        "/api/v1/training_runs".to_owned(),
        format!("/api/v1/training_runs/{other}"),
        "/api/v1/sessions".to_owned(),
        "/v1/models".to_owned(),
    ] {
        assert_eq!(guest.get(&path).await.status, 403, "{path}");
    }
    let own = [("x-tinkrs-studio", "1"), ("sec-fetch-site", "same-origin")];
    for (method, path) in [
        (Method::POST, format!("/api/v1/training_runs/{run}/share")),
        (Method::POST, "/api/v1/studio/login_link".to_owned()),
        (Method::POST, "/api/v1/optim_step".to_owned()),
    ] {
        let answer = guest.send(method, &path, &own, "{}").await;
        assert_eq!(answer.status, 403, "{path}: {:?}", answer.body);
    }
    // Whoever is logged in stays so, and sees the run as well.
    let mut member = Browser::logged_in(&server, "tml-member").await;
    member.get(link).await;
    assert_eq!(member.get(&read).await.status, 200);
    assert_eq!(member.get("/").await.status, 200);
    // And the owner's own page is not read-only for having followed the link.
    let mut owner = Browser::logged_in(&server, KEY).await;
    owner.get(link).await;
    let answer = owner
        .send(
            Method::POST,
            &format!("{read}/share"),
            &own,
            "{\"hours\":1}",
        )
        .await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

#[tokio::test]
async fn a_cookie_survives_a_restart_and_ends_with_its_key() {
    let server = TestServer::start().await;
    let cookies = Browser::logged_in(&server, KEY).await.cookies;
    let server = server.restart(|_| {}).await;
    let mut browser = Browser {
        server: &server,
        cookies,
    };
    assert_eq!(browser.get("/").await.status, 200);
    let own = [("x-tinkrs-studio", "1"), ("sec-fetch-site", "same-origin")];
    let revoked = browser
        .send(Method::DELETE, "/api/v1/auth/apikey/me", &own, "")
        .await;
    assert_eq!(revoked.status, 200);
    assert_eq!(browser.get("/").await.status, 303);
    assert_eq!(browser.get("/api/v1/sessions").await.status, 401);
}

#[tokio::test]
async fn guessing_keys_takes_longer_and_longer() {
    let server = TestServer::start().await;
    let mut browser = Browser::new(&server);
    for _ in 0..6 {
        assert_eq!(browser.log_in("sk-wrong", &[]).await.status, 401);
    }
    // A right one is not looked at either, or the wait would tell which one is right.
    let refused = browser.log_in(KEY, &[]).await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(wait, 1);
    let text = String::from_utf8(refused.body.to_vec()).unwrap();
    assert!(text.contains("Try again in 1 s"), "{text}");
    assert!(browser.cookies.is_empty());
    let program = [("accept", "application/json")];
    let refused = browser
        .send(Method::POST, "/login", &program, "key=sk-1")
        .await;
    assert_eq!(refused.status, 429, "{:?}", refused.body);
    // Whoever has a key or a cookie is not held up.
    assert_eq!(server.get("/sessions").await["sessions"], json!([]));
}

#[tokio::test]
async fn behind_a_proxy_with_tls_each_caller_waits_alone() {
    let server = TestServer::with(|settings| {
        settings.public_url = Some("https://train.example.org".to_owned());
    })
    .await;
    let mut browser = Browser::new(&server);
    let claims = ["1.1.1.1, 198.51.100.7", "2.2.2.2, 198.51.100.7"];
    for number in 0..6 {
        let from = [("x-forwarded-for", claims[number % 2])];
        assert_eq!(browser.log_in("sk-wrong", &from).await.status, 401);
    }
    let guesser = [("x-forwarded-for", "3.3.3.3, 198.51.100.7")];
    assert_eq!(browser.log_in(KEY, &guesser).await.status, 429);
    let person = [("x-forwarded-for", "198.51.100.8")];
    assert_eq!(browser.log_in(KEY, &person).await.status, 303);
}

#[tokio::test]
async fn logging_out_everywhere_ends_every_browser_and_link_of_the_owner_only() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let share = format!("/training_runs/{run}/share");
    let url = server.ok(&share, json!({"hours": 1})).await["url"].clone();
    let link = url.as_str().unwrap().strip_prefix(&server.url()).unwrap();
    let mut here = Browser::logged_in(&server, KEY).await;
    let mut there = Browser::logged_in(&server, KEY).await;
    let mut other = Browser::logged_in(&server, "tml-other").await;
    let mut guest = Browser::new(&server);
    guest.get(link).await;
    let once = server.ok("/studio/login_link", json!({})).await["path"].clone();
    let read = format!("/api/v1/training_runs/{run}");
    let path = "/logout?everywhere=true";
    let own = [("x-tinkrs-studio", "1"), ("sec-fetch-site", "same-origin")];
    // Neither another site, nor a guest, nor somebody who is not logged in can do it.
    let cross = [("x-tinkrs-studio", "1"), ("sec-fetch-site", "cross-site")];
    assert_eq!(here.send(Method::POST, path, &cross, "").await.status, 403);
    assert_eq!(here.send(Method::POST, path, &[], "").await.status, 403);
    assert_eq!(guest.send(Method::POST, path, &own, "").await.status, 403);
    let mut nobody = Browser::new(&server);
    assert_eq!(nobody.send(Method::POST, path, &own, "").await.status, 401);
    for browser in [&mut here, &mut there, &mut guest] {
        assert_eq!(browser.get(&read).await.status, 200);
    }

    assert_eq!(here.send(Method::POST, path, &own, "").await.status, 303);
    for browser in [&mut here, &mut there, &mut guest] {
        assert_eq!(browser.get(&read).await.status, 401);
    }
    let cookies = guest.cookies.clone();
    guest.get(link).await;
    assert_eq!(guest.cookies, cookies, "the link has ended, too");
    let mut late = Browser::new(&server);
    late.get(once.as_str().unwrap()).await;
    assert_eq!(late.cookies, "", "and so has one that logs in once");
    assert_eq!(other.get("/").await.status, 200);
    assert_eq!(
        server.get(&format!("/training_runs/{run}")).await["training_run_id"],
        run
    );
    let kept = there.cookies.clone();
    let server = server.restart(|_| {}).await;
    let mut there = Browser {
        server: &server,
        cookies: kept,
    };
    assert_eq!(there.get(&read).await.status, 401, "also after a restart");
    assert_eq!(there.log_in(KEY, &[]).await.status, 303);
    assert_eq!(there.get(&read).await.status, 200);
}
