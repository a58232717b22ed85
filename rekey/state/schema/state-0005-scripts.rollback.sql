DROP TABLE script;
