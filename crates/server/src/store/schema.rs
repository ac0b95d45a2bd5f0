//! The tables of the database, and how they came to be.
//!
//! A database has a version (`PRAGMA user_version`). [`STEPS`] has one step for each version: it
//! turns a database of the version before into one of its own. A new database goes through all of
//! them, so there is one description of the tables and no second one to keep in line with it.
//!
//! To change a table: append a step here, and change the file of that table in [`tables`](super::tables).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::files::{self, Files};
use super::{OpenError, legacy};

/// What turns a database of version `n` into one of version `n + 1`, by `n`.
const STEPS: [&str; 6] = [
    VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_5, VERSION_6,
];

/// The version that this program reads and writes.
pub(super) const VERSION: i64 = STEPS.len() as i64;

/// The version from which on all weights have manifests.
const DESCRIBED: i64 = 4;

/// What changes rarely is one JSON record; what is looked for or changes often has its own column.
const VERSION_1: &str = "
    CREATE TABLE sessions (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        last_request INTEGER NOT NULL,  -- in milliseconds
        next INTEGER NOT NULL,          -- the sequence id that the run waits for
        snapshot INTEGER                -- the last sequence id that its snapshot includes
    ) STRICT;
    CREATE TABLE samplers (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE checkpoints (path TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE losses (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE requests (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,          -- the run, sampler or session that it belongs to
        number INTEGER,                 -- its place there
        digest BLOB NOT NULL,           -- of its body
        seed INTEGER NOT NULL,
        accepted INTEGER NOT NULL,      -- in milliseconds
        has_body INTEGER NOT NULL,
        outcome TEXT,                   -- what its result is, once it has one
        size INTEGER                    -- of the result, while that is kept
    ) STRICT;
    CREATE INDEX requests_by_subject ON requests (subject, number);
    CREATE TABLE usage (
        hour INTEGER NOT NULL,          -- since 1970
        owner TEXT NOT NULL,
        base_model TEXT NOT NULL,
        session TEXT NOT NULL,
        kind TEXT NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (hour, owner, base_model, session, kind)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE audit (
        time INTEGER NOT NULL,          -- in milliseconds
        owner TEXT NOT NULL,
        event TEXT NOT NULL,
        details TEXT NOT NULL
    ) STRICT;
    CREATE INDEX audit_by_owner ON audit (owner, time);
    CREATE TABLE starts (epoch INTEGER NOT NULL) STRICT;
    INSERT INTO starts (epoch) VALUES (0);
";

/// The later servers of version 1 added the indexes and `spans` without a version of their own, hence
/// `IF NOT EXISTS`. A request's place is called `seq_id`, as in the API. The application id (`tkrs`)
/// tells these databases from those of other programs.
const VERSION_2: &str = "
    CREATE INDEX IF NOT EXISTS sessions_by_owner ON sessions (record ->> '$.owner');
    CREATE INDEX IF NOT EXISTS runs_by_owner ON runs (record ->> '$.owner');
    CREATE TABLE IF NOT EXISTS spans (
        number INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        request TEXT NOT NULL,
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        place INTEGER,                  -- the request's sequence id there
        outcome TEXT NOT NULL,
        accepted INTEGER NOT NULL,      -- in milliseconds, as the others
        started INTEGER NOT NULL,
        ended INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS spans_by_session ON spans (session);
    ALTER TABLE requests RENAME COLUMN number TO seq_id;
    ALTER TABLE spans RENAME COLUMN place TO seq_id;
    PRAGMA application_id = 0x746b7273;
";

/// Small bodies and results are in the database: a sync of it is one of them, too. Those of earlier
/// servers stay files.
const VERSION_3: &str = "
    CREATE TABLE bodies (id TEXT PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
    CREATE TABLE results (id TEXT PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
    ALTER TABLE starts ADD COLUMN syncs INTEGER NOT NULL DEFAULT 0;
";

/// What is to be removed is known until it is gone, and the journal reaches back to the snapshot before the
/// last. Earlier versions kept no journal for that, so their runs have nothing to fall back on.
const VERSION_4: &str = "
    CREATE TABLE removals (path TEXT PRIMARY KEY) STRICT;
    ALTER TABLE runs ADD COLUMN fallback INTEGER;  -- the snapshot before; -1 is the run's creation
";

/// Runs have names, by which they are found. Those of earlier versions have none in their records: theirs are made
/// of their ids.
const VERSION_5: &str = "
    CREATE INDEX runs_by_name ON runs (record ->> '$.owner', record ->> '$.name');
";

/// Metrics of runs by step, and why operations waited. A series has points; old points of a long one stand for several
/// steps each. What the passes since a run's last step add up to is with its progress.
const VERSION_6: &str = "
    CREATE TABLE progress (
        run TEXT PRIMARY KEY,
        steps INTEGER NOT NULL,         -- how often the optimizer was applied
        tokens INTEGER NOT NULL,        -- that were trained on, in all
        busy REAL NOT NULL,             -- milliseconds of computing, in all
        passes TEXT                     -- the sums of the passes since the last step
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE series (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        name TEXT NOT NULL,
        source INTEGER NOT NULL,        -- 0 is the server, 1 its clients
        count INTEGER NOT NULL,         -- of the steps that it has
        rows INTEGER NOT NULL,          -- of its points
        stride INTEGER NOT NULL,        -- how many steps an old point stands for
        last_step INTEGER NOT NULL,
        last_value REAL NOT NULL,
        UNIQUE (run, name, source)
    ) STRICT;
    CREATE TABLE points (
        series INTEGER NOT NULL,
        step INTEGER NOT NULL,          -- the last one that it stands for
        value REAL NOT NULL,            -- their mean
        low REAL,                       -- the least and the greatest, if there are several
        high REAL,
        count INTEGER NOT NULL,
        time INTEGER NOT NULL,          -- in milliseconds
        PRIMARY KEY (series, step)
    ) STRICT, WITHOUT ROWID;
    ALTER TABLE spans ADD COLUMN waits TEXT;
    ALTER TABLE spans ADD COLUMN busy INTEGER;  -- milliseconds of computing
    CREATE INDEX spans_by_subject ON spans (subject, number);
";

/// Opens the database of a data folder: a new one, one of this version, or one of an older
/// version, which is migrated. A copy of the older one stays beside it, as `tinkrs.db.v1`.
pub(super) fn open(files: &Files) -> Result<Connection, OpenError> {
    let path = &files.database();
    let failed = |error| OpenError::of_database(error, path);
    // Read before anything is written: another program's file stays as it is, and so does a damaged one.
    let version = inspect(path, Scrutiny::AtStart)?;
    if version == 0
        && let Some(weights) = files.weights().into_iter().next()
    {
        let folder = files.root().to_owned();
        return Err(OpenError::Lost { folder, weights });
    }
    let mut connection = Connection::open(path).map_err(failed)?;
    sync_commits(&connection)
        .and_then(|()| connection.pragma_update(None, "journal_mode", "wal"))
        .map_err(failed)?;
    if (1..VERSION).contains(&version) {
        let copy = keep_copy(&connection, path, version)?;
        tracing::info!(
            from = version,
            to = VERSION,
            copy = %copy.display(),
            "migrates the database"
        );
    }
    migrate(&mut connection, version, files).map_err(failed)?;
    Ok(connection)
}

/// Lets a connection sync what it commits, and what it moves from the write-ahead log to the database when it
/// is the last to close; on macOS by the call that does not leave it in the memory of the drive.
pub(super) fn sync_commits(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)
}

/// How much of a database is read to see whether it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scrutiny {
    /// Every page, and that indexes have what their tables have.
    Everything,
    /// The same for a small database. Of a large one every page, but not what indexes have, because that takes seconds.
    AtStart,
}

impl Scrutiny {
    /// Above this size the indexes are left out at a start. A database of 923 MB took 3.2 to 12.5 s with them, and 0.7 to
    /// 1.4 s without; this one takes less than a second in any case.
    const LARGE_BYTES: u64 = 64 << 20;

    fn pragma(self, size_bytes: u64) -> &'static str {
        match self {
            Self::AtStart if size_bytes > Self::LARGE_BYTES => "PRAGMA quick_check(1)",
            Self::Everything | Self::AtStart => "PRAGMA integrity_check(1)",
        }
    }
}

/// Returns the version of a database of this program that is whole, and 0 if there is none yet.
pub(super) fn inspect(path: &Path, scrutiny: Scrutiny) -> Result<i64, OpenError> {
    let failed = |error| OpenError::of_database(error, path);
    let size_bytes = match fs::metadata(path) {
        Ok(about) => about.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    // Writable, because a write-ahead log that was left behind is read with the file. It stays as it is.
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .and_then(|connection| {
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            Ok(connection)
        })
        .map_err(failed)?;
    let version = found_version(&connection).map_err(failed)?;
    let version = version.ok_or_else(|| OpenError::NotOurs(path.to_owned()))?;
    if version > VERSION {
        return Err(OpenError::Newer { version });
    }
    let found: String = connection
        .query_row(scrutiny.pragma(size_bytes), [], |row| row.get(0))
        .map_err(failed)?;
    match found.as_str() {
        "ok" => Ok(version),
        _ => Err(OpenError::Damaged {
            database: path.to_owned(),
            why: found.replace('\n', " "),
        }),
    }
}

/// Returns the version of a database, and `None` if it is not of this program.
fn found_version(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let count = |condition: &str| {
        let sql = format!("SELECT count(*) FROM sqlite_schema WHERE {condition}");
        connection.query_row(&sql, [], |row| row.get::<_, i64>(0))
    };
    let is_ours = match version {
        // Also what a process left that ended before it had made its tables.
        0 => count("true")? == 0,
        // None of our versions has views or triggers; those of others could do anything when they are read.
        1.. => {
            count("type = 'table' AND name IN ('starts', 'requests', 'runs')")? == 3
                && count("type IN ('view', 'trigger')")? == 0
        }
        _ => false,
    };
    Ok(is_ours.then_some(version))
}

/// Copies a database before it is migrated, with all that is in its write-ahead log.
fn keep_copy(connection: &Connection, path: &Path, version: i64) -> Result<PathBuf, OpenError> {
    let partial = files::with_ending(path, &format!(".v{version}.partial"));
    let copy = files::with_ending(path, &format!(".v{version}"));
    // What a migration left that was interrupted here.
    if partial.exists() {
        fs::remove_file(&partial)?;
    }
    connection
        .execute("VACUUM INTO ?", [partial.to_string_lossy()])
        .map_err(|error| OpenError::Database(error, partial.clone()))?;
    files::sync_file(&partial)?;
    fs::rename(&partial, &copy)?;
    files::sync_folder(files::parent(&copy))?;
    Ok(copy)
}

/// Takes the steps after a version, all of them or none.
fn migrate(connection: &mut Connection, version: i64, files: &Files) -> rusqlite::Result<()> {
    let steps = STEPS.iter().skip(version as usize);
    if steps.len() == 0 {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for step in steps {
        transaction.execute_batch(step)?;
    }
    if (1..DESCRIBED).contains(&version) {
        legacy::describe_all(&transaction, files)?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_that_fails_leaves_the_database_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::open(root.path()).unwrap();
        let path = files.database();
        let old = Connection::open(&path).unwrap();
        old.execute_batch(VERSION_1).unwrap();
        // In the way of a later statement of the same step.
        old.execute_batch(
            "ALTER TABLE requests ADD COLUMN seq_id INTEGER; PRAGMA user_version = 1",
        )
        .unwrap();
        drop(old);
        assert!(matches!(open(&files), Err(OpenError::Database(..))));
        let old = Connection::open(&path).unwrap();
        let spans = "SELECT count(*) FROM sqlite_schema WHERE name = 'spans'";
        let spans: i64 = old.query_row(spans, [], |row| row.get(0)).unwrap();
        let version: i64 = old
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        assert_eq!((version, spans), (1, 0), "half of a step is not kept");
    }

    #[test]
    fn files_that_are_not_of_this_program_are_refused_and_not_changed() {
        let root = tempfile::tempdir().unwrap();
        let text = root.path().join("text.db");
        fs::write(
            &text,
            "not a database, but longer than the header of one".repeat(20),
        )
        .unwrap();
        let foreign = root.path().join("foreign.db");
        let database = Connection::open(&foreign).unwrap();
        database.execute_batch("CREATE TABLE mail (text)").unwrap();
        let numbered = root.path().join("numbered.db");
        let database = Connection::open(&numbered).unwrap();
        database
            .execute_batch("CREATE TABLE mail (text); PRAGMA user_version = 7")
            .unwrap();
        drop(database);
        for path in [text, foreign, numbered] {
            let before = fs::read(&path).unwrap();
            let error = inspect(&path, Scrutiny::Everything).expect_err("it is not ours");
            assert!(matches!(error, OpenError::NotOurs(_)), "{error:?}");
            assert!(error.to_string().contains(&*path.to_string_lossy()));
            assert_eq!(fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn a_start_reads_the_pages_of_a_large_database_and_the_indexes_of_a_small_one_too() {
        let large = Scrutiny::LARGE_BYTES + 1;
        for (scrutiny, size_bytes, expected) in [
            (Scrutiny::AtStart, large, "quick_check"),
            (Scrutiny::AtStart, large - 1, "integrity_check"),
            (Scrutiny::Everything, large, "integrity_check"),
        ] {
            let pragma = scrutiny.pragma(size_bytes);
            assert!(pragma.contains(expected), "{scrutiny:?} of {size_bytes}");
        }
    }

    #[test]
    fn a_database_whose_tables_were_not_made_yet_is_new() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::open(root.path()).unwrap();
        let path = files.database();
        fs::write(&path, "").unwrap();
        let before = fs::read_dir(root.path()).unwrap().count();
        drop(open(&files).unwrap());
        let after = fs::read_dir(root.path()).unwrap().count();
        assert_eq!(after, before, "no copy");
        assert_eq!(inspect(&path, Scrutiny::Everything).unwrap(), VERSION);
    }
}
