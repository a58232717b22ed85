"""Stress tests: at which rate a partition, and a planned distribution of keys, saturate.

`run.py` makes the test table and ramps up; `load.py` offers rates, of rows made by `spread.py`; `steps.py`
judges; `report.py` tells what was found.
"""
