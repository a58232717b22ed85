"""Two migrations of the same table, capture "dual-write": no client follows both, so clients of one are at
work while the other one is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.errors import GateClosed, WritesRefused
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner.run import Options
from rekey.tables.base import Operation, Verb
from tests.scenarios.runner.test_chain_clients import end
from tests.worlds.company import Client, Company, company
from tests.worlds.erasure import PLAIN_USERS
from tests.worlds.scripts import under_writes
from tests.worlds.small import user

OTHER = "0002_other"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Company]:
    """Users → UsersV2."""
    with company(tmp_path, PLAIN_USERS, [user(f"user{number}@example.com") for number in range(4)]) as made:
        yield made


@pytest.fixture
def other(one: Company) -> Company:
    """Users → Others."""
    one.project.script(under_writes(PLAIN_USERS.replace('"UsersV2"', '"Others"')), f"{OTHER}.py")
    return Company(one.project, OTHER, one.loop)


def change(at: Client, name: str) -> None:
    row = at.company.project.rows("Users")[0]
    change = {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"], "City": name}
    at.company.do(at.write(Operation(Verb.MERGE, change, "*")))


def cities(one: Company, table: str) -> set[str]:
    return {row.get("City", "") for row in one.project.rows(table)}


def test_clients_of_another_migration_of_the_rows_close_the_gates(one: Company, other: Company) -> None:
    own = one.client(View.OLD, "own")
    strange = other.client(View.OLD, "strange")
    change(strange, "while neither has begun")
    with pytest.raises(GateClosed) as closed:
        one.apply()
    said = str(closed.value)
    assert f"clients of {OTHER}, which migrates the same rows of Users" in said
    assert "strange (old view" in said and "own (old view" not in said
    end(strange)
    one.apply(Phase.CUTOVER)
    assert "while neither has begun" in cities(one, "UsersV2")
    with pytest.raises(GateClosed, match=r"own \(old view"):
        other.apply()
    assert other.phase is ControlPhase.SOURCE
    end(own)


def test_a_client_of_another_migration_of_the_rows_that_starts_late_refuses_to_write(
    one: Company, other: Company
) -> None:
    one.client(View.OLD, "own")
    one.apply(Phase.CUTOVER)
    late = other.client(View.OLD, "late")
    with pytest.raises(WritesRefused, match="0001_subject migrates the same rows as 0002_other") as refused:
        change(late, "lost")
    assert refused.value.code == "other-migration"
    assert "lost" not in cities(one, "Users")


def test_while_two_migrations_of_the_rows_have_begun_clients_of_either_refuse_to_write(
    one: Company, other: Company
) -> None:
    other.apply(Phase.DUAL_WRITE)
    one.apply()
    client, late = one.client(View.OLD, "own"), other.client(View.OLD, "late")
    for each, match in ((client, f"{OTHER} migrates"), (late, "0001_subject migrates")):
        with pytest.raises(WritesRefused, match=match):
            change(each, "lost")
    end(late)
    other.rollback(ControlPhase.SOURCE, drop=True)
    one.do(client.lease.poll())
    change(client, "followed again")
    assert "followed again" in cities(one, "UsersV2")


def test_a_table_whose_rows_have_been_moved_on_is_not_migrated_again(one: Company, other: Company) -> None:
    own = one.client(View.OLD, "own")
    one.apply(Phase.CUTOVER)
    end(own)
    one.client(View.NEW, "own, new")
    one.apply(Phase.COMPLETE)
    change(other.client(View.OLD, "other"), "the application's matter")
    with pytest.raises(
        GateClosed, match="0001_subject, which is complete, has moved the same rows of Users to"
    ):
        other.apply()
    assert not one.do(one.project.tables.table_exists("Others"))


def test_clients_of_a_completed_migration_write_its_new_table_while_another_one_of_the_rows_runs(
    one: Company, other: Company
) -> None:
    """They do not write the source any more."""
    other.apply(Phase.DUAL_WRITE)
    one.apply(Phase.CUTOVER, Options(writers_stopped=True))
    one.apply(Phase.COMPLETE, Options(writers_stopped=True))
    row = one.project.rows("UsersV2")[0]
    key = {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"]}
    one.do(one.client(View.NEW).write(Operation(Verb.MERGE, {**key, "City": "written"}, "*")))
    assert "written" in cities(one, "UsersV2")


def test_a_migration_that_was_begun_again_with_another_source_closes_no_clients_of_the_former_one(
    one: Company, other: Company
) -> None:
    other.apply(Phase.DUAL_WRITE)
    other.rollback(ControlPhase.SOURCE, drop=True)
    one.do(one.project.fill("Elsewhere", [user("elsewhere@example.com")]))
    script = PLAIN_USERS.replace('"UsersV2"', '"FromElsewhere"').replace('"Users"', '"Elsewhere"')
    one.project.script(under_writes(script), f"{OTHER}.py")
    Company(one.project, OTHER, one.loop).apply(Phase.DUAL_WRITE)
    assert other.phase is ControlPhase.DUAL_WRITE
    change(one.client(View.OLD, "own"), "written")
    assert "written" in cities(one, "Users")
