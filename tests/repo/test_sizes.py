"""Values and calls stay small: no class with more than twelve fields except configuration and declaration, no
function with more than seven parameters outside the command line.

Each exception has its reason here. One that is needed no longer has to go.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repo.test_structure import name_of, python_files, tree_of

pytestmark = pytest.mark.xdist_group("tidy")  # whose files are parsed once

MOST_FIELDS = 12
MOST_PARAMETERS = 7
CONFIGURATION = ("rekey/project/config.py", "rekey/declaration/")
CLASSES = {
    "rekey/copy/workers/tasks.py:Task": "a message to another process: its JSON is flat",
    "rekey/protocol/control.py:ControlRow": "a row of the restricted store: one field per column",
    "rekey/protocol/registry.py:ClientRow": "a row of the restricted store: one field per column",
    "rekey/runner/run.py:Run": "the parts of one run, made in one place; each phase takes those it needs",
    "rekey/tables/connections.py:Connection": "the state of one HTTP connection and of the answer it reads",
}
FUNCTIONS = {
    "rekey/client/sdk/client.py:DualWriting.__init__": "public: the SDK's parameters and our own, by keyword",
    "rekey/declaration/props.py:reference": "public: what scripts say of a reference, by keyword",
    "rekey/client/sdk/options.py:ClientOptions.__init__": "the same parameters, for both clients",
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    return ((name_of(path), tree_of(path)) for path in python_files("rekey"))


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the names that a class declares as fields or that its `__init__` sets."""
    declared = {
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not re.search("ClassVar|KW_ONLY", ast.unparse(field.annotation))
    }
    init = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    written = [part for function in init for part in ast.walk(function) if isinstance(part, ast.Attribute)]
    return declared | {
        part.attr
        for part in written
        if isinstance(part.ctx, ast.Store) and isinstance(part.value, ast.Name) and part.value.id == "self"
    }


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [parameter.arg for parameter in parameters if parameter.arg not in ("self", "cls")]


def functions_in(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for part in body:
        if isinstance(part, ast.ClassDef):
            yield from functions_in(part.body, f"{prefix}{part.name}.")
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{part.name}", part
            yield from functions_in(part.body, f"{prefix}{part.name}.")


def test_no_class_has_more_than_twelve_fields() -> None:
    large = {
        f"{path}:{node.name}": sorted(fields)
        for path, tree in trees()
        if not path.startswith(CONFIGURATION)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and len(fields := fields_of(node)) > MOST_FIELDS
    }
    assert large.keys() == CLASSES.keys(), large


def test_no_function_has_more_than_seven_parameters() -> None:
    large = {
        f"{path}:{name}": parameters
        for path, tree in trees()
        if not path.startswith("rekey/cli/")
        for name, node in functions_in(tree.body)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len(parameters := parameters_of(node)) > MOST_PARAMETERS
    }
    assert large.keys() == FUNCTIONS.keys(), large


def test_a_class_and_a_function_are_measured() -> None:
    text = """class A:
    a: int
    _: KW_ONLY
    def __init__(self, b, *, c):
        self.b = b
        self.a, self.d = c
"""
    tree = ast.parse(text)
    (node,) = (part for part in tree.body if isinstance(part, ast.ClassDef))
    assert fields_of(node) == {"a", "b", "d"}
    assert {name: parameters_of(part) for name, part in functions_in(tree.body)} == {"A.__init__": ["b", "c"]}  # type: ignore[arg-type]
