//! A server whose clients take nothing, and one that may open no more files.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

struct Server {
    process: Child,
    address: String,
    data: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(data.path().join("log")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_tinkrs"))
            .args(["serve", "--addr", "127.0.0.1:0", "--data-dir"])
            .arg(data.path().join("data"))
            .args(options)
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://");
        Self {
            address: address.unwrap_or_else(|| panic!("{line}")).to_owned(),
            process,
            data,
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.data.path().join("log")).unwrap()
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).unwrap()
    }

    /// Asks for something on a connection of its own. Returns the whole response, or nothing if it is hung up on.
    fn get(&self, path: &str) -> String {
        let mut stream = self.connect();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut response = String::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut response);
        response
    }

    /// Whether the server still holds the connection from this address of a client. The client itself cannot tell: it has
    /// not read what came before the end.
    fn holds_connection_from(&self, client: SocketAddr) -> bool {
        let server: SocketAddr = self.address.parse().unwrap();
        let (server, client) = (server.port(), client.port());
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let established = format!("0100007F:{server:04X} 0100007F:{client:04X} 01 ");
        connections.contains(&established)
    }

    fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.process.id()));
        files.unwrap().count()
    }

    /// Waits for something that happens by itself, for much longer than it takes.
    #[track_caller]
    fn wait_until(&self, what: &str, happened: impl Fn() -> bool) {
        let start = Instant::now();
        while !happened() {
            assert!(start.elapsed().as_secs() < 60, "{what}: {}", self.log());
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_client_that_never_reads_is_hung_up_on_and_the_others_are_answered() {
    let server = Server::start(&["--write-timeout", "1s"]);
    assert!(server.get("/api/v1/healthz").starts_with("HTTP/1.1 200"));
    let mut silent = server.connect();
    let address = silent.local_addr().unwrap();
    // More than the system keeps for it on its way.
    let large = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let asked = 200;
    silent.write_all(large.repeat(asked).as_bytes()).unwrap();
    assert!(server.holds_connection_from(address));
    assert!(server.get("/api/v1/healthz").starts_with("HTTP/1.1 200"));
    server.wait_until("it is hung up on", || {
        !server.holds_connection_from(address)
    });
    let mut taken = Vec::new();
    let _ = silent.read_to_end(&mut taken);
    let whole = server.get("/openapi.json").len();
    assert!(
        taken.len() < whole * asked,
        "{} of {}",
        taken.len(),
        whole * asked
    );
    assert!(server.get("/api/v1/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_server_that_may_open_no_more_files_says_so_and_goes_on() {
    let server = Server::start(&[]);
    assert!(server.get("/api/v1/healthz").starts_with("HTTP/1.1 200"));
    let limit = server.open_files() + 8;
    let limited = Command::new("prlimit")
        .args(["--pid", &server.process.id().to_string()])
        .arg(format!("--nofile={limit}:{limit}"))
        .status();
    assert!(limited.unwrap().success());
    let idle: Vec<_> = (0..limit + 8).map(|_| server.connect()).collect();
    let said = "could not accept a connection; `ulimit -n` limits open files";
    server.wait_until("it is logged", || server.log().contains(said));
    // Those that do nothing make room.
    let is_well = || server.get("/api/v1/healthz").starts_with("HTTP/1.1 200");
    server.wait_until("it answers beside them", is_well);
    drop(idle);
    server.wait_until("it answers after them", is_well);
    // It does not log every try.
    assert!(server.log().matches(said).count() < 10, "{}", server.log());
}
