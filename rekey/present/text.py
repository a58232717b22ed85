"""Text for the terminal: wrapped lines, labelled fields, tables, sizes, durations. Pure. Lines have `WIDTH`
columns, or as many as the terminal has (`fitted`)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest

# Columns of a line where there is no terminal.
WIDTH = 100
NARROWEST, WIDEST = 40, 140
_columns: ContextVar[int] = ContextVar("columns", default=WIDTH)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", re.ASCII)
_COMMAND = re.compile("`rekey (?!init)([^`]+)`")
_GAP = "  "
# Columns of a label of `labelled`.
LABEL = 14
# Least columns of a table's column; beyond, a line is too long.
_NARROWEST_COLUMN = 4
KEYS_ARE_SHOWN = "KEYS ARE SHOWN. For the operator's eyes only: do not store or send this text."


@contextmanager
def fitted(columns: int) -> Iterator[None]:
    """Fit all text made meanwhile to a terminal of so many columns: `NARROWEST` to `WIDEST`."""
    before = _columns.set(min(WIDEST, max(NARROWEST, columns)))
    try:
        yield
    finally:
        _columns.reset(before)


def typed(text: str, command: Callable[[str], str]) -> str:
    """Return a text with its quoted command lines as they are to be typed: as `command` returns them for
    their words after `rekey`. `init` makes a project, whichever `--config` names."""
    return _COMMAND.sub(lambda match: f"`{command(match[1])}`", text)


def underlined(title: str) -> list[str]:
    """Return the lines of a title, and a line below it."""
    lines = wrapped(title, break_long_words=True)
    return [*lines, "=" * min(_columns.get(), max(map(len, lines), default=0))]


def wrapped(
    text: str, *, first: str = "", rest: str | None = None, break_long_words: bool = False
) -> list[str]:
    """Return a text in lines.

    Args:
        text: what to wrap.
        first: the beginning of the first line.
        rest: the beginning of the others; None: as many spaces as `first` has characters.
        break_long_words: also break words wider than a line, as keys may be; not paths and commands to be
            typed.
    """
    return textwrap.wrap(
        text,
        _columns.get(),
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=break_long_words,
        break_on_hyphens=False,
    )


def field(label: str, text: str, width: int) -> list[str]:
    """Return a text after its label, wrapped; `width`: characters before the text, for the label."""
    return wrapped(text, first=f"{label:<{max(width, len(label) + 1)}}", rest=" " * width)


def labelled(label: str, text: str) -> list[str]:
    """Return a text after its label, indented as in a migration's status."""
    return wrapped(text, first=f"  {label:<{LABEL}}")


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = (), indent: str = ""
) -> list[str]:
    """Return the lines of a table. `right`: numbers of right-aligned columns, from 0; `indent`: the beginning
    of each line."""
    listed = [head, *rows]
    widths = [max(1, *(len(row[at]) for row in listed)) for at in range(len(head))]
    most = _columns.get() - len(indent) - len(_GAP) * (len(widths) - 1)
    # The widest columns narrow; their cells continue in the next line, so nothing is cut off.
    while sum(widths) > most and max(widths) > _NARROWEST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in listed:
        cells = [
            textwrap.wrap(cell, width, break_on_hyphens=False)
            for cell, width in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (f"{part:{'>' if at in right else '<'}{widths[at]}}" for at, part in enumerate(parts))
            lines.append((indent + _GAP.join(padded)).rstrip())
    return lines


def report(lines: Iterable[str]) -> str:
    """Return lines as one text that ends in a line break."""
    return "\n".join(line.rstrip() for line in lines) + "\n"


def counted(number: int, what: str, plural: str = "") -> str:
    """Return a number of things: `1 row`, `2,000 rows`; `plural`: where it is not `what` and an s."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def shortened(texts: Sequence[str], most: int = 20, between: str = ", ") -> str:
    """Return the first `most` texts, joined, with … for any others."""
    return between.join(texts[:most]) + (f"{between}…" if len(texts) > most else "")


def differing(rows: int, link: str = " ") -> str:
    """Return how many rows differ: `1 row differs`, `2 rows differ`; with ` that `: `1 row that differs`."""
    return f"{counted(rows, 'row')}{link}differ{'s' if rows == 1 else ''}"


def duration(seconds: float) -> str:
    """Return a duration: `0.4 s`, `12 s`, `3.5 min`, `5 h`, `2 d`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{_rounded(seconds / size)} {unit}"
    return f"{_rounded(seconds / 86_400)} d"


def _rounded(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:.0f}"


def moment(at: str) -> str:
    """Return a time as the service writes it for people: `2024-03-01 09:30:00Z`; other texts unchanged."""
    return f"{at[:10]} {at[11:19]}Z" if _MOMENT.fullmatch(at) else at


def size(number: int) -> str:
    """Return a number of bytes: `512 B`, `1.3 MiB`."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
