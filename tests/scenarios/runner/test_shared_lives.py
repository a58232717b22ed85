"""Random lives of two or three migrations that fill one table: tables merged, parts of one table brought
together, in any order, with a runner that is killed again and again. A second implementation says what every
table holds after each step; rows of others stay, ETags included.

Soak: more seeds.
Reason, and what `make test` covers: minutes; two seeds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rekey.errors import RekeyError
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import SOURCE, authority
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands, CommandsOn
from tests.scenarios.runner.test_group import killed_at
from tests.soaking import others_in_soak
from tests.worlds.evidence import with_key
from tests.worlds.projects import Project

ALL, GROUP, STEPS = "All", "regions", 25
# Beginnings of PartitionKeys at the edges of key ranges: in UTF-16, 😀 is below U+E000.
BEGINNINGS = ["A", "B_", "Ä", "b", "😀", "\ue000", "\uffff", "A\uffff", "~", "0", "10", "D'", "%41", " x"]
EDGES = ["", "\uffff", "\ue000", "😀", "\ud7ff", "a", "0", "_", " ", "\xa0"]
Rows = dict[EntityKey, Row]

SCRIPT = '''\
"""Rows of a shared table."""
from rekey import Index, Migration, Target, keys, props, rows

migration = Migration(
    source={source!r},
    where={where},
    target=Target(
        "All",
        partition_key=keys.literal({text!r}) + keys.prop({of!r}),
        row_key=keys.join("_", "PartitionKey", "RowKey"),
        properties=[props.copy("PartitionKey", to="Old"), props.copy("RowKey", to="OldRow")],
        shared=True,
    ),
    indexes={indexes},
    capture="delta",
    mapping={mapping!r},
    group={group!r},
)
'''
INDEX = """[
        Index(
            "Idx",
            partition_key=keys.literal({text!r}) + keys.prop("Day"),
            row_key=keys.join("_", "PartitionKey", "RowKey"),
            shared=True,
        )
    ]"""


def utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


@dataclass(eq=False)
class Part:
    """A migration, and what the second implementation knows of its tables."""

    script_id: str
    source: str
    # The condition on source rows, and the same in this implementation.
    where: str
    takes: Callable[[str], bool]
    # How the PartitionKeys of its target rows begin, and the property that follows.
    text: str
    of: str
    options: Mapping[str, Any]
    partitions: list[str]
    # By their old keys, as the side has them that is the authority.
    rows: Rows = field(default_factory=dict)
    # What the tables hold.
    source_rows: Rows = field(default_factory=dict)
    target_rows: Rows = field(default_factory=dict)
    # None: the application maintains the index.
    index: set[EntityKey] | None = field(default_factory=set)

    @property
    def selector(self) -> tuple[str, ...]:
        group = self.options["group"]
        return ("--group", group) if group else (self.script_id,)

    def script(self) -> str:
        indexes = INDEX.format(text=self.text) if self.options["index"] else "[]"
        names = {"source": self.source, "where": self.where, "text": self.text, "of": self.of}
        return SCRIPT.format(**names, **{**self.options, "index": None}, indexes=indexes)

    def becomes(self, row: Row) -> Row:
        partition, name = row["PartitionKey"], row["RowKey"]
        new = {**row, "PartitionKey": self.text + row[self.of], "RowKey": f"{partition}_{name}"}
        return {**new, "Old": partition, "OldRow": name}

    def wanted(self) -> Rows:
        return {key_of(row): row for row in map(self.becomes, self.rows.values())}

    def wanted_index(self) -> set[EntityKey] | None:
        if not self.options["index"]:
            return None
        return {
            EntityKey(self.text + row["Day"], f"{row['PartitionKey']}_{row['RowKey']}")
            for row in self.rows.values()
        }

    def fills(self, partition: str) -> bool:
        return partition.startswith(self.text)


class Life:
    """A life of some migrations."""

    def __init__(self, project: Project, rekey: Commands, seed: int) -> None:
        self.project, self.rekey, self.draw = project, rekey, random.Random(seed)
        self.kills = self.names = 0
        with_key(project.folder)
        self.parts = self._parts()
        for part in self.parts:
            project.script(part.script(), f"{part.script_id}.py")
        for table in {ALL, "Idx", *(part.source for part in self.parts)}:
            asyncio.run(project.fill(table, []))
        for part in self.parts:
            self.write_old(part, self.draw.choice([0, 15, 30]))
        self.others: dict[tuple[str, EntityKey], Row] = {}
        for _ in range(12):
            self.write_others()

    def _parts(self) -> list[Part]:
        draw = self.draw
        texts: list[str] = []
        for text in draw.sample(BEGINNINGS, len(BEGINNINGS)):
            if not any(text.startswith(other) or other.startswith(text) for other in texts):
                texts.append(text)
        options = {
            "mapping": draw.choice(["plain", "plain", "sealed"]),
            "group": draw.choice(["", "", GROUP]),
            "index": draw.random() < 0.5,
        }
        of = draw.choice(["PartitionKey", "Day"])
        from_one = draw.choice([0, 2, 3])
        parts = []
        for number, text in enumerate(texts[: draw.randint(2, 3)]):
            source, where, partitions = f"Src{number}", "None", ["c1", "c2", "Ä", f"x{text}", "\uffff"]
            takes: Callable[[str], bool] = lambda _partition: True  # noqa: E731
            if number < from_one:
                source = "Src"
                where, takes, partitions = draw.choice(self._conditions(text))
            parts.append(Part(f"{number:04}_part", source, where, takes, text, of, options, partitions))
        return parts

    @staticmethod
    def _conditions(text: str) -> list[tuple[str, Callable[[str], bool], list[str]]]:
        """Return conditions on source rows, each with a second implementation and PartitionKeys that meet
        it."""
        one, below = f"{text}z", f"{text}m"
        under, hole = f"{text}_", f"{text}_q"
        all_but = (
            f"rows.all_of(rows.partition_key(prefix={under!r}),"
            f" rows.none_of(rows.partition_key(equals={hole!r})))"
        )
        return [
            (f"rows.partition_key(equals={text!r})", lambda key: key == text, [text]),
            (
                f"rows.partition_key(prefix={text!r})",
                lambda key: key.startswith(text),
                [text, f"{text}\uffff", f"{text}😀"],
            ),
            (f"rows.partition_key(one_of=[{text!r}, {one!r}])", lambda key: key in (text, one), [text, one]),
            (
                f"rows.partition_key(at_least={text!r}, below={below!r})",
                lambda key: utf16(text) <= utf16(key) < utf16(below),
                [text, f"{text}a", f"{text}l\uffff"],
            ),
            (
                f"rows.any_of(rows.partition_key(equals={text!r}), {all_but})",
                lambda key: key == text or (key.startswith(under) and key != hole),
                [text, under, f"{text}_qq"],
            ),
        ]

    # --- the application, and others ------------------------------------------------------------------------

    def do(self, table: str, operation: Operation) -> None:
        with suppress(RekeyError):
            asyncio.run(self.project.tables.table(table).write(operation))

    def _order(self, part: Part) -> Row:
        draw = self.draw
        name = draw.choice([f"{draw.randrange(12):02}", "", "\uffff", "😀"])
        row = {"PartitionKey": draw.choice(part.partitions), "RowKey": name}
        return {**row, "Day": f"d{draw.randrange(4)}", "Sum": draw.randrange(9)}

    def write_old(self, part: Part, count: int = 6) -> None:
        for _ in range(count):
            row = self._order(part)
            if self.draw.random() < 0.3:
                self.do(part.source, Operation(Verb.DELETE, row, "*"))
                part.rows.pop(key_of(row), None)
            else:
                self.do(part.source, Operation(Verb.INSERT_OR_REPLACE, row))
                part.rows[key_of(row)] = row
        part.source_rows = dict(part.rows)

    def write_new(self, part: Part) -> None:
        for _ in range(6):
            row = self._order(part)
            before = part.rows.get(key_of(row))
            if before is not None and (self.draw.random() < 0.4 or before[part.of] != row[part.of]):
                self.do(ALL, Operation(Verb.DELETE, part.becomes(before), "*"))
                del part.rows[key_of(row)]
            else:
                self.do(ALL, Operation(Verb.INSERT_OR_REPLACE, part.becomes(row)))
                part.rows[key_of(row)] = row
        part.target_rows = part.wanted()

    def write_others(self) -> None:
        """Write a row that is no migration's next to the keys of one."""
        draw = self.draw
        text = draw.choice(self.parts).text
        partition = draw.choice([*(text[:-1] + edge for edge in EDGES), text, f"{text}_q", f"{text}z", "K"])
        table = draw.choice([ALL, "Idx", *(part.source for part in self.parts if part.source == "Src")])
        if self.is_of_a_part(table, partition):
            return
        row = {
            "PartitionKey": partition,
            "RowKey": draw.choice(["", "1", "\uffff"]),
            "Sum": draw.randrange(9),
        }
        verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_REPLACE, Verb.DELETE])
        self.do(table, Operation(verb, row, "*" if verb is Verb.DELETE else None))
        self.others = self.of_others()

    def is_of_a_part(self, table: str, partition: str) -> bool:
        return any(
            part.takes(partition) if table == part.source else table != "Src" and part.fills(partition)
            for part in self.parts
        )

    def of_others(self) -> dict[tuple[str, EntityKey], Row]:
        """The rows of no migration, with ETag and Timestamp."""
        return {
            (table, key_of(row)): row
            for table in (ALL, "Idx", "Src")
            for row in self.rows(table)
            if not self.is_of_a_part(table, row["PartitionKey"])
        }

    # --- what has to hold -----------------------------------------------------------------------------------

    def rows(self, table: str) -> Sequence[Row]:
        exists = asyncio.run(self.project.tables.table_exists(table))
        return self.project.rows(table) if exists else []

    def held(self, table: str, has: Callable[[str], bool]) -> Rows:
        return {key_of(row): content_of(row) for row in self.rows(table) if has(row["PartitionKey"])}

    def check(self, without: list[Part]) -> None:
        """Require that every table holds what it must; of some parts nothing is required."""
        for part in self.parts:
            if part in without:
                continue
            assert self.held(part.source, part.takes) == part.source_rows
            assert self.held(ALL, part.fills) == part.target_rows
            if part.index is not None:
                assert self.held("Idx", part.fills).keys() == part.index
        assert self.of_others() == self.others

    def phase(self, part: Part) -> ControlPhase | None:
        row = asyncio.run(self.project.store(part.script_id).read())
        return None if row is None else row.phase

    # --- commands -------------------------------------------------------------------------------------------

    def carry_out(self, part: Part, *words: str, done: tuple[str, ...] = ()) -> list[Part]:
        """Carry out a command, killed up to twice; return the migrations that it is about. `done`: what it
        says where it was at its end when it was killed."""
        of_group = words[0] in ("apply", "rollback") and part.options["group"]
        about = [each for each in self.parts if each.options["group"]] if of_group else [part]
        for _ in range(self.draw.choice([0, 0, 1, 2])):
            effect = self.draw.randrange(1, 60)
            self.kills += killed_at(self.project, effect, lambda: self.rekey(*words, code=None))
            self.check(about)
            self.rekey("status")
        self.project.clock.advance(60)
        printed = self.rekey(*words, code=None if done else 0)
        told = " ".join(printed.err.split())
        assert "rekey:" not in told or any(text in told for text in done), told
        return about

    def apply(self, part: Part, *words: str) -> None:
        for each in self.carry_out(part, "apply", *part.selector, *words):
            each.target_rows, each.index = each.wanted(), each.wanted_index()

    def before_cutover(self, part: Part) -> None:
        match self.draw.choice(["write", "apply", "cutover", "cutover", "verify", "drop", "keep"]):
            case "write":
                self.write_old(part)
            case "apply":
                self.apply(part)
            case "cutover":
                self.apply(part, "--to", "cutover", "--writers-stopped")
            case "verify" if self.phase(part) is ControlPhase.DUAL_WRITE:
                is_equal = (part.target_rows, part.index) == (part.wanted(), part.wanted_index())
                printed = self.rekey("verify", part.script_id, "--mode", "full", code=None).out
                assert is_equal == ("pending until" not in printed and "Every row" in printed)
            case "drop" | "keep" as which if self.phase(part) is ControlPhase.DUAL_WRITE:
                self.apply(part)
                words = "rollback", *part.selector, "--to", "source", f"--{which}-targets"
                about = self.carry_out(part, *words, done=("already", "has not begun"))
                for each in about if which == "drop" else []:
                    each.target_rows, each.index = {}, set() if each.options["index"] else None

    def after_cutover(self, part: Part) -> None:
        match self.draw.choice(["write", "write", "back", "complete"]):
            case "write":
                self.write_new(part)
            case "back":
                words = "rollback", *part.selector, "--writers-stopped"
                for each in self.carry_out(part, *words, done=("--drop-targets",)):
                    each.source_rows = dict(each.rows)
                    each.target_rows, each.index = each.wanted(), each.wanted_index()
            case "complete":
                name = part.options["group"] or part.script_id
                words = "--to", "complete", "--writers-stopped", "--yes", name
                self.carry_out(part, "apply", *part.selector, *words)

    def after_complete(self, part: Part) -> None:
        match self.draw.choice(["write", "erase", "retire", "retire"]):
            case "write":
                self.write_new(part)
            case "erase" if part.rows:
                key = self.draw.choice(list(part.rows))
                words = "--old", key.partition, key.row, "--with-targets", "--reason", "a test"
                self.rekey("erase", part.script_id, *words, code=None)
                part.index = None
                part.source_rows = self.held(part.source, part.takes)
                part.target_rows = self.held(ALL, part.fills)
                if key_of(part.becomes(part.rows[key])) not in part.target_rows:
                    assert key not in part.source_rows
                    del part.rows[key]
            case "retire":
                self.retire(part)

    def retire(self, part: Part) -> None:
        self.names += 1
        bundle, backup = (str(self.project.folder / f"{name}{self.names}") for name in ("bundle", "backup"))
        self.rekey("evidence", "export", bundle, part.script_id)
        self.rekey("evidence", "verify", bundle)
        self.rekey("export", part.source, backup)
        retire = "retire", part.script_id, "--table", part.source, "--reason", "a test", "--backup", backup
        before = part.source_rows
        part.source_rows = {}
        self.carry_out(part, *retire)
        if self.draw.random() < 0.5:
            self.check([])
            self.carry_out(part, "restore", backup, part.script_id, done=("holds rows already",))
            part.source_rows = before

    def step(self) -> None:
        part = self.draw.choice(self.parts)
        phase = self.phase(part)
        if authority(phase) is SOURCE:
            self.before_cutover(part)
        elif phase is ControlPhase.CUTOVER:
            self.after_cutover(part)
        elif phase is ControlPhase.COMPLETE:
            self.after_complete(part)
        else:
            self.write_new(part)
        if self.draw.random() < 0.3:
            self.write_others()
        self.check([])


@pytest.mark.parametrize("seed", others_in_soak(range(40), kept=range(2)))
def test_migrations_that_share_a_table_live_in_any_order(
    tmp_path: Path, commands_on: CommandsOn, seed: int
) -> None:
    project = Project(tmp_path)
    life = Life(project, commands_on(project), seed)
    for _ in range(STEPS):
        life.step()
