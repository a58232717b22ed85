DROP INDEX phase_run_by_script;

DROP TABLE phase_run;

DROP INDEX segment_by_purpose;

DROP TABLE segment;

DROP TABLE fact;

DROP TABLE migration;
