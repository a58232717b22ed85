"""A Chromium without a window, where there is one: opens pages, and tells what it found."""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)


def browser() -> str | None:
    """The first Chromium on the path."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(browser() is None, reason="no Chromium on this machine")


@dataclass(frozen=True)
class Opened:
    """What became of a page in the browser: its elements, and what the console said."""

    dom: str
    log: str


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the browser with a profile of its own in `folder`; no host but this file system is found."""
    ended = subprocess.run(
        [
            browser() or "",
            *_QUIET,
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def opened(page: Path, folder: Path) -> Opened:
    """Open a page."""
    ended = run(folder, "--dump-dom", page.as_uri())
    return Opened(ended.stdout, ended.stderr)


def complaints(page: Opened) -> list[str]:
    """What the page's console said. What a policy keeps from being loaded is said there, too."""
    return re.findall(r"CONSOLE[^\n]*|Refused to[^\n]*", page.log)


def drawn(page: Path, folder: Path) -> list[dict[str, float]]:
    """Lay a copy of a page out and measure it, by a script that only the copy has.

    Returns:
        For each plot its width and height in pixels, how many of its shapes have an extent, and how many have
        none.
    """
    plots: list[dict[str, float]] = _measured(page, folder, 1280)["plots"]
    return plots


@dataclass(frozen=True)
class LaidOut:
    """A page in a window of some width, in pixels.

    Attributes:
        width: how wide the page is; more than the window has is reached by scrolling only.
        plot: the first plot: left, top, right, bottom.
        tables: of each table, how wide it is and how wide its place is.
    """

    width: float
    plot: tuple[float, float, float, float]
    tables: list[tuple[float, float]]


def laid_out(page: Path, folder: Path, width: int) -> LaidOut:
    """Lay a copy of a page out in a window `width` pixels wide."""
    found = _measured(page, folder, width)
    return LaidOut(found["width"], tuple(found["first"]), [tuple(one) for one in found["tables"]])


def _measured(page: Path, folder: Path, width: int) -> Any:
    """Return what a script measures in a copy of a page; in a frame: no window is as narrow as a phone."""
    text = page.read_text("utf-8")
    text, removed = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert removed == 1, "the page has its policy"
    inner = html.escape(text.replace("</body>", f"<script>{_MEASURE}</script></body>"))
    copy = folder / "measured.html"
    style = f"width:{width}px;height:800px;border:0"
    copy.write_text(
        f'<meta charset="utf-8"><body><iframe srcdoc="{inner}" style="{style}"></iframe></body>', "utf-8"
    )
    found = re.search(r'<pre id="measured">(.*?)</pre>', opened(copy, folder).dom, flags=re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1]))


_MEASURE = """
addEventListener("load", () => {
  const plots = [...document.querySelectorAll("svg")].map(svg => {
    const shapes = [...svg.querySelectorAll("rect,polyline")].map(one => one.getBoundingClientRect());
    const box = svg.getBoundingClientRect();
    const seen = shapes.filter(one => one.width > 0 && one.height > 0).length;
    return {width: box.width, height: box.height, shapes: seen, empty: shapes.length - seen};
  });
  const first = document.querySelector("svg").getBoundingClientRect();
  const tables = [...document.querySelectorAll(".scroll")].map(one => [one.scrollWidth, one.clientWidth]);
  const told = parent.document.createElement("pre");
  told.id = "measured";
  told.textContent = JSON.stringify({
    plots, tables, width: document.documentElement.scrollWidth,
    first: [first.left, first.top, first.right, first.bottom],
  });
  parent.document.body.append(told);
});
"""


@dataclass
class Tab:
    """A page that stays open, by the browser's DevTools protocol."""

    socket: aiohttp.ClientWebSocketResponse
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    complaints: list[str] = field(default_factory=list)

    async def ask(self, method: str, **parameters: Any) -> Any:
        """Call a method; return its result. What the console says meanwhile is kept."""
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            said = await self.socket.receive_json(timeout=60)
            if said.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(said["params"]))
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    async def evaluate(self, script: str) -> Any:
        """Return what an expression is in the page."""
        found = await self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def look(self, width: int, *, dark: bool) -> None:
        """Show the page in a window of some width, in the light or in the dark."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])


@asynccontextmanager
async def tab(url: str, folder: Path) -> AsyncIterator[Tab]:
    """Open a page, with a profile of its own in `folder`."""
    browsing = await asyncio.create_subprocess_exec(
        browser() or "",
        *_QUIET,
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
    )
    assert browsing.stderr is not None
    try:
        async with asyncio.timeout(60):
            while (found := re.search(rb"ws://([^/\s]+)/", await browsing.stderr.readline())) is None:
                pass
        drained = asyncio.create_task(browsing.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{found[1].decode()}/json/list") as answer:
                [page] = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                opened = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await opened.ask(f"{domain}.enable")
                await opened.ask("Page.navigate", url=url)
                yield opened
    finally:
        browsing.terminate()
        await browsing.wait()
        drained.cancel()
