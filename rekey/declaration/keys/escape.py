"""Custom key expressions: a function written by the operator, for keys that no other expression can make.

Rules kept here:

* The digest of a declaration covers the source of the function, with line ends made alike: change the
  function and rekey sees that the declaration moved. Other functions that it calls are not covered: keep
  everything in it, or raise `version`.
* A function that fails refuses the row; the refusal names the exception's type only, since its text may hold
  the row's values.
* An expression stays data: it pickles as its reference, and the function is found again by importing it.
"""

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
    InvalidDeclaration,
    Scope,
    need_text,
    operand,
    refuse_if,
)
from rekey.model import Row

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_FIELD = "keys.custom"


@dataclass(frozen=True)
class Custom(Expression, op="custom"):
    """A function written by the operator. See `custom`."""

    reference: str
    version: int | str
    parts: tuple[Expression, ...] = ()
    source_sha256: str = field(init=False)

    def __post_init__(self) -> None:
        wrong = _REFERENCE.fullmatch(need_text(_FIELD, self.reference)) is None
        problem = f"{self.reference!r} is not of the form module:function"
        refuse_if(wrong, _FIELD, problem, cure='write "module:function"')
        version = self.version
        wrong = isinstance(version, bool) or not isinstance(version, int | str) or version == ""
        problem = "the version is neither a number nor text"
        refuse_if(wrong, "keys.custom(version)", problem, cure="write version=1")
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError) as error:
            problem = f"the source of {self.reference} cannot be read, so the digest could not cover it"
            cure = "name a function written in Python, in a file"
            raise InvalidDeclaration(_FIELD, problem, cure=cure) from error
        lines = textwrap.dedent(source).splitlines()
        digest = hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
        object.__setattr__(self, "source_sha256", digest)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself, imported; it is no part of the expression's data."""
        module_name, _, name = self.reference.partition(":")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
        except ImportError as error:
            problem = f"{module_name} cannot be imported ({type(error).__name__})"
            cure = "put the module next to the scripts, its name beginning with _, or install its package"
            raise InvalidDeclaration(_FIELD, problem, cure=cure) from error
        except AttributeError as error:
            problem, cure = f"{module_name} has no {name}", "name a function of that module"
            raise InvalidDeclaration(_FIELD, problem, cure=cure) from error
        problem = f"{self.reference} is not a function"
        refuse_if(not callable(found), _FIELD, problem, cure="name a function")
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.reference, self.version, self.parts, self.source_sha256)

    def inputs(self) -> frozenset[str]:
        """Return the properties that its operands read; `WHOLE_ROW` when there are no operands."""
        return super().inputs() if self.parts else frozenset({WHOLE_ROW})

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure that calls the function and checks what it returns."""
        function, parts = self.function, [part.compile(scope) for part in self.parts]
        cure = f"fix {self.reference} or the rows; the function must take every row and return text"

        def evaluate(row: Row, item: str) -> str:
            arguments = [part(row, item) for part in parts] if parts else [MappingProxyType(row)]
            try:
                made = function(*arguments)
            except Exception as error:  # noqa: BLE001 - it is raised again, as a refusal
                # the text of an exception of the function may hold the row's values: only its type goes on
                name = type(error).__name__
                raise scope.refusal("custom-failed", f"{self.reference} raised {name}", cure=cure) from None
            if not isinstance(made, str):
                kind = type(made).__name__
                raise scope.refusal("custom-failed", f"{self.reference} returned {kind}, not text", cure=cure)
            return made

        return evaluate

    def describe(self) -> str:
        """Return `custom(module:function, version=1)`."""
        inner = "".join(f", {part.describe()}" for part in self.parts)
        return f"custom({self.reference}{inner}, version={self.version})"


def _restore(reference: str, version: int | str, parts: tuple[Expression, ...], source_sha256: str) -> Custom:
    """Unpickle: import the function again. Raises InvalidDeclaration when its source is another one."""
    found = Custom(reference, version, parts)
    problem, cure = f"{reference} is another function here", "install the same version everywhere"
    refuse_if(found.source_sha256 != source_sha256, _FIELD, problem, cure=cure)
    return found


def custom(reference: str, *parts: Expression | str, version: int | str) -> Expression:
    """Return the text that a Python function returns for a row.

    Args:
        reference: `module:function`. The module lies next to the migration scripts (name it `_something.py`,
            so that it is not taken for a script) or is installed.
        parts: operands (property names or expressions). With operands the function is called with their
            texts; without, with the wire row as a read-only mapping. It must return text, and must always
            return the same for the same input: no clock, no randomness, no I/O.
        version: part of the digest; raise it when something the function calls changes what it returns.
    """
    return Custom(reference, version, tuple(operand(_FIELD, part) for part in parts))
