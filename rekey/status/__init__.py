"""The status of a migration: read (`facts.py`), judged (`judge.py`) and put into words (`tell.py`)."""
