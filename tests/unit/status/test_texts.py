"""Every note and every reason is used, with exactly the values that its text names."""

from __future__ import annotations

import ast
import string
import tomllib
from collections.abc import Iterator

import pytest

from rekey.status.reasons import reason
from tests.repo.test_structure import PACKAGE, imports_of, name_of, python_files, tree_of


def calls(function: str, module: str) -> Iterator[tuple[str, ast.Module, ast.Call]]:
    """Yield the calls of a function in the modules that import it, each with its place."""
    for path in python_files("rekey"):
        if f"{module}.{function}" in imports_of(path):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
                    yield f"{name_of(path)}:{node.lineno}", tree_of(path), node


def codes(value: ast.expr, tree: ast.Module) -> set[str]:
    """Return the texts that an argument can be: written there, or assigned to its name in the module."""
    match value:
        case ast.Constant(value=str(code)):
            return {code}
        case ast.IfExp():
            return codes(value.body, tree) | codes(value.orelse, tree)
        case ast.Name(id=name):
            return {code for assigned in assigned_to(name, tree) for code in codes(assigned, tree)}
    raise AssertionError(f"no code can be read from {ast.unparse(value)}")


def assigned_to(name: str, tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                yield node.value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=True)
                yield from (value for target, value in pairs if ast.unparse(target) == name)


def entries(file: str) -> dict[str, dict[str, str]]:
    return tomllib.loads((PACKAGE / "status" / file).read_text("utf-8"))


@pytest.mark.parametrize(("function", "argument"), [("note", 1), ("reason", 0)])
def test_every_code_is_used_and_every_used_code_has_a_text(function: str, argument: int) -> None:
    used = {
        code
        for _, tree, call in calls(function, f"rekey.status.{function}s")
        for code in codes(call.args[argument], tree)
    }
    assert used == entries(f"{function}s.toml").keys()


def test_a_reason_is_given_the_values_that_its_text_names_and_no_others() -> None:
    texts = {code: entry["text"] for code, entry in entries("reasons.toml").items()}
    for place, tree, call in calls("reason", "rekey.status.reasons"):
        fields = [string.Formatter().parse(texts[code]) for code in codes(call.args[0], tree)]
        named = {field.partition(".")[0] for text in fields for _, field, _, _ in text if field}
        assert named == {keyword.arg for keyword in call.keywords}, place


def test_a_reason_is_one_line_with_the_values_filled_in() -> None:
    assert reason("other-phase", phase="freeze", needed="cutover") == (
        "the control row says `freeze`, not `cutover`"
    )


def test_a_reason_with_an_unknown_code_is_a_fault() -> None:
    with pytest.raises(KeyError):
        reason("no-such-code")
