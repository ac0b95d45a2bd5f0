//! Records what a server does to its data folder, call by call.
//!
//! The server runs in a process of its own with `record.c` preloaded. What its clients are told goes
//! to the same recording, so it has its place in the order of writes and syncs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::disk::{Disk, Event, Luck};
use super::script::Told;

/// The folder of a recording has the data folder, the file with what clients are told, and one with what they
/// were told before.
const DATA: &str = "data";
const TOLD: &str = "told";
const BEFORE: &str = "before";
const ROOT_VARIABLE: &str = "POWER_ROOT";

pub(super) struct Recording {
    before: Disk,
    told_before: Told,
    pub(super) events: Vec<Event>,
}

impl Recording {
    /// Records a test on a disk that `prepare` has filled. The recording is kept under its name until the
    /// next one; `TINKRS_POWER_RECORDED=1` uses it again, to look at an image that was not right.
    pub(super) fn of(test: &str, name: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("power")
            .join(name);
        let (root, log) = (folder.join("root"), folder.join("log"));
        let is_again = std::env::var_os("TINKRS_POWER_RECORDED").is_some();
        if !is_again {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&root).unwrap();
        }
        let before = tempfile::tempdir().unwrap();
        prepare(before.path());
        let before = Disk::of(before.path());
        before.image(Luck::All, &root);
        let told_before = told_before(&root);
        if !is_again {
            record(test, &folder);
        }
        let events = parse(&fs::read(&log).unwrap(), root.to_str().unwrap());
        assert!(!events.is_empty(), "{test} was not recorded");
        Self {
            before,
            told_before,
            events,
        }
    }

    /// The same on a disk that ignores some syncs.
    pub(super) fn without_syncs_of(&self, is_ignored: impl Fn(&str) -> bool) -> Self {
        let is_kept = |event: &&Event| !matches!(event, Event::Sync(path) if is_ignored(path));
        Self {
            before: self.before.clone(),
            told_before: self.told_before.clone(),
            events: self.events.iter().filter(is_kept).cloned().collect(),
        }
    }

    /// All moments, but not those in a stretch of writes to a file: they are a torn write of the stretch.
    pub(super) fn moments(&self) -> Vec<usize> {
        let is_within = |moment: usize| match self.events.get(moment.wrapping_sub(1)..=moment) {
            Some([Event::Write { path, .. }, Event::Write { path: next, .. }]) => path == next,
            _ => false,
        };
        let moments = 0..=self.events.len();
        moments.filter(|moment| !is_within(*moment)).collect()
    }

    /// The disk after some events, and what clients were told until then.
    pub(super) fn until(&self, moment: usize) -> (Disk, Told) {
        let (mut disk, mut told) = (self.before.clone(), self.told_before.clone());
        for event in &self.events[..moment] {
            disk.apply(event);
            if let Event::Told(line) = event {
                told.read(line);
            }
        }
        (disk, told)
    }
}

/// The recorded process's side.
pub(super) struct Recorded {
    pub(super) data: PathBuf,
    pub(super) told_before: Told,
    told: fs::File,
}

impl Recorded {
    /// Panics unless this process is recorded.
    pub(super) fn here() -> Self {
        let root = std::env::var_os(ROOT_VARIABLE);
        let root = PathBuf::from(root.expect("only for a process that `Recording::of` starts"));
        let told = fs::File::create(root.join(TOLD)).unwrap();
        Self {
            data: root.join(DATA),
            told_before: told_before(&root),
            told,
        }
    }

    /// Notes what a client was told.
    pub(super) fn tell(&mut self, line: &str) {
        self.told.write_all(line.as_bytes()).unwrap();
    }
}

/// Returns whether this process is recorded: then a test plays its part instead of looking at images.
pub(super) fn is_recorded() -> bool {
    std::env::var_os(ROOT_VARIABLE).is_some()
}

/// Returns the data folder of an image.
pub(super) fn data(root: &Path) -> PathBuf {
    root.join(DATA)
}

/// Notes what the client of a recording that is to be made was told before.
pub(super) fn tell_before(root: &Path, told: &Told) {
    fs::write(root.join(BEFORE), told.lines()).unwrap();
}

fn told_before(root: &Path) -> Told {
    let lines = fs::read_to_string(root.join(BEFORE)).unwrap_or_default();
    let mut told = Told::default();
    lines.lines().for_each(|line| told.read(line));
    told
}

fn record(test: &str, folder: &Path) {
    let played = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("LD_PRELOAD", library(folder))
        .env(ROOT_VARIABLE, folder.join("root"))
        .env("POWER_LOG", folder.join("log"))
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&played.stderr);
    assert!(played.status.success(), "{test}: {output}");
}

/// Compiles what is preloaded.
fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("record.c"), folder.join("record.so"));
    fs::write(&source, include_str!("record.c")).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output();
    // SQLite was compiled for this program, so there is a compiler.
    let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    let output = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{output}");
    library
}

fn parse(mut log: &[u8], root: &str) -> Vec<Event> {
    let mut events = Vec::new();
    while !log.is_empty() {
        let kind = take(&mut log, 1)[0];
        let number = u64::from_le_bytes(take(&mut log, 8).try_into().unwrap());
        let [path, other, length] =
            [(); 3].map(|()| u32::from_le_bytes(take(&mut log, 4).try_into().unwrap()) as usize);
        let [path, other] = [path, other].map(|length| {
            let path = String::from_utf8(take(&mut log, length).to_vec()).unwrap();
            let inside = path.strip_prefix(root).unwrap_or(&path);
            inside.trim_start_matches('/').to_owned()
        });
        let bytes = take(&mut log, length).to_vec();
        events.push(match kind {
            b'c' => Event::Create(path),
            b't' => Event::Truncate(path, number),
            b'w' if path == TOLD => Event::Told(String::from_utf8(bytes).unwrap()),
            b'w' => Event::Write {
                path,
                offset: number,
                bytes,
            },
            b's' => Event::Sync(path),
            b'r' => Event::Rename(path, other),
            b'x' => Event::Remove(path),
            b'd' => Event::Folder(path),
            other => panic!("an event of kind {other}"),
        });
    }
    events
}

fn take<'a>(log: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = log.split_at(length);
    *log = rest;
    taken
}
