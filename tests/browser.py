"""A Chromium without a window, where there is one: opens pages, and tells what it found."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

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
    text = page.read_text("utf-8")
    text, removed = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert removed == 1, "the page has its policy"
    copy = folder / "measured.html"
    copy.write_text(text.replace("</body>", f"<script>{_MEASURE}</script></body>"), "utf-8")
    found = re.search(r'<pre id="measured">(.*?)</pre>', opened(copy, folder).dom, flags=re.DOTALL)
    assert found is not None
    plots: list[dict[str, float]] = json.loads(html.unescape(found[1]))
    return plots


_MEASURE = """
const plots = [...document.querySelectorAll("svg")].map(svg => {
  const shapes = [...svg.querySelectorAll("rect,polyline")].map(one => one.getBoundingClientRect());
  const box = svg.getBoundingClientRect();
  const seen = shapes.filter(one => one.width > 0 && one.height > 0).length;
  return {width: box.width, height: box.height, shapes: seen, empty: shapes.length - seen};
});
const told = document.createElement("pre");
told.id = "measured";
told.textContent = JSON.stringify(plots);
document.body.append(told);
"""
