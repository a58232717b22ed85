"""Slices of the copy that an executor's workers carry out."""
