"""A migration, opened for work."""
