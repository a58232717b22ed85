"""The status of a migration: read (`read.py`), judged (`judge.py`), written for people (`tell.py`)."""
