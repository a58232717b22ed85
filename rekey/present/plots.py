"""Plots as inline SVG: time lines, bars, columns, heat maps, steps; the template `plot.svg` makes markup of
the shapes placed here. Pure. Each is described in words as well (`<title>`, `<desc>`), for readers who cannot
see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rekey.present.page import markup
from rekey.present.text import duration

_WIDTH = 720
_NARROW = 440
_LABEL = 150
_LABEL_CHARACTERS = 20
_CHARACTER = 6.6
# Width for bars, between their names and the figures after them.
_ACROSS = _WIDTH - _LABEL - 90
_ROW = 26
_TOP = 10
_BAR = 14
_AXIS = 30
_LEAST = 2.0
_TICKS = 4
_MANY_LANES = 16
DARK, LIGHT, WARN = "dark", "light", "warn"
BEFORE, AFTER = "before", "after"


class Span(NamedTuple):
    """One bar of a time line: a name, when it began and ended, whether it was done, whether it led back."""

    name: str
    begin: datetime
    end: datetime
    done: bool
    back: bool = False


class Pair(NamedTuple):
    """Two amounts to compare."""

    name: str
    first: int
    second: int


class Series(NamedTuple):
    """Values over labels that several series share. `colour`: a class of the page's style, which has light
    and dark ones."""

    name: str
    values: Sequence[float]
    colour: str


class Lane(NamedTuple):
    """One lane of a heat map: its amounts over time; `is_total`: it is the sum of lanes not shown."""

    name: str
    values: Sequence[int]
    is_total: bool = False


class _Canvas:
    """The shapes of one plot: tag, attributes, text."""

    def __init__(self, width: int = _WIDTH) -> None:
        self._width = width
        self._shapes: list[tuple[str, dict[str, Any], str]] = []

    def _put(self, tag: str, text: str, kind: str, **attributes: Any) -> None:
        rounded = {
            name.replace("_", "-"): round(value, 1) if isinstance(value, float) else value
            for name, value in attributes.items()
        }
        self._shapes.append((tag, {**rounded, "class": kind}, text))

    def rect(self, x: float, y: float, width: float, height: float, kind: str, **more: Any) -> None:
        self._put("rect", "", kind, x=x, y=y, width=width, height=height, **more)

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "soft") -> None:
        self._put("text", text, kind, x=x, y=y, text_anchor=anchor)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self._put("line", "", "grid", x1=x1, y1=y1, x2=x2, y2=y2)

    def steps(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """Put a line through points: today's broad, the planned one thin and dashed, so both are seen."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = {"stroke": f"var(--{colour})", "stroke_width": 5 if colour == BEFORE else 2.5}
        stroke |= {} if colour == BEFORE else {"stroke_dasharray": "8 5"}
        self._put("polyline", "", "", points=joined, fill="none", **stroke)

    def label(self, text: str, top: float) -> None:
        """Put the name of a row, cut when it is longer than its column; `<desc>` has the whole name."""
        shown = text if len(text) <= _LABEL_CHARACTERS else text[: _LABEL_CHARACTERS - 1] + "…"
        self.text(_LABEL - 10, top + 11, shown, "end", kind="")

    def bar(self, left: float, top: float, width: float, colour: str, figure: str) -> None:
        self.rect(left, top, width, _BAR, colour)
        self.text(left + width + 6, top + 11, figure, kind="")

    def legend(self, entries: Iterable[tuple[str, str]], left: float, top: float) -> None:
        for name, colour in entries:
            self.rect(left, top, 12, 12, colour, rx=2)
            self.text(left + 18, top + 11, name, kind="")
            left += 46 + _CHARACTER * len(name)

    def times(self, times: Sequence[str], left: float, width: float, base: float) -> None:
        """Put the labels of a time axis: as many as fit, each at the beginning of its column."""
        room = max(map(len, times)) * 7 + 16
        for column in range(0, len(times), max(1, math.ceil(room / width))):
            if column * width <= len(times) * width - room + 16:
                self.text(left + column * width, base, times[column])

    def drawn(self, title: str, details: Iterable[str], height: float) -> str:
        return markup(
            "plot.svg",
            kind="wide" if self._width == _WIDTH else "narrow",
            width=self._width,
            height=int(height),
            shapes=self._shapes,
            title=title,
            details="; ".join(details),
        ).rstrip()


def timeline(spans: Sequence[Span], title: str) -> str:
    """Return a time line with a row for each span, in their order; "" without spans."""
    if not spans:
        return ""
    first = min(span.begin for span in spans)
    whole = max((max(span.end for span in spans) - first).total_seconds(), 1e-3)
    plot, details = _Canvas(), []
    bottom = _TOP + len(spans) * _ROW
    for tick in range(_TICKS + 1):
        at = _LABEL + _ACROSS * tick / _TICKS
        plot.line(at, _TOP - 4, at, bottom)
        plot.text(at, bottom + 16, f"+{duration(whole * tick / _TICKS)}", "middle" if tick else "start", "")
    for row, span in enumerate(spans):
        top, took = _TOP + row * _ROW, (span.end - span.begin).total_seconds()
        left = _LABEL + (span.begin - first).total_seconds() * _ACROSS / whole
        plot.label(span.name, top)
        colour = WARN if not span.done else LIGHT if span.back else DARK
        plot.bar(left, top, max(took * _ACROSS / whole, _LEAST), colour, duration(took))
        details.append(f"{span.name}: {duration(took)}" + ("" if span.done else ", not finished"))
    return plot.drawn(title, details, bottom + _AXIS)


def pairs(amounts: Sequence[Pair], title: str, names: tuple[str, str]) -> str:
    """Return two bars for each pair, one below the other."""
    if not amounts:
        return ""
    most = max(1, *(max(amount.first, amount.second) for amount in amounts))
    plot, details, top = _Canvas(), [], _TOP
    for pair in amounts:
        plot.label(pair.name, top + 8)
        for value, colour, name in zip((pair.first, pair.second), (DARK, LIGHT), names, strict=True):
            width = max(value * _ACROSS / most, _LEAST if value else 0)
            plot.bar(_LABEL, top, width, colour, f"{value:,}")
            details.append(f"{pair.name}, {name}: {value:,}")
            top += _BAR + 2
        top += 10
    plot.legend(zip(names, (DARK, LIGHT), strict=True), _LABEL, top)
    return plot.drawn(title, details, top + _AXIS)


def columns(
    labels: Sequence[str],
    series: Sequence[Series],
    title: str,
    across: str,
    *,
    values: bool = False,
    narrow: bool = False,
) -> str:
    """Return a column chart: for each label a column of each series, side by side. `across`: the title of the
    axis of labels; `values`: write each column's value on top; `narrow`: small enough for two plots next to
    each other."""
    if not labels or not any(any(curve.values) for curve in series):
        return ""
    width = _NARROW if narrow else _WIDTH
    plot = _Canvas(width)
    top, bottom, left, right = 26.0, 200.0 if narrow else 250.0, 52.0, width - 10.0
    ticks = _round_ticks(max(max(curve.values) for curve in series))
    scale = (bottom - top) / ticks[-1]
    for tick in ticks:
        plot.line(left, bottom - tick * scale, right, bottom - tick * scale)
        plot.text(left - 8, bottom - tick * scale + 4, f"{tick:,}", "end")
    slot = (right - left) / len(labels)
    bar = min(46.0, 0.78 * slot / len(series))
    every = max(1, math.ceil((max(map(len, labels)) * _CHARACTER + 10) / slot))
    for number, label in enumerate(labels):
        middle = left + (number + 0.5) * slot
        for place, curve in enumerate(series):
            value = curve.values[number]
            height = max(value * scale, _LEAST if value else 0.0)
            x = middle + (place - len(series) / 2) * bar
            plot.rect(x + 0.5, bottom - height, bar - 1, height, curve.colour, rx=2)
            if values and value:
                plot.text(x + bar / 2, bottom - height - 5, _short(value), "middle", kind="")
        if number % every == 0:
            plot.text(middle, bottom + 16, label, "middle")
    plot.text((left + right) / 2, bottom + 34, across, "middle")
    if len(series) > 1:
        plot.legend([(curve.name, curve.colour) for curve in series], left, bottom + 50)
    details = []
    for curve in series:
        labelled = [f"{label}: {value:,}" for label, value in zip(labels, curve.values, strict=True) if value]
        details.append(f"{curve.name}: {', '.join(labelled)}")
    return plot.drawn(title, details, bottom + (64 if len(series) > 1 else 42))


def heat(lanes: Sequence[Lane], times: Sequence[str], title: str, colour: str) -> str:
    """Return a heat map of lanes (top to bottom, an amount for each time): the larger the amount, the
    stronger the cell. `colour`: the class of the cells, `before` or `after`."""
    if not lanes or not times:
        return ""
    plot = _Canvas()
    top, step, left = 8.0, 20.0 if len(lanes) <= _MANY_LANES else 13.0, 110.0
    across = _WIDTH - 10 - left
    width = across / len(times)
    most = max([1, *(max(lane.values, default=0) for lane in lanes if not lane.is_total)])
    details = [f"{len(times)} times from {times[0]} to {times[-1]}"]
    for row, lane in enumerate(lanes):
        y = top + row * step
        plot.text(left - 8, y + step / 2 + 3, lane.name, "end")
        plot.rect(left, y, across, step - 3, "cell", fill_opacity="0.35")
        for column, value in enumerate(lane.values):
            if value:
                # The square root keeps small amounts visible next to large ones.
                strength = 0.12 + 0.88 * (value / (max(lane.values) * 2 if lane.is_total else most)) ** 0.5
                x, cell = left + column * width, max(width - 0.6, 0.8)
                plot.rect(x, y, cell, step - 3, colour, fill_opacity=f"{strength:.2f}")
        largest = max(lane.values, default=0)
        at = times[lane.values.index(largest)]
        details.append(f"{lane.name}: {sum(lane.values):,} rows, most of them {largest:,} at {at}")
    bottom = top + len(lanes) * step
    plot.times(times, left, width, bottom + 14)
    return plot.drawn(title, details, bottom + 24)


def lines(series: Sequence[Series], times: Sequence[str], title: str) -> str:
    """Return a plot of percentages over time, as steps."""
    if not series or len(times) < 2:
        return ""
    plot = _Canvas()
    top, bottom, left, right = 12.0, 170.0, 62.0, _WIDTH - 10.0
    width, scale = (right - left) / len(times), (bottom - top) / 100
    for tick in (0, 25, 50, 75, 100):
        plot.line(left, bottom - tick * scale, right, bottom - tick * scale)
        plot.text(left - 8, bottom - tick * scale + 4, f"{tick} %", "end")
    for curve in series:
        corners = [(at + side, value) for at, value in enumerate(curve.values) for side in (0, 1)]
        plot.steps(((left + at * width, bottom - value * scale) for at, value in corners), curve.colour)
    plot.times(times, left, width, bottom + 16)
    plot.legend([(curve.name, curve.colour) for curve in series], left, bottom + 32)
    details = (f"{curve.name}: between {min(curve.values):,} and {max(curve.values):,} %" for curve in series)
    return plot.drawn(title, details, bottom + 46)


def _round_ticks(most: float) -> list[int]:
    """Return round ticks from 0 to at least `most`: steps of 1, 2, 5, 10, 20, 50, ..."""
    step = 1
    while step * _TICKS < most:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _short(value: float) -> str:
    """Return a number in few characters: `950`, `12 k`, `12 M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= 10 * size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,}"
