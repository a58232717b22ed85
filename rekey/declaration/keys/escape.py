"""Custom key expressions: a Python function of the operator, for keys that no other expression can make."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from rekey.declaration.keys.base import (
    WHOLE_ROW,
    Evaluator,
    Expression,
    Scope,
    invalid,
    need_text,
    operand,
    refuse_if,
)
from rekey.model import Row

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_FIELD = "keys.custom"


@dataclass(frozen=True)
class Custom(Expression, op="custom"):
    """A function of the operator. See `custom`."""

    reference: str
    version: int | str
    parts: tuple[Expression, ...] = ()
    source_sha256: str = field(init=False)

    def __post_init__(self) -> None:
        wrong = _REFERENCE.fullmatch(need_text(_FIELD, self.reference)) is None
        refuse_if(wrong, _FIELD, "no-reference", reference=self.reference)
        version = self.version
        wrong = isinstance(version, bool) or not isinstance(version, int | str) or version == ""
        refuse_if(wrong, "keys.custom(version)", "no-version")
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError) as error:
            raise invalid(_FIELD, "source-unreadable", reference=self.reference) from error
        lines = textwrap.dedent(source).splitlines()
        # Line ends made alike, so that the digest is the same on every system.
        digest = hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
        object.__setattr__(self, "source_sha256", digest)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The imported function; no part of the expression's data."""
        module_name, _, name = self.reference.partition(":")
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
        except ImportError as error:
            raise invalid(_FIELD, "not-imported", module=module_name, kind=type(error).__name__) from error
        except AttributeError as error:
            raise invalid(_FIELD, "no-function-there", module=module_name, name=name) from error
        refuse_if(not callable(function), _FIELD, "no-function", reference=self.reference)
        return function

    def __reduce__(self) -> tuple[Any, ...]:
        # An expression stays data: it pickles as its reference.
        return _restore, (self.reference, self.version, self.parts, self.source_sha256)

    def inputs(self) -> frozenset[str]:
        """Return the properties that its operands read; `WHOLE_ROW` without operands."""
        return super().inputs() if self.parts else frozenset({WHOLE_ROW})

    def compile(self, scope: Scope) -> Evaluator:
        function, parts = self.function, [part.compile(scope) for part in self.parts]
        cure = f"fix {self.reference} or the rows; the function must take every row and return text"

        def evaluate(row: Row, item: str) -> str:
            arguments = [part(row, item) for part in parts] if parts else [MappingProxyType(row)]
            try:
                key = function(*arguments)
            except Exception as error:  # noqa: BLE001 - it is raised again, as a refusal
                # the exception's text may hold the row's values: pass on its type only
                name = type(error).__name__
                raise scope.refusal("custom-failed", f"{self.reference} raised {name}", cure=cure) from None
            if not isinstance(key, str):
                kind = type(key).__name__
                raise scope.refusal("custom-failed", f"{self.reference} returned {kind}, not text", cure=cure)
            return key

        return evaluate

    def describe(self) -> str:
        inner = "".join(f", {part.describe()}" for part in self.parts)
        return f"custom({self.reference}{inner}, version={self.version})"


def _restore(reference: str, version: int | str, parts: tuple[Expression, ...], source_sha256: str) -> Custom:
    """Unpickle by importing the function again. Raises InvalidDeclaration when its source differs."""
    restored = Custom(reference, version, parts)
    refuse_if(restored.source_sha256 != source_sha256, _FIELD, "other-function", reference=reference)
    return restored


def custom(reference: str, *parts: Expression | str, version: int | str) -> Expression:
    """Return the text that a Python function returns for a row. A function that raises refuses the row.

    Args:
        reference: `module:function`. The module is next to the migration scripts (name it `_something.py`, so
            that it is not taken for a script) or installed.
        parts: operands (property names or expressions). With operands the function is called with their
            texts; without, with the wire row as a read-only mapping. It must return text, and always the same
            text for the same input: no clock, no randomness, no I/O.
        version: part of the declaration's digest, which covers the function's own source but not what it
            calls; raise it when something it calls changes what it returns.
    """
    return Custom(reference, version, tuple(operand(_FIELD, part) for part in parts))
