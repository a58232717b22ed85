"""Rehearsals: the whole life of a migration on an Azurite of its own.

`rehearsal.py` brings together who takes part: an `azurite`, a `project` with the script, a `stock` of rows
(of a file, `data.py`, or made up), an `application` that writes and a `witness` that compares.
`steps.py` is the life, command by command; `report.py` is what was proved.
"""
