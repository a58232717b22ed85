"""Plots as inline SVG: time lines, bars, columns, maps of load, lines. Pure.

Rules kept here:

* A plot is one `<svg>` that needs nothing from outside, scales with its column, and is told in words as well
  (`<title>`, `<desc>`): whoever cannot see it loses nothing.
* Colours are classes of the page's style, which has them for light and dark surroundings; they differ in
  lightness, not in hue alone, so that a print in grey still tells them apart.
* Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rekey.present.page import escape

_WIDTH = 720
_NARROW = 440
_LABEL = 150
_LABEL_CHARACTERS = 20
_RIGHT = 90
_ROW = 26
_TOP = 10
_BAR = 14
_AXIS = 30
_LEAST = 2.0
_TICKS = 4
_WIDE_LANES = 16
DARK, LIGHT, WARN = "dark", "light", "warn"
BEFORE, AFTER = "before", "after"


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


@dataclass(frozen=True, slots=True)
class Series:
    """One of several amounts over the same labels: its name, its values, the class of its colour."""

    name: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of a map: its name, and its amounts over time; `sums`: it sums up lanes that are not shown."""

    name: str
    values: Sequence[int]
    sums: bool = False


def timeline(spans: Sequence[Span], title: str) -> str:
    """Return the time line of spans, one a row, in their order."""
    if not spans:
        return ""
    first = min(span.begin for span in spans)
    whole = max((max(span.end for span in spans) - first).total_seconds(), 1e-3)
    scale = (_WIDTH - _LABEL - _RIGHT) / whole
    parts, told = [], []
    bottom = _TOP + len(spans) * _ROW
    for tick in range(_TICKS + 1):
        at = _LABEL + (_WIDTH - _LABEL - _RIGHT) * tick / _TICKS
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP - 4}" x2="{at:.1f}" y2="{bottom}" class="grid"/>')
        anchor = "middle" if tick else "start"
        parts.append(_text(at, bottom + 16, f"+{duration(whole * tick / _TICKS)}", anchor))
    for row, span in enumerate(spans):
        top = _TOP + row * _ROW
        seconds = (span.end - span.begin).total_seconds()
        left = _LABEL + (span.begin - first).total_seconds() * scale
        width = max(seconds * scale, _LEAST)
        colour = DARK if span.done else WARN
        parts.append(_label(span.name, top))
        parts.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" class="{colour}"/>')
        parts.append(_text(left + width + 6, top + 11, duration(seconds)))
        told.append(f"{span.name}: {duration(seconds)}" + ("" if span.done else ", not finished"))
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
                f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}" class="{colour}"/>'
            )
            parts.append(_text(_LABEL + width + 6, top + 11, f"{value:,}"))
            told.append(f"{one.name}, {name}: {value:,}")
            top += _BAR + 2
        top += 10
    for number, (colour, name) in enumerate(zip((DARK, LIGHT), names, strict=True)):
        left = _LABEL + number * 220
        parts.append(f'<rect x="{left}" y="{top}" width="12" height="12" class="{colour}"/>')
        parts.append(_text(left + 18, top + 11, name))
    return _svg(title, "; ".join(told), parts, top + _AXIS)


def columns(
    labels: Sequence[str],
    series: Sequence[Series],
    title: str,
    across: str,
    *,
    values: bool = False,
    narrow: bool = False,
) -> str:
    """Return columns side by side for each label.

    Args:
        labels: what the columns stand for, left to right.
        series: what is compared; each has a value for each label.
        title: what it shows.
        across: what the labels are.
        values: write each column's value on top of it.
        narrow: two such plots stand beside each other.
    """
    if not labels or not series or not any(any(one.values) for one in series):
        return ""
    width = _NARROW if narrow else _WIDTH
    top, bottom, left, right = 26.0, 200.0 if narrow else 250.0, 52.0, width - 10.0
    ticks = _nice(max(max(one.values) for one in series))
    scale = (bottom - top) / ticks[-1]
    parts = []
    for tick in ticks:
        at = bottom - tick * scale
        parts.append(f'<line x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" class="grid"/>')
        parts.append(_text(left - 8, at + 4, f"{tick:,}", "end", soft=True))
    slot = (right - left) / len(labels)
    bar = min(46.0, 0.78 * slot / len(series))
    longest = max(map(len, labels)) * 6.6 + 10
    every = max(1, math.ceil(longest / slot))
    for number, label in enumerate(labels):
        middle = left + (number + 0.5) * slot
        begin = middle - bar * len(series) / 2
        for place, one in enumerate(series):
            value = one.values[number]
            height = max(value * scale, _LEAST if value else 0.0)
            x = begin + place * bar
            parts.append(
                f'<rect x="{x + 0.5:.1f}" y="{bottom - height:.1f}" width="{bar - 1:.1f}"'
                f' height="{height:.1f}" rx="2" class="{one.colour}"/>'
            )
            if values and value:
                parts.append(_text(x + bar / 2, bottom - height - 5, _short(value), "middle"))
        if number % every == 0:
            parts.append(_text(middle, bottom + 16, label, "middle", soft=True))
    parts.append(_text((left + right) / 2, bottom + 34, across, "middle", soft=True))
    if len(series) > 1:
        parts += _legend(series, left, bottom + 50)
    told = "; ".join(
        f"{one.name}: "
        + ", ".join(f"{label}: {value:,}" for label, value in zip(labels, one.values, strict=True) if value)
        for one in series
    )
    return _svg(title, told, parts, int(bottom + (64 if len(series) > 1 else 42)), width)


def heat(lanes: Sequence[Lane], times: Sequence[str], title: str, colour: str) -> str:
    """Return a map of lanes by time: the more, the stronger a cell.

    Args:
        lanes: from top to bottom; each has an amount for each time.
        times: the beginnings of the columns.
        title: what it shows.
        colour: the class of the cells: `before` or `after`.
    """
    if not lanes or not times:
        return ""
    top, step, left = 8.0, 20.0 if len(lanes) <= _WIDE_LANES else 13.0, 110.0
    width = (_WIDTH - 10 - left) / len(times)
    most = max([1, *(max(lane.values, default=0) for lane in lanes if not lane.sums)])
    parts = []
    for row, lane in enumerate(lanes):
        y = top + row * step
        parts.append(_text(left - 8, y + step / 2 + 3, lane.name, "end", soft=True))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{_WIDTH - 10 - left:.1f}" height="{step - 3}" class="cell"'
            ' fill-opacity="0.35"/>'
        )
        for column, value in enumerate(lane.values):
            if value:
                # The root, so that little is seen beside much.
                of = max(lane.values) * 2 if lane.sums else most
                strength = 0.12 + 0.88 * (value / of) ** 0.5
                parts.append(
                    f'<rect x="{left + column * width:.2f}" y="{y}" width="{max(width - 0.6, 0.8):.2f}"'
                    f' height="{step - 3}" class="{colour}" fill-opacity="{strength:.2f}"/>'
                )
    bottom = top + len(lanes) * step
    parts += _times(times, left, width, bottom + 14)
    told = f"{len(times)} times from {times[0]} to {times[-1]}; " + "; ".join(
        f"{lane.name}: {sum(lane.values):,} rows, most of them {max(lane.values, default=0):,} at "
        f"{times[_at_most(lane.values)]}"
        for lane in lanes
    )
    return _svg(title, told, parts, int(bottom + 24))


def lines(series: Sequence[Series], times: Sequence[str], title: str, unit: str = "%") -> str:
    """Return steps over time, 0 to 100."""
    if not series or len(times) < 2:
        return ""
    top, bottom, left, right = 12.0, 170.0, 62.0, _WIDTH - 10.0
    width = (right - left) / len(times)
    parts = []
    for tick in (0, 25, 50, 75, 100):
        at = bottom - tick * (bottom - top) / 100
        parts.append(f'<line x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" class="grid"/>')
        parts.append(_text(left - 8, at + 4, f"{tick} {unit}", "end", soft=True))
    for one in series:
        points = " ".join(
            f"{left + (at + side) * width:.1f},{bottom - value * (bottom - top) / 100:.1f}"
            for at, value in enumerate(one.values)
            for side in (0, 1)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="var(--{one.colour})"'
            f' stroke-width="{5 if one.colour == BEFORE else 2}"/>'
        )
    parts += _times(times, left, width, bottom + 16)
    parts += _legend(series, left, bottom + 32)
    told = "; ".join(
        f"{one.name}: between {min(one.values):,} and {max(one.values):,} {unit}" for one in series
    )
    return _svg(title, told, parts, int(bottom + 46))


def _times(times: Sequence[str], left: float, width: float, base: float) -> list[str]:
    """Return the labels of a time axis: as many as have room, each at the beginning of its column."""
    room = max(map(len, times)) * 7 + 16
    every = max(1, math.ceil(room / width))
    most = len(times) * width - room + 16
    return [
        _text(left + column * width, base, times[column], soft=True)
        for column in range(0, len(times), every)
        if column * width <= most
    ]


def _at_most(values: Sequence[int]) -> int:
    return max(range(len(values)), key=lambda at: values[at])


def _nice(most: float) -> list[int]:
    """Return round ticks from 0 to at least `most`."""
    step = 1
    while step * _TICKS < most:
        # 1, 2, 5, 10, 20, 50, ...
        first = int(str(step)[0])
        step = step * 5 // 2 if first == 2 else step * 2
    return [step * number for number in range(int(-(-most // step)) + 1)]


def _short(value: float) -> str:
    """Return a number in few characters."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= 10 * size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,}"


def _legend(series: Sequence[Series], left: float, top: float) -> list[str]:
    parts, at = [], left
    for one in series:
        parts.append(f'<rect x="{at:.1f}" y="{top:.1f}" width="12" height="12" rx="2" class="{one.colour}"/>')
        parts.append(_text(at + 18, top + 11, one.name))
        at += 46 + 6.6 * len(one.name)
    return parts


def duration(seconds: float) -> str:
    """Return a duration as people read it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _svg(title: str, told: str, parts: Sequence[str], height: int, width: int = _WIDTH) -> str:
    return (
        f'<svg class="{"wide" if width == _WIDTH else "narrow"}" viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>{''.join(parts)}</svg>"
    )


def _label(text: str, top: float) -> str:
    """Return the name of a row, cut when it is longer than its column; `<desc>` has it whole."""
    shown = text if len(text) <= _LABEL_CHARACTERS else text[: _LABEL_CHARACTERS - 1] + "…"
    return _text(_LABEL - 10, top + 11, shown, "end")


def _text(left: float, base: float, text: str, anchor: str = "start", *, soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text x="{left:.1f}" y="{base:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'
