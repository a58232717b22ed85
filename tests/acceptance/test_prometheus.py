"""The alert rules and the dashboard of `docs/monitoring`: their expressions, on scraped output, by a real
Prometheus.

Soak: all of it.
Reason, and what `make test` covers: a real Prometheus scrapes `rekey serve` and evaluates alert rules and
dashboard; their metrics exist in `tests/scenarios/serve/test_serve.py`. Without the binary it is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rekey.client.sdk.thread import LoopThread
from rekey.core.clock import SystemClock
from rekey.rehearse.azurite import Azurite
from rekey.serve.server import Access, Address, serving
from rekey.serve.watch import Watch
from tests.acceptance.test_serve import started
from tests.asserts.documents import ROOT
from tests.worlds.azurite_projects import Project
from tests.worlds.progress import AS_OF, client, document, migration
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import user

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="there is no prometheus (Debian: apt-get install prometheus)",
    ),
]
MONITORING = ROOT / "docs" / "monitoring"
LONG_S = 60
SCRIPT = "0001_users"

Documents = Callable[[], dict[str, Any]]
AT_WORK = {"name": "backfill", "state": "at-work", "since": AS_OF}
FROZEN = {"name": "cutover", "state": "at-work", "since": AS_OF}
PAUSE = {"by": "pause", "text": "paused by the operator", "since": None, "until": None}
OLD = {"at": AS_OF, "age_s": 900.0}
WELL = migration(divergences=0, lag_s=1.5)
BAD: dict[str, Callable[[float], dict[str, Any]]] = {
    "RekeyNeedsAttention": lambda _: migration(safe=False),
    "RekeyStalled": lambda _: migration(phase=AT_WORK, checkpoint=OLD),
    "RekeyLagGrows": lambda seconds: migration(lag_s=400.0 + seconds),
    "RekeyClientLeftBehind": lambda _: migration(clients=[client(), client("late", current=False)]),
    "RekeyDivergence": lambda _: migration(divergences=3),
    "RekeyFreezeNearItsLimit": lambda _: migration(phase=FROZEN),
}
"""A migration for which the expression of a rule holds, after so many seconds."""
GOOD: dict[str, Callable[[float], dict[str, Any]]] = {
    "well": lambda _: WELL,
    "paused": lambda _: migration(phase=AT_WORK, checkpoint=OLD, held_back=[PAUSE]),
    "falls": lambda seconds: migration(lag_s=100_000.0 - seconds),
    "over": lambda _: migration(clients=[client(), client("gone", current=False, standing="over")]),
}
"""Migrations for which no expression holds."""


class Prometheus:
    """A Prometheus that scrapes one address every half second."""

    def __init__(self, folder: Path, scraped: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(MONITORING / "alerts.yml")],
            "scrape_configs": [{"job_name": "rekey", "static_configs": [{"targets": [scraped]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")  # JSON is YAML
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "prometheus.log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus", f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=LONG_S) as answer:  # noqa: S310 - our own
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def series(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression gives now."""
        return list(self.ask("query", query=expression)["result"])

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait until something has happened."""
        until = time.monotonic() + LONG_S
        while True:
            try:
                if happened():
                    return
            except OSError:
                assert self.process.poll() is None, "prometheus has ended"
            assert time.monotonic() < until, what
            time.sleep(0.2)


@contextmanager
def prometheus(folder: Path, scraped: str) -> Iterator[Prometheus]:
    """Run a Prometheus that has scraped more than once."""
    made = Prometheus(folder, scraped)
    try:
        made.until(lambda: bool(made.series("count_over_time(rekey_safe[1m]) > 2")), "nothing was scraped")
        yield made
    finally:
        made.process.terminate()
        made.process.wait(LONG_S)


@contextmanager
def scraped(folder: Path, documents: Documents) -> Iterator[Prometheus]:
    """Serve documents, and scrape them."""

    async def look() -> dict[str, Any]:
        return documents()

    def serve() -> Any:
        watch = Watch(look, SystemClock())
        watch.run = _running(watch)  # type: ignore[method-assign]
        return serving(Address("127.0.0.1", 0), watch, Access())

    thread = LoopThread()
    try:
        with thread.holding(serve) as url, prometheus(folder, url.split("/")[2]) as running:
            yield running
    finally:
        thread.close()


def _running(watch: Watch) -> Callable[[], Any]:
    async def run() -> None:
        while True:
            await watch.update()
            await asyncio.sleep(0.2)

    return run


def rules(running: Prometheus) -> dict[str, str]:
    """The expressions of the alert rules, by name, as Prometheus read them."""
    [group] = running.ask("rules")["groups"]
    return {rule["name"]: rule["query"] for rule in group["rules"]}


def panels() -> dict[str, list[str]]:
    """The expressions of the dashboard, by panel, for all migrations."""
    board = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    return {
        panel["title"]: [one["expr"].replace("$migration", ".*") for one in panel["targets"]]
        for panel in board["panels"]
        if "targets" in panel
    }


def named(found: list[dict[str, Any]]) -> set[str]:
    return {one["metric"].get("migration", "") for one in found}


def test_each_rule_holds_for_what_it_is_about_and_for_nothing_else(tmp_path: Path) -> None:
    """Every case is a migration of its own; each expression gives the migrations that it is about."""
    began = time.monotonic()

    def documents() -> dict[str, Any]:
        seconds = time.monotonic() - began
        cases = {**BAD, **GOOD}
        return document(*(make(seconds) | {"script_id": name} for name, make in cases.items()))

    subprocess.run(["promtool", "check", "rules", str(MONITORING / "alerts.yml")], check=True)
    with scraped(tmp_path, documents) as running:
        found = rules(running)
        assert set(found) - {"RekeyNotWatched"} == set(BAD)
        running.until(
            lambda: "RekeyLagGrows" in named(running.series(found["RekeyLagGrows"])), "the lag grows"
        )
        for name in BAD:
            assert named(running.series(found[name])) == {name}, found[name]
        assert running.series(found["RekeyNotWatched"]) == []

        def firing() -> bool:
            alerts = running.ask("alerts")["alerts"]
            return any(
                one["labels"]["alertname"] == "RekeyDivergence" and one["state"] == "firing" for one in alerts
            )

        running.until(firing, "an alert without a time to wait fires")
        [group] = running.ask("rules")["groups"]
        assert [rule["name"] for rule in group["rules"] if rule["health"] != "ok"] == []


def test_nobody_watching_is_told(tmp_path: Path) -> None:
    """Expressions on series that are gone: the server that is scraped has ended."""

    async def look() -> dict[str, Any]:
        return document()

    with ExitStack() as stack, ExitStack() as server:
        thread = LoopThread()
        server.callback(thread.close)
        watch = Watch(look, SystemClock())
        url = server.enter_context(thread.holding(lambda: serving(Address("127.0.0.1", 0), watch, Access())))
        running = stack.enter_context(prometheus(tmp_path, url.split("/")[2]))
        [rule] = [query for name, query in rules(running).items() if name == "RekeyNotWatched"]
        assert running.series(rule) == []
        server.close()
        running.until(lambda: bool(running.series(rule)), "it is not told")


def test_each_panel_shows_what_was_scraped(tmp_path: Path) -> None:
    """Of a migration that has all figures; what is shown is what the document says."""
    with scraped(tmp_path, lambda: document(WELL)) as running:
        running.until(lambda: bool(running.series("rate(rekey_clients_writes_total[5m])")), "no rate yet")
        for title, expressions in panels().items():
            for expression in expressions:
                assert named(running.series(expression)) == {SCRIPT}, f"{title}: {expression}"
        [rows] = running.series('rekey_pass_rows{migration=~".*"}')
        assert float(rows["value"][1]) == WELL["work"]["rows"]
        [variable] = [
            one["query"]["query"]
            for one in json.loads((MONITORING / "dashboard.json").read_text("utf-8"))["templating"]["list"]
            if one["type"] == "query"
        ]
        label, metric = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable).groups()[::-1]  # type: ignore[union-attr]
        assert running.ask(f"label/{label}/values", **{"match[]": metric}) == [SCRIPT]


@pytest.mark.azurite
def test_a_migration_on_azurite_is_scraped_from_the_command(tmp_path: Path, azurite: Azurite) -> None:
    """`rekey serve` of a migration before its cutover: no rule holds, and then one for a row that differs."""
    project = Project(tmp_path / "project", azurite, from_nothing=True)
    script = USERS_SCRIPT.replace("UsersV2", project.target).replace('"Users"', f'"{project.source}"')
    (project.migrations / f"{project.script_id}.py").write_text(script, "utf-8")
    project.fill([user(f"user{number}@example.com") for number in range(50)])
    project.run("apply").ended(0)
    environ = {**os.environ, **project.environment}
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with (
        started(project.folder, environ, "serve", "--address", "127.0.0.1:0") as (_, url),
        prometheus(folder, url.split("/")[2]) as running,
    ):
        found = rules(running)
        assert {name for name, expression in found.items() if running.series(expression)} == set()
        [phase] = running.series("rekey_phase")
        assert (phase["metric"]["phase"], phase["metric"]["state"]) == ("reconcile", "done")
        key = next(iter(project.wire.contents(project.target)))
        project.wire.delete(project.target, key)
        project.run("verify", "--mode", "full").ended(1)
        running.until(lambda: bool(running.series(found["RekeyDivergence"])), "the row that differs")
        assert named(running.series(found["RekeyDivergence"])) == {project.script_id}
