"""Microsoft's own tests of azure-data-tables, through the dual-write client in both views, before and after
cutover, and with the SDK's own client through a proxy: what passes on Azurite passes with ours, but for what
`sdk_suite.toml` lists with its reason; and it leaves the same rows, in both tables.

The tests come from the SDK's source package, which pip downloads and checks; nothing of them is kept here.
What the SDK's client fails on Azurite is found by running it first.

Soak: Microsoft's own tests of azure-data-tables, with the client and through a proxy, of which
`tests/acceptance/sdk_suite.toml` lists what does not apply, and why.
Reason, and what `make test` covers: a quarter of an hour, and the SDK's source package from the package
index; each call next to the SDK's client in `tests/contract/test_clients_calls.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from rekey.rehearse.azurite import Azurite
from tests.asserts.documents import ROOT
from tests.asserts.every import every

pytestmark = [pytest.mark.azurite, pytest.mark.soak]

PACKAGE, VERSION = "azure-data-tables", "12.7.0"
SHA256 = "b14fc94a3223a2835ff5688e17d8e107b27c7cd7c4114138f2ac81373723705d"
SETTINGS = ["old-dual_write", "new-dual_write", "old-cutover", "new-cutover"]
LISTED = tomllib.loads(Path(__file__).with_name("sdk_suite.toml").read_text("utf-8"))
PROXIED = ["proxied", "proxied-dual_write", "proxied-cutover"]
NOT_OURS = {name for one in LISTED["tests"] for name in one["names"]}
NOT_PROXIED = {name: one["in"] for one in LISTED["proxied"] for name in one["names"]}
AT_LEAST = 300
"""Of the tests that are run, as many pass with the SDK's client, or it is not what was meant to be run."""

_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


@dataclass(frozen=True)
class Seen:
    """What was seen in one run: outcomes by test; rows by test and table; tests with a table that differs
    from the other view's; tests in which a client of ours did an operation."""

    outcomes: dict[str, str]
    tables: dict[str, dict[str, Any]]
    apart: dict[str, list[str]]
    used: list[str]

    @property
    def passed(self) -> set[str]:
        """The tests that pass."""
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Microsoft's tests, downloaded."""
    folder = tmp_path_factory.mktemp("sdk")
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check")
    asked = ("--require-hashes", f"--no-binary={PACKAGE}", f"--dest={folder}", f"--requirement={wanted}")
    said = subprocess.run([*pip, *asked], capture_output=True, text=True, check=False)
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}"
    package = folder / f"{name}.tar.gz"
    assert package.exists(), f"pip could not download the source package of {PACKAGE}:\n{said.stderr}"
    subprocess.run(["tar", "-xzf", package, "-C", folder], check=True)
    return folder / name / "tests"


def seen(suite: Path, setting: str) -> Seen:
    """Run Microsoft's tests in a process and on an Azurite of their own; return what was seen."""
    files = [
        path.name
        for path in sorted(suite.glob("test_*.py"))
        if not any(fnmatch(path.name, pattern) for pattern in LISTED["files"])
    ]
    found = suite / f"{setting}.json"
    ini = suite / "empty.ini"
    ini.write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    program = [sys.executable, "-m", "pytest", "-c", str(ini), "--rootdir", str(suite)]
    shown = ["-q", "--tb=short", "--timeout=300"]
    without = [f"--deselect={name}" for one in LISTED["races"] for name in one["names"]]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.acceptance.sdk_plugin"]
    with Azurite() as azurite:
        accounts = {name: asdict(getattr(azurite, name)) for name in ("tables", "restricted")}
        subprocess.run(
            [*program, *shown, *plugins, *without, *files],
            cwd=suite,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SDK_SETTING": setting,
                "SDK_ACCOUNTS": json.dumps(accounts),
                "SDK_SEEN": str(found),
            },
            check=False,
        )
    return Seen(**json.loads(found.read_text(encoding="utf-8")))


def comparable(tables: dict[str, Any], since: str) -> str:
    """Return rows as text, without Guids, which tests make up, and times after `since`: the tests' now."""
    text = _GUID.sub("a Guid", json.dumps(tables, sort_keys=True))
    return _TIME.sub(lambda found: "now" if found[0] > since else found[0], text)


@pytest.fixture(scope="module")
def since() -> str:
    """When the runs began."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def plain(suite: Path, since: str) -> Seen:
    """What the SDK's own client makes of them."""
    found = seen(suite, "plain")
    assert len(found.passed) > AT_LEAST
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_passes_with_the_sdks_client_passes_with_ours(
    suite: Path, since: str, plain: Seen, setting: str
) -> None:
    ours = seen(suite, setting)
    worse = plain.passed - ours.passed
    both = plain.passed & ours.passed
    print(
        f"{setting}: {len(both)} of {len(plain.passed)} tests that pass with the SDK's client pass with ours,"
        f" in {len(both & {*ours.used})} of them it did something; {len(NOT_OURS)} do not apply"
    )
    assert worse - NOT_OURS == set()
    assert NOT_OURS - worse == set(), "they pass by now, or there are no such tests"
    check_rows(ours, plain, since)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setting", PROXIED)
def test_what_passes_on_azurite_passes_through_a_proxy(
    suite: Path, since: str, plain: Seen, setting: str
) -> None:
    ours = seen(suite, setting)
    print(
        f"{setting}: {len(plain.passed & ours.passed)} of {len(plain.passed)} that pass on Azurite pass,"
        f" and {len(ours.passed - plain.passed)} that do not; in {len(ours.used)} the proxy carried something"
    )
    assert plain.passed - ours.passed == {name for name, where in NOT_PROXIED.items() if setting in where}
    assert (len(ours.used) > AT_LEAST / 2) is (setting != "proxied")
    check_rows(ours, plain, since)


def check_rows(ours: Seen, plain: Seen, since: str) -> None:
    """Check that the tests that passed left the rows that they leave without rekey, in both views' tables."""
    left = {
        name: comparable(ours.tables.get(name, {}), since)
        for name in plain.passed & ours.passed
        if comparable(ours.tables.get(name, {}), since) != comparable(plain.tables.get(name, {}), since)
    }
    assert left == {}
    assert ours.apart == {}, "the other view's table has other rows"


def test_every_test_that_does_not_apply_is_listed_once_with_its_reason() -> None:
    names = [name for one in LISTED["tests"] for name in one["names"]]
    assert len(names) == len(NOT_OURS)
    listed = [*LISTED["races"], *LISTED["tests"], *LISTED["proxied"]]
    assert every(len(one["why"].split()) > 8 and one["names"] for one in listed)
