"""The ratios of a run as a picture: `python -m benchmarks.plot FIGURES.json OUT.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.asked import WANTED

_WIDTH, _ROW, _LEFT, _SCALE = 640, 34, 250, 9
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"
 font-family="sans-serif" font-size="13">"""
_LABELS = {
    "copy": "backfill, mapping rows included",
    "copy_targets": "backfill, target rows only",
    "verify": "full verification",
}


def svg(figures: dict[str, Any]) -> str:
    """Return a picture of `on_the_stub`: rows per second of processor against the SDK loop, as ratios."""
    parts = []
    for number, (work, label) in enumerate(_LABELS.items()):
        ratio, top = figures[work]["ratio"], 40 + number * _ROW
        mark = _LEFT + WANTED[work] * _SCALE
        parts += [
            f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{label}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{ratio * _SCALE:.0f}" height="20" fill="#3b6ea5"/>',
            f'<text x="{_LEFT + ratio * _SCALE + 6:.0f}" y="{top + 15}">{ratio}</text>',
            f'<line x1="{mark}" y1="{top - 4}" x2="{mark}" y2="{top + 24}" stroke="#c33" stroke-width="2"/>',
        ]
    height = 50 + len(_LABELS) * _ROW
    title = "Rows per second of processor: times the loop over azure-data-tables (red: asked for)"
    return "\n".join(
        [
            _HEAD.format(width=_WIDTH, height=height),
            f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
            f'<text x="12" y="22" font-weight="bold">{title}</text>',
            *parts,
            "</svg>",
        ]
    )


def main(figures: str, out: str) -> None:
    """Draw the document of `python -m benchmarks --out FIGURES`."""
    document = json.loads(Path(figures).read_text("utf-8"))
    Path(out).write_text(svg(document["on_the_stub"]) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
