"""Plots as inline SVG: a time line of phases, and bars side by side. Pure.

Rules kept here:

* A plot is one `<svg>` that needs nothing from outside, scales with its column, and is told in words as well
  (`<title>`, `<desc>`): whoever cannot see it loses nothing.
* Colours differ in lightness, not in hue alone, so that a print in grey still tells them apart.
* Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

_WIDTH = 720
_LABEL = 150
_LABEL_CHARACTERS = 20
_RIGHT = 90
_ROW = 26
_TOP = 10
_BAR = 14
_AXIS = 30
_LEAST = 2.0
_TICKS = 4
DARK, LIGHT, WARN = "#1f4e79", "#9dc3e6", "#b3261e"


@dataclass(frozen=True, slots=True)
class Span:
    """One bar of a time line: a name, when it began and ended, and whether it was carried out."""

    name: str
    begin: datetime
    end: datetime
    done: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """Two amounts to compare."""

    name: str
    first: int
    second: int


def timeline(spans: Sequence[Span], title: str) -> str:
    """Return the time line of spans, one a row, in their order."""
    if not spans:
        return ""
    first = min(span.begin for span in spans)
    whole = max((max(span.end for span in spans) - first).total_seconds(), 1e-3)
    scale = (_WIDTH - _LABEL - _RIGHT) / whole
    parts, told = [], []
    for row, span in enumerate(spans):
        top = _TOP + row * _ROW
        seconds = (span.end - span.begin).total_seconds()
        left = _LABEL + (span.begin - first).total_seconds() * scale
        width = max(seconds * scale, _LEAST)
        colour = DARK if span.done else WARN
        parts.append(_label(span.name, top))
        parts.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>')
        parts.append(_text(left + width + 6, top + 11, duration(seconds)))
        told.append(f"{span.name}: {duration(seconds)}" + ("" if span.done else ", not finished"))
    bottom = _TOP + len(spans) * _ROW
    for tick in range(_TICKS + 1):
        at = _LABEL + (_WIDTH - _LABEL - _RIGHT) * tick / _TICKS
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP - 4}" x2="{at:.1f}" y2="{bottom}" class="grid"/>')
        anchor = "middle" if tick else "start"
        parts.append(_text(at, bottom + 16, f"+{duration(whole * tick / _TICKS)}", anchor))
    return _svg(title, "; ".join(told), parts, bottom + _AXIS)


def pairs(amounts: Sequence[Pair], title: str, names: tuple[str, str]) -> str:
    """Return two bars for each pair, one below the other."""
    if not amounts:
        return ""
    most = max(1, *(max(one.first, one.second) for one in amounts))
    scale = (_WIDTH - _LABEL - _RIGHT) / most
    parts, told, top = [], [], _TOP
    for one in amounts:
        parts.append(_label(one.name, top + 8))
        for value, colour, name in ((one.first, DARK, names[0]), (one.second, LIGHT, names[1])):
            width = max(value * scale, _LEAST if value else 0)
            parts.append(
                f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            )
            parts.append(_text(_LABEL + width + 6, top + 11, f"{value:,}"))
            told.append(f"{one.name}, {name}: {value:,}")
            top += _BAR + 2
        top += 10
    for number, (colour, name) in enumerate(zip((DARK, LIGHT), names, strict=True)):
        left = _LABEL + number * 220
        parts.append(f'<rect x="{left}" y="{top}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(left + 18, top + 11, name))
    return _svg(title, "; ".join(told), parts, top + _AXIS)


def duration(seconds: float) -> str:
    """Return a duration as people read it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _svg(title: str, told: str, parts: Sequence[str], height: int) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>{''.join(parts)}</svg>"
    )


def _label(text: str, top: float) -> str:
    """Return the name of a row, cut when it is longer than its column; `<desc>` has it whole."""
    shown = text if len(text) <= _LABEL_CHARACTERS else text[: _LABEL_CHARACTERS - 1] + "…"
    return _text(_LABEL - 10, top + 11, shown, "end")


def _text(left: float, base: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{left:.1f}" y="{base:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
