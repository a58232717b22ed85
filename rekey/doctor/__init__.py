"""`rekey doctor`: checks that can be made before a migration, without owning the accounts.

`observe.py` makes observations and returns them as values (`observed.py`); `judge.py` derives findings and
facts from these, with the texts of `findings.toml`; `report.py` renders them.
"""
