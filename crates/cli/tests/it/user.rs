//! A user with a home of their own, who runs the binary against a server.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use tinkrs::{
    AdamParams, BackpressureScope, Datum, FinishReason, ServiceClient, TinkerPath, TrainingClient,
};
use tinkrs_engine::weights::{Dtype, HuggingFaceFolder, RandomWeights};
use tinkrs_engine::{CpuBackend, Model, ModelConfig, Precision, Threads};
use tinkrs_server::{BaseModel, LocalServer, Settings};
use tokio::io::AsyncWriteExt;

pub(crate) const KEY: &str = "tml-test";

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Returns the output of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Returns the JSON of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the complaints of a command that must have failed.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.stderr
    }
}

/// A user of a server, with an empty home.
#[derive(Debug)]
pub(crate) struct User {
    url: String,
    key: Option<String>,
    home: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl User {
    pub(crate) fn of(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key: Some(KEY.to_owned()),
            home: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
        }
    }

    /// Takes the key out of the environment.
    pub(crate) fn without_key(mut self) -> Self {
        self.key = None;
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with_input(arguments, "").await
    }

    pub(crate) async fn run_with_input(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that reads nothing may be gone already.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        Ran::from(child.wait_with_output().await.unwrap())
    }

    /// Presses Ctrl-C once `moment` has come.
    pub(crate) async fn interrupt(&self, arguments: &[&str], moment: impl Future) -> Ran {
        let child = self.command(arguments).spawn().unwrap();
        moment.await;
        press_ctrl_c(&child);
        Ran::from(child.wait_with_output().await.unwrap())
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tinkrs"));
        command
            .args(arguments)
            .current_dir(self.home())
            .env_clear()
            .env("HOME", self.home())
            .env("TINKER_BASE_URL", &self.url)
            // No test asks the real one.
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(key) = &self.key {
            command.env("TINKER_API_KEY", key);
        }
        command
    }
}

pub(crate) fn press_ctrl_c(child: &tokio::process::Child) {
    let kill = format!("kill -INT {}", child.id().unwrap());
    let killed = std::process::Command::new("sh")
        .args(["-c", &kill])
        .status();
    assert!(killed.unwrap().success());
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or_else(|| panic!("{output:?}")),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Loads the model that comes with the program.
pub(crate) fn nano() -> BaseModel {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("nano");
    tinkrs_nano::write_to(&files).unwrap();
    let source = HuggingFaceFolder::open(&files).unwrap();
    let model = Model::load(&source, Precision::Stored, &Threads::new(1).unwrap()).unwrap();
    BaseModel::new(tinkrs_nano::NAME, CpuBackend::new(model))
}

/// A local server with a tiny model, for as long as the test lasts.
pub(crate) struct Local {
    server: LocalServer,
    _data: tempfile::TempDir,
}

impl Local {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32).unwrap();
        let threads = Threads::new(1).unwrap();
        let model = Model::load(&weights, Precision::Stored, &threads).unwrap();
        let base = BaseModel::new("tiny", CpuBackend::new(model));
        Self::of(base, change).await
    }

    /// Starts a server with the model that comes with the program, which has a tokenizer.
    pub(crate) async fn nano() -> Self {
        Self::of(nano(), |_| {}).await
    }

    async fn of(base: BaseModel, change: impl FnOnce(&mut Settings)) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(data.path());
        change(&mut settings);
        let server = LocalServer::start(vec![base], settings).await.unwrap();
        Self {
            server,
            _data: data,
        }
    }

    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }

    pub(crate) fn user(&self) -> User {
        User::of(self.url())
    }

    fn service(&self) -> ServiceClient {
        ServiceClient::builder()
            .base_url(self.url())
            .api_key(KEY)
            .telemetry(false)
            .backpressure(BackpressureScope::Client)
            .display_name("a test")
            .build()
    }

    /// Makes runs without a checkpoint, in a session of their own.
    pub(crate) async fn runs(&self, count: usize) -> Vec<TrainingClient> {
        let service = self.service();
        let run = || service.create_lora_training_client("tiny").rank(1);
        let made = (0..count).map(|_| tokio::spawn(run().into_future()));
        let made: Vec<_> = made.collect();
        let mut runs = Vec::new();
        for run in made {
            runs.push(run.await.unwrap().unwrap());
        }
        runs
    }

    /// Trains a step and saves the state under each name, in a session of its own.
    pub(crate) async fn trained(&self, names: &[&str]) -> Trained {
        let service = self.service();
        let model = service
            .create_lora_training_client("tiny")
            .rank(4)
            .seed(1)
            .await
            .unwrap();
        let datum = Datum::from_prompt_completion(&[1, 5], &[9, 2]).unwrap();
        model.forward_backward(vec![datum]).await.unwrap();
        model.optim_step(AdamParams::new(1e-2)).await.unwrap();
        let mut paths = Vec::new();
        for name in names {
            paths.push(model.save_state(*name).await.unwrap());
        }
        let session = service.session_id().unwrap().to_string();
        Trained {
            run: model.model_id().to_string(),
            session,
            paths,
            service,
            model,
        }
    }
}

/// A training run with checkpoints.
pub(crate) struct Trained {
    pub(crate) run: String,
    pub(crate) session: String,
    pub(crate) paths: Vec<TinkerPath>,
    pub(crate) model: TrainingClient,
    service: ServiceClient,
}

impl Trained {
    pub(crate) async fn finish(self) {
        let closed = self.service.close(FinishReason::Success, None).await;
        closed.unwrap();
    }
}

/// The files of a folder, sorted.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
