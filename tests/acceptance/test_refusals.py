"""What is refused before a migration begins: clear words, the right exit code, and nothing written.

"Nothing written" is looked up in both accounts: tables, rows and ETags are the same before and after, and no
table came. The state file may have been made by then; it knows of no migration.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rekey.model import Row
from rekey.rehearse.azurite import Azurite
from tests.acceptance.support import Project, load, unused_port, users
from tests.worlds.scripts import USERS

pytestmark = pytest.mark.azurite

SCRIPT = """\
from rekey import Index, Migration, Target, keys, props

migration = Migration(
    source="SOURCE",
    target=Target(
        "TARGET", partition_key={partition_key}, row_key={row_key}, properties=[{properties}],
    ),
    capture="delta",
    waive={{"personal-data": "made-up addresses"}},
)
"""


def _script(
    partition_key: str = 'keys.prop("PartitionKey")',
    row_key: str = 'keys.prop("RowKey")',
    properties: str = 'props.copy("RowKey", to="OldRowKey")',
) -> str:
    return SCRIPT.format(partition_key=partition_key, row_key=row_key, properties=properties)


@dataclass(frozen=True)
class Case:
    """What is asked for, and how it must be refused.

    Attributes:
        code: the exit code.
        parts: words that the message must hold.
        scripts: scripts by name ("" is the project's own id).
        row: a row that is there beside the usual ones while the command runs.
        environment: variables that are other than usual; None: not set at all.
        plan_code: what `plan --exact` ends with; None when it is not asked.
    """

    code: int
    parts: tuple[str, ...]
    scripts: dict[str, str] = field(default_factory=lambda: {"": USERS})
    row: Row | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    plan_code: int | None = None


def _refused_row(script: str, row: Row, *parts: str) -> Case:
    return Case(1, (*parts, "Nothing was written."), {"": script}, row, plan_code=1)


def _row(**more: Any) -> Row:
    return {"PartitionKey": "zz", "RowKey": "odd one", "Nm": "odd", "Logins": 1, **more}


def _declared(*parts: str, **scripts: str) -> Case:
    named = {name if name != "own" else "": text for name, text in scripts.items()}
    return Case(2, parts, named, plan_code=2)


BIG = {f"Big{number}": "x" * 32_000 for number in range(12)}
"""12 strings of 64,000 bytes; four copies of them more pass 1 MiB."""
MANY = {f"P{number}": number for number in range(249)}

CASES = {
    # declarations
    "target equal to source": _declared("target", "source", own=USERS.replace("TARGET", "SOURCE")),
    "syntax error": _declared("syntax error in line", own=USERS + "\nmigration = = 1\n"),
    "import error": _declared("Next:", own="import no_such_module_at_all\n" + USERS),
    "cycle": _declared(
        "cycle",
        aaa='__depends__ = {"bbb"}\n' + USERS,
        bbb='__depends__ = {"aaa"}\n' + USERS.replace("SOURCE", "Other").replace("TARGET", "OtherV2"),
    ),
    "missing dependency": _declared("0000_nowhere", own='__depends__ = {"0000_nowhere"}\n' + USERS),
    "unknown source table": Case(
        2, ("NoSuchTable", "does not exist"), {"": USERS.replace("SOURCE", "NoSuchTable")}, plan_code=1
    ),
    # rows
    "property that a row lacks": _refused_row(
        _script(row_key='keys.prop("Nm") + keys.prop("RowKey")'),
        {"PartitionKey": "zz", "RowKey": "nameless"},
        "no property Nm",
        'keys.prop("Nm", default="…")',
    ),
    "key that becomes empty": _refused_row(
        _script(row_key='keys.strip(keys.prop("Nm"))'), _row(Nm="   "), "empty"
    ),
    "refused character": _refused_row(
        _script(row_key='keys.prop("Nm") + keys.prop("RowKey")'), _row(Nm="a/b"), "character"
    ),
    "key over length": _refused_row(
        _script(row_key='keys.prop("RowKey") + keys.prop("Nm")'), _row(Nm="n" * 1_100), "1024"
    ),
    "row past 1 MiB": _refused_row(
        _script(properties=", ".join(f'props.copy("Big{n}", to="Copy{n}")' for n in range(6))),
        _row(**BIG),
        "1048576 bytes",
    ),
    "row past 252 properties": _refused_row(
        _script(properties=", ".join(f'props.copy("RowKey", to="Copy{n}")' for n in range(4))),
        _row(**MANY),
        "252",
    ),
    # secrets and credentials
    "missing secret": Case(
        2, ("ACCEPTANCE_SECRET", "is not set"), environment={"ACCEPTANCE_SECRET": None}, plan_code=1
    ),
    "empty secret": Case(2, ("[secrets.users]", "empty"), environment={"ACCEPTANCE_SECRET": ""}, plan_code=1),
    "short secret": Case(
        2, ("[secrets.users]", "at least 16"), environment={"ACCEPTANCE_SECRET": "too short"}, plan_code=1
    ),
    "no credential": Case(
        2, ("ACCEPTANCE_TABLES_KEY",), environment={"ACCEPTANCE_TABLES_KEY": ""}, plan_code=2
    ),
    "wrong credential": Case(
        4,
        ("Kept:", "Next:"),
        environment={"ACCEPTANCE_TABLES_KEY": base64.b64encode(b"wrong" * 12).decode()},
        plan_code=4,
    ),
    "wrong credential of the restricted account": Case(
        4,
        ("Kept:", "Next:"),
        environment={"ACCEPTANCE_RESTRICTED_KEY": base64.b64encode(b"wrong" * 12).decode()},
    ),
}


@pytest.fixture(scope="module")
def project(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that no case may change: each leaves it as it found it."""
    made = Project(tmp_path_factory.mktemp("refusals"), azurite)
    # So many rows that a table comes in more than one page.
    made.fill([*users(1200), *(_row(RowKey=f"fine {number}", Nm="fine") for number in range(3))])
    return made


@contextmanager
def _unchanged(project: Project) -> Iterator[None]:
    before = project.everything()
    yield
    assert project.everything() == before, "nothing may be written by what is refused"
    assert project.remembered() == {}


@contextmanager
def _set_up(project: Project, case: Case) -> Iterator[None]:
    paths = [project.script(text, name or None) for name, text in case.scripts.items()]
    if case.row is not None:
        project.wire.insert(project.source, case.row)
    try:
        yield
    finally:
        for path in paths:
            path.unlink()
        if case.row is not None:
            project.wire.delete(project.source, (case.row["PartitionKey"], case.row["RowKey"]))


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_is_refused_with_its_exit_code_and_nothing_written(
    project: Project, name: str
) -> None:
    """`apply` refuses; `plan` says the same where it can know."""
    case = CASES[name]
    with _set_up(project, case), _unchanged(project):
        project.run("apply", **case.environment).ended(case.code, *case.parts, "Next:")
        if case.plan_code is not None:
            project.run("plan", "--exact", **case.environment).ended(case.plan_code)


def test_the_cure_that_is_named_for_a_missing_property_is_one(project: Project) -> None:
    """With `default=` the plan has no error any more."""
    script = _script(row_key='keys.prop("Nm", default="nobody") + keys.prop("RowKey")')
    with _set_up(project, Case(0, (), {"": script}, {"PartitionKey": "zz", "RowKey": "nameless"})):
        project.run("plan", "--exact").ended(0)


def test_a_target_with_rows_of_somebody_else_is_refused(tmp_path: Any, azurite: Azurite) -> None:
    """They would be taken for copies; also in an index table."""
    project = Project(tmp_path, azurite)
    project.fill(users(3))
    load(azurite.tables, project.target, [_row()])
    project.script(USERS)
    with _unchanged(project):
        project.run("apply").ended(3, project.target, "holds rows that this migration did not write")
        project.run("plan").ended(1, "holds rows")


@pytest.mark.parametrize("account", ["tables", "restricted"])
def test_an_endpoint_that_is_down_is_told_after_a_few_seconds(project: Project, account: str) -> None:
    """Nobody listens there: exit code 4; the table that was asked for tells which account it is."""
    endpoint = f"http://127.0.0.1:{unused_port()}/{account}"
    project.configure(**{account: endpoint})
    try:
        with _set_up(project, CASES["missing secret"]), _unchanged(project):
            asked = "rekeycontrol" if account == "restricted" else f"T{project.number}"
            project.run("apply").ended(
                4, asked, f"no connection to {endpoint}", "Kept:", "Next: check the endpoint"
            )
    finally:
        project.configure()
