"""Comparing source and targets: count, sample, full; and repair."""
