//! A stand-in for the Hugging Face Hub, honest or not.

use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tinkrs::hub::Hub;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What `main` of every repository is.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How a hub behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Behaviour {
    Honest,
    /// The bytes of files are others than it says.
    OtherBytes,
    /// Files are longer or shorter than it says.
    Longer,
    Shorter,
    /// A login page instead of what it should say.
    LoginPage,
    /// A login page instead of each file.
    LoginPageForFiles,
    /// Files are always somewhere else.
    Circle,
    /// It does not say what files are known by.
    NoDigests,
    /// Its commit is a path.
    StrangeCommit,
    /// A file is larger than any tokenizer.
    Huge,
    /// There is no such repository.
    Unknown,
    /// The repository has no tokenizer.
    Empty,
}

/// A running hub, whose repositories all have the same files.
pub(crate) struct FakeHub {
    pub(crate) url: String,
    state: Arc<State>,
    /// How many requests came.
    pub(crate) count: watch::Receiver<usize>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    behaviour: Mutex<Behaviour>,
    asked: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
}

impl FakeHub {
    /// Starts a hub with the files of a folder, which must be files of a tokenizer.
    pub(crate) async fn with_files_of(folder: &Path) -> Self {
        let names = ["tokenizer.json", "tiktoken.model", "tokenizer_config.json"];
        let files = names.iter().filter_map(|name| {
            let bytes = std::fs::read(folder.join(name)).ok()?;
            Some(((*name).to_owned(), bytes))
        });
        let mut files: BTreeMap<_, _> = files.collect();
        files.insert("model.safetensors".to_owned(), vec![0; 1 << 20]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, count) = watch::channel(0);
        let state = Arc::new(State {
            files,
            behaviour: Mutex::new(Behaviour::Honest),
            asked: Mutex::default(),
            count: sender,
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let state = Arc::clone(&shared);
                let service = service_fn(move |request| {
                    let response = state.respond(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { url, state, count }
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.state.behaviour.lock().unwrap() = behaviour;
    }

    /// Returns the paths that were asked for since the last call.
    pub(crate) fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.asked.lock().unwrap())
    }

    /// The hub as a client knows it, with its downloads in a folder.
    pub(crate) fn hub(&self, cache: &Path) -> Hub {
        Hub::at(&self.url).with_cache(cache)
    }

    /// Where the content of a file is in the cache.
    pub(crate) fn blob(&self, repository: &Path, name: &str) -> PathBuf {
        repository
            .join("blobs")
            .join(sha256(&self.state.files[name]))
    }
}

impl State {
    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        self.asked.lock().unwrap().push(path.to_owned());
        self.count.send_modify(|count| *count += 1);
        let behaviour = *self.behaviour.lock().unwrap();
        if let Some((_, revision)) = path.split_once("/revision/") {
            return match behaviour {
                Behaviour::LoginPage => login_page(),
                Behaviour::Unknown => {
                    let body = json!({"error": "Repository not found"}).to_string();
                    reply(StatusCode::NOT_FOUND, body.into_bytes())
                }
                _ => reply(
                    StatusCode::OK,
                    self.info(revision, behaviour).to_string().into_bytes(),
                ),
            };
        }
        let Some(file) = path
            .rsplit('/')
            .next()
            .and_then(|name| self.files.get(name))
        else {
            return reply(StatusCode::NOT_FOUND, Vec::new());
        };
        let mut file = file.clone();
        match behaviour {
            Behaviour::LoginPageForFiles => return login_page(),
            Behaviour::Circle => {
                let mut response = reply(StatusCode::FOUND, Vec::new());
                let place = HeaderValue::from_str(path).unwrap();
                response.headers_mut().insert("location", place);
                return response;
            }
            Behaviour::OtherBytes => file[10] ^= 1,
            Behaviour::Longer => file.extend([b' '; 100]),
            Behaviour::Shorter => file.truncate(file.len() - 100),
            _ => {}
        }
        let range = request
            .headers()
            .get("range")
            .and_then(|range| range.to_str().ok());
        let from = range.and_then(|range| {
            range
                .strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse()
                .ok()
        });
        match from {
            Some(from) if from < file.len() => {
                let range = format!("bytes {from}-{}/{}", file.len() - 1, file.len());
                let mut response = reply(StatusCode::PARTIAL_CONTENT, file.split_off(from));
                let range = HeaderValue::from_str(&range).unwrap();
                response.headers_mut().insert("content-range", range);
                response
            }
            _ => reply(StatusCode::OK, file),
        }
    }

    fn info(&self, revision: &str, behaviour: Behaviour) -> Value {
        let files = self.files.iter().map(|(name, bytes)| match behaviour {
            Behaviour::NoDigests => json!({"rfilename": name, "size": bytes.len()}),
            Behaviour::Empty => {
                json!({"rfilename": "README.md", "size": 1, "blobId": "a".repeat(40)})
            }
            Behaviour::Huge => {
                json!({"rfilename": name, "lfs": {"sha256": sha256(bytes), "size": 1_u64 << 40}})
            }
            _ => json!({"rfilename": name, "lfs": {"sha256": sha256(bytes), "size": bytes.len()}}),
        });
        let commit = match (behaviour, revision) {
            (Behaviour::StrangeCommit, _) => "../../elsewhere",
            (_, "main") => COMMIT,
            (_, revision) => revision,
        };
        json!({"sha": commit, "siblings": files.collect::<Vec<_>>()})
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn login_page() -> Response<Full<Bytes>> {
    reply(
        StatusCode::OK,
        b"<!doctype html><title>Log in</title>".to_vec(),
    )
}

fn reply(status: StatusCode, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}
