"""The command on Azurite: a killed repair has kept what it removed, sealed, and a row comes back as it was.

What is refused, and what becomes of kept rows, is in `tests/scenarios/runner/test_removed_rows.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.model import Row
from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import Project, users
from tests.worlds.scripts import USERS, under_writes

pytestmark = pytest.mark.azurite

ROWS = 60
STRAYS = 40
WHY = ("--reason", "ticket 4711")


def stray(number: int) -> Row:
    return {
        "PartitionKey": "tenant-9",
        "RowKey": f"legacy{number:02}@mail.example",
        "Name": f"nobody knows {number} ü",
        "Logins": str(2**53 + number),
        "Logins@odata.type": "Edm.Int64",
        "Seen": "2024-01-31T12:00:00.1234567Z",
        "Seen@odata.type": "Edm.DateTime",
    }


def test_a_repair_that_was_killed_kept_each_row_that_it_removed_and_one_comes_back_as_it_was(
    tmp_path: Path, azurite: Azurite
) -> None:
    project = Project(tmp_path, azurite)
    path = project.folder / "rekey.toml"
    path.write_text(path.read_text("utf-8").replace('\nretention = "1s"', '\nretention = "1d"'), "utf-8")
    project.script(under_writes(USERS))
    project.fill(users(ROWS))
    project.run("apply").ended(0)
    for number in range(STRAYS):
        project.wire.insert(project.target, stray(number))
    before = project.wire.contents(project.target)

    shown = project.run("verify", "--show-keys", *WHY, "--json").ended(1).document["keys"]
    rows = {one["row"]: one["row_key"] for one in shown}
    assert set(rows.values()) == {f"legacy{number:02}@mail.example" for number in range(STRAYS)}

    def kept() -> list[Row]:
        return project.restricted.rows("rekeymap", (f"{project.script_id}.x", f"{project.script_id}.y"))

    running = project.start("verify", "--repair")
    assert running.until(lambda: len(kept()) > STRAYS // 4), "it must be killed before it ends"
    running.kill()
    held = {row["RowKey"].split("-")[0][:12] for row in kept()}
    standing = {key[1] for key in project.wire.contents(project.target) if key[0] == "tenant-9"}
    gone = {row for row, row_key in rows.items() if row_key not in standing}
    assert gone <= held, "nothing is removed that is not kept"
    ran = project.run("verify", "--repair").ended(1, "rekey restore-row ID")
    assert "legacy" not in ran.said
    project.run("verify").ended(0)
    assert {row["RowKey"].split("-")[0][:12] for row in kept()} == set(rows)
    assert "legacy" not in str(kept()) and "nobody knows" not in str(kept())

    first = next(row for row, row_key in rows.items() if row_key == "legacy00@mail.example")
    ran = project.run("restore-row", first, *WHY).ended(0, f"of {project.target} is restored")
    assert "legacy" not in ran.said
    key = ("tenant-9", "legacy00@mail.example")
    assert project.wire.contents(project.target)[key] == before[key]
