"""Lives in which two source rows want one target key: what clients write, the mappings, and what is checked.

Until the rows are copied, no client sees the other's key, so two rows of one target key are a collision that
the operator resolves. `Guests.sharing` says whether clients may create such rows now; while it is off, each
target key has one source key that may be created.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.protocol.rules import View
from tests.simulation.dual_people import Application, Doing
from tests.simulation.witness import DELETE, INSERT, MERGE, READ, REPLACE, UPSERT, UPSERT_MERGE, Do

ADDRESSES = ("ann@example.com", "Ann@example.com", "bob@example.com", "BOB@example.com", "cy@example.com")
SEATS = ("s1", "s2")
CLUBS = ("c", "C", "d")
TURN = 40
"""For how many drawn rows all clients prefer the same few keys."""

_SCRIPT = '''\
"""Guests."""
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="Guests",
    target=Target(
        "GuestsV2",
        partition_key={partition},
        row_key={row},
        properties=[
            props.copy("RowKey", to="OldRowKey"), props.copy("PartitionKey", to="OldPartitionKey"),
        ],
    ),
    indexes=[{indexes}],
    waive={{
        "personal-data": "made-up addresses",
        "guessable-hash": "made-up addresses",
        "merged-keys": "refused as collisions",
    }},
    capture="dual-write",
)
'''
_SAME = 'keys.prop("PartitionKey")'
_LOWERED = 'keys.lower("RowKey")'
_BY_SEAT = (
    'Index("GuestsBySeat", partition_key=keys.literal("all"), row_key=keys.literal("S:") + keys.prop("Seat"))'
)
_PARTITIONS = (
    _SAME,
    'keys.literal("all")',
    'keys.date("yyyy-MM", "Day")',
    'keys.bucket(2, "sha256", keys.lower("RowKey"))',
    'keys.join("_", "PartitionKey", keys.lower("Club"))',
)
_FOLDED_ROWS = (
    _LOWERED,
    'keys.normalize("email", "RowKey")',
    'keys.opaque(keys.lower("RowKey"), domain="user", secret="users")',
    'keys.join("_", keys.date("yyyy-MM-dd", "Day"), keys.normalize("casefold", "RowKey"))',
    'keys.join("_", keys.literal("U"), keys.lower("RowKey"), keys.lower("Club"))',
)
_ROWS = (*_FOLDED_ROWS, 'keys.literal("U:") + keys.prop("RowKey")')
_INDEXES = (
    "",
    _BY_SEAT,
    f'Index("GuestsByTag", each=keys.split("Tags", ","), partition_key=keys.item(), row_key={_LOWERED})',
    f'Index("GuestsByMail", partition_key=keys.literal("all"), row_key={_LOWERED})',
)


def _script(partition: str, row: str, indexes: str = "") -> str:
    return _SCRIPT.format(partition=partition, row=row, indexes=indexes)


FOLDED = _script(_SAME, _LOWERED)
SEATED = _script(_SAME, 'keys.literal("U:") + keys.prop("RowKey")', _BY_SEAT)


def drawn(seed: object, *, folded: bool = False) -> str:
    """Return a script whose keys and index are drawn. `folded`: its main keys fold spellings together."""
    draw = random.Random(f"{seed} mapping")
    rows = _FOLDED_ROWS if folded else _ROWS
    return _script(draw.choice(_PARTITIONS), draw.choice(rows), draw.choice(_INDEXES))


def drawn_folded(seed: object) -> str:
    """Return a script that is drawn, whose main keys fold spellings together."""
    return drawn(seed, folded=True)


@dataclass
class Guests(Application):
    """Clients that create, delete and create again the same few guests, under several spellings and in the
    same seats."""

    sharing: bool = False
    """Whether a client may create a row whose target key another row may have."""
    pinned: dict[EntityKey, Row] = field(default_factory=dict)
    """While nothing is shared: the keys that may be created, and the content that their target keys need."""
    keys = (
        *(EntityKey("p0", name) for name in ADDRESSES),
        EntityKey("p1", "ann@example.com"),
        EntityKey("p1", "dee@example.com"),
    )
    in_keys = ("Day", "Club")
    shares = True

    def group(self, key: EntityKey) -> tuple[EntityKey, ...]:
        return tuple(one for one in self.keys if one.row.lower() == key.row.lower())

    def settle(self, rows: Mapping[EntityKey, Row], draw: random.Random) -> None:
        """Share nothing from now on: what is there stays where it is, and no other key becomes another's."""
        self.sharing = False
        self.pinned = {
            key: {name: row[name] for name in ("Day", "Club", "Seat")} for key, row in rows.items()
        }
        for group in sorted({self.group(key) for key in self.keys}):
            if not rows.keys() & {*group}:
                self.pinned[draw.choice(group)] = {}

    def share(self) -> None:
        self.sharing = True

    def may_create(self, key: EntityKey) -> bool:
        return self.sharing or key in self.pinned

    def row(self, draw: random.Random, key: EntityKey) -> Row:
        own = f"{key.partition}-{key.row}"
        row: Row = {
            PARTITION_KEY: key.partition,
            ROW_KEY: key.row,
            "Nm": f"n{self.written}",
            "Day": f"2024-0{draw.randint(1, 2)}-01T00:00:00Z",
            "Club": draw.choice(CLUBS),
            "Seat": draw.choice((*SEATS, own)),
            "Tags": ",".join(draw.sample("ab", draw.randint(1, 2))),
        }
        return row if self.sharing else {**row, "Seat": own, **self.pinned.get(key, {})}

    def step(self, draw: random.Random, view: View) -> list[Doing]:
        turn = random.Random(self.written // TURN)
        hot = draw.random() < 0.6 and self.sharing
        of_turn = turn.sample(self.keys, 2)
        near = [key for one in of_turn for key in self.group(one)] if hot else list(self.keys)
        if hot and draw.random() < 0.25:
            return self._moved(draw, view, near)
        count = draw.randint(2, 3) if draw.random() < 0.12 else 1
        found: dict[EntityKey, Doing] = {}
        for key in draw.sample(near, len(near)):
            self.written += 1
            verb = draw.choice(_HOT if hot else _VERBS) if count == 1 else draw.choice(_WRITES)
            if verb in _CREATES and not self.may_create(key):
                verb = draw.choice((REPLACE, MERGE, DELETE))
            row = self.in_view(self.row(draw, key), view)
            partitions = {target.partition for target in found}
            if len(found) < count and key_of(row) not in found and partitions <= {row[PARTITION_KEY]}:
                found[key_of(row)] = Doing(key, self._do(draw, verb, row, alone=count == 1))
        return list(found.values())

    def _moved(self, draw: random.Random, view: View, near: list[EntityKey]) -> list[Doing]:
        """Delete one row and create another that wants its target keys, in one transaction."""
        gone, new = draw.sample(near, 2)
        self.written += 1
        leaving, coming = self.row(draw, gone), self.row(draw, new)
        coming = {**coming, **{name: leaving[name] for name in ("Day", "Club", "Seat")}}
        leaving, coming = self.in_view(leaving, view), self.in_view(coming, view)
        doing = Doing(new, Do(draw.choice((INSERT, UPSERT)), coming))
        if leaving[PARTITION_KEY] != coming[PARTITION_KEY] or key_of(leaving) == key_of(coming):
            return [doing]
        only_key = {name: leaving[name] for name in (PARTITION_KEY, ROW_KEY)}
        return [Doing(gone, Do(DELETE, only_key)), doing]


_VERBS = (READ, READ, INSERT, REPLACE, REPLACE, MERGE, UPSERT, UPSERT_MERGE, DELETE, DELETE)
_HOT = (READ, INSERT, INSERT, INSERT, UPSERT, UPSERT, UPSERT_MERGE, DELETE, DELETE, DELETE)
_CREATES = (INSERT, UPSERT, UPSERT_MERGE)
_WRITES = tuple(verb for verb in _VERBS if verb != READ)
