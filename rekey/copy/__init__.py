"""Copying rows: scan, map, claim, write, checkpoint; sweeps, delta passes and workers."""
