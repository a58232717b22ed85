"""Advice on keys: pure rules over counted facts, one file for each family of rules."""
