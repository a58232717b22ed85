"""`rekey doctor`: checks before a migration, which need no ownership of the accounts.

`observe.py` returns observations as values (`observed.py`); `judge.py` derives findings and facts from them,
with the texts of `findings.toml`; `report.py` renders them.
"""
