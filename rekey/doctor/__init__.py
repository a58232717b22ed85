"""`rekey doctor`: what can be checked before a migration, without owning the accounts.

`observe*.py` look and return values (`observed.py`); `judge*.py` make findings and facts of these
(`finding.py`); `render.py` tells them.
"""
