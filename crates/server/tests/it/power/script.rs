//! What a client does, and how it goes on after the server's machine lost its power.
//!
//! A [`Script`] is played twice: once to the end while it is recorded, and again on what a loss of power
//! left, with what the client had been told by then. It sends everything again, as clients do that do not
//! know what became of their requests. What it had been told must be so still, and what it had not been
//! told must be as if nothing had happened, whether the first request was there or not.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use crate::caller::{TestServer, address, large_pass, pass, step};

/// What a client was told, by what it is about.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(BTreeMap<String, Value>);

impl Told {
    pub(super) fn read(&mut self, line: &str) {
        let (about, value) = line.split_once('=').expect("what it is about");
        let value = serde_json::from_str(value).unwrap();
        self.0.insert(about.to_owned(), value);
    }

    pub(super) fn lines(&self) -> String {
        let lines = self.0.iter();
        lines
            .map(|(about, value)| format!("{about}={value}\n"))
            .collect()
    }

    /// What does not depend on which attempt was the one that succeeded.
    pub(super) fn lasting(&self) -> BTreeMap<String, String> {
        let session = self.0.get("session").and_then(Value::as_str);
        let lasting = self.0.iter();
        let lasting = lasting.filter(|(about, _)| !about.ends_with(" id") && *about != "session");
        let lasting = lasting.map(|(about, value)| {
            let value = value.to_string();
            (
                about.clone(),
                value.replace(session.unwrap_or("-"), "SESSION"),
            )
        });
        lasting.collect()
    }
}

/// How large a pass is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Small,
    /// Its body is only just no file on the server.
    Middling,
    /// Its body is a file.
    Wide,
    /// Its body and its result are files.
    Large,
}

impl Size {
    fn body(self) -> Value {
        let datums = match self {
            Self::Small => 1,
            Self::Middling => 330,
            Self::Wide => 400,
            Self::Large => return large_pass("", 0),
        };
        let mut body = pass("", 0);
        let data = &mut body["forward_backward_input"]["data"];
        *data = vec![data[0].clone(); datums].into();
        body
    }
}

/// A client at its work.
pub(super) struct Script<'a> {
    server: TestServer,
    told: Told,
    tell: Box<dyn FnMut(&str) + Send + 'a>,
    model: String,
    seq_id: i64,
}

impl<'a> Script<'a> {
    /// Begins, or goes on with what was told before.
    pub(super) fn new(server: TestServer, told: Told, tell: impl FnMut(&str) + Send + 'a) -> Self {
        Self {
            server,
            told,
            tell: Box::new(tell),
            model: String::new(),
            seq_id: 0,
        }
    }

    /// Notes what the client is told now. What it was told before must be the same.
    fn hear(&mut self, about: &str, value: Value) {
        match self.told.0.get(about) {
            Some(before) => assert_eq!(&value, before, "{about}, as it was told before"),
            None => {
                (self.tell)(&format!("{about}={value}"));
                self.told.0.insert(about.to_owned(), value);
            }
        }
    }

    fn was_told(&self, about: &str) -> bool {
        self.told.0.contains_key(about)
    }

    /// Creates a session, which has no key that would tell a repeat from another one.
    async fn begin(&mut self) {
        let session = match self.told.0.get("session") {
            Some(session) => session.as_str().unwrap().to_owned(),
            None => self.server.session().await,
        };
        let found = self.server.get(&format!("/sessions/{session}")).await;
        assert!(found["training_run_ids"].is_array(), "{found}");
        let body = json!({
            "session_id": session, "model_seq_id": 0, "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
        });
        self.hear("session", session.into());
        let model = self.submit("model", "/create_model", body).await;
        let model = self.fetch("model", &model).await;
        self.model = model["model_id"].as_str().unwrap().to_owned();
        self.seq_id = 1;
    }

    async fn submit(&mut self, about: &str, path: &str, body: Value) -> String {
        let id = self.server.promise(path, body).await;
        self.hear(&format!("{about} id"), id.clone().into());
        id
    }

    async fn fetch(&mut self, about: &str, id: &str) -> Value {
        let result = self.server.result(id).await;
        self.hear(about, result.clone());
        result
    }

    /// Submits an operation of the model under the next sequence id.
    async fn operation(&mut self, path: &str, mut body: Value) -> (String, String) {
        body["model_id"] = self.model.as_str().into();
        body["seq_id"] = self.seq_id.into();
        let about = format!("{} {path}", self.seq_id);
        self.seq_id += 1;
        let id = self.submit(&about, path, body).await;
        (about, id)
    }

    /// Submits a pass. A large one that was accepted before is not sent again, which takes its time.
    async fn pass(&mut self, size: Size) -> (String, String) {
        let path = "/forward_backward";
        let about = format!("{} {path}", self.seq_id);
        let id = self.told.0.get(&format!("{about} id"));
        match id.and_then(Value::as_str).map(str::to_owned) {
            Some(id) if size != Size::Small => {
                self.seq_id += 1;
                (about, id)
            }
            _ => self.operation(path, size.body()).await,
        }
    }

    async fn done(&mut self, path: &str, body: Value) -> Value {
        let (about, id) = self.operation(path, body).await;
        self.fetch(&about, &id).await
    }

    /// Trains a step, all of which is submitted before anything is fetched.
    async fn train(&mut self, size: Size) {
        let mut ids = Vec::new();
        for size in [size, Size::Small] {
            ids.push(self.pass(size).await);
        }
        ids.push(self.operation("/optim_step", step("", 0)).await);
        for (about, id) in ids {
            self.fetch(&about, &id).await;
        }
    }

    async fn save(&mut self, name: &str, overwrite: bool) -> String {
        let body = json!({"path": name, "overwrite": overwrite});
        let saved = self.done("/save_weights", body).await;
        saved["path"].as_str().unwrap().to_owned()
    }

    async fn delete(&mut self, path: &str) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let about = format!("{name} is deleted");
        if !self.was_told(&about) {
            let me = self.server.me();
            let answer = me.call(Method::DELETE, &address(path), &Value::Null).await;
            let status = answer.status.as_u16();
            assert!([200, 404].contains(&status), "{status}");
            self.hear(&about, true.into());
        }
        let listed = self.server.get("/checkpoints").await.to_string();
        assert!(!listed.contains(path), "{path} was deleted: {listed}");
    }

    /// Creates another model, which is unloaded at once.
    async fn unload_another(&mut self) {
        let body = json!({
            "session_id": self.told.0["session"], "model_seq_id": 1, "base_model": "tiny",
            "lora_config": {"rank": 2, "seed": 1},
        });
        let other = self.submit("other", "/create_model", body).await;
        let other = self.fetch("other", &other).await;
        let body = json!({"model_id": other["model_id"], "seq_id": 1});
        let unloaded = self.submit("unloaded", "/unload_model", body).await;
        self.fetch("unloaded", &unloaded).await;
    }

    /// Ends a session that has a model and a sampler. It is there with both, or has ended.
    async fn finish_another(&mut self) {
        let session = match self.told.0.get("finished session id") {
            Some(session) => session.as_str().unwrap().to_owned(),
            None => self.server.session().await,
        };
        self.hear("finished session id", session.clone().into());
        let is_open = async |server: &TestServer| {
            let body = json!({"session_id": session});
            server.post("/session_heartbeat", body).await.status == 200
        };
        if is_open(&self.server).await {
            assert!(!self.was_told("finished"), "the session has ended");
            let body = json!({
                "session_id": session, "model_seq_id": 0, "base_model": "tiny",
                "lora_config": {"rank": 4, "seed": 1},
            });
            let model = self.server.promise("/create_model", body).await;
            let model = self.server.result(&model).await["model_id"].clone();
            let body = json!({"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0});
            let saved = self.server.promise("/save_weights_for_sampler", body).await;
            let sampler = self.server.result(&saved).await["sampling_session_id"].clone();
            self.hear("finished sampler id", sampler.clone());
            // Another one each time, so that the weights are needed.
            let seq_id = fastrand::u32(..);
            let body = json!({
                "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
                "prompt": {"chunks": [{"tokens": [1, 5]}]}, "sampling_params": {"max_tokens": 2},
            });
            let sample = self.server.promise("/asample", body).await;
            let sample = self.server.result(&sample).await;
            assert!(sample["sequences"].is_array(), "{sample}");
            let body = json!({"reason": {"type": "success"}});
            let path = format!("/sessions/{session}/finish");
            self.server.ok(&path, body).await;
        }
        self.hear("finished", true.into());
        assert!(!is_open(&self.server).await, "the session has ended");
    }

    async fn revoke_a_key(&mut self) {
        let other = self.server.owner("tml-another");
        if !self.was_told("revoked") {
            let answer = other
                .call(Method::DELETE, "/auth/apikey/me", &Value::Null)
                .await;
            let status = answer.status.as_u16();
            assert!([200, 401].contains(&status), "{status}");
        }
        let answer = other.call(Method::GET, "/checkpoints", &Value::Null).await;
        assert_eq!(answer.status, 401, "the key was revoked");
        self.hear("revoked", true.into());
    }

    /// Saves the weights for sampling, and samples.
    async fn sample(&mut self, number: i64) -> String {
        let body = json!({"sampling_session_seq_id": number});
        let saved = self.done("/save_weights_for_sampler", body).await;
        let sampler = saved["sampling_session_id"].as_str().unwrap().to_owned();
        self.sample_from(&sampler, 0).await;
        sampler
    }

    async fn sample_from(&mut self, sampler: &str, seq_id: i64) {
        let body = json!({
            "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 2,
            "prompt": {"chunks": [{"tokens": [1, 5]}]},
            "sampling_params": {"max_tokens": 8, "seed": 3},
        });
        let number = sampler.rsplit(':').next().unwrap_or_default();
        let about = format!("sample {seq_id} of {number}");
        let id = self.submit(&about, "/asample", body).await;
        self.fetch(&about, &id).await;
    }

    /// A bit of everything.
    pub(super) async fn short(&mut self) {
        self.begin().await;
        self.train(Size::Small).await;
        let first = self.save("a", false).await;
        self.sample(0).await;
        self.train(Size::Wide).await;
        self.save("a", true).await;
        let other = self.save("b", false).await;
        self.delete(&other).await;
        self.revoke_a_key().await;
        self.unload_another().await;
        self.finish_another().await;
        let body = json!({"path": first, "optimizer": true});
        self.done("/load_weights", body).await;
        self.train(Size::Small).await;
    }

    /// Enough of it that the write-ahead log goes into the database and begins anew.
    pub(super) async fn long(&mut self) {
        self.short().await;
        self.train(Size::Large).await;
        for number in 1..4 {
            for _ in 0..4 {
                self.train(Size::Middling).await;
            }
            self.save("a", true).await;
            self.sample(number).await;
        }
    }

    /// What comes after a restart.
    pub(super) async fn end(&mut self) {
        self.train(Size::Small).await;
    }

    /// Uses everything that is left on the disk: it must be what it was.
    pub(super) async fn use_all(mut self) -> BTreeMap<String, String> {
        let listed = self.server.get("/checkpoints").await;
        let mut paths: Vec<_> = listed["checkpoints"].as_array().unwrap().iter().collect();
        paths.sort_by_key(|checkpoint| checkpoint["tinker_path"].to_string());
        let sizes: Vec<_> = paths.iter().map(|c| c["size_bytes"].clone()).collect();
        self.hear("sizes", sizes.into());
        for checkpoint in paths {
            let body = json!({"path": checkpoint["tinker_path"], "optimizer": true});
            self.done("/load_weights", body).await;
            self.train(Size::Small).await;
        }
        let session = self.told.0["session"].as_str().unwrap().to_owned();
        let found = self.server.get(&format!("/sessions/{session}")).await;
        let samplers = found["sampler_ids"].as_array().unwrap().clone();
        assert!(!samplers.is_empty(), "{found}");
        for sampler in samplers {
            self.sample_from(sampler.as_str().unwrap(), 1).await;
        }
        self.stop().await.lasting()
    }

    /// Stops the server and starts it again.
    pub(super) async fn restart(self, change: impl FnOnce(&mut tinkrs_server::Settings)) -> Self {
        let server = self.server.restart(change).await;
        Self { server, ..self }
    }

    pub(super) async fn stop(self) -> Told {
        self.server.stop().await;
        self.told
    }
}
