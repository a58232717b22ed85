-- What a migration started with, and how far it has come.

CREATE TABLE migration (
    script_id           TEXT NOT NULL PRIMARY KEY,
    digest              TEXT NOT NULL,
    source              TEXT NOT NULL,
    run_id              TEXT NOT NULL,
    endpoint_id         TEXT NOT NULL,
    secret_fingerprints TEXT NOT NULL,
    registered_at       TEXT NOT NULL
);

CREATE TABLE fact (
    script_id TEXT NOT NULL REFERENCES migration (script_id) ON DELETE CASCADE,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (script_id, name)
);

CREATE TABLE segment (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    script_id  TEXT NOT NULL REFERENCES migration (script_id) ON DELETE CASCADE,
    purpose    TEXT NOT NULL,
    after_key  TEXT,
    upto_key   TEXT,
    cursor_key TEXT,
    row_count  INTEGER NOT NULL DEFAULT 0,
    byte_count INTEGER NOT NULL DEFAULT 0,
    done       INTEGER NOT NULL DEFAULT 0 CHECK (done IN (0, 1))
);

CREATE INDEX segment_by_purpose ON segment (script_id, purpose, id);

CREATE TABLE phase_run (
    id          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    script_id   TEXT NOT NULL,
    phase       TEXT NOT NULL,
    started_at  TEXT NOT NULL,
    finished_at TEXT,
    outcome     TEXT,
    counters    TEXT NOT NULL DEFAULT '{}'
);

CREATE INDEX phase_run_by_script ON phase_run (script_id, id);
