"""`rekey doctor --live`: tests on throw-away tables whether an account behaves as rekey assumes.

`stage.py` makes the tables and removes them; `checks.py` tries the service; `checks.toml` has the expected
results and the promises that rest on them; `life.py` takes small migrations through their life; `run.py`
combines these and signs the report.
"""
