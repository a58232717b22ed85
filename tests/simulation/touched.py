"""Who reads and writes which rows, as a search met it: what commutes with all of it may go at once."""

from __future__ import annotations

from rekey.model import EntityKey
from tests.simulation.scheduler import Held

_Place = tuple[str, EntityKey | None]


class Touched:
    """Who reads and writes which rows; a whole table is a row without a key."""

    def __init__(self) -> None:
        self.reads: dict[str, set[_Place]] = {}
        self.writes: dict[str, set[_Place]] = {}

    def add(self, one: Held) -> bool:
        """Note a call; tell whether it is new."""
        touched = self.writes if one.call.writes else self.reads
        places = touched.setdefault(one.actor.name, set())
        before = len(places)
        places.update((one.call.table, key) for key in one.keys() or {None})
        return len(places) > before

    def is_alone(self, one: Held, *, only: bool) -> bool:
        """Tell whether a call commutes with everything noted, as far as rows go; `only`: its process has no
        other one under way, so that whatever else that does comes later."""
        own = one.actor.name if only or one.call.writes else ""
        others = [places for name, places in self.writes.items() if name != own]
        if one.call.writes:
            others += [places for name, places in self.reads.items() if name != one.actor.name]
        table = one.call.table
        keys = one.keys()
        for places in others:
            if not keys and any(place[0] == table for place in places):
                return False
            if (table, None) in places or any((table, key) in places for key in keys):
                return False
        return True
