"""Stress tests: at which rate a partition, and a planned distribution of keys, saturate."""
