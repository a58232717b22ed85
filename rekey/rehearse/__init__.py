"""Rehearsals: the whole life of a migration, on an Azurite started for it.

`rehearsal.py` combines an `azurite`, a `project` with the script, a `stock` of rows (from a file, `data.py`,
or generated), an `application` that writes and a `witness` that compares. `steps.py` runs the commands and
checks each; `report.py` is the report of what was proved.
"""
