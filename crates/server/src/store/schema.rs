//! The tables of the database.

use rusqlite::{Connection, Result};

/// Raised with every change of the tables, so that an older server refuses a newer folder.
pub(super) const VERSION: i64 = 1;

/// What changes rarely is one JSON record; what is looked for or changes often has its own column.
const TABLES: &str = "
    CREATE TABLE sessions (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        last_request INTEGER NOT NULL,  -- in milliseconds
        next INTEGER NOT NULL,          -- the number that the run waits for
        snapshot INTEGER                -- the last number that its snapshot has seen
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
    INSERT INTO starts VALUES (0);
";

/// What lists and traces are made with. Folders of the first servers lack it; those servers can do with it.
const INDEXES: &str = "
    CREATE INDEX IF NOT EXISTS sessions_by_owner ON sessions (record ->> '$.owner');
    CREATE INDEX IF NOT EXISTS runs_by_owner ON runs (record ->> '$.owner');
    CREATE TABLE IF NOT EXISTS spans (
        number INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        request TEXT NOT NULL,
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        place INTEGER,                  -- the request's number there
        outcome TEXT NOT NULL,
        accepted INTEGER NOT NULL,      -- in milliseconds, as the others
        started INTEGER NOT NULL,
        ended INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS spans_by_session ON spans (session);
";

/// Prepares a connection, and makes the tables in a new database.
///
/// Returns the version of the tables.
pub(super) fn prepare(connection: &mut Connection) -> Result<i64> {
    // With a write-ahead log, a commit survives the end of the process without a sync; a loss of
    // power may take the newest commits, never the consistency.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != 0 {
        if version == VERSION {
            connection.execute_batch(INDEXES)?;
        }
        return Ok(version);
    }
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(INDEXES)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(VERSION)
}
