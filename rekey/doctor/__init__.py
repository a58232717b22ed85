"""`rekey doctor`: what can be checked before a migration, without owning the accounts.

`observe.py` looks and returns values (`observed.py`); `judge.py` makes findings and facts of these, with the
texts of `findings.toml`; `report.py` tells them.
"""
