"""`rekey doctor`: what can be checked before a migration, without owning the accounts.

Observing (`observe*.py`) and judging are kept apart: a check takes what was observed and returns findings.
"""
