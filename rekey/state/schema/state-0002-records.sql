-- What was proved and what was done. Audit events are only ever added.
-- depends: state-0001-progress

CREATE TABLE verification (
    id          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    script_id   TEXT NOT NULL REFERENCES migration (script_id) ON DELETE CASCADE,
    mode        TEXT NOT NULL,
    started_at  TEXT NOT NULL,
    finished_at TEXT NOT NULL,
    digest      TEXT NOT NULL,
    rows_source INTEGER NOT NULL,
    rows_target INTEGER NOT NULL,
    divergences INTEGER NOT NULL,
    transient   INTEGER NOT NULL,
    report      TEXT NOT NULL
);

CREATE INDEX verification_by_mode ON verification (script_id, mode, id);

CREATE TABLE audit_event (
    seq       INTEGER NOT NULL PRIMARY KEY,
    at        TEXT NOT NULL,
    actor     TEXT NOT NULL,
    event     TEXT NOT NULL,
    script_id TEXT,
    details   TEXT NOT NULL,
    prev      TEXT NOT NULL,
    hash      TEXT NOT NULL
);

CREATE TRIGGER audit_event_is_never_changed BEFORE UPDATE ON audit_event
BEGIN
    SELECT RAISE(ABORT, 'audit events are only ever added');
END;

CREATE TRIGGER audit_event_is_never_removed BEFORE DELETE ON audit_event
BEGIN
    SELECT RAISE(ABORT, 'audit events are only ever added');
END;
