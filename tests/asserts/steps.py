"""Counts the steps that code takes, to bound them by the size of its input without a clock.

Counted are lines of Python, characters that methods of a `Text` go through, and steps of regular expressions,
each matched a second time here by backtracking, as `re` does but without its shortcuts. Not counted are
formatted strings, slices of what `re` returned, and bytes.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as reader  # type: ignore[attr-defined]
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest


class Steps:
    """How many steps were taken."""

    def __init__(self) -> None:
        self.taken = 0


@contextmanager
def counted(patch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[Steps]:
    """Count while the context lasts; regular expressions: those that these modules hold."""
    steps = Steps()

    def line(_frame: FrameType, event: str, _value: object) -> Any:
        steps.taken += event == "line"
        return line

    def trace(frame: FrameType, _event: str, _value: object) -> Any:
        return None if frame.f_code.co_filename == __file__ else line

    with patch.context() as patched:
        for module in modules:
            for name, value in vars(module).copy().items():
                if isinstance(value, re.Pattern):
                    patched.setattr(module, name, _Pattern(value, steps))
            if getattr(module, "re", None) is re:

                def split(pattern: Any, text: Any, maxsplit: int = 0) -> Any:
                    return _Pattern(re.compile(pattern), steps).split(text, maxsplit)

                patched.setattr(module, "re", SimpleNamespace(**{**vars(re), "split": split}))
        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()  # finalizers of what other tests left would be counted as well
        sys.settrace(trace)
        try:
            yield steps
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()


# --- text --------------------------------------------------------------------------------------------------


class Text(str):
    """A text that counts what its methods go through; what they return is one, too."""

    steps: Steps

    @classmethod
    def of(cls, value: Any, steps: Steps) -> Any:
        """Return a value in which texts are of this type."""
        if isinstance(value, str):
            made = cls(value)
            made.steps = steps
            return made
        return type(value)(cls.of(one, steps) for one in value) if isinstance(value, list | tuple) else value

    __hash__ = str.__hash__


def _counting(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def method(self: Text, *given: Any, **named: Any) -> Any:
        self.steps.taken += 1 if name == "__eq__" else 1 + len(self)
        return Text.of(plain(self, *given, **named), self.steps)

    return method


for _name in (
    *("__eq__", "__add__", "__getitem__", "__contains__", "__format__", "lower", "upper", "strip", "lstrip"),
    *("rstrip", "split", "partition", "rpartition", "replace", "startswith", "endswith", "removesuffix"),
    *("removeprefix", "count", "find", "index", "encode", "isdigit", "join", "translate"),
):
    setattr(Text, _name, _counting(_name))


# --- regular expressions -----------------------------------------------------------------------------------


class _Pattern:
    """A compiled expression that counts its steps."""

    def __init__(self, plain: re.Pattern[Any], steps: Steps) -> None:
        self._plain, self._steps = plain, steps
        self._program = _program(plain)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._plain, name)
        if name not in ("match", "fullmatch", "search", "split", "findall", "finditer", "sub"):
            return method

        def call(*given: Any, **named: Any) -> Any:
            text = given[1] if name == "sub" else given[0]
            self._steps.taken += steps_of(self._program, text, name)
            return method(*given, **named)

        return call


def steps_of(program: list[tuple[Any, ...]], text: Any, method: str) -> int:
    """Return how many steps it takes to match a text."""
    codes, taken, at = [ord(one) for one in text] if isinstance(text, str) else list(text), 0, 0
    while at <= len(codes):
        more, end = _match(program, codes, at, whole=method == "fullmatch")
        taken += more
        if method in ("match", "fullmatch") or (method == "search" and end is not None):
            break
        at = at + 1 if end is None else max(end, at + 1)
    return taken


def _match(
    program: list[tuple[Any, ...]], codes: list[int], start: int, *, whole: bool = False
) -> tuple[int, int | None]:
    """Return how many steps it takes to match from a place, and the end of the match."""
    tries, taken = [(0, start, start)], 0
    while tries:
        at, place, least = tries.pop()
        if place > least:  # of a repetition: one fewer, should this fail
            tries.append((at, place - 1, least))
        while True:
            taken += 1
            name, *given = program[at]
            at += 1
            if name == "one":
                if place == len(codes) or not given[0](codes[place]):
                    break
                place += 1
            elif name == "many":
                fits, low, high = given
                least = place + low
                end = min(len(codes), place + high)
                while place < end and fits(codes[place]):
                    place += 1
                    taken += 1
                if place < least:
                    break
                if place > least:
                    tries.append((at, place - 1, least))
            elif name == "split":
                tries.append((given[1], place, place))
                at = given[0]
            elif name == "jump":
                at = given[0]
            elif name == "is":
                if not given[0](codes, place):
                    break
            elif name == "atomic":
                more, found = _match(given[0], codes, place)
                taken += more
                if found is None:
                    break
                place = found
            elif name == "look":
                more, found = _match(given[0], codes, place)
                taken += more
                if (found is None) is given[1]:
                    break
            elif not whole or place == len(codes):
                return taken, place
            else:
                break
    return taken, None


@cache
def _program(plain: re.Pattern[Any]) -> list[tuple[Any, ...]]:
    program: list[tuple[Any, ...]] = []
    _add(program, reader.parse(plain.pattern, plain.flags), plain.flags)
    return [*program, ("end",)]


def _add(program: list[tuple[Any, ...]], parsed: Any, flags: int) -> None:
    for name, value in parsed:
        if (fits := _fits(name, value, flags)) is not None:
            program.append(("one", fits))
        elif name is c.SUBPATTERN:
            _add(program, value[-1], flags)
        elif name is c.BRANCH:
            ends = []
            for number, branch in enumerate(value[1]):
                is_last = number == len(value[1]) - 1
                if not is_last:
                    split = len(program)
                    program.append(())
                _add(program, branch, flags)
                if not is_last:
                    ends.append(len(program))
                    program.append(())
                    program[split] = ("split", split + 1, len(program))
            for end in ends:
                program[end] = ("jump", len(program))
        elif name in (c.MAX_REPEAT, c.MIN_REPEAT):  # which try the same ways, each in its order
            _repeat(program, value[0], value[1], value[2], flags)
        elif name is c.POSSESSIVE_REPEAT:
            repeated: list[tuple[Any, ...]] = []
            _repeat(repeated, value[0], value[1], value[2], flags)
            program.append(("atomic", [*repeated, ("end",)]))
        elif name in (c.ASSERT, c.ASSERT_NOT) and value[0] == 1:
            inner: list[tuple[Any, ...]] = []
            _add(inner, value[1], flags)
            program.append(("look", [*inner, ("end",)], name is c.ASSERT))
        elif name is c.AT and value in (c.AT_BEGINNING_STRING, c.AT_BEGINNING):
            program.append(("is", lambda _codes, place: place == 0))
        elif name is c.AT and value in (c.AT_END_STRING, c.AT_END):
            program.append(("is", lambda codes, place: place == len(codes)))
        else:
            raise NotImplementedError(f"{name} of a regular expression")


def _repeat(program: list[tuple[Any, ...]], low: int, high: int, body: Any, flags: int) -> None:
    if len(body) == 1 and (fits := _fits(body[0][0], body[0][1], flags)) is not None:
        program.append(("many", fits, low, sys.maxsize if high is c.MAXREPEAT else high))
        return
    for _ in range(low):
        _add(program, body, flags)
    if high is c.MAXREPEAT:
        split = len(program)
        program.append(())
        _add(program, body, flags)
        program.append(("jump", split))
        program[split] = ("split", split + 1, len(program))
        return
    splits = []
    for _ in range(high - low):
        splits.append(len(program))
        program.append(())
        _add(program, body, flags)
    for split in splits:
        program[split] = ("split", split + 1, len(program))


def _fits(name: Any, value: Any, flags: int) -> Callable[[int], bool] | None:
    """Return whether a character fits, for what stands for one character."""
    if name is c.LITERAL:
        if flags & re.IGNORECASE:
            both = {ord(chr(value).lower()), ord(chr(value).upper())}
            return lambda code: code in both
        return lambda code: code == value
    if name is c.NOT_LITERAL:
        return lambda code: code != value
    if name is c.ANY:
        return lambda code: code != ord("\n")
    if name is c.IN:
        text = "".join(_written(*one) for one in value)
        fits = re.compile(f"[{text}]", flags & re.IGNORECASE).match
        return lambda code: fits(chr(code)) is not None
    return None


def _written(name: Any, value: Any) -> str:
    """Return a member of a set of characters as it is written."""
    if name is c.NEGATE:
        return "^"
    if name is c.LITERAL:
        return f"\\U{value:08x}"
    if name is c.RANGE:
        return f"\\U{value[0]:08x}-\\U{value[1]:08x}"
    classes = {c.CATEGORY_DIGIT: r"\d", c.CATEGORY_SPACE: r"\s", c.CATEGORY_WORD: r"\w"}
    negated = {c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_NOT_WORD: r"\W"}
    return (classes | negated)[value]
