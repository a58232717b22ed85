"""Stress tests: at which rate a partition, and a distribution of rows, saturate under a mix of operations.

`run.py` creates and records the test table, and raises the rate of the `mix.py` on one partition, then on
each distribution (`spread.py`, read by `shares.py`). `requests.py` plans the requests of a step, `load.py`
sends them, from several processes if asked; `judge.py` measures and judges the step. `report.py` shows the
results.
"""
