"""`rekey doctor --live` passes on Azurite, removes what it made, tells what is broken. Each planted deviation
is found in `tests/contract/test_doctor_live.py`.

Soak: from nothing; the number of requests; a machine that does not show who is dead; an account of targets;
SIGTERM.
Reason, and what `make test` covers: half a minute each; the accounts of tables, with processes that are
forked; SIGINT.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.doctor.live.run import REQUESTS
from rekey.doctor.live.stage import PREFIX, STALE_S
from rekey.evidence import contents, signing, statement
from rekey.rehearse import project as rehearsing
from rekey.rehearse.azurite import Azurite
from tests.fakes.deviations import Deviate, DeviatingProxy, refusing
from tests.worlds.azurite_projects import Project, Ran, users
from tests.worlds.forking import ForkedInstead
from tests.worlds.scripts import MOVE, USERS

pytestmark = pytest.mark.azurite


@pytest.fixture
def project(tmp_path: Path, azurite: Azurite) -> Project:
    """A migration that has begun, in a project that signs its evidence."""
    made = Project(tmp_path, azurite)
    made.configure(more='[evidence]\nkey_file = "evidence.pem"')
    signing.make_key(tmp_path / "evidence.pem")
    made.script(USERS)
    made.fill(users(5))
    made.run("apply", made.script_id).ended(0)
    return made


def named(begun: float) -> str:
    """Return the name of a table that a run of some moment made."""
    return f"{PREFIX}{int(begun):010d}abcdefsource"


@pytest.fixture(params=["forked", pytest.param("from nothing", marks=pytest.mark.soak)])
def doctor(
    request: pytest.FixtureRequest,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[], Ran]:
    """Runs the command: in this process, with forked ones for its small migrations; or as installed."""
    words = ("doctor", "--live", "--json")
    if request.param == "from nothing":
        project.from_nothing = True
        return lambda: project.run(*words)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(rehearsing, "subprocess", ForkedInstead)

    def here() -> Ran:
        capsys.readouterr()
        code = run(words, Surroundings())
        return Ran(words, code, *capsys.readouterr())

    return here


def test_it_passes_on_azurite_leaves_nothing_and_is_evidence(
    project: Project, doctor: Callable[[], Ran]
) -> None:
    """What a run left that is surely over is removed, a table of one that may still go on is not; nor is one
    that only begins alike."""
    before, rows = (project.wire.names(), project.restricted.names()), project.everything()
    stale, fresh, alike = named(time.time() - STALE_S - 60), named(time.time()), f"{PREFIX}ry"
    for name in (stale, fresh, alike):
        project.wire.create(name)
    ran = doctor().ended(0, "about", "requests")
    for name in (fresh, alike):
        project.wire.drop(name)
    assert (project.wire.names(), project.restricted.names()) == before
    assert project.everything() == rows
    live = [one for one in ran.document["findings"] if one["family"] == "live"]
    assert [one["code"] for one in live] == ["live-known"]
    kept = [
        one["seen"] for one in ran.document["facts"] if (one["family"], one["about"]) == ("live", "report")
    ]
    assert kept == [f"signed, kept in {contents.live_path(project.state)}"]
    report = ran.document["live"]
    assert [(one["service"], one["removed"], one["left"]) for one in report["accounts"]] == [
        ("Azurite", [stale], []),
        ("Azurite", [], []),
    ]
    ended = {one["check"]: one["seen"] for one in report["checks"] if one["account"] == "both"}
    assert set(ended) == {"migration-delta", "migration-dual-write"}
    assert {each["killed"] for each in ended.values()} == {"in the middle of copying"}
    folder = project.folder / "evidence"
    project.run("evidence", "export", str(folder), project.script_id).ended(0, "doctor --live")
    envelope = statement.parsed((folder / "data" / contents.LIVE).read_bytes())
    assert envelope.statement(statement.LIVE_TYPE).predicate == report
    project.run("evidence", "verify", str(folder)).ended(0, "doctor --live")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_interrupted_it_leaves_no_table_and_no_process(project: Project, number: signal.Signals) -> None:
    """SIGINT while the small migrations are under way, SIGTERM during the checks."""
    before = project.wire.names(), project.restricted.names()
    wanted = "source" if number is signal.SIGINT else "t1"

    def under_way() -> bool:
        return any(name.startswith(PREFIX) and name.endswith(wanted) for name in project.wire.names())

    running = project.start("doctor", "--live")
    assert running.until(under_way)
    running.signal(number).ended(130)
    assert (project.wire.names(), project.restricted.names()) == before
    assert not contents.live_path(project.state).exists()
    assert not list((project.folder / "tmp").iterdir())


def test_it_makes_tables_and_so_does_not_go_with_read_only(project: Project) -> None:
    project.run("doctor", "--live", "--read-only").ended(2, "--read-only")


def test_accounts_that_cannot_be_used_are_not_tried(project: Project) -> None:
    ran = project.run(
        "doctor", "--live", ACCEPTANCE_TABLES_KEY=project.environment["ACCEPTANCE_RESTRICTED_KEY"]
    )
    ran.ended(1, "credential-refused", "live-not-tried")


def behind(project: Project, deviate: Deviate | None) -> tuple[Ran, int]:
    """Run the command with both accounts behind a deviation; return the requests that came, too."""

    async def run() -> tuple[Ran, int]:
        async with DeviatingProxy(f"http://127.0.0.1:{project.azurite.port}", deviate) as proxy:
            project.configure(tables=f"{proxy.address}/tables", restricted=f"{proxy.address}/restricted")
            ran = await asyncio.to_thread(project.run, "doctor", "--live", "--json")
            return ran, len(proxy.asked)

    return asyncio.run(run())


def test_a_role_that_makes_no_tables_is_a_finding_and_the_other_findings_are_told(project: Project) -> None:
    """So are other failures of the service: nothing that the checks without --live found is lost."""
    made = refusing(lambda one: one.target.endswith("/Tables"), 403, "AuthorizationPermissionMismatch")
    ran, _ = behind(project, made)
    ran.ended(1)
    assert [one["code"] for one in ran.document["findings"] if one["family"] == "live"] == ["live-failed"]
    assert "kept" not in ran.document
    assert {"accounts", "clock", "state"} <= {one["family"] for one in ran.document["facts"]}


@pytest.mark.soak
def test_it_passes_where_it_cannot_be_seen_that_a_process_is_dead(project: Project, tmp_path: Path) -> None:
    """As on macOS, where no file has an id of the boot: there a lease would be waited for."""
    folder = tmp_path / "customized"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import pathlib\n"
        "read = pathlib.Path.read_text\n"
        "def read_text(path, *more, **named):\n"
        "    return '' if path.name == 'boot_id' else read(path, *more, **named)\n"
        "pathlib.Path.read_text = read_text\n"
    )
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    project.from_nothing = True
    ran = project.run("doctor", "--live", "--json", PYTHONPATH=path).ended(0)
    killed = {one["seen"].get("killed") for one in ran.document["live"]["checks"] if one["account"] == "both"}
    assert killed == {"stopped in the middle of copying"}


@pytest.mark.soak
def test_it_sends_about_as_many_requests_as_it_says(project: Project) -> None:
    ran, requests = behind(project, None)
    ran.ended(0)
    assert REQUESTS / 2 < requests < REQUESTS * 1.25


@pytest.mark.soak
def test_the_account_of_targets_is_tried_too_and_the_small_migrations_go_there(
    tmp_path: Path, azurite: Azurite
) -> None:
    made = Project(tmp_path, azurite, elsewhere=azurite.targets)
    signing.make_key(tmp_path / "evidence.pem")
    made.configure(more='[evidence]\nkey_file = "evidence.pem"')
    made.script(MOVE)
    made.fill(users(5))
    before = made.wire.names(), made.restricted.names()
    report = made.run("doctor", "--live", "--json").ended(0).document["live"]
    assert [one["section"] for one in report["accounts"]] == ["tables", "targets", "restricted"]
    assert {one["account"] for one in report["checks"]} == {"tables", "targets", "restricted", "both"}
    lives = [one["seen"] for one in report["checks"] if one["account"] == "both"]
    assert [one["taken_back"] for one in lives] == ["equal", "equal"]
    assert (made.wire.names(), made.restricted.names()) == before
