DROP TRIGGER audit_checkpoint_is_never_removed;

DROP TRIGGER audit_checkpoint_is_never_changed;

DROP TABLE audit_checkpoint;

ALTER TABLE audit_event DROP COLUMN command;

ALTER TABLE audit_event DROP COLUMN host;

ALTER TABLE audit_event DROP COLUMN format;
