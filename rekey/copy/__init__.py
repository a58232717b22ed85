"""The row's way: scan, map, claim, write, checkpoint; sweep, delta passes, workers."""
