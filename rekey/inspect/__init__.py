"""What a table holds: partitions, shapes, personal data."""
