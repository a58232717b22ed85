"""`rekey doctor --live`: whether an account does what rekey takes for granted, tried on throw-away tables.

`stage.py` makes the tables and removes them; `checks.py` tries the service; `checks.toml` says what must be
seen, and which promise rests on it; `life.py` takes small migrations through their life; `run.py` puts these
together and signs what was found.
"""
