//! A file server that misbehaves on script.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tinkrs_types::Timestamp;
use tinkrs_types::rest::ExternalWeightsUrls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How one request is answered, instead of properly.
pub(super) enum Reply {
    /// The proper answer, but the connection breaks after this many bytes of the body.
    BreakAfter(usize),
    /// The whole file, whatever part of it was asked for.
    Whole,
    /// The whole file up to this many bytes, and then the connection breaks.
    WholeBreakAfter(usize),
    /// An empty answer with this status.
    Status(u16),
    /// The headers, one byte of the body, and then nothing for ever.
    Stall,
    /// These bytes.
    Raw(String),
}

#[derive(Default)]
struct File {
    body: Vec<u8>,
    tag: Option<String>,
    script: VecDeque<Reply>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, File>,
    /// The head of each request, in lower case.
    requests: Vec<String>,
}

/// Serves files on a free port until it is dropped.
pub(super) struct Server {
    address: String,
    state: Arc<Mutex<State>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            state,
            accepting,
        }
    }

    /// Adds or replaces a file. Its tag stands for its contents.
    pub(super) fn file(&self, name: &str, body: &[u8]) {
        self.tagged_file(name, body, Some(format!("\"{:x}\"", checksum(body))));
    }

    pub(super) fn tagged_file(&self, name: &str, body: &[u8], tag: Option<String>) {
        let mut state = self.state.lock().unwrap();
        let file = state.files.entry(name.to_owned()).or_default();
        file.body = body.to_owned();
        file.tag = tag;
    }

    pub(super) fn script(&self, name: &str, replies: impl IntoIterator<Item = Reply>) {
        let mut state = self.state.lock().unwrap();
        let file = state.files.entry(name.to_owned()).or_default();
        file.script.extend(replies);
    }

    /// Returns links to all files.
    pub(super) fn links(&self) -> ExternalWeightsUrls {
        let state = self.state.lock().unwrap();
        let link = |name: &String| format!("{}/{name}?signature=hidden", self.address);
        ExternalWeightsUrls::new(
            state
                .files
                .keys()
                .map(|name| (name.clone(), link(name)))
                .collect(),
            Timestamp::now() + std::time::Duration::from_secs(3_600),
        )
    }

    /// Returns the heads of the requests so far, and forgets them.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn checksum(body: &[u8]) -> u64 {
    body.iter().fold(7, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

/// Answers one request and closes the connection.
async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let (answer, stall) = answer(&head, &mut state.lock().unwrap());
    let _ = stream.write_all(&answer).await;
    if stall {
        // Until the client gives up.
        let _ = stream.read_u8().await;
    }
}

fn answer(head: &str, state: &mut State) -> (Vec<u8>, bool) {
    state.requests.push(head.to_owned());
    let name = head.split(['/', '?']).nth(1).unwrap_or_default();
    let Some(file) = state.files.get_mut(name) else {
        return (empty(404), false);
    };
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(": ").map(str::to_owned)
    };
    let mut start = header("range").and_then(|range| {
        let start = range.strip_prefix("bytes=")?.strip_suffix('-')?;
        start.parse::<usize>().ok()
    });
    if header("if-range").is_some_and(|tag| Some(tag) != file.tag) {
        start = None;
    }
    if header("if-none-match").is_some_and(|tag| Some(tag) == file.tag) {
        return (empty(304), false);
    }
    let mut keep = usize::MAX;
    let mut stall = false;
    match file.script.pop_front() {
        None => {}
        Some(Reply::BreakAfter(bytes)) => keep = bytes,
        Some(Reply::Whole) => start = None,
        Some(Reply::WholeBreakAfter(bytes)) => (start, keep) = (None, bytes),
        Some(Reply::Status(status)) => return (empty(status), false),
        Some(Reply::Stall) => (keep, stall) = (1, true),
        Some(Reply::Raw(text)) => return (text.into_bytes(), false),
    }
    let size = file.body.len();
    let (status, range) = match start {
        Some(start) if start >= size => {
            let range = format!("content-range: bytes */{size}\r\n");
            let head = format!("HTTP/1.1 416 X\r\n{range}content-length: 0\r\n\r\n");
            return (head.into_bytes(), false);
        }
        Some(start) => {
            let last = size - 1;
            (
                206,
                format!("content-range: bytes {start}-{last}/{size}\r\n"),
            )
        }
        None => (200, String::new()),
    };
    let body = &file.body[start.unwrap_or(0)..];
    let tag = file.tag.as_ref();
    let tag = tag.map_or(String::new(), |tag| format!("etag: {tag}\r\n"));
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\n{tag}{range}content-length: {length}\r\n\r\n");
    let mut answer = head.into_bytes();
    answer.extend(&body[..keep.min(length)]);
    (answer, stall)
}

fn empty(status: u16) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").into_bytes()
}
