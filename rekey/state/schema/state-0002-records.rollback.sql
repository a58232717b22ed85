DROP TRIGGER audit_event_is_never_removed;

DROP TRIGGER audit_event_is_never_changed;

DROP TABLE audit_event;

DROP INDEX verification_by_mode;

DROP TABLE verification;
