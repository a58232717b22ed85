"""Rehearsals: the whole life of a migration, on an Azurite that is started for it.

`rehearsal.py` puts the parts together: an `azurite`, a `project` with the script, a `stock` of rows (from a
file, `data.py`, or made up), an `application` that writes and a `witness` that compares. `steps.py` runs the
commands of that life and checks each; `report.py` is the report of what was proved.
"""
