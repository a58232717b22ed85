"""Slices of the row's way that an executor's workers carry out."""
