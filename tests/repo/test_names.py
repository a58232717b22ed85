"""Names say what a value is: no identifier of the program is a word that could stand for anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.repo.test_structure import name_of, python_files, tree_of

pytestmark = pytest.mark.xdist_group("tidy")  # whose files are parsed once

BANNED = {"one", "some", "said", "told", "made", "found", "given", "looked", "held"}
BANNED |= {"elsewhere", "together", "UNTOLD", "if_any", "Kind"}


def bound_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module binds, as variables, attributes, parameters, functions or classes."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno


def test_no_identifier_is_a_word_that_could_stand_for_anything() -> None:
    used = [
        f"{name_of(path)}:{line} {name}"
        for path in python_files("rekey")
        for name, line in bound_in(tree_of(path))
        if name.strip("_") in BANNED
    ]
    assert used == []


def test_every_way_to_bind_a_name_is_seen() -> None:
    text = "class A: pass\ndef b(c, *d, **e): f = self.g = 1\n"
    text += "try: pass\nexcept OSError as h: pass\nfor i in j: pass"
    assert {name for name, _ in bound_in(ast.parse(text))} == {*"Abcdefghi"}
