"""`rekey serve`: what may be asked over HTTP, by whom, and what is answered. Nothing changes by it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rekey.errors import ConfigurationError, Unavailable
from rekey.serve.metrics import families
from rekey.serve.server import Access, Address, serving
from rekey.serve.watch import MAX_EVENTS, Watch, changes
from tests.asserts.browser import needs_browser, tab
from tests.asserts.documents import ROOT
from tests.fakes.clock import FakeClock
from tests.worlds.progress import client, document, migration

LOOPBACK = Address("127.0.0.1", 0)
TOKEN = b"a token of sixteen bytes"


class Told:
    """Documents as a test sets them, or an error."""

    def __init__(self) -> None:
        self.now: dict[str, Any] | Exception = document()

    async def __call__(self) -> dict[str, Any]:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


@asynccontextmanager
async def served(told: Told, access: Access | None = None) -> AsyncIterator[tuple[str, Watch]]:
    """Serve; looks happen only where the test says so."""
    watch = Watch(told, FakeClock())
    await watch.update()
    watch.run = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    async with serving(LOOPBACK, watch, access or Access()) as url:
        yield url, watch


async def get(url: str, **more: Any) -> tuple[int, str, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, **more) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_the_progress_document_is_answered_as_it_was_seen() -> None:
    async with served(Told()) as (url, _):
        status, text, headers = await get(f"{url}progress")
    assert (status, json.loads(text)) == (200, document())
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"


async def test_a_stream_tells_each_look_and_ends_with_the_server() -> None:
    told = Told()
    async with (
        served(told) as (url, watch),
        aiohttp.ClientSession() as session,
        session.get(f"{url}progress/stream") as answer,
    ):
        assert answer.headers["Content-Type"] == "text/event-stream"
        lines = answer.content
        assert (await lines.readline(), await lines.readline()) == (
            b"event: progress\n",
            b"data: " + json.dumps(document(), separators=(",", ":")).encode() + b"\n",
        )
        await lines.readline()
        told.now = Unavailable("the tables account does not answer")
        await watch.update()
        assert await lines.readline() == b"event: problem\n"
        assert await lines.readline() == b'data: "the tables account does not answer"\n'
        await watch.close()
        assert (await lines.read()).strip() == b""


async def test_a_look_that_fails_keeps_what_was_seen_and_is_told() -> None:
    told = Told()
    async with served(told) as (url, watch):
        told.now = Unavailable("busy")
        await watch.update()
        assert json.loads((await get(f"{url}progress"))[1]) == document()
        assert "rekey_looks_failed_total 1.0" in (await get(f"{url}metrics"))[1]
        assert (await get(f"{url}health/readiness"))[0] == 200
        watch.clock.advance(60)  # type: ignore[attr-defined]
        assert (await get(f"{url}health/readiness"))[0] == 503, "what is told is a minute old"
        assert (await get(f"{url}health/liveness"))[0] == 200


async def test_before_the_first_look_has_succeeded_nothing_is_claimed() -> None:
    told = Told()
    told.now = Unavailable("no connection")
    async with served(told) as (url, _):
        assert (await get(f"{url}progress"))[:2] == (503, "no connection\n")
        assert (await get(f"{url}health/readiness"))[0] == 503


async def test_metrics_tell_what_is_known_by_conventional_names_and_label_no_client() -> None:
    told = Told()
    stopped = migration(
        script_id="0002_posts", work=None, lag_s=None, checkpoint=None, journal=None, safe=False
    )
    told.now = document(
        migration(clients=[client("secret-name"), client(standing="silent", current=False)]), stopped
    )
    async with served(told) as (url, _):
        _, text, headers = await get(f"{url}metrics")
    assert headers["Content-Type"].startswith("text/plain")
    lines = set(text.splitlines())
    told_of = {
        'rekey_safe{migration="0001_users"} 1.0',
        'rekey_safe{migration="0002_posts"} 0.0',
        'rekey_phase{migration="0001_users",phase="backfill",state="at-work"} 1.0',
        'rekey_pass_rows{migration="0001_users"} 4000.0',
        'rekey_pass_remaining_seconds{migration="0001_users"} 90.0',
        'rekey_lag_seconds{migration="0001_users"} 1.5',
        'rekey_journal_oldest_age_seconds{migration="0001_users"} 10.0',
        'rekey_clients{migration="0001_users",standing="silent"} 1.0',
        'rekey_clients_behind{migration="0001_users"} 1.0',
        'rekey_clients_writes_total{migration="0001_users"} 12.0',
        'rekey_held_back{by="pause",migration="0001_users"} 0.0',
    }
    assert told_of - lines == set()
    assert not any(one.startswith("rekey_lag_seconds") and "0002" in one for one in lines)
    assert "secret-name" not in text


async def test_metrics_without_their_package_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    async with served(Told()) as (url, _):
        status, text, _ = await get(f"{url}metrics")
    assert status == 501
    assert "rekey-tables[metrics]" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed_through_it(method: str) -> None:
    async with served(Told()) as (url, _), aiohttp.ClientSession() as session:
        for path in ("progress", "progress/stream", "metrics", ""):
            async with session.request(method, f"{url}{path}") as answer:
                assert answer.status == 405


async def test_without_a_token_only_requests_to_this_machine_by_name_are_answered() -> None:
    async with served(Told()) as (url, _):
        for host in ("127.0.0.1", "localhost:9460", "[::1]:9460", "[::1]"):
            assert (await get(f"{url}progress", headers={"Host": host}))[0] == 200
        for host in ("rebound.example", "rebound.example:9460", "127.0.0.1.example"):
            status, text, _ = await get(f"{url}progress", headers={"Host": host})
            assert (status, "0001" in text) == (403, False)


async def test_with_a_token_only_those_who_show_it_are_answered() -> None:
    basic = base64.b64encode(b"anyone:" + TOKEN).decode()
    async with served(Told(), Access(TOKEN)) as (url, _):
        for said in (f"Bearer {TOKEN.decode()}", f"Basic {basic}"):
            assert (await get(f"{url}progress", headers={"Authorization": said}))[0] == 200
        for said in ("", "Bearer", "Bearer another", "Basic ###", f"Basic {TOKEN.decode()}", "Digest x"):
            for path in ("", "page.js", "progress", "progress/stream", "progress/history", "metrics"):
                status, text, headers = await get(
                    f"{url}{path}", headers={"Authorization": said} if said else {}
                )
                assert (status, "0001" in text) == (401, False)
                assert headers["WWW-Authenticate"] == 'Basic realm="rekey"'
        assert (await get(f"{url}health/liveness"))[0] == 200


def test_others_reach_it_only_with_token_and_tls(tmp_path: Path) -> None:
    everywhere = Address.of("0.0.0.0:9460")
    for access in (Access(), Access(TOKEN), Access(None, tmp_path / "c.pem", tmp_path / "k.pem")):
        with pytest.raises(ConfigurationError, match="token or a certificate"):
            access.check(everywhere)
    Access(TOKEN, tmp_path / "c.pem", tmp_path / "k.pem").check(everywhere)
    Access().check(Address.of("[::1]:1"))


async def test_it_answers_by_tls_with_a_certificate_and_refuses_one_that_is_none(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    async with served(Told(), Access(TOKEN, certificate, key)) as (url, _):
        assert url.startswith("https://")
        said = {"Authorization": f"Bearer {TOKEN.decode()}"}
        assert (await get(f"{url}progress", headers=said, ssl=False))[0] == 200
    key.write_text("no key")
    with pytest.raises(ConfigurationError, match=r"c\.pem cannot be used"):
        Access(TOKEN, certificate, key).tls()


async def test_a_port_that_is_taken_is_told() -> None:
    async with served(Told()) as (url, _):
        taken = Address.of(url.split("/")[2])
        with pytest.raises(ConfigurationError, match="cannot be listened on"):
            async with serving(taken, Watch(Told(), FakeClock()), Access()):
                pass


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1:", "127.0.0.1:70000", ":9460", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        Address.of(text)


def test_changes_are_told_as_an_operator_would_note_them() -> None:
    held = {"by": "pause", "text": "paused by the operator", "since": None, "until": None}
    old = document(migration(held_back=[held]))
    done = {"name": "backfill", "state": "done", "since": None}
    gone = migration(phase=done, clients=[client(standing="silent")], sentence="All rows are copied.")
    assert [one.text for one in changes(old, document(gone))] == [
        "backfill: done",
        "All rows are copied.",
        "over: paused by the operator",
        "client billing-api: silent",
    ]
    assert list(changes(None, old)) == []
    assert list(changes(old, old)) == []
    following = document(migration(phase={**done, "name": "dual_write"}, capture="delta"))
    assert next(changes(old, following)).text == "following: done"


async def test_what_is_remembered_is_bounded() -> None:
    told, clock = Told(), FakeClock()
    watch = Watch(told, clock)
    for number in range(800):
        told.now = document(migration(sentence=f"look {number}"))
        await watch.update()
        clock.advance(10)
    history = watch.history()
    assert len(history["samples"]["0001_users"]) == 360, "an hour"
    assert len(history["events"]) == MAX_EVENTS
    assert history["events"][-1]["text"] == "look 799"


async def test_the_page_loads_nothing_from_elsewhere() -> None:
    async with served(Told()) as (url, _):
        pages = [(await get(f"{url}{name}"))[1] for name in ("", "page.js", "page.css")]
    text = "".join(pages).replace("http://www.w3.org/2000/svg", "")
    assert "//" not in text.replace("// ", ""), "no address but the name of a vocabulary"
    assert "innerHTML" not in text
    assert "style=" not in text


@needs_browser
async def test_the_page_shows_a_group_as_one_with_its_next_command(tmp_path: Path) -> None:
    command = {"command": "rekey apply --group billing --to cutover", "remark": "first stop the writers"}
    group = {"name": "billing", "members": ["0001_a", "0002_b"], "stage": "2 of 2 at the gate", "safe": False}
    told = Told()
    told.now = {
        **document(),
        "groups": [{**group, "sentence": "0002_b has lost its runner.", "next": command}],
    }
    async with served(told) as (url, _), tab(url, tmp_path) as page:
        until = asyncio.get_running_loop().time() + 30
        while "Group billing" not in (said := await page.evaluate("document.body?.innerText ?? ''")):
            assert asyncio.get_running_loop().time() < until, said
            await asyncio.sleep(0.05)
        shown = await page.evaluate("document.querySelector('article').innerText")
        assert page.complaints == []
    assert "0001_a, 0002_b · 2 of 2 at the gate" in shown
    assert "Attention. 0002_b has lost its runner." in shown
    assert command["command"] in shown and command["remark"] in shown


def test_documentation_alerts_and_dashboard_name_the_metrics_that_there_are() -> None:
    watch = Watch(Told(), FakeClock())
    asyncio.run(watch.update())
    full = migration(divergences=0)
    watch.document = document(full)
    told = {f"{family.name}_total" if family.type == "counter" else family.name for family in families(watch)}
    folder = ROOT / "docs"
    for name in ("guides/monitoring.md", "monitoring/alerts.yml", "monitoring/dashboard.json"):
        text = (folder / name).read_text("utf-8")
        named = set(re.findall(r"\brekey_[a-z_]+", text))
        assert named - told == set(), name
        if name.endswith(".md"):
            assert told - named == set()
    assert json.loads((folder / "monitoring/dashboard.json").read_text("utf-8"))["title"] == "rekey"
