"""Declarations of operators: keys, properties, casts; and the mapper that applies them to rows."""
