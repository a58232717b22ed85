"""Whole lives of the worked examples of kinds, references, parts, splits and merges, in both captures, with
writes on both sides and a runner that is killed again and again. What the tables hold is compared with a
second implementation, which shares no code with the mapper, after every step; rows of nobody stay, ETags
included.

Soak: more seeds; capture "dual-write".
Reason, and what `make test` covers: minutes; one seed of each example in capture "delta".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from rekey.core.joint import is_joint, joint_row, names_in, prefix_of
from rekey.declaration.mapper import Mapper
from rekey.errors import ConfigurationError, RekeyError
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import Phase
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.runner.session import Session
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands, CommandsOn
from tests.scenarios.client.test_kinds import identity, opaque
from tests.scenarios.client.test_kinds import independently as identity_becomes
from tests.scenarios.runner.test_group import killed_at
from tests.soaking import others_in_soak
from tests.worlds.company import Client, Company
from tests.worlds.evidence import with_key
from tests.worlds.projects import Project
from tests.worlds.scripts import under_writes
from tests.worlds.shipments import BY_CUSTOMER, by_customer

ROOT = Path(__file__).parents[3] / "migrations"
GROUP = "shop"
# A table and a row of it.
Placed: TypeAlias = tuple[str, Row]


@dataclass(frozen=True)
class Example:
    """A worked example: its scripts, rows of its sources, and what they become."""

    # File names, with texts that are replaced.
    scripts: Mapping[str, Mapping[str, str]]
    # Draws a row of one of the source tables.
    draw: Callable[[random.Random], Placed]
    # What a source row becomes, without the mapper; None: it stays where it is.
    becomes: Callable[[str, Row], Placed | None]
    # Rows that are in the targets before, and stay.
    nobodys: Sequence[Placed] = ()
    group: str = ""
    captures: Sequence[str] = ("delta", "dual-write")
    # The source table, and the property of new rows that refer to its rows and that says nothing of their old
    # keys (`keep_old=False`).
    refers: tuple[str, str] = ("", "")
    # The properties of a target row that say which source row it is of, where its key is made of the row's
    # content.
    old_key: tuple[str, ...] = ()
    # The index rows of a main row.
    index_rows: Callable[[str, Row], Sequence[Placed]] = lambda _table, _row: ()


def draw_identity(draw: random.Random) -> Placed:
    row = draw.choice(identity(draw.randrange(12)))
    return "AspNetUsers", {**row, "Level": draw.randrange(9)}


def draw_shop(draw: random.Random) -> Placed:
    mail = f"user{draw.randrange(20)}@mail.example"
    if draw.random() < 0.5:
        return "Users", {"PartitionKey": "eu", "RowKey": mail, "Level": draw.randrange(9)}
    order = {"PartitionKey": f"t{draw.randrange(3)}", "RowKey": f"{draw.randrange(30):03}"}
    return "Orders", order | ({"UserEmail": mail} if draw.random() < 0.8 else {})


def shop_becomes(table: str, row: Row) -> Placed:
    if table == "Users":
        mail = row["RowKey"]
        return "UsersV2", {**row, "RowKey": opaque("user", mail), "ContactEmail": mail}
    user = {"UserId": opaque("user", row["UserEmail"])} if "UserEmail" in row else {}
    return "OrdersV2", {**row, **user}


def removed_shop_becomes(table: str, row: Row) -> Placed:
    target, made = shop_becomes(table, row)
    return target, {name: value for name, value in made.items() if name != "UserEmail"}


def draw_order(draw: random.Random) -> Placed:
    order = {"PartitionKey": f"c{draw.randrange(4)}", "RowKey": f"{draw.randrange(20):03}"}
    return draw.choice(["OrdersDE", "OrdersFR"]), {**order, "Sum": draw.randrange(9)}


def order_becomes(table: str, row: Row) -> Placed:
    customer = row["PartitionKey"]
    return "AllOrders", {**row, "PartitionKey": f"{table[-2:]}_{customer}", "Customer": customer}


def draw_line(draw: random.Random) -> Placed:
    day = draw.choice(["2023-12-31", "2024-01-01", "2024-01-31", "2024-02-29", "2024-03-15", "2024-04-01"])
    number = draw.randrange(20)
    service = draw.choice(["web", "api"])
    return "Logs", {
        "PartitionKey": day,
        "RowKey": f"{number:03}",
        "Service": service,
        "Level": draw.randrange(9),
    }


def line_becomes(_table: str, row: Row) -> Placed | None:
    day = row["PartitionKey"]
    if day[:7] not in ("2024-01", "2024-02", "2024-03"):
        return None
    return f"Logs{day[:7].replace('-', '')}", {**row, "PartitionKey": f"{row['Service']}_{day}", "Day": day}


def draw_invoice(draw: random.Random) -> Placed:
    tenant, number = draw.choice(["contoso", "contoso", "fabrikam", "x"]), draw.randrange(30)
    month = draw.randrange(1, 5)
    issued = {"IssuedAt": f"2024-0{month}-11T10:20:30Z", "IssuedAt@odata.type": "Edm.DateTime"}
    return "Invoices", {
        "PartitionKey": tenant,
        "RowKey": f"{number:03}",
        **issued,
        "Total": draw.randrange(9),
    }


def invoice_becomes(_table: str, row: Row) -> Placed | None:
    if row["PartitionKey"] != "contoso":
        return None
    return "InvoicesOfContoso", {**row, "PartitionKey": row["IssuedAt"][:7], "Tenant": "contoso"}


def draw_shipment(draw: random.Random) -> Placed:
    row: Row = {
        "PartitionKey": f"c{draw.randrange(4)}",
        "RowKey": f"{draw.randrange(15):03}",
        "Weight": draw.randrange(9),
    }
    if draw.random() < 0.5:
        at = f"{draw.choice([2023, 2024, 2025])}-0{draw.randrange(1, 3)}-11T10:20:30Z"
        row |= {"State": "arrived", "ArrivedAt": at, "ArrivedAt@odata.type": "Edm.DateTime"}
    elif draw.random() < 0.5:
        row["State"] = "open"
    return "Shipments", row


def shipment_becomes(_table: str, row: Row) -> Placed:
    customer, number = row["PartitionKey"], row["RowKey"]
    held = {**row, "Customer": customer, "Number": number}
    if row.get("State") != "arrived":
        return "ShipmentsOpen", held
    month = row["ArrivedAt"][:7]
    return f"Shipments{month[:4]}", {**held, "PartitionKey": month, "RowKey": f"{customer}_{number}"}


IN_A_GROUP = {"    capture=": f'    group="{GROUP}",\n    capture='}
EXAMPLES = {
    "identity": Example(
        {"0005_identity_users.py": {}},
        draw_identity,
        lambda _table, row: ("AspNetUsersV2", identity_becomes(row)),
    ),
    "identity, roles stay": Example(
        {"0005_identity_users.py": {'        kept("role", "R_"),\n    ],': '    ],\n    otherwise="leave",'}},
        draw_identity,
        lambda _table, row: (
            None if row["RowKey"].startswith("R_") else ("AspNetUsersV2", identity_becomes(row))
        ),
    ),
    "users and orders": Example(
        {"0001_users_opaque_ids.py": IN_A_GROUP, "0006_orders_of_users.py": IN_A_GROUP},
        draw_shop,
        shop_becomes,
        group=GROUP,
    ),
    "users and orders without old references": Example(
        {
            "0001_users_opaque_ids.py": IN_A_GROUP,
            "0006_orders_of_users.py": IN_A_GROUP
            | {'ids")]': 'ids", partition=keys.literal("eu"), keep_old=False)]'},
        },
        draw_shop,
        removed_shop_becomes,
        group=GROUP,
        refers=("Users", "UserId"),
    ),
    "tenant": Example(
        {"0007_invoices_of_a_tenant.py": {}}, draw_invoice, invoice_becomes, old_key=("Tenant", "RowKey")
    ),
    "merge": Example(
        {"0008_orders_of_regions.py": {}},
        draw_order,
        order_becomes,
        [
            ("AllOrders", {"PartitionKey": "US_c1", "RowKey": "001"}),
            ("AllOrders", {"PartitionKey": "DE", "RowKey": "1"}),
        ],
        group="orders",
    ),
    "split": Example(
        {"0009_logs_by_month.py": {}},
        draw_line,
        line_becomes,
        group="logs",
        captures=("delta",),
        old_key=("Day", "RowKey"),
    ),
    "split by properties": Example(
        {"0010_shipments_by_state.py": {}}, draw_shipment, shipment_becomes, old_key=("Customer", "Number")
    ),
    "split by properties with an index": Example(
        {"0010_shipments_by_state.py": BY_CUSTOMER},
        draw_shipment,
        shipment_becomes,
        old_key=("Customer", "Number"),
        index_rows=by_customer,
    ),
}


@dataclass
class Life:
    """A life of an example."""

    example: Example
    project: Project
    capture: str
    draw: random.Random
    kills: int = 0
    ids: list[str] = field(init=False)
    sources: list[str] = field(init=False)

    def __post_init__(self) -> None:
        for name, changes in self.example.scripts.items():
            text = (ROOT / name).read_text("utf-8").replace('capture="dual-write"', 'capture="delta"')
            for old, new in changes.items():
                assert old in text
                text = text.replace(old, new)
            self.project.script(under_writes(text) if self.capture == "dual-write" else text, name)
        scripts = self.project.scripts
        self.ids = list(scripts)
        self.sources = sorted({script.migration.source for script in scripts.values()})
        stock = {
            (table, key_of(row)): row for table, row in (self.example.draw(self.draw) for _ in range(60))
        }
        for table in self.sources:
            rows = [row for (at, _), row in stock.items() if at == table]
            asyncio.run(self.project.fill(table, rows))
        for table, row in self.example.nobodys:
            asyncio.run(self.project.fill(table, [row]))
        self.untouched = self.nobodys()

    def nobodys(self) -> list[Row]:
        """Rows that are no migration's, with ETag and Timestamp."""
        named = {(table, key_of(row)) for table, row in self.example.nobodys}
        tables = sorted({table for table, _ in named})
        return [row for table in tables for row in self.project.rows(table) if (table, key_of(row)) in named]

    def staying(self) -> list[Row]:
        """Source rows that no migration takes, with ETag and Timestamp."""
        rows = [(table, row) for table in self.sources for row in self.project.rows(table)]
        return [row for table, row in rows if self.example.becomes(table, content_of(row)) is None]

    def compare(self) -> None:
        """Require that each target holds what the second implementation makes of the sources."""
        wanted = dict[tuple[str, EntityKey], Row]()
        for table in self.sources:
            for row in self.project.rows(table):
                if (placed := self.example.becomes(table, content_of(row))) is not None:
                    for target, target_row in (placed, *self.example.index_rows(*placed)):
                        wanted[target, key_of(target_row)] = target_row
        targets = {name for names in self.targets() for name in names}
        nobodys = {(table, key_of(row)) for table, row in self.example.nobodys}
        held = {
            (table, key_of(row)): content_of(row) for table in targets for row in self.project.rows(table)
        }
        assert {place: row for place, row in held.items() if place not in nobodys} == wanted
        assert self.nobodys() == self.untouched

    def operation(self, view: View) -> tuple[str, str, Operation] | None:
        """Draw a write in a view; return the source of its row, its table and the operation; None where the
        row is of no migration, and the new view has none."""
        placed = self.example.draw(self.draw)
        source = placed[0]
        if view is View.NEW:
            becomes = self.example.becomes(*placed)
            if becomes is None:
                return None
            placed = becomes
            if not self.may_refer(placed[1]):
                return None
            if (stale := self._stale(*placed)) is not None:
                # The row would have two keys: the application deletes the former one first.
                return source, stale[0], Operation(Verb.DELETE, stale[1], "*")
        verb = self.draw.choice([Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_REPLACE, Verb.DELETE])
        return source, placed[0], Operation(verb, placed[1], "*" if verb is Verb.DELETE else None)

    def may_refer(self, _target_row: Row) -> bool:
        """Tell whether the application may write a row in the new view: what it refers to is known."""
        return True

    def carry_out(self, session: Session, step: str, to: Phase | None) -> None:
        """Carry out `apply` or `rollback`, of the group if there is one."""
        group = self.example.group
        if step == "apply":
            if group:
                commands.apply_group(session, group, to=to)
            else:
                commands.apply(session, *self.ids, to=to)
        elif group:
            commands.rollback_group(session, group, to=None, drop=None)
        else:
            commands.rollback(session, *self.ids, to=None, drop=None)

    def _stale(self, table: str, row: Row) -> Placed | None:
        """Return the row of the same source row that is in another table, or under another key."""
        names, mine = self.example.old_key, (table, key_of(row))
        if not names:
            return None
        mains = [names_in(script.migration.target.table) for script in self.project.scripts.values()]
        tables = next(names for names in mains if table in names)
        same = (
            (name, each)
            for name in tables
            for each in self.project.rows(name)
            if [each[of] for of in names] == [row[of] for of in names] and (name, key_of(each)) != mine
        )
        return next(same, None)

    def targets(self) -> list[tuple[str, ...]]:
        """Return the tables that each migration fills."""
        return [script.migration.table_names for script in self.project.scripts.values()]


def joint(mapper: Mapper, table: str, operation: Operation) -> Operation:
    """Return an operation on a table as the writer of the new view takes it, as the clients do."""
    main = mapper.tables[0]
    if not is_joint(main) or table not in names_in(main):
        return operation
    return Operation(operation.verb, joint_row(prefix_of(table), operation.row), operation.etag)


def lives(capture: str, seeds: int) -> list[tuple[str, int]]:
    """Return every example that has this capture, with each seed."""
    named = [name for name, example in EXAMPLES.items() if capture in example.captures]
    return [(name, seed) for name in named for seed in range(seeds)]


# --- the application writes the tables ----------------------------------------------------------------------


class Delta(Life):
    """A life in capture "delta"."""

    def may_refer(self, target_row: Row) -> bool:
        # No client refuses other references, and a rollback would.
        table, name = self.example.refers
        known = [opaque("user", row["RowKey"]) for row in self.project.rows(table)] if table else []
        return name not in target_row or target_row[name] in known

    def write(self, view: View, count: int = 25) -> None:
        for _ in range(count):
            if (drawn := self.operation(view)) is not None:
                _, table, operation = drawn
                before = self.index_rows_of(table, operation.key) if view is View.NEW else {}
                with suppress(RekeyError):
                    asyncio.run(self.project.tables.table(table).write(operation))
                if view is View.NEW:
                    asyncio.run(self.write_index_rows(before, self.index_rows_of(table, operation.key)))

    def index_rows_of(self, table: str, key: EntityKey) -> dict[tuple[str, EntityKey], Row]:
        """Return the index rows of a row of the new view, as it is now, by their places."""
        row = asyncio.run(self.project.tables.table(table).get(key))
        placed = () if row is None else self.example.index_rows(table, content_of(row))
        return {(target, key_of(index_row)): index_row for target, index_row in placed}

    async def write_index_rows(
        self, before: Mapping[tuple[str, EntityKey], Row], after: Mapping[tuple[str, EntityKey], Row]
    ) -> None:
        """Write index rows as the application does: nobody follows its writes."""
        for (table, _), row in after.items():
            await self.project.tables.table(table).upsert(row)
        for table, key in before.keys() - after.keys():
            await self.project.tables.table(table).delete(key)

    def prove_and_retire(self, rekey: Commands) -> None:
        """Prove each migration and retire its source: the targets stay, and the rows beside a part."""
        scripts, project = self.project.scripts, self.project
        with_key(project.folder)
        tables = sorted({name for names in self.targets() for name in names})
        held = {name: project.rows(name) for name in tables}
        is_part = any(script.migration.where is not None for script in scripts.values())
        staying = self.staying() if is_part else []
        for script_id, script in scripts.items():
            bundle = str(project.folder / f"bundle-{script_id}")
            rekey("evidence", "export", bundle, script_id)
            rekey("evidence", "verify", bundle)
            rekey("evidence", "recompute", bundle, "--mapping")
            rekey("retire", script_id, "--table", script.migration.source, "--no-backup", "a test")
        assert {name: project.rows(name) for name in tables} == held
        left = [table for table in self.sources if asyncio.run(project.tables.table_exists(table))]
        assert [row for table in left for row in project.rows(table)] == staying

    def command(self, step: str, to: Phase | None = None) -> None:
        """Carry out a command, killed up to three times."""

        def once() -> None:
            with self.project.session(Options(writers_stopped=True)) as session:
                self.carry_out(session, step, to)

        def again() -> None:
            # Done before the kill: no further back without --drop-targets.
            with suppress(ConfigurationError):
                once()

        for _ in range(3):
            self.kills += killed_at(self.project, self.draw.randrange(1, 25), again)
        again()


@pytest.mark.parametrize(("name", "seed"), others_in_soak(lives("delta", 12), kept=lives("delta", 1)))
def test_an_example_lives_in_capture_delta(
    tmp_path: Path, commands_on: CommandsOn, name: str, seed: int
) -> None:
    life = Delta(EXAMPLES[name], Project(tmp_path), "delta", random.Random(seed))
    life.command("apply")
    life.compare()
    life.write(View.OLD)
    staying = life.staying()
    life.command("apply", Phase.CUTOVER)
    life.compare()
    life.write(View.NEW)
    life.command("rollback")
    life.compare()
    life.command("apply", Phase.CUTOVER)
    life.compare()
    life.command("apply", Phase.COMPLETE)
    life.compare()
    assert life.staying() == staying
    assert life.kills > 3
    life.prove_and_retire(commands_on(life.project))


# --- the application writes through clients -----------------------------------------------------------------


class UnderWrites(Life):
    """A life in capture "dual-write": clients in both views of each migration write all the time."""

    def begin(self) -> None:
        first = Company(self.project, self.ids[0])
        self.companies = [first, *(Company(self.project, each, first.loop) for each in self.ids[1:])]
        self.clients = dict[tuple[View, str], Client]()
        self.open(View.OLD)

    def open(self, view: View) -> None:
        """Let clients begin to write in a view."""
        for company in self.companies:
            self.clients[view, company.mapper.migration.source] = company.client(view)
        self.companies[0].writes(self.traffic(view))

    async def traffic(self, view: View) -> None:
        company = self.companies[0]
        while not company.stopping:
            if (drawn := self.operation(view)) is not None:
                source, table, operation = drawn
                with suppress(RekeyError):
                    await self.clients[view, source].write(joint(company.mapper, table, operation))
            await self.project.clock.sleep(self.draw.random() / len(self.companies))

    def command(self, step: str, to: Phase | None = None) -> None:
        """Carry out a command, killed up to three times, while the application writes."""
        first = self.companies[0]

        def once() -> None:
            with first.session() as session:
                self.carry_out(session, step, to)

        for _ in range(3):
            with first.killing_the_runner(self.draw.randrange(1, 40)):
                once()
            self.kills += 1
            first.live(120)
        once()
        first.live(5)

    def verify(self) -> None:
        for company in self.companies:
            assert not company.verify(Mode.FULL).findings

    def settle(self) -> None:
        for company in self.companies:
            company.settle()

    def end(self) -> None:
        for company in reversed(self.companies):
            company.quiet()
        self.companies[0].close()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("name", "seed"), lives("dual-write", 4))
def test_an_example_lives_under_writes(tmp_path: Path, name: str, seed: int) -> None:
    life = UnderWrites(EXAMPLES[name], Project(tmp_path), "dual-write", random.Random(seed))
    life.begin()
    try:
        life.command("apply")
        life.open(View.NEW)
        life.companies[0].live(5)
        for step, to in (("apply", Phase.CUTOVER), ("rollback", None), ("apply", Phase.CUTOVER)):
            life.verify()
            life.command(step, to)
        life.settle()
        life.verify()
        life.compare()
    finally:
        life.end()
