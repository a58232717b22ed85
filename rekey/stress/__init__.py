"""Stress tests: at which rate a partition, and a planned distribution of keys, saturate.

`run.py` makes the test table and tries inserts; `mixed.py` tries an application's mix: `mix.py` reads its
file, `requests.py` plans its requests, `processes.py` sends them from several processes. `ramp.py` ramps up;
`load.py` offers rates; `spread.py` says where rows go; `steps.py` and `mixsteps.py` judge; `report.py`,
`mixreport.py` and `page.py` tell what was found.
"""
