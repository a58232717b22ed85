-- The scripts that migrations were begun with, as their files were. They stay when a migration is taken back.
-- depends: state-0004-sums

CREATE TABLE script (
    run_id    TEXT NOT NULL PRIMARY KEY,
    script_id TEXT NOT NULL,
    begun_at  TEXT NOT NULL,
    digest    TEXT NOT NULL,
    source    TEXT NOT NULL,
    targets   TEXT NOT NULL,
    content   BLOB NOT NULL
);
