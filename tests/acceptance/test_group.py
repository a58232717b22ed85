"""A group of five tables, made by one script: the command is killed during its cutovers and ways back.

The moments come from a seed that stands in every failure: `REKEY_SEED=… pytest …` draws the same ones again.

Soak: 20 kills.
Reason, and what `make test` covers: a minute and more; 3 kills, and kills at every write in
`tests/scenarios/runner/test_group.py`.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.fakes.given_account import MADE
from tests.soaking import others_in_soak
from tests.worlds.azurite_projects import Project, load, users

pytestmark = pytest.mark.azurite
SCRIPT = '''"""Users of five countries."""
from rekey import Migration, Target, for_each_table, keys, props

migrations = for_each_table(TABLES, lambda name: Migration(
    source=name,
    target=Target(
        f"{name}V2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail")],
    ),
    capture="delta",
    group="GROUP",
))
'''
ROWS = 30


class Grouped(Project):
    """A project whose script makes five migrations of one group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group = f"group{self.number}"
        self.tables = [f"T{self.number}Users{country}" for country in ("DE", "ES", "FR", "IT", "PL")]
        self.script(SCRIPT.replace("TABLES", repr(self.tables)).replace("GROUP", self.group))
        for table in self.tables:
            MADE.update((table, f"{table}V2"))
            load(self.azurite.tables, table, users(ROWS))

    def phases(self) -> list[str]:
        """Return what the control rows say, read over the wire."""
        name = f"group:{self.group}"
        return [row["Phase"] for row in self.restricted.rows("rekeycontrol", (name, f"{name}~"))]

    def words(self, *, back: bool) -> tuple[str, ...]:
        """Return the command that moves the group."""
        named = ("--group", self.group, "--writers-stopped")
        return ("rollback", *named) if back else ("apply", *named, "--to", "cutover")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kills", others_in_soak([3, 20], kept=[3]))
def test_killed_during_its_cutovers_a_group_is_never_mixed(
    tmp_path: Path, azurite: Azurite, kills: int
) -> None:
    project, seed = Grouped(tmp_path, azurite), int(os.environ.get("REKEY_SEED", time.time_ns() % 2**32))
    drawn = random.Random(seed)
    project.run("apply", "--group", project.group).ended(0)
    began = time.monotonic()
    project.run(*project.words(back=False)).ended(0, f"group {project.group}", "cutover done: 5 of 5")
    longest, killed = time.monotonic() - began, 0
    while killed < kills:
        back = project.phases()[0] == "cutover"
        running = project.start(*project.words(back=back))
        assert running.until_it_works()
        time.sleep(drawn.uniform(0, longest))
        killed += running.kill().code < 0
        phases = project.phases()
        assert len(phases) == 5 and len(set(phases)) == 1, (seed, killed, phases)
    if project.phases()[0] == "cutover":
        project.run(*project.words(back=True)).ended(0)
    project.run(*project.words(back=False)).ended(0)
    assert set(project.phases()) == {"cutover"}
    for table in project.tables:
        emails = {row["ContactEmail"] for row in project.wire.rows(f"{table}V2")}
        assert emails == {row["RowKey"] for row in project.wire.rows(table)} and len(emails) == ROWS, seed
