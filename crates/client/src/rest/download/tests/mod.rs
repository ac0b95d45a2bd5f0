mod server;

use super::*;
use server::Reply::{BreakAfter, Raw, Stall, Status, Whole, WholeBreakAfter};
use server::Server;
use std::convert::Infallible;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tinkrs_types::Timestamp;

fn client() -> HttpClient {
    HttpClient::new(Duration::from_secs(60))
}

fn quick() -> DownloadOptions {
    DownloadOptions {
        retry_delay: Duration::ZERO,
        ..DownloadOptions::default()
    }
}

/// A server and a folder for what it gives.
struct Fixture {
    server: Server,
    folder: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        Self {
            server: Server::start().await,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    async fn download_with(&self, options: &DownloadOptions) -> Result<Downloaded, DownloadError> {
        let links = self.server.links();
        let links = move || std::future::ready(Ok::<_, Infallible>(links.clone()));
        download_files(client(), links, self.folder.path(), options).await
    }

    async fn download(&self) -> Result<Downloaded, DownloadError> {
        self.download_with(&quick()).await
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

/// Bytes that differ from place to place, so that a piece in the wrong place shows.
fn body(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// The values of a header over the requests so far, `-` where there is none.
fn sent(requests: &[String], header: &str) -> Vec<String> {
    let value = |head: &String| {
        let line = head.lines().find_map(|line| line.strip_prefix(header));
        line.map_or("-".to_owned(), |line| line[2..].to_owned())
    };
    requests.iter().map(value).collect()
}

#[tokio::test]
async fn all_files_arrive_and_nothing_else_stays() {
    let fixture = Fixture::new().await;
    for (name, size) in [("a.bin", 300_000), ("b.json", 2), ("c.txt", 0)] {
        fixture.server.file(name, &body(size));
    }
    let downloaded = fixture.download().await.unwrap();
    assert_eq!(downloaded.size_bytes(), 300_002);
    assert_eq!(downloaded.files["b.json"], 2);
    assert_eq!(fixture.read("a.bin"), body(300_000));
    assert_eq!(fixture.names(), ["a.bin", "b.json", "c.txt"]);
}

#[tokio::test]
async fn requests_carry_no_credential_and_ask_for_plain_bytes() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", b"x");
    fixture.download().await.unwrap();
    let requests = fixture.server.requests();
    assert_eq!(sent(&requests, "accept-encoding"), ["identity"]);
    for header in ["x-api-key", "authorization", "cookie", "cf-access"] {
        assert!(!requests[0].contains(header), "{requests:?}");
    }
}

#[tokio::test]
async fn a_break_in_the_middle_is_taken_up_where_it_was() {
    let fixture = Fixture::new().await;
    let tag = "\"version 1\"".to_owned();
    fixture.server.tagged_file("a", &body(1_000), Some(tag));
    let breaks = [BreakAfter(400), BreakAfter(0), BreakAfter(500)];
    fixture.server.script("a", breaks);
    fixture.download().await.unwrap();
    assert_eq!(fixture.read("a"), body(1_000));
    let requests = fixture.server.requests();
    let ranges = ["-", "bytes=400-", "bytes=400-", "bytes=900-"];
    assert_eq!(sent(&requests, "range"), ranges);
    let tag = "\"version 1\"";
    assert_eq!(sent(&requests, "if-range"), ["-", tag, tag, tag]);
}

#[tokio::test]
async fn a_download_continues_where_an_earlier_one_failed() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(100));
    fixture.server.file("b", &body(1_000));
    fixture.server.script("b", [BreakAfter(700), Status(404)]);
    let one_by_one = DownloadOptions {
        parallel: 1,
        ..quick()
    };
    let error = fixture.download_with(&one_by_one).await.unwrap_err();
    assert!(matches!(error, DownloadError::GaveUp { .. }), "{error}");
    assert_eq!(fixture.names(), ["a", "a.part.tag", "b.part", "b.part.tag"]);
    fixture.server.requests();

    let downloaded = fixture.download_with(&one_by_one).await.unwrap();
    assert_eq!(downloaded.size_bytes(), 1_100);
    assert_eq!(fixture.names(), ["a", "b"]);
    assert_eq!(fixture.read("b"), body(1_000));
    let requests = fixture.server.requests();
    assert_eq!(sent(&requests, "range"), ["-", "bytes=700-"]);
    assert_ne!(
        sent(&requests, "if-none-match")[0],
        "-",
        "`a` is asked for only if it changed"
    );
}

#[tokio::test]
async fn a_part_of_another_version_is_dropped() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(1_000));
    fixture.server.script("a", [BreakAfter(700), Status(404)]);
    fixture.download().await.unwrap_err();
    let other: Vec<u8> = body(1_000).into_iter().rev().collect();
    fixture.server.file("a", &other);
    fixture.download().await.unwrap();
    assert_eq!(fixture.read("a"), other);
}

#[tokio::test]
async fn a_part_of_an_unknown_version_is_dropped() {
    let fixture = Fixture::new().await;
    fixture.server.tagged_file("a", &body(1_000), None);
    fs::write(fixture.folder.path().join("a.part"), "something else").unwrap();
    fixture.download().await.unwrap();
    assert_eq!(fixture.read("a"), body(1_000));
    assert_eq!(sent(&fixture.server.requests(), "range"), ["-"]);
}

#[tokio::test]
async fn a_finished_file_that_changed_is_downloaded_again() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", b"old");
    fixture.server.file("b", b"b");
    fixture.server.script("b", [Status(404)]);
    let one_by_one = DownloadOptions {
        parallel: 1,
        ..quick()
    };
    fixture.download_with(&one_by_one).await.unwrap_err();
    assert_eq!(fixture.read("a"), b"old");
    fixture.server.file("a", b"newer");
    fixture.download_with(&one_by_one).await.unwrap();
    assert_eq!(fixture.read("a"), b"newer");
}

#[tokio::test]
async fn a_server_that_ignores_ranges_is_read_from_the_start() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(1_000));
    fixture
        .server
        .script("a", [BreakAfter(400), WholeBreakAfter(600), Whole]);
    fixture.download().await.unwrap();
    assert_eq!(fixture.read("a"), body(1_000));
}

#[tokio::test]
async fn a_server_that_always_breaks_at_the_same_place_is_given_up() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(1_000));
    fixture
        .server
        .script("a", (0..20).map(|_| WholeBreakAfter(400)));
    let error = fixture.download().await.unwrap_err();
    let DownloadError::GaveUp { attempts, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*attempts, 10);
    assert_eq!(fixture.server.requests().len(), 10);
    assert!(!fixture.folder.path().join("a").exists());
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("hidden"), "links are secrets: {shown}");
}

#[tokio::test]
async fn a_connection_that_stalls_counts_as_broken() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(10));
    fixture.server.script("a", [Stall]);
    let options = DownloadOptions {
        stall_timeout: Duration::from_millis(200),
        ..quick()
    };
    fixture.download_with(&options).await.unwrap();
    assert_eq!(fixture.read("a"), body(10));
    assert_eq!(sent(&fixture.server.requests(), "range"), ["-", "bytes=1-"]);
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_again() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", b"x");
    fixture.server.script("a", [503, 429, 500, 408].map(Status));
    fixture.download().await.unwrap();
    assert_eq!(fixture.read("a"), b"x");
}

#[tokio::test]
async fn answers_that_lie_about_the_file_never_become_the_file() {
    let head = |lines: &str| Raw(format!("HTTP/1.1 {lines}\r\n\r\n0123456789"));
    let lies: [(&str, [server::Reply; 2]); 6] = [
        (
            "more is announced than there is",
            [
                head("200 OK\r\nconnection: close\r\ncontent-length: 99"),
                Whole,
            ],
        ),
        (
            "the rest is of a longer file",
            [
                BreakAfter(10),
                head("206 X\r\ncontent-range: bytes 10-19/99\r\ncontent-length: 10"),
            ],
        ),
        (
            "the rest is another part",
            [
                BreakAfter(10),
                head("206 X\r\ncontent-range: bytes 0-9/20\r\ncontent-length: 10"),
            ],
        ),
        (
            "the rest does not say what it is",
            [BreakAfter(10), head("206 X\r\ncontent-length: 10")],
        ),
        (
            "the rest is of another version",
            [
                BreakAfter(10),
                head("206 X\r\netag: \"y\"\r\ncontent-range: bytes 10-19/20\r\ncontent-length: 10"),
            ],
        ),
        (
            "the rest is too long",
            [
                BreakAfter(15),
                head("206 X\r\ncontent-range: bytes 15-19/20\r\nconnection: close"),
            ],
        ),
    ];
    for (lie, replies) in lies {
        let fixture = Fixture::new().await;
        fixture.server.file("a", &body(20));
        fixture.server.script("a", replies);
        fixture
            .download()
            .await
            .unwrap_or_else(|error| panic!("{lie}: {error}"));
        assert_eq!(fixture.read("a"), body(20), "{lie}");
    }
}

#[tokio::test]
async fn a_file_that_is_never_as_long_as_announced_is_given_up() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(20));
    let short = || {
        let range = "content-range: bytes 0-19/20";
        Raw(format!(
            "HTTP/1.1 206 X\r\n{range}\r\nconnection: close\r\n\r\nshort"
        ))
    };
    let none = || Raw("HTTP/1.1 416 X\r\ncontent-range: bytes */5\r\n\r\n".to_owned());
    let script = (0..20).flat_map(|_| [short(), none()]);
    fixture.server.script("a", script);
    let error = fixture.download().await.unwrap_err();
    assert!(matches!(error, DownloadError::GaveUp { .. }), "{error}");
    assert!(!fixture.folder.path().join("a").exists());
}

#[tokio::test]
async fn a_file_above_the_limit_is_refused_whether_announced_or_not() {
    let unannounced = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}",
        "x".repeat(99)
    );
    let limits = |max_file_bytes, max_unannounced_bytes| DownloadOptions {
        max_file_bytes,
        max_unannounced_bytes,
        ..quick()
    };
    for (script, options) in [
        (vec![], limits(50, 200)),
        (vec![Raw(unannounced.clone())], limits(50, 200)),
        (vec![Raw(unannounced)], limits(200, 50)),
    ] {
        let fixture = Fixture::new().await;
        fixture.server.file("a", &body(99));
        fixture.server.script("a", script);
        let error = fixture.download_with(&options).await.unwrap_err();
        assert!(matches!(error, DownloadError::TooLarge { .. }), "{error}");
        assert!(!fixture.folder.path().join("a").exists());
    }
}

#[tokio::test]
async fn an_unsafe_name_is_refused_before_anything_is_written() {
    let fixture = Fixture::new().await;
    let folder = fixture.folder.path().join("target");
    for name in [
        "../evil",
        "/tmp/evil",
        "..\\evil",
        "C:\\evil",
        "a/../../evil",
    ] {
        let mut links = fixture.server.links();
        links
            .urls
            .insert("a".to_owned(), "http://127.0.0.1:9/a".to_owned());
        links
            .urls
            .insert(name.to_owned(), "http://127.0.0.1:9/evil".to_owned());
        let links = move || std::future::ready(Ok::<_, Infallible>(links.clone()));
        let error = download_files(client(), links, &folder, &quick())
            .await
            .unwrap_err();
        assert!(
            matches!(error, DownloadError::UnsafeName { .. }),
            "{name}: {error}"
        );
        assert!(fixture.names().is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_checkpoint_without_files_is_an_error() {
    let fixture = Fixture::new().await;
    let error = fixture.download().await.unwrap_err();
    assert!(matches!(error, DownloadError::NoFiles), "{error}");
}

/// Links that are counted, and that have this much time left.
fn counted(
    server: &Server,
    seconds_left: i64,
) -> (
    Arc<AtomicUsize>,
    impl Fn() -> std::future::Ready<Result<ExternalWeightsUrls, Infallible>> + use<>,
) {
    let count = Arc::new(AtomicUsize::new(0));
    let mut links = server.links();
    links.expires = Timestamp::from_second(Timestamp::now().as_second() + seconds_left).unwrap();
    let counter = Arc::clone(&count);
    let ask = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(links.clone()))
    };
    (count, ask)
}

#[tokio::test]
async fn links_are_renewed_before_they_expire() {
    for (seconds_left, expected) in [(3_600, 1), (299, 2)] {
        let fixture = Fixture::new().await;
        fixture.server.file("a", b"x");
        let (count, ask) = counted(&fixture.server, seconds_left);
        download_files(client(), ask, fixture.folder.path(), &quick())
            .await
            .unwrap();
        assert_eq!(count.load(Ordering::Relaxed), expected, "{seconds_left}");
    }
}

#[tokio::test]
async fn a_refused_link_is_renewed_once_for_all_files() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", b"x");
    fixture.server.file("b", b"y");
    let (count, ask) = counted(&fixture.server, 3_600);
    let links = Links::request(ask).await.unwrap();
    let old = [links.of("a").await.unwrap(), links.of("b").await.unwrap()];
    for link in &old {
        links.renew(link).await.unwrap();
    }
    assert_eq!(
        count.load(Ordering::Relaxed),
        2,
        "the first links and one renewal"
    );
    links.renew(&links.of("a").await.unwrap()).await.unwrap();
    assert_eq!(
        count.load(Ordering::Relaxed),
        3,
        "a new link that is refused is renewed too"
    );
}

#[tokio::test]
async fn links_that_expire_on_the_way_are_renewed_and_the_file_continued() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(100));
    let script = [Status(403), BreakAfter(50), Status(401)];
    fixture.server.script("a", script);
    let (count, ask) = counted(&fixture.server, 3_600);
    download_files(client(), ask, fixture.folder.path(), &quick())
        .await
        .unwrap();
    assert_eq!(fixture.read("a"), body(100));
    assert_eq!(count.load(Ordering::Relaxed), 3);
    let ranges = ["-", "-", "bytes=50-", "bytes=50-"];
    assert_eq!(sent(&fixture.server.requests(), "range"), ranges);
}

#[tokio::test]
async fn a_new_link_that_is_refused_too_is_an_error() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", b"x");
    fixture.server.script("a", [Status(403), Status(403)]);
    let (count, ask) = counted(&fixture.server, 3_600);
    let error = download_files(client(), ask, fixture.folder.path(), &quick())
        .await
        .unwrap_err();
    let DownloadError::GaveUp { source, .. } = &error else {
        panic!("{error}")
    };
    assert!(matches!(source, Trouble::Status(403)), "{source}");
    assert!(count.load(Ordering::Relaxed) >= 2);
}

#[tokio::test]
async fn a_file_that_is_gone_after_the_links_were_renewed_is_an_error() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", b"x");
    fixture.server.script("a", [Status(403)]);
    let first = Mutex::new(Some(fixture.server.links()));
    let mut later = fixture.server.links();
    later.urls.clear();
    let ask = move || {
        let links = first
            .lock()
            .unwrap()
            .take()
            .unwrap_or_else(|| later.clone());
        std::future::ready(Ok::<_, Infallible>(links))
    };
    let error = download_files(client(), ask, fixture.folder.path(), &quick())
        .await
        .unwrap_err();
    assert!(matches!(error, DownloadError::Gone { .. }), "{error}");
}

#[tokio::test]
async fn progress_ends_with_the_whole_file() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(100_000));
    fixture.server.script("a", [BreakAfter(40_000)]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let options = DownloadOptions {
        on_progress: Some(Arc::new(move |progress| {
            assert_eq!(progress.name, "a");
            let mut log = log.lock().unwrap();
            log.push((progress.received_bytes, progress.total_bytes));
        })),
        ..quick()
    };
    fixture.download_with(&options).await.unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&(100_000, Some(100_000))));
    assert!(seen.contains(&(40_000, Some(100_000))), "{seen:?}");
}

#[tokio::test]
async fn no_more_files_than_allowed_are_under_way() {
    let fixture = Fixture::new().await;
    let names: Vec<_> = (0..20).map(|at| format!("f{at:02}")).collect();
    for name in &names {
        fixture.server.file(name, &body(50_000));
    }
    let open = Arc::new(Mutex::new((std::collections::BTreeSet::new(), 0)));
    let watched = Arc::clone(&open);
    let options = DownloadOptions {
        parallel: 3,
        on_progress: Some(Arc::new(move |progress| {
            let (open, most) = &mut *watched.lock().unwrap();
            if progress.total_bytes == Some(progress.received_bytes) {
                open.remove(progress.name);
            } else {
                open.insert(progress.name.to_owned());
            }
            *most = open.len().max(*most);
        })),
        ..quick()
    };
    fixture.download_with(&options).await.unwrap();
    assert!(open.lock().unwrap().1 <= 3);
    assert_eq!(fixture.names(), names);
}

fn known(server: &Server, name: &str, digest: Digest, size: usize) -> FileDownload {
    FileDownload {
        name: name.to_owned(),
        url: server.links().urls[name].clone(),
        token: None,
        size_bytes: size as u64,
        digest,
    }
}

fn sha256(bytes: &[u8]) -> Digest {
    let mut hasher = Digest::Sha256(String::new()).hasher(bytes.len() as u64);
    hasher.update(bytes);
    Digest::Sha256(hasher.finish())
}

#[tokio::test]
async fn a_file_with_a_digest_is_taken_up_by_another_process_and_checked() {
    let fixture = Fixture::new().await;
    let server = &fixture.server;
    server.tagged_file("a", &body(1_000), None);
    server.script("a", [BreakAfter(400), Status(404)]);
    let file = known(server, "a", sha256(&body(1_000)), 1_000);
    let folder = fixture.folder.path();
    let error = file.fetch(&client(), folder, &quick()).await.unwrap_err();
    assert!(matches!(error, DownloadError::GaveUp { .. }), "{error}");
    let start = &file.digest.as_str()[..16];
    assert_eq!(fixture.names(), [format!(".a.{start}.part")]);
    server.requests();

    file.fetch(&client(), folder, &quick()).await.unwrap();
    assert_eq!(fixture.read("a"), body(1_000));
    assert_eq!(fixture.names(), ["a"]);
    assert_eq!(sent(&server.requests(), "range"), ["bytes=400-"]);
    assert!(file.digest.matches(&folder.join("a"), 1_000).unwrap());
}

#[tokio::test]
async fn a_file_that_has_another_digest_is_thrown_away() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(1_000));
    let other = known(&fixture.server, "a", sha256(b"other"), 1_000);
    let folder = fixture.folder.path();
    let error = other.fetch(&client(), folder, &quick()).await.unwrap_err();
    assert!(
        matches!(error, DownloadError::WrongDigest { .. }),
        "{error}"
    );
    assert!(fixture.names().is_empty());
    // A part that is not of this file makes a wrong whole, which the next try starts over.
    let file = known(&fixture.server, "a", sha256(&body(1_000)), 1_000);
    let start = &file.digest.as_str()[..16];
    fs::write(folder.join(format!(".a.{start}.part")), [9; 100]).unwrap();
    let error = file.fetch(&client(), folder, &quick()).await.unwrap_err();
    assert!(
        matches!(error, DownloadError::WrongDigest { .. }),
        "{error}"
    );
    file.fetch(&client(), folder, &quick()).await.unwrap();
    assert_eq!(fixture.read("a"), body(1_000));
    let long = known(&fixture.server, "a", sha256(&body(10)), 10);
    let error = long.fetch(&client(), folder, &quick()).await.unwrap_err();
    assert!(matches!(error, DownloadError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn two_downloads_of_one_file_do_not_mix() {
    let fixture = Fixture::new().await;
    fixture.server.file("a", &body(1_000));
    let file = known(&fixture.server, "a", sha256(&body(1_000)), 1_000);
    let start = &file.digest.as_str()[..16];
    let part = fixture.folder.path().join(format!(".a.{start}.part"));
    let held = fs::File::create(&part).unwrap();
    held.lock().unwrap();
    let error = file.fetch(&client(), fixture.folder.path(), &quick()).await;
    let error = error.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "another download of it is under way");
    drop(held);
    let again = file.fetch(&client(), fixture.folder.path(), &quick()).await;
    again.unwrap();
}
