//! `tinkrs studio`: the address of a server's pages, and pages of run folders.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;

use crate::here::Here;

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks for a page, and returns its head.
fn get(url: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    answer.split("\r\n\r\n").next().unwrap().to_owned()
}

#[test]
fn the_studio_is_served_and_its_address_logs_in_once() {
    let here = Here::new();
    let mut first = Running(here.start(&["studio", "--no-open"]));
    let mut url = String::new();
    let mut lines = BufReader::new(first.0.stdout.take().unwrap());
    lines.read_line(&mut url).unwrap();
    let url = url.trim();
    let (origin, _) = url.split_once("/login?token=").expect(url);

    // The folder is served: another command finds the server, and has an address of its own.
    let second = here.ok(&["studio", "--no-open"]);
    assert!(
        second.starts_with(&format!("{origin}/login?token=")),
        "{second}"
    );
    assert_ne!(second.trim(), url);

    for link in [url, second.trim()] {
        let head = get(link);
        assert!(head.starts_with("HTTP/1.1 303"), "{head}");
        assert!(head.contains("set-cookie: tinkrs_studio="), "{head}");
        let again = get(link);
        assert!(!again.contains("set-cookie"), "used before: {again}");
    }
    let head = get(&format!("{origin}/"));
    assert!(head.contains("location: /login"), "{head}");
}

#[test]
fn run_folders_are_compared_in_a_page_without_a_server() {
    let here = Here::new();
    for (run, loss) in [("a", 2.0), ("b", 3.0)] {
        std::fs::create_dir(here.path(run)).unwrap();
        let line = format!("{{\"step\": 0, \"loss\": {loss}, \"tokens\": 9}}\n");
        here.write(&format!("{run}/metrics.jsonl"), &line);
    }
    let said = here.ok(&["studio", "a", "b", "--no-open"]);
    assert_eq!(said, "tinkrs-runs.html\n");
    let page = std::fs::read_to_string(here.path("tinkrs-runs.html")).unwrap();
    assert!(page.contains("<title>2 runs</title>"), "{page}");
    assert!(!here.path("tinkrs-data").exists(), "no server was started");
    let refused = here.refused(&["studio", "missing", "--no-open"]);
    assert!(refused.contains("missing/metrics.jsonl"), "{refused}");
}
