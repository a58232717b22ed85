"""The live page of `rekey serve` in a browser while rekey copies on Azurite: through a kill, a throttle and
the end it shows what status tells, on a phone and in the dark as well."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.acceptance.test_serve import LONG_S, ROWS, project, started
from tests.asserts.browser import Tab, needs_browser, tab
from tests.worlds.forking import Forked

__all__ = ["project"]
pytestmark = [pytest.mark.azurite, needs_browser]
LOOKS = [(1280, False), (1280, True), (390, False), (390, True)]
TEXT = "document.body?.innerText ?? ''"


async def shown(page: Tab, *texts: str) -> str:
    """Wait until the page shows all of some texts; look at it in every window."""
    until = time.monotonic() + LONG_S
    while True:
        said = await page.evaluate(TEXT)
        missing = [text for text in texts if text not in said]
        if not missing:
            break
        assert time.monotonic() < until, (missing, said)
        await asyncio.sleep(0.3)
    for width, dark in LOOKS:
        await page.look(width, dark=dark)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, (texts, width)
        front, back = [
            await page.evaluate(f"getComputedStyle(document.{of}).{what}")
            for of, what in (("body", "color"), ("documentElement", "backgroundColor"))
        ]
        assert front != back, (dark, front)
    return str(said)


async def ended(command: Forked) -> int | None:
    """Wait for a command's end; return its exit code."""
    await asyncio.to_thread(command.communicate, LONG_S)
    return command.returncode


async def test_the_page_is_right_through_kill_throttle_and_end(
    project: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, environ = project
    with (folder / "rekey.toml").open("a", encoding="utf-8") as config:
        config.write('[gates]\nmargin = "1s"\n')  # nothing holds back what the killed runner had sent
        config.write("[limits]\nwindow_rows = 40\nentities_per_second = 40\n")  # ten seconds for the copy

    def rekey(*words: str) -> Forked:
        return Forked(words, folder, environ)

    with started(folder, environ, "serve", "--address", "127.0.0.1:0") as (_, url):
        async with tab(url, tmp_path) as page:
            await shown(page, "not begun", "rekey apply")
            copying = rekey("apply")
            await shown(page, f"of {ROWS} rows", "Safe.")
            copying.kill()
            await ended(copying)
            await shown(page, "backfill: cut-off", "it goes on after its last checkpoint")
            assert await ended(rekey("throttle", "20")) == 0
            goes_on = rekey("apply")
            await shown(page, "Held back by", "20")
            assert await ended(rekey("throttle", "4000")) == 0
            assert await ended(goes_on) == 0
            await shown(page, "rekey apply", "--to cutover", "Recent events")
        assert page.complaints == []
