"""A project on disk: its configuration, secrets and private files."""
