"""Erasing from the mapping: subjects on request, months when their keeping time is over."""
