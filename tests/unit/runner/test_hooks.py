"""The operator's hook: how it is run, how it fails; and when a pass has stalled."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from rekey.core.progress import Work
from rekey.project.config import Hooks
from rekey.runner.hooks import Stalls, run_hook
from tests.fakes.clock import FakeClock


def program(folder: Path, text: str) -> str:
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(stat.S_IRWXU)
    return "./hook.sh"


async def test_it_gets_the_document_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    name = program(tmp_path, 'printf "%s|" "$@" > said; cat >> said')
    hooks = Hooks((name, "a b", "$HOME", "; rm -rf x"))
    assert await run_hook(hooks, tmp_path, b'{"event": 1}') == ""
    assert (tmp_path / "said").read_text() == 'a b|$HOME|; rm -rf x|{"event": 1}'


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("exit 0", ""),
        ("exit 3", "ended with exit code 3"),
        ("kill -TERM $$", "ended with exit code -15"),
        ("echo told >&2; echo more; exec <&-; exit 0", ""),
    ],
)
async def test_how_it_ended_is_told(tmp_path: Path, text: str, failed: str) -> None:
    """A document that it does not read is no failure, nor is what it prints."""
    hooks = Hooks((program(tmp_path, text),))
    assert await run_hook(hooks, tmp_path, b"x" * 1_000_000) == failed


async def test_one_that_cannot_be_run_has_failed(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    found = [await run_hook(Hooks((name,)), tmp_path, b"") for name in ("./absent", "./plain")]
    assert found == ["cannot be run (No such file or directory)", "cannot be run (Permission denied)"]


async def test_one_that_takes_too_long_is_ended_with_what_it_began(tmp_path: Path) -> None:
    name = program(tmp_path, "sleep 600 & echo $! > pid; wait")
    assert await run_hook(Hooks((name,), timeout_s=0.5), tmp_path, b"") == "had not ended after 0.5 s"
    pid = int((tmp_path / "pid").read_text())
    while (state := Path(f"/proc/{pid}/stat")).exists() and " Z " not in state.read_text():
        await asyncio.sleep(0.01)


def test_a_pass_has_stalled_when_its_rows_do_not_grow_and_that_is_told_once() -> None:
    clock = FakeClock()
    work, stalls = Work("backfill", 100, clock), Stalls(600)
    told = []
    for second in range(0, 4000, 100):
        if second == 1000:
            work.advance(1)
        paused = 2500 <= second < 3000
        if stalls.stalled(work, clock.monotonic(), paused=paused):
            told.append(second)
        clock.advance(100)
    assert told == [600, 1600, 3600]
    assert not stalls.stalled(None, clock.monotonic(), paused=False), "between passes nothing stalls"
