-- Sums of a verification under way, so that one that was cut off goes on. One for each migration.
-- depends: state-0003-evidence

CREATE TABLE partial_sums (
    script_id TEXT NOT NULL PRIMARY KEY REFERENCES migration (script_id) ON DELETE CASCADE,
    basis     TEXT NOT NULL,
    begun_at  TEXT NOT NULL,
    sums      TEXT NOT NULL
);
