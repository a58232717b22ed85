"""Inspection of a table: partitions, shapes of keys, personal data.

`inventory.py` scans or samples (`sampling.py`); `profile.py` counts the rows read (`shapes.py`,
`partitions.py`, `kinds.py`); `report.py` makes a report of the counts, `render.py` makes text of it;
`inspect.py` runs them all.
"""
