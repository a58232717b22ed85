"""`rekey doctor` as installed, on Azurite; and two accounts of one Azurite, kept apart.

Azurite has no roles, so what is shown here of credentials is shown with shared keys: the key of the
application's account opens nothing of the restricted one, whatever it asks for, under either account's name.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from rekey.rehearse.azurite import Azurite
from tests.worlds.azurite_projects import RESTRICTED, Project, Wire, unused_port, users
from tests.worlds.scripts import USERS

pytestmark = pytest.mark.azurite


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, azurite: Azurite) -> Project:
    """A migration at the gate before cutover: the restricted store is full."""
    project = Project(tmp_path_factory.mktemp("begun"), azurite)
    project.script(USERS)
    project.fill(users(30))
    project.run("apply", project.script_id).ended(0)
    return project


def test_a_credential_for_the_applications_tables_reads_nothing_of_the_restricted_store(
    begun: Project,
) -> None:
    """The list of tables, a table, a row; under either account's name. All are refused before anything is
    looked at, and the same questions with the store's own key are answered."""
    own = Wire(begun.azurite.restricted)
    key = f"PartitionKey='{begun.script_id}',RowKey='control'"
    questions = [
        "Tables",
        "Tables('rekeymap')",
        *(f"{name}()" for name in RESTRICTED),
        f"rekeycontrol({key})",
        "rekeymap()?$top=1&$select=PartitionKey",
    ]
    for question in questions:
        assert own.ask("GET", question)[0] in (200, 404), question
    assert own.ask("GET", f"rekeycontrol({key})")[0] == 200
    assert own.rows("rekeymap")
    for name in ("tables", "restricted"):
        stranger = Wire(begun.azurite.restricted)
        stranger._key, stranger._account = base64.b64decode(begun.azurite.tables.key), name
        for question in questions:
            status, _, body = stranger.ask("GET", question)
            assert status == 403, (name, question)
            assert begun.script_id.encode() not in body
        assert stranger.ask("POST", "rekeymap", {"PartitionKey": "p", "RowKey": "r"})[0] == 403


def test_the_installed_doctor_tells_what_it_sees_and_leaves_nothing(begun: Project) -> None:
    names = begun.wire.names(), begun.restricted.names()
    rows = {name: begun.restricted.contents(name) for name in RESTRICTED}
    ran = begun.run("doctor", "--strict", "--json").ended(0)
    told = {f"{one['family']}, {one['about']}: {one['seen']}" for one in ran.document["facts"]}
    assert ran.document["counts"] == {"errors": 0, "warnings": 0, "notes": 3}
    assert f"access, [tables]: read: {begun.source}" in told
    assert "access, [restricted]: a row was written to rekeycontrol and removed" in told
    assert "access, [restricted]: the credential of [tables] reads nothing here" in told
    assert "clock, [tables]: this machine's clock is right to the second" in told
    assert any("Azurite 3.35" in one for one in told)
    assert any(one.startswith(f"restricted store, {begun.script_id}: `dual_write`, epoch 2") for one in told)
    assert (begun.wire.names(), begun.restricted.names()) == names
    assert {name: begun.restricted.contents(name) for name in RESTRICTED} == rows


def test_what_is_wrong_is_found_with_its_remedy_and_no_key_is_printed(begun: Project) -> None:
    """The tables' account with a wrong key, the restricted one behind a port where nobody listens."""
    project = Project(begun.folder.parent / f"{begun.folder.name}-wrong", begun.azurite)
    project.configure(restricted=f"http://127.0.0.1:{unused_port()}/restricted")
    wrong = base64.b64encode(b"another key, of another account").decode("ascii")
    secret = "not long enough"
    ran = project.run("doctor", "-vv", "--debug", ACCEPTANCE_TABLES_KEY=wrong, ACCEPTANCE_SECRET=secret)
    ran.ended(1, "credential-refused", "unreachable", "secret-unreadable", "no-scripts", "2 errors")
    for hidden in (wrong, secret, begun.azurite.restricted.key, "SharedKeyLite"):
        assert hidden not in ran.out + ran.err


def test_one_key_for_both_accounts_is_found_to_open_the_restricted_store(
    tmp_path: Path, begun: Project
) -> None:
    """Two accounts that share a key are kept apart in name only: whoever has it reads the mapping."""
    project = Project(tmp_path, begun.azurite)
    ran = project.run("doctor", "--read-only", ACCEPTANCE_TABLES_KEY=begun.azurite.restricted.key)
    ran.ended(1, "same-key", "restricted-open", "the list of tables, rekeycontrol, rekeyjournal and rekeymap")
