//! What a client was told is so after a loss of power, at any moment.
//!
//! A server is recorded at its work, call by call ([`recording`]). From the recording come images of what
//! a loss of power may leave on the disk ([`disk`]): bytes and names that were not synced are there, torn
//! or missing. A server starts on each image, and the client goes on where it was ([`script`]).

mod disk;
mod recording;
mod script;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use rusqlite::Connection;
use tinkrs_server::Settings;

use crate::caller::{TestServer, fake};
use disk::{Event, Luck};
use recording::{Recorded, Recording};
use script::{Script, Told};

/// What is recorded.
#[derive(Clone, Copy)]
enum Part {
    Short,
    Long,
}

impl Part {
    /// The test that plays it when it is run in a process that is recorded.
    fn test(self) -> &'static str {
        match self {
            Self::Short => "power::what_was_told_survives_a_loss_of_power_at_every_moment",
            Self::Long => "power::what_was_told_survives_a_loss_of_power_at_random_moments",
        }
    }

    /// Its recording from the beginning.
    fn recording(self) -> &'static Recording {
        static SHORT: LazyLock<Recording> =
            LazyLock::new(|| Recording::of(Part::Short.test(), "short", |_| {}));
        static LONG: LazyLock<Recording> =
            LazyLock::new(|| Recording::of(Part::Long.test(), "long", |_| {}));
        match self {
            Self::Short => &SHORT,
            Self::Long => &LONG,
        }
    }

    async fn play(self, script: &mut Script<'_>) {
        match self {
            Self::Short => script.short().await,
            Self::Long => script.long().await,
        }
    }

    /// Plays it in this process, which is recorded, on two servers after another.
    async fn perform(self) {
        let mut recorded = Recorded::here();
        let (data, told) = (recorded.data.clone(), recorded.told_before.clone());
        let change = |settings: &mut Settings| change(settings, &data);
        let server = TestServer::of(fake(), Arc::new(scratch()), change).await;
        let mut script = Script::new(server, told, |line| recorded.tell(line));
        self.play(&mut script).await;
        let mut script = script.restart(change).await;
        script.end().await;
        script.stop().await;
    }

    /// Starts a server on an image, lets the client go on to the end, and returns all that it was told.
    async fn go_on(self, image: Image) -> BTreeMap<String, String> {
        let folder = Arc::new(scratch());
        image.disk.image(image.luck, folder.path());
        let data = recording::data(folder.path());
        let server = TestServer::of(fake(), folder, |settings| change(settings, &data)).await;
        let mut script = Script::new(server, image.told, |_| {});
        self.play(&mut script).await;
        script.end().await;
        script.use_all().await
    }
}

/// What a loss of power may leave.
struct Image {
    disk: disk::Disk,
    luck: Luck,
    told: Told,
}

impl Image {
    fn of(recording: &Recording, moment: usize, luck: Luck) -> Self {
        let (disk, told) = recording.until(moment);
        Self { disk, luck, told }
    }
}

/// A folder in memory, where nothing is waited for.
fn scratch() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.unwrap()
}

fn change(settings: &mut Settings, data: &Path) {
    settings.data = data.to_owned();
    settings.snapshot_interval = Duration::MAX;
    settings.snapshot_operations = 3;
}

/// Returns what is wrong with these images.
async fn faults(
    part: Part,
    recording: &Recording,
    images: impl IntoIterator<Item = (usize, Luck)>,
) -> Vec<String> {
    let whole = Image::of(recording, recording.events.len(), Luck::All);
    let expected = part.go_on(whole).await;
    let checks = images.into_iter().map(|(moment, luck)| {
        let image = Image::of(recording, moment, luck);
        let found = tokio::spawn(part.go_on(image));
        let expected = &expected;
        async move {
            let fault = match found.await {
                Ok(found) if found == *expected => return None,
                Ok(found) => {
                    let differs = |about: &&String| found.get(*about) != expected.get(*about);
                    let about = expected.keys().find(differs);
                    let value = about.and_then(|about| found.get(about));
                    format!("{about:?} is {value:?}")
                }
                Err(error) => error.to_string(),
            };
            Some(format!("after {moment} events, {luck:?}: {fault}"))
        }
    });
    let checks = stream::iter(checks).buffer_unordered(4);
    checks.filter_map(|fault| async { fault }).collect().await
}

/// Draws images of any moment.
fn drawn(recording: &Recording, count: u64) -> impl Iterator<Item = (usize, Luck)> {
    let moments = recording.events.len();
    (0..count).map(move |seed| {
        let moment = fastrand::Rng::with_seed(seed).usize(..=moments);
        (moment, Luck::Drawn(seed))
    })
}

/// `TINKRS_POWER_IMAGES` sets how many.
fn count() -> u64 {
    let count = std::env::var("TINKRS_POWER_IMAGES");
    count.map_or(200, |count| count.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_survives_a_loss_of_power_at_random_moments() {
    if recording::is_recorded() {
        return Part::Long.perform().await;
    }
    let recording = Part::Long.recording();
    let faults = faults(Part::Long, recording, drawn(recording, count())).await;
    assert!(faults.is_empty(), "{}: {faults:#?}", faults.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_survives_a_loss_of_power_at_every_moment() {
    if recording::is_recorded() {
        return Part::Short.perform().await;
    }
    let recording = Part::Short.recording();
    let images = recording.moments().into_iter().map(|moment| {
        // Between two syncs, what is certain stays the same.
        let is_certain = match recording.events[..moment].last() {
            None | Some(Event::Sync(_) | Event::Told(_)) => true,
            Some(_) => false,
        };
        let drawn = Luck::Drawn(moment as u64);
        (moment, if is_certain { Luck::None } else { drawn })
    });
    let faults = faults(Part::Short, recording, images).await;
    assert!(faults.is_empty(), "{}: {faults:#?}", faults.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_is_left_out_is_found() {
    let recording = Part::Short.recording();
    let is_folder = |path: &str| !path.rsplit('/').next().unwrap_or_default().contains('.');
    type IsLeftOut = fn(&str) -> bool;
    let left_out: [(&str, IsLeftOut); 3] = [
        ("the write-ahead log", |path| path.ends_with("-wal")),
        ("folders", is_folder),
        ("weights", |path| path.starts_with("data/partial/")),
    ];
    for (what, is_left_out) in left_out {
        let recording = recording.without_syncs_of(is_left_out);
        let faults = faults(Part::Short, &recording, drawn(&recording, 60)).await;
        assert!(!faults.is_empty(), "nobody noticed: {what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_survives_a_second_loss_of_power() {
    let first = Part::Short.recording();
    for seed in 0..4 {
        let moment = fastrand::Rng::with_seed(seed).usize(..=first.events.len());
        let (disk, told) = first.until(moment);
        let second = Recording::of(Part::Short.test(), &format!("second-{seed}"), |root| {
            disk.image(Luck::Drawn(seed), root);
            recording::tell_before(root, &told);
        });
        let faults = faults(Part::Short, &second, drawn(&second, count() / 8)).await;
        assert!(
            faults.is_empty(),
            "first after {moment} events: {faults:#?}"
        );
    }
}

/// Fills a data folder as version 1 left it.
fn version_1(root: &Path) {
    let data = recording::data(root);
    std::fs::create_dir_all(&data).unwrap();
    let database = Connection::open(data.join("tinkrs.db")).unwrap();
    let sql = include_str!("../../../src/store/fixtures/v1.sql");
    database.execute_batch(sql).unwrap();
}

/// Starts a server on the folder, in this process, which is recorded.
async fn migrate() {
    let recorded = Recorded::here();
    let change = |settings: &mut Settings| change(settings, &recorded.data);
    let server = TestServer::of(fake(), Arc::new(scratch()), change).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_survives_a_loss_of_power_at_every_moment() {
    if recording::is_recorded() {
        return migrate().await;
    }
    let test = "power::a_migration_survives_a_loss_of_power_at_every_moment";
    let recording = Recording::of(test, "migration", version_1);
    for moment in recording.moments() {
        for luck in [Luck::None, Luck::Drawn(moment as u64)] {
            let (disk, _) = recording.until(moment);
            let folder = Arc::new(scratch());
            disk.image(luck, folder.path());
            let data = recording::data(folder.path());
            let server = TestServer::of(fake(), folder, |s| change(s, &data)).await;
            let folder = server.stop().await;
            let count = |database: &str, sql: &str| -> i64 {
                let database = Connection::open(data.join(database)).unwrap();
                let count = database.query_row(sql, [], |row| row.get(0));
                count.unwrap_or_else(|error| panic!("{moment}, {luck:?}: {sql}: {error}"))
            };
            let now = ["sessions", "samplers", "checkpoints", "usage", "audit"]
                .map(|table| count("tinkrs.db", &format!("SELECT count(*) FROM {table}")));
            assert_eq!(now, [1, 1, 2, 3, 2], "{moment}, {luck:?}");
            let before = count("tinkrs.db.v1", "SELECT count(number) FROM requests");
            assert_eq!(before, 8, "the copy, {moment}, {luck:?}");
            drop(folder);
        }
    }
}
