"""The installed command on Azurite: whose extra rows are is shown on record, a repair keeps what it removes,
sealed, and one comes back as it was; killed and run again, refused where it must be, gone after its time.

Soak: capture "delta".
Reason, and what `make test` covers: the same in "dual-write".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rekey.model import Row
from rekey.rehearse.azurite import Azurite
from tests.acceptance.support import Project, users
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


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(USERS, id="delta", marks=pytest.mark.soak),
        pytest.param(under_writes(USERS), id="dual-write"),
    ],
)
def test_from_an_extra_row_to_its_return(tmp_path: Path, azurite: Azurite, script: str) -> None:
    project = Project(tmp_path, azurite)
    project.configure(more='[evidence]\nkey_file = "evidence.pem"')
    path = project.folder / "rekey.toml"
    usual = path.read_text("utf-8")
    path.write_text(usual.replace('\nretention = "1s"', '\nretention = "1d"'), "utf-8")
    project.script(script)
    project.fill(users(ROWS))
    project.run("evidence", "keygen").ended(0)
    project.run("apply").ended(0)
    for number in range(STRAYS):
        project.wire.insert(project.target, stray(number))
    before = project.wire.contents(project.target)

    shown = project.run("verify", "--show-keys", *WHY, "--json").ended(1).document["keys"]
    assert {one["row_key"] for one in shown} == {
        f"legacy{number:02}@mail.example" for number in range(STRAYS)
    }
    first = next(one["row"] for one in shown if one["row_key"] == "legacy00@mail.example")

    def kept() -> list[Row]:
        return project.restricted.rows("rekeymap", (f"{project.script_id}.x", f"{project.script_id}.y"))

    running = project.start("verify", "--repair")
    assert running.until(lambda: len(kept()) > STRAYS // 4), "it must be killed before it ends"
    running.kill()
    held = {row["RowKey"].split("-")[0][:12] for row in kept()}
    standing = {key for key in project.wire.contents(project.target) if key[0] == "tenant-9"}
    gone = {one["row"] for one in shown if ("tenant-9", one["row_key"]) not in standing}
    assert gone <= held, "nothing is removed that is not kept"
    ran = project.run("verify", "--repair").ended(1, "rekey restore-row ID")
    assert "legacy" not in ran.said
    project.run("verify").ended(0)
    assert {row["RowKey"].split("-")[0][:12] for row in kept()} == {one["row"] for one in shown}
    assert "legacy" not in str(kept()) and "nobody knows" not in str(kept())

    ran = project.run("restore-row", first, *WHY).ended(0, f"of {project.target} is restored")
    assert "legacy" not in ran.said
    key = ("tenant-9", "legacy00@mail.example")
    assert project.wire.contents(project.target)[key] == before[key]
    project.run("restore-row", first).ended(3, "no removed row")
    second = next(one for one in shown if one["row_key"] == "legacy01@mail.example")
    project.wire.insert(project.target, stray(1) | {"Name": "somebody came"})
    project.run("restore-row", second["row"]).ended(3, "another row stands at the key")
    assert (
        project.wire.contents(project.target)["tenant-9", "legacy01@mail.example"]["Name"] == "somebody came"
    )

    project.run("verify", "--repair").ended(1)
    project.run("verify").ended(0)
    project.run("apply", "--to", "complete", "--writers-stopped", "--yes", project.script_id).ended(0)
    third = next(one for one in shown if one["row_key"] == "legacy02@mail.example")
    path.write_text(usual.replace('\nretention = "1s"', '\nretention = "0s"'), "utf-8")
    project.run("restore-row", third["row"]).ended(3, "and that is over")
    project.run("expire", "--confirm", project.script_id).ended(0, "cannot be restored any more")
    assert kept() == []
    project.run("evidence", "export", "bundle").ended(0)
    project.run("evidence", "verify", "bundle").ended(0)
    audit = (project.folder / "bundle" / "data" / "audit" / "events.jsonl").read_text("utf-8")
    assert audit.count('"event":"row-restored"') == 1 and audit.count('"by":"verify"') == 1
    assert "legacy" not in audit
