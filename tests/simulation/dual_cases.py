"""The small worlds of dual writes by name: which keys, which phase, and what each of two clients does.

Rules kept here:

* A name says it all: "users, dual_write: old replace | new delete-if". Before the colon: which keys, and
  the phase. Target keys depend on keys alone (`users`; `inverted`: no mapping is stored) or on content, with
  an index table (`posts`) or secondary rows (`races`). Target keys may pass from one row to another one
  (`folded`, `lowered` without index table, `handles` with other index keys, `benches` with secondary rows),
  or index keys may (`seats`). Rows may be of no kind (`drops`; `drops by key`: always). Of `tenants` one is
  migrated, and the others are `beside` it. `absent`: no row is there at the beginning; `gone`: one was copied
  and deleted; `tagged before`: it was copied with other tags at first; `a draft`: it had a kind when it was
  copied, and is of none. Then what each client does, in which view.
* Users have no property that the mapping drops: what becomes of it is judged by the tests of the mapping.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from typing import Any
from unittest import mock

from rekey import Index, keys, rows
from rekey.copy import sweep
from rekey.declaration.migration import Migration
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.simulation.dual_moves import MovingWorld, repeatable
from tests.simulation.dual_small import DualParts, DualWorld, Works
from tests.simulation.explore import Budget, Scenario, Searched, search
from tests.simulation.scheduler import Scheduler
from tests.simulation.small import DigestsInMemory
from tests.simulation.witness import (
    DELETE,
    INSERT,
    MERGE,
    READ,
    REPLACE,
    UPSERT,
    UPSERT_MERGE,
    Do,
    Step,
)
from tests.worlds.small import (
    BENCHES,
    DROPPING,
    DROPPING_BY_KEY,
    HANDLES,
    INVERTED,
    LOWERED,
    POSTS,
    RACES,
    SEATS,
    TICKETS,
    TICKETS_APART,
    TICKETS_BY_OWNER,
    USERS,
    post,
    racer,
    ticket,
    user,
)

MOST_STATES = 400_000


def ann(age: int, mail: str = "ann@example.com") -> Row:
    """Return a row whose keys follow from its key."""
    row = user(mail, Age=age)
    del row["Ssn"]
    return row


def hello(version: int, month: str = "2024-01", tags: str = "a", slug: str = "hello") -> Row:
    """Return a row whose keys follow from its content."""
    return post(slug, month, tags, Title=f"version {version}")


def user_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a user, by name."""
    row = ann(version)
    return {
        **_steps(row),
        "batch": (Do(REPLACE, row), Do(UPSERT, ann(version, "bob@example.com"))),
        "batch of delete and insert": (Do(DELETE, row), Do(INSERT, ann(version, "bob@example.com"))),
    }


def tenant_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a user of the tenant that is migrated, and to one of another tenant."""
    other = neighbour(version)
    return {
        **_steps(ann(version)),
        **{f"{name} beside": step for name, step in _steps(other).items()},
        "batch beside": (Do(REPLACE, other), Do(UPSERT, neighbour(version, "bob@example.com"))),
    }


def neighbour(version: int, mail: str = "ann@example.com") -> Row:
    """Return a row of TENANTS that is not migrated."""
    return {**ann(version, mail), "PartitionKey": "us"}


def post_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a post, by name: without moving it, or with another main key."""
    row = hello(version, tags="b" if version == 2 else "a,c")
    moved = hello(version, "2024-02", tags="b" if version == 2 else "c")
    return {
        **_steps(row),
        "move": (Do(REPLACE, moved),),
        "move-if": (Do(REPLACE, moved, conditional=True),),
        "upsert elsewhere": (Do(UPSERT, moved),),
        "batch": (Do(REPLACE, moved), Do(UPSERT, hello(version, slug="other"))),
    }


def folded_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a user whose target keys another spelling has, too, and to that one."""
    row, other = ann(version, "Ann@example.com"), ann(version)
    return {
        **_steps(row),
        "insert the other": (Do(INSERT, other),),
        "upsert the other": (Do(UPSERT, other),),
        "delete the other": (Do(DELETE, other),),
        "batch of delete and insert": (Do(DELETE, row), Do(INSERT, other)),
    }


def seat_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to the guest in a seat, and to another guest who wants the same seat."""
    row, other = guest("u1", version=version), guest("u2", version=version)
    return {
        **_steps(row),
        "leave the seat": (Do(REPLACE, guest("u1", "s2", version)),),
        "insert the other": (Do(INSERT, other),),
        "upsert the other": (Do(UPSERT, other),),
        "delete the other": (Do(DELETE, other),),
        "batch of delete and insert": (Do(DELETE, row), Do(INSERT, other)),
    }


def bench_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a guest whose main key another guest can have, too, and to that one."""
    row, other = bench("Ann", "s1", version), bench("ANN", "s2", version)
    return {
        **_steps(row),
        "leave the seat": (Do(REPLACE, bench("Ann", "s3", version)),),
        "insert the other": (Do(INSERT, other),),
        "upsert the other": (Do(UPSERT, other),),
        "delete the other": (Do(DELETE, other),),
        "batch of delete and insert": (Do(DELETE, row), Do(INSERT, other)),
        "batch of delete and upsert": (Do(DELETE, row), Do(UPSERT, other)),
        "batch that keeps the seat": (Do(DELETE, row), Do(INSERT, bench("ANN", "s1", version))),
    }


def ticket_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a ticket, by name: also what makes it a row of another kind."""
    closed = ticket("1", "closed", Version=version)
    return {
        **_steps(ticket("1", Version=version)),
        "close": (Do(REPLACE, closed),),
        "close-if": (Do(REPLACE, closed, conditional=True),),
        "merge a close": (Do(MERGE, closed),),
        "upsert closed": (Do(UPSERT, closed),),
        "batch": (Do(REPLACE, closed), Do(UPSERT, ticket("2", Version=version))),
    }


def dropping_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a ticket that may be a draft, which no kind takes."""
    draft = ticket("1", "draft", Version=version)
    return {
        **_steps(ticket("1", Version=version)),
        **{f"draft by {name}": step for name, step in _steps(draft).items()},
        "close": (Do(REPLACE, ticket("1", "closed", Version=version)),),
        "merge a number": (Do(MERGE, {"PartitionKey": "eu", "RowKey": "1", "Version": version}),),
    }


def race_steps(version: int) -> dict[str, Step]:
    """Return what a client can do to a registration, by name: its secondary row moves, or both rows do."""
    row = racer("1", 20, Time=version)
    older = racer("1", 19 + version, Time=version)
    return {
        **_steps(row),
        "move": (Do(REPLACE, older),),
        "move-if": (Do(REPLACE, older, conditional=True),),
        "rename": (Do(REPLACE, racer("1", 20, f"Jack{version}", Time=version)),),
        "upsert elsewhere": (Do(UPSERT, racer("1", 20, f"Jack{version}")),),
        "batch": (Do(REPLACE, older), Do(UPSERT, racer("2", 30))),
    }


def _steps(row: Row) -> dict[str, Step]:
    return {
        "read": (Do(READ, row),),
        "insert": (Do(INSERT, row),),
        "replace": (Do(REPLACE, row),),
        "merge": (Do(MERGE, row),),
        "upsert": (Do(UPSERT, row),),
        "upsert-merge": (Do(UPSERT_MERGE, row),),
        "delete": (Do(DELETE, row),),
        "replace-if": (Do(REPLACE, row, conditional=True),),
        "merge-if": (Do(MERGE, row, conditional=True),),
        "delete-if": (Do(DELETE, row, conditional=True),),
    }


def guest(name: str, seat: str = "s1", version: int = 1) -> Row:
    """Return a row whose index key another row can have, too."""
    return {"PartitionKey": "p", "RowKey": name, "Seat": seat, "Version": version}


def bench(name: str, seat: str = "s1", version: int = 1) -> Row:
    """Return a row of BENCHES; all have one main key."""
    return {**guest(name, seat, version), "Handle": "ann"}


FOLDED = replace(
    LOWERED, indexes=[Index("ByMail", partition_key=keys.literal("all"), row_key=keys.lower("RowKey"))]
)
A_DRAFT = ", a draft"
"""The row was of a kind when it was copied, and no kind takes it any more."""
TAGGED_BEFORE = ", tagged before"
GONE = ", gone"
DELETED_AND_WRITTEN_ELSEWHERE = "posts, cutover, tagged before: new delete, then upsert elsewhere"
"""What is looked at behind the answer to the delete meets the row where it is written next."""

TENANTS = replace(USERS, where=rows.partition_key(equals="eu"))
BESIDE = {"tenants": [neighbour(1)]}
"""Rows that are there at the beginning, and are not migrated."""

KINDS: dict[str, tuple[Migration, Row, Callable[[int], dict[str, Step]]]] = {
    "users": (USERS, ann(1), user_steps),
    "inverted": (INVERTED, ann(1), user_steps),
    "tenants": (TENANTS, ann(1), tenant_steps),
    "posts": (POSTS, hello(1), post_steps),
    "folded": (FOLDED, ann(1, "Ann@example.com"), folded_steps),
    "lowered": (LOWERED, ann(1, "Ann@example.com"), folded_steps),
    "seats": (SEATS, guest("u1"), seat_steps),
    "handles": (HANDLES, bench("Ann"), bench_steps),
    "benches": (BENCHES, bench("Ann"), bench_steps),
    "tickets": (TICKETS, ticket("1", Version=1), ticket_steps),
    "apart": (TICKETS_APART, ticket("1", Version=1), ticket_steps),
    "apart by owner": (TICKETS_BY_OWNER, ticket("1", Version=1), ticket_steps),
    "drops": (DROPPING, ticket("1", Version=1), dropping_steps),
    "drops by key": (
        DROPPING_BY_KEY,
        ticket("1", Version=1),
        lambda version: _steps(ticket("1", Version=version)),
    ),
    "races": (RACES, racer("1", 20, Time=1), race_steps),
}


def parsed(name: str) -> tuple[Migration, list[Row], list[Works], ControlPhase]:
    """Return the world that a name says."""
    head, _, tail = name.partition(": ")
    kind, phase, *more = head.split(", ")
    migration, row, steps = KINDS[kind]
    clients = []
    for version, text in enumerate(tail.split(" | "), start=2):
        view, _, what = text.partition(" ")
        done = tuple(steps(version)[one] for one in what.split(", then "))
        clients.append(Works(View(view), done))
    before = [*([] if "absent" in more else [row]), *BESIDE.get(kind, ())]
    return migration, before, clients, ControlPhase(phase)


def dual(
    name: str,
    budget: Budget,
    parts: DualParts | None = None,
    *,
    most_states: int = MOST_STATES,
    most_seconds: float = inf,
    **more: Any,
) -> Searched:
    """Search a world in which the authority stays where it is. `more` as `DualWorld` takes it."""
    migration, before, clients, phase = parsed(name)
    earlier = [hello(0, tags="z")] if TAGGED_BEFORE in name else []
    if A_DRAFT in name:
        earlier, before = before, [ticket("1", "draft", Version=1)]
    if GONE in name:
        earlier, before = before, []

    def make(scheduler: Scheduler) -> Scenario:
        return DualWorld(
            scheduler, migration, before, clients, parts or DualParts(),
            phase=phase, earlier=earlier, **more,
        )  # fmt: skip

    with mock.patch.object(sweep, "DigestParts", DigestsInMemory):
        return search(make, budget, most_states, most_seconds)


def moving(
    name: str,
    budget: Budget,
    parts: DualParts | None = None,
    *,
    looks: int = 2,
    passages: int = 0,
    most_seconds: float = inf,
) -> Searched:
    """Search a world in which a runner moves the authority away from the phase that the name says."""
    migration, before, clients, phase = parsed(name)

    def make(scheduler: Scheduler) -> Scenario:
        return MovingWorld(
            scheduler, migration, before, clients, parts or DualParts(),
            start=phase, looks=looks, passages=passages,
        )  # fmt: skip

    before_level = logging.root.manager.disable
    with ExitStack() as stack:
        stack.enter_context(repeatable())
        logging.disable(logging.CRITICAL)  # clients say in each run that they are kept waiting
        stack.callback(logging.disable, before_level)
        return search(make, budget, MOST_STATES, most_seconds)
