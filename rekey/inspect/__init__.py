"""What a table holds: partitions, shapes, personal data.

`inventory.py` scans or samples (`sampling.py`); `profile.py` counts what goes by (`columns.py`, `shapes.py`,
`partitions.py`); `report.py` says what that means, `render.py` in words; `inspect.py` does all of it.
"""
