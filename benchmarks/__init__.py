"""Benchmarks: figures side by side in one run. Timings live here and nowhere in the tests."""
