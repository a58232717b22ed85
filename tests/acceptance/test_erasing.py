"""The installed command erases on Azurite: subjects, a month, a mapping in the clear; killed and run again;
and an auditor sees that it happened.

Soak: all of it.
Reason, and what `make test` covers: a quarter of a minute each; persons in `test_erasing_targets.py`, the
commands in `test_runbooks.py`, kills of every way in `tests/scenarios/runner/test_expiry.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekey.model import Row
from rekey.rehearse.azurite import Azurite
from tests.acceptance.support import Project, Ran, users
from tests.worlds.scripts import USERS

pytestmark = [pytest.mark.azurite, pytest.mark.soak]

ROWS = 300
WHY = ("--reason", "request 17")
SEALED = USERS
PLAIN = USERS.replace('capture="delta",', 'capture="delta", mapping="plain",')


@pytest.fixture(params=[SEALED, PLAIN], ids=["sealed", "plain"])
def project(request: pytest.FixtureRequest, tmp_path: Path, azurite: Azurite) -> Project:
    """A completed migration, with a key that signs its evidence."""
    made = Project(tmp_path, azurite)
    made.configure(more='mapping_retention = "2s"\n[evidence]\nkey_file = "evidence.pem"')
    made.script(request.param)
    made.fill(users(ROWS))
    made.run("evidence", "keygen").ended(0)
    made.run("apply", "--to", "complete", "--writers-stopped", "--yes", made.script_id).ended(0)
    return made


def stones(project: Project, direction: str = "") -> list[Row]:
    """Return the tombstones of a direction."""
    partition = f"{project.script_id}.{direction}"
    rows = project.restricted_rows("rekeymap")
    return [row for row in rows if "ErasedOn" in row and row["PartitionKey"].startswith(partition)]


def look_up(project: Project, *named: str) -> Ran:
    return project.run("lookup", *named, *WHY, "--json")


def keys(row: Row) -> tuple[str, str]:
    return row["PartitionKey"], row["RowKey"]


def erased(project: Project, *named: str) -> None:
    """Look a row up: it was erased today, and nothing looks like an alarm."""
    ran = look_up(project, *named).ended(1, "was erased on")
    assert ran.document["erased_on"] == datetime.now(UTC).date().isoformat()
    assert "cannot be opened" not in ran.said and "stands there again" not in ran.said


def proved(project: Project, name: str) -> str:
    """Export evidence and verify it; return its report. No key is in any of its files."""
    project.run("evidence", "export", name).ended(0)
    project.run("evidence", "verify", name).ended(0)
    files = [path for path in (project.folder / name).rglob("*") if path.is_file()]
    assert b"@mail.example" not in b"".join(path.read_bytes() for path in files)
    return (project.folder / name / "data" / "report.html").read_text("utf-8")


def test_a_whole_way_from_complete_to_a_mapping_that_is_gone(project: Project) -> None:
    first, *others = users(ROWS)
    sealed = bool(project.restricted.rows("rekeymap", (f"{project.script_id}.k", f"{project.script_id}.l")))
    assert b"@mail.example" not in b"".join(p.read_bytes() for p in project.state.parent.iterdir())

    found = look_up(project, "--old", *keys(first)).ended(0).document["rows"][0]
    new = (found["new"][0]["partition_key"], found["new"][0]["row_key"])
    project.run("erase", "--old", *keys(first), *WHY).ended(0, "forward rows 1, reverse rows 1")
    for named in (("--old", *keys(first)), ("--new", *new), ("--id", found["row_id"])):
        erased(project, *named)
    assert keys(first) not in project.wire.contents(project.source)
    assert new in project.wire.contents(project.target), "target rows are the application's"

    changed = others[0]
    project.wire.merge(project.source, {**changed, "Nm": "later"})
    project.run("erase", "--old", *keys(changed), *WHY).ended(1, "although the source was to be")
    assert project.wire.contents(project.source)[keys(changed)]["Nm"] == "later"

    asked = project.folder / "asked.csv"
    many = others[1:250]
    lines = ["old_partition_key,old_row_key", *(",".join(keys(row)) for row in many)]
    asked.write_text("\n".join(lines) + "\n", "utf-8")
    running = project.start("erase", "--bulk", str(asked), *WHY)
    assert running.until(lambda: len(stones(project)) > 20), "it must be killed before it ends"
    running.kill()
    assert 0 < len(stones(project, "f.")) < 250
    again = project.run("erase", "--bulk", str(asked), *WHY).ended(0)
    assert "cut off is done now" in again.said
    assert len(stones(project, "f.")) == len(stones(project, "r.")) == 250
    assert len(project.wire.contents(project.source)) == ROWS - 250
    assert len(project.wire.contents(project.target)) == ROWS

    last = others[-1]
    if sealed:
        month = datetime.now(UTC).strftime("%Y-%m")
        project.run("expire", "--confirm", project.script_id).ended(0, "there was nothing to erase")
        project.run("expire", "--cohort", month, *WHY).ended(0, f"shredded the data keys of {month}")
    else:
        running = project.start("expire", "--confirm", project.script_id)
        before = len(project.restricted_rows("rekeymap"))
        assert running.until(lambda: len(project.restricted_rows("rekeymap")) < before - 20)
        running.kill()
        erased(project, "--old", *keys(first))
        project.run("expire", "--confirm", project.script_id).ended(0, "are erased")
        [left] = project.restricted_rows("rekeymap")
        assert left["RowKey"] == "all"
    erased(project, "--old", *keys(last))
    project.run("status").ended(0, "mapping erased; last on")
    report = proved(project, "bundle")
    assert report.count("<td>request 17</td>") == (5 if sealed else 4) and found["row_id"] in report
    assert not any("user0000" in ran.err for ran in project.ran), "no key on standard error"
