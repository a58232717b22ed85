"""Properties, their types, and how rows differ in them. Pure.

Rules kept here:

* A schema is the set of a row's properties with their EDM types, whatever their order.
* Memory is bounded: beyond 1,000 schemas or 2,000 properties the rest is counted together, and said to be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rekey.core.edm import edm_type
from rekey.model import Row, property_names

MAX_SCHEMAS = 1_000
MAX_PROPERTIES = 2_000

Schema = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PropertyUse:
    """One property: rows that have it, by EDM type."""

    name: str
    types: dict[str, int]

    @property
    def rows(self) -> int:
        """Return how many rows have it."""
        return sum(self.types.values())


class Schemas:
    """Takes rows (`add`) and counts properties, types and schemas."""

    def __init__(self) -> None:
        self.rows = 0
        self.most_properties = 0
        self.complete = True
        """Whether every schema and every property was counted for itself."""
        self._schemas: Counter[Schema] = Counter()
        self._loose: dict[str, Counter[str]] = {}
        """Properties of rows whose schema is not counted for itself."""

    def add(self, row: Row) -> None:
        """Count one wire row."""
        self.rows += 1
        names = property_names(row)
        self.most_properties = max(self.most_properties, len(names))
        schema = tuple([(name, edm_type(row, name)) for name in names])
        if schema in self._schemas:
            self._schemas[schema] += 1
            return
        schema = tuple(sorted(schema))
        if schema in self._schemas or len(self._schemas) < MAX_SCHEMAS:
            self._schemas[schema] += 1
            return
        self.complete = False
        for name, edm in schema:
            if name in self._loose or len(self._loose) < MAX_PROPERTIES:
                self._loose.setdefault(name, Counter())[edm] += 1

    @property
    def schemas(self) -> list[tuple[Schema, int]]:
        """Return the schemas and their rows, the most frequent first."""
        return sorted(self._schemas.items(), key=lambda one: (-one[1], one[0]))

    @property
    def properties(self) -> list[PropertyUse]:
        """Return the properties, those of most rows first."""
        types: dict[str, Counter[str]] = {name: Counter(counted) for name, counted in self._loose.items()}
        for schema, rows in self._schemas.items():
            for name, edm in schema:
                types.setdefault(name, Counter())[edm] += rows
        uses = [PropertyUse(name, dict(counted)) for name, counted in types.items()]
        return sorted(uses, key=lambda use: (-use.rows, use.name))
