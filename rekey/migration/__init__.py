"""Opening a migration for work."""
