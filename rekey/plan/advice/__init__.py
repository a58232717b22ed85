"""Advice on keys: pure rules over what was counted, one file for each family."""
