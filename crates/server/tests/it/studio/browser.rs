//! A browser, as far as a server sees one: it has cookies, and says where a request comes from.

use http::Method;

use crate::caller::{Answer, TestServer};

pub(super) struct Browser<'a> {
    pub(super) server: &'a TestServer,
    pub(super) cookies: String,
}

impl<'a> Browser<'a> {
    pub(super) fn new(server: &'a TestServer) -> Self {
        Self {
            server,
            cookies: String::new(),
        }
    }

    /// A browser that has logged in with a key.
    pub(super) async fn logged_in(server: &'a TestServer, key: &str) -> Self {
        let mut browser = Self::new(server);
        let answer = browser.log_in(key, &[]).await;
        assert_eq!(answer.status, 303, "{:?}", answer.body);
        browser
    }

    pub(super) async fn log_in(&mut self, key: &str, headers: &[(&str, &str)]) -> Answer {
        let form = format!("key={key}&next=%2Fserver");
        let html = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("accept", "text/html"),
        ];
        self.send(Method::POST, "/login", &[&html, headers].concat(), &form)
            .await
    }

    /// Sends a request without a key, and keeps the cookies of the answer.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let own = [("x-api-key", ""), ("cookie", self.cookies.as_str())];
        let headers = [&own, headers].concat();
        let sent = self
            .server
            .try_send(method, path, &headers, body.to_owned());
        let answer = sent.await.unwrap_or_else(|error| panic!("{path}: {error}"));
        for cookie in answer.headers.get_all("set-cookie") {
            let cookie = cookie.to_str().unwrap();
            assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"));
            let (pair, attributes) = cookie.split_once(';').unwrap();
            let (name, _) = pair.split_once('=').unwrap();
            let others = self.cookies.split("; ");
            let others = others.filter(|it| !it.is_empty() && !it.starts_with(name));
            let mut kept: Vec<_> = others.map(str::to_owned).collect();
            if !attributes.contains("Max-Age=0") {
                kept.push(pair.to_owned());
            }
            self.cookies = kept.join("; ");
        }
        answer
    }

    pub(super) async fn get(&mut self, path: &str) -> Answer {
        let headers = [("sec-fetch-site", "same-origin")];
        self.send(Method::GET, path, &headers, "").await
    }
}
