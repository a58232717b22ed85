"""Record `make demo` as docs/pictures/demo.svg, a terminal that scrolls: `make recording`.

Rules kept here:

* It is a recording: every line that the demo prints, in order and at its pace, with long pauses cut short.
  Only the name of the machine and the path of its temporary folder are replaced.
* The picture loads nothing and runs no script; CSS moves it. A reader who prefers reduced motion sees the
  last screen.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("demo.svg")

COLUMNS, ROWS = 108, 28
LINE, LETTER, MARGIN, BAR = 17, 7.3, 14, 30
SHORTEST_S, LONGEST_S, LAST_S = 0.08, 1.5, 8.0
STYLES = {"$ ": "typed", "── ": "step", "  ✓": "good", "  →": "why", "Passed": "good"}
STYLE = """
  text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }
  text { fill: #d5dde5; white-space: pre }
  .frame { fill: #16202b }
  .bar { fill: #253545 }
  .typed { fill: #ffffff; font-weight: bold }
  .step { fill: #7cc4fa }
  .good { fill: #7bd88f }
  .why { fill: #f4c97a }
"""

_FOLDER = re.compile(rf"{re.escape(tempfile.gettempdir())}/rekey-rehearsal-[^/\s]+/")

Printed = tuple[float, str]
"""A line, and the seconds from the start until it was printed."""


def printed(command: list[str]) -> Iterator[Printed]:
    """Run a command; yield what it prints. Raises CalledProcessError when it fails."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None  # noqa: S101 - asked for above
        for line in process.stdout:
            said = line.rstrip().replace(f" on {platform.node()},", " on this-machine,")
            yield time.monotonic() - start, _FOLDER.sub("", said)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def folded(lines: Iterable[Printed]) -> Iterator[Printed]:
    """Yield the lines as a terminal shows them: cut where it ends."""
    for moment, line in lines:
        for start in range(0, max(len(line), 1), COLUMNS):
            yield moment, line[start : start + COLUMNS]


def paced(lines: list[Printed]) -> list[float]:
    """Return for each line the seconds for which it is the last one on the screen."""
    moments = [moment for moment, _ in lines]
    waits = [after - before for before, after in pairwise(moments)]
    return [min(max(wait, SHORTEST_S), LONGEST_S) for wait in waits] + [LAST_S]


def scrolling(waits: list[float]) -> str:
    """Return the rules that scroll: the first screen stands there at once, then each line pushes one out."""
    beyond = len(waits) - ROWS
    whole = sum(waits[ROWS - 1 :])
    steps, gone = [], 0.0
    for number in range(beyond + 1):
        steps.append(f"{100 * gone / whole:.2f}% {{ transform: translateY(-{number * LINE}px) }}")
        gone += waits[ROWS - 1 + number]
    steps.append(f"100% {{ transform: translateY(-{beyond * LINE}px) }}")
    frames = "\n    ".join(steps)
    return (
        f"  .roll {{ animation: roll {whole:.1f}s step-end infinite }}\n"
        f"  @keyframes roll {{\n    {frames}\n  }}\n"
        f"  @media (prefers-reduced-motion: reduce) {{ .roll {{ animation: none;"
        f" transform: translateY(-{beyond * LINE}px) }} }}\n"
    )


def style_of(line: str) -> str:
    """Return the attribute that says in which style a line is shown."""
    return next((f' class="{style}"' for start, style in STYLES.items() if line.startswith(start)), "")


def draw(lines: list[Printed]) -> str:
    """Return the picture of what was printed."""
    shown = list(folded(lines))
    width, height = round(COLUMNS * LETTER + 2 * MARGIN), ROWS * LINE + BAR + 2 * MARGIN
    rows = [
        f'<text x="{MARGIN}" y="{(number + 1) * LINE - 4}"{style_of(line)}>{escape(line)}</text>'
        for number, (_, line) in enumerate(shown)
        if line
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>make demo: a whole migration on a local Azurite</title>",
            f"<style>{STYLE}{scrolling(paced(shown))}</style>",
            f'<rect width="{width}" height="{height}" rx="8" class="frame"/>',
            f'<rect width="{width}" height="{BAR}" rx="8" class="bar"/>',
            f'<text x="{width / 2:g}" y="20" text-anchor="middle">$ make demo</text>',
            f'<svg y="{BAR + MARGIN}" width="{width}" height="{ROWS * LINE}"><g class="roll">',
            *rows,
            "</g></svg>",
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(
        draw(list(printed([sys.executable, "-u", "-m", "rekey", "rehearse", "--demo"]))), "utf-8"
    )
