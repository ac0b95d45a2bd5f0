//! Traces and metrics of `tinkrs serve` and of commands that are its clients, at an endpoint that records them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;

/// A collector: answers every request with 200 and hands on its path, its headers and its body.
struct Collector {
    url: String,
    requests: mpsc::Receiver<(String, String, Value)>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || answer(stream, &sender));
            }
        });
        Self { url, requests }
    }

    /// What came so far: bodies of spans, and of metrics.
    fn received(&self) -> (Vec<Value>, Vec<Value>) {
        let (mut spans, mut metrics) = (Vec::new(), Vec::new());
        for (path, head, body) in self.requests.try_iter() {
            assert!(head.contains("content-type: application/json"), "{head}");
            assert!(head.contains("x-collector-key: abc"), "{head}");
            match path.as_str() {
                "/v1/traces" => spans.push(body),
                "/v1/metrics" => metrics.push(body),
                other => panic!("{other}"),
            }
        }
        (spans, metrics)
    }
}

fn answer(stream: TcpStream, sender: &mpsc::Sender<(String, String, Value)>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.to_lowercase();
        let length = head
            .split("content-length: ")
            .nth(1)?
            .split("\r\n")
            .next()?;
        let mut body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let path = head.split(' ').nth(1)?.to_owned();
        let _ = sender.send((path, head, serde_json::from_slice(&body).unwrap()));
        let reply =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        reader.get_mut().write_all(reply).ok()?;
    }
}

fn tinkrs(collector: &Collector, service: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinkrs"));
    command
        .env_clear()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=abc")
        .env("OTEL_SERVICE_NAME", service)
        .env("TINKER_API_KEY", "tml-otel-secret");
    command
}

/// All spans, by their ids.
fn by_id(bodies: &[Value]) -> HashMap<String, Value> {
    let mut spans = HashMap::new();
    for resource in bodies
        .iter()
        .flat_map(|body| body["resourceSpans"].as_array().unwrap())
    {
        let service = &resource["resource"]["attributes"][0]["value"]["stringValue"];
        for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
            let mut span = span.clone();
            span["service"] = service.clone();
            spans.insert(span["spanId"].as_str().unwrap().to_owned(), span);
        }
    }
    spans
}

#[test]
fn a_run_is_traced_from_the_client_through_the_server_to_its_queue_and_computation() {
    let collector = Collector::start();
    let folder = tempfile::tempdir().unwrap();
    let mut server = tinkrs(&collector, "the-server")
        .args([
            "serve",
            "--addr",
            "127.0.0.1:0",
            "--stop-with-stdin",
            "--data-dir",
        ])
        .arg(folder.path().join("data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let url = address.trim().strip_prefix("listening on ").unwrap();
    let talk = r#"{"messages": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "A secret."}]}"#;
    std::fs::write(folder.path().join("chats.jsonl"), talk).unwrap();
    let run = "train sft --data chats.jsonl --run-dir run --epochs 1 --batch-size 1 --eval 0 --rank 4 --base-url";
    let trained = tinkrs(&collector, "the-client")
        .args(run.split(' ').chain([url]))
        .env("HOME", folder.path())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(trained.status.success(), "{trained:?}");
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());

    let (traces, metrics) = collector.received();
    let spans = by_id(&traces);
    let parent = |span: &Value| spans.get(span["parentSpanId"].as_str()?);
    // compute < operation < the server's request < the client's call < the client's operation.
    let of_a_pass = |span: &&Value| {
        span["name"] == "compute"
            && parent(span).is_some_and(|above| above["name"] == "forward_backward")
    };
    let compute = spans
        .values()
        .find(of_a_pass)
        .expect("the computation of a pass");
    let operation = parent(compute).unwrap();
    let queue = spans
        .values()
        .find(|span| span["name"] == "queue" && span["parentSpanId"] == operation["spanId"]);
    assert_eq!(
        queue.unwrap()["endTimeUnixNano"],
        compute["startTimeUnixNano"]
    );
    let request = parent(operation).unwrap();
    assert_eq!(
        (&request["name"], &request["kind"]),
        (&"POST /api/v1/forward_backward".into(), &2.into())
    );
    assert_eq!(request["service"], "the-server");
    let call = parent(request).unwrap();
    assert_eq!(
        (&call["kind"], &call["service"]),
        (&3.into(), &"the-client".into())
    );
    let whole = parent(call).unwrap();
    assert_eq!(
        (&whole["name"], &whole["service"]),
        (&"forward_backward".into(), &"the-client".into())
    );
    for span in [compute, operation, request, call] {
        assert_eq!(span["traceId"], whole["traceId"]);
    }
    // The client fetched the result in the same trace.
    let polls = |span: &&Value| {
        span["name"] == "POST /api/v1/retrieve_future" && span["traceId"] == whole["traceId"]
    };
    assert!(spans.values().any(|span| polls(&span) && span["kind"] == 2));
    assert!(
        !spans
            .values()
            .any(|span| span["name"].as_str().unwrap().contains("heartbeat") && span["kind"] == 3)
    );

    let names = metrics.iter().flat_map(|body| {
        let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array();
        metrics
            .unwrap()
            .iter()
            .map(|metric| metric["name"].as_str().unwrap())
    });
    let names: Vec<_> = names.collect();
    for name in [
        "tinkrs_operations",
        "tinkrs_operation_seconds",
        "tinkrs_memory_bytes",
        "tinkrs_client_calls",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    // Neither keys nor what was said.
    let all = format!("{traces:?}{metrics:?}");
    assert!(!all.contains("otel-secret") && !all.contains("A secret"));
}

#[test]
fn a_collector_that_is_not_there_costs_a_warning_and_nothing_else() {
    let collector = Collector::start();
    let output = tinkrs(&collector, "x")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        .args(["version"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = tinkrs(&collector, "x")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .arg("version")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("OTEL_EXPORTER_OTLP_PROTOCOL: `grpc` is not spoken here"),
        "{error}"
    );
}
