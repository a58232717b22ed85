"""Erasing from the mapping: subjects on request, months when their retention is over."""
