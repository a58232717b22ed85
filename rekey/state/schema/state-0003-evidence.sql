-- What evidence rests on: who and where, for every event from now on, and checkpoints over the chain.
-- depends: state-0002-records

ALTER TABLE audit_event ADD COLUMN format INTEGER NOT NULL DEFAULT 1;

ALTER TABLE audit_event ADD COLUMN host TEXT;

ALTER TABLE audit_event ADD COLUMN command TEXT;

CREATE TABLE audit_checkpoint (
    size   INTEGER NOT NULL PRIMARY KEY,
    at     TEXT NOT NULL,
    note   TEXT NOT NULL,
    remark TEXT NOT NULL
);

CREATE TRIGGER audit_checkpoint_is_never_changed BEFORE UPDATE ON audit_checkpoint
BEGIN
    SELECT RAISE(ABORT, 'checkpoints are only ever added');
END;

CREATE TRIGGER audit_checkpoint_is_never_removed BEFORE DELETE ON audit_checkpoint
BEGIN
    SELECT RAISE(ABORT, 'checkpoints are only ever added');
END;
