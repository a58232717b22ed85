"""Comparing the targets with what the source says: `count`, `sample`, `full`; and `repair`."""
