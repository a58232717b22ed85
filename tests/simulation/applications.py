"""Applications that write while they are migrated: on the source in its old keys, later on the target.

Rules kept here:

* An application remembers what the service acknowledged. What it remembers is what must be there in the end.
* It keeps to its own rules, whatever happens around it: of rows that would share a target key, one exists.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from rekey.declaration.mapper import Mapper
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.tables.base import Operation, Verb
from tests.fakes.memory import MemoryTable
from tests.simulation.judging import standing_together
from tests.worlds.small import post, racer, user


@dataclass
class Application(ABC):
    """One application with its rows.

    Attributes:
        random: where its decisions are drawn from.
        mapper: what a row of the source is in the target, for the time after cutover.
        rows: what was acknowledged: on the source until cutover, then on the main target.
    """

    random: random.Random
    mapper: Mapper
    rows: dict[EntityKey, Row] = field(default_factory=dict)
    written: int = 0

    @abstractmethod
    def fresh(self) -> Row:
        """Return a source row to insert or to put in another's place: its key may be taken or not."""

    def may_insert(self, _row: Row) -> bool:
        """Tell whether the application's own rules allow a new source row."""
        return True

    async def write_source(self, table: MemoryTable) -> None:
        """Do one write in the old keys."""
        row = self.fresh()
        key = key_of(row)
        self.written += 1
        if key not in self.rows:
            if self.may_insert(row):
                await table.insert(row)
                self.rows[key] = row
        elif (lot := self.random.random()) < 0.35:
            await table.delete(key)
            del self.rows[key]
        elif lot < 0.7:
            await table.replace(row)
            self.rows[key] = row
        else:
            await table.merge(row)
            self.rows[key] = {**self.rows[key], **row}

    async def write_target(self, table: MemoryTable) -> None:
        """Do one write in the new keys, on the main target."""
        self.written += 1
        if self.rows and self.random.random() < 0.7:
            key = self.random.choice(sorted(self.rows))
            before = self.rows.pop(key)
            if self.random.random() < 0.3:
                await self.write_all(table, before, None)
                return
            row = self.changed(before)
            await self.write_all(table, before, row)
            self.rows[key_of(row)] = row
            return
        row = self.made_in_target()
        if key_of(row) not in self.rows and self.old_key_is_free(row):
            await self.write_all(table, None, row)
            self.rows[key_of(row)] = row

    async def write_all(self, table: MemoryTable, before: Row | None, after: Row | None) -> None:
        """Write a main target row and the secondary rows of its partition in one transaction."""
        old, new = ({} if row is None else self.in_table(row) for row in (before, after))
        writes = [Operation(Verb.DELETE, old[key]) for key in old.keys() - new.keys()]
        writes += [Operation(Verb.REPLACE if key in old else Verb.INSERT, new[key]) for key in new]
        await (table.transact(writes) if len(writes) > 1 else table.write(writes[0]))

    def in_table(self, target_row: Row) -> dict[EntityKey, Row]:
        """Return what the application writes for a main target row."""
        return {key_of(target_row): target_row}

    @abstractmethod
    def changed(self, target_row: Row) -> Row:
        """Return a target row with other content, such as the way back can express."""

    def made_in_target(self) -> Row:
        """Return a row as the application makes it in the new keys."""
        return content_of(self.mapper.map(self.fresh())[0].row)

    def old_key_is_free(self, target_row: Row) -> bool:
        """Tell whether no row stands for the old key that a new target row names."""
        old = self.mapper.source_key(target_row)
        return all(self.mapper.source_key(row) != old for row in self.rows.values())


@dataclass
class Users(Application):
    """Keys from keys alone."""

    def fresh(self) -> Row:
        number = self.random.randrange(40)
        row = user(f"u{number:02}@example.com", f"p{number % 3}", Age=self.written)
        if self.random.random() < 0.3:
            del row["Ssn"]
        return row

    def changed(self, target_row: Row) -> Row:
        return {**target_row, "Age": self.written, "Name": f"n{self.written}"}

    def made_in_target(self) -> Row:
        row = super().made_in_target()
        row.pop("Ssn", None)
        return row


@dataclass
class Posts(Application):
    """Keys from content, which changes, and an index table by tag."""

    def fresh(self) -> Row:
        number = self.random.randrange(30)
        tags = self.random.sample("abcde", self.random.randrange(4))
        row = post(f"p{number:02}", f"2024-{self.random.randint(1, 4):02}", ",".join(tags) or "none")
        return {**row, "Title": f"t{self.written}"}

    def changed(self, target_row: Row) -> Row:
        return {**target_row, "Title": f"t{self.written}", "Tags": self.random.choice(("a", "b,c", "e"))}


@dataclass
class Names(Application):
    """Keys that lower-case: a target key passes from one source key to another."""

    def fresh(self) -> Row:
        name = f"user{self.random.randrange(16):02}"
        spelling = self.random.choice((name, name.upper(), name.title()))
        return user(spelling, f"p{self.random.randrange(2)}", Age=self.written)

    def made_in_target(self) -> Row:
        """In the new keys only names that never were: a name that another spelling had before would say
        another old key than the mapping does, which the way back refuses (as any change of what carries an
        old key: it cannot tell the two apart)."""
        return content_of(self.mapper.map(user(f"New{self.written:04}", "p0"))[0].row)

    def may_insert(self, row: Row) -> bool:
        folded = (row["PartitionKey"], row["RowKey"].lower())
        return all((key.partition, key.row.lower()) != folded for key in self.rows)

    def changed(self, target_row: Row) -> Row:
        return {**target_row, "Age": self.written}


@dataclass
class Races(Application):
    """Secondary rows in the table of the main rows, which the application writes together."""

    def fresh(self) -> Row:
        number, draw = self.random.randrange(20), self.random
        row = racer(f"{number:02}", draw.randint(20, 22), draw.choice(("Ann", "Bob")), f"r{number % 2}")
        return {**row, "Club": "c", "Teams": ",".join(draw.sample("xyz", draw.randrange(3))) or "w"}

    def in_table(self, target_row: Row) -> dict[EntityKey, Row]:
        return standing_together(self.mapper, target_row)

    def changed(self, target_row: Row) -> Row:
        draw = self.random
        return {
            **target_row,
            "Age": draw.randint(20, 24),
            "Teams": draw.choice(("x", "y,z")),
            "No": self.written,
        }
