"""The house rules that a reader relies on, kept by a test: sizes, doc strings, layers, banned words.

What is listed in the tables below is an exception that somebody decided on; a new one needs a reason there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# In one process: files are read and parsed once.
pytestmark = pytest.mark.xdist_group("tidy")
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rekey"

MAX_FUNCTION_LINES = 60
SMALL_MODULE_LINES = 40
"""A module up to this size may do with a sentence instead of a list of rules."""

TERMINAL = "rekey/cli/shell.py"
"""Who writes to the terminal, and spells controls out on the way: everybody else asks its `Shell` to, returns
values, or tells a `Progress`."""
PAST_THE_EDGE = {"print", "click.echo", "click.secho", "click.echo_via_pager", "os.write"}
BYTES_OF_OURS = {"rekey/cli/signals.py", "rekey/state/filelock.py"}
"""A signal handler may only write a constant; the lock writes its own file."""
STREAMS = {
    *("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"),
    *("shell.stdout", "shell.stderr", "self.stdout", "self.stderr"),
}

PURE = {
    "advice",
    "copy.pace",
    "copy.packing",
    "declaration.property_mapping",
    "declaration.property_steps",
    "declaration.casts",
    "core.crockford",
    "core.macs",
    "declaration.migration",
    "doctor.access",
    "doctor.accounts",
    "doctor.clock",
    "doctor.configuration",
    "doctor.examine",
    "doctor.finding",
    "doctor.migrations",
    "doctor.observed",
    "doctor.permissions",
    "doctor.render",
    "doctor.service",
    "doctor.state",
    "doctor.store",
    "doctor.versions",
    "protocol.inverse",
    "protocol.operations",
    "protocol.replicas",
    "protocol.rules",
    "core.edm",
    "errors",
    "evidence.keys",
    "evidence.merkle",
    "evidence.note",
    "evidence.statement",
    "inspect.checksums",
    "inspect.columns",
    "inspect.confidence",
    "inspect.order",
    "inspect.partitions",
    "inspect.profile",
    "inspect.render",
    "inspect.report",
    "inspect.schemas",
    "inspect.shapes",
    "declaration.keys",
    "core.limits",
    "declaration.mapper",
    "mapping.cursors",
    "mapping.ids",
    "mapping.retention",
    "mapping.rows",
    "mapping.sealing",
    "mapping.tombstones",
    "mapping.wrapping",
    "model",
    "declaration.requirements",
    "pages",
    "phases",
    "plan.as_json",
    "plan.compare",
    "plan.estimate",
    "plan.page",
    "plan.portrait",
    "plan.problems",
    "plan.render",
    "plan.requests",
    "plan.result",
    "inspect.tally",
    "project.prices",
    "declaration.props",
    "declaration.query",
    "verify.confidence",
    "verify.digest",
    "verify.divergence",
    "verify.render",
    "verify.report",
    "verify.sums",
    "state.align",
    "copy.workers.tasks",
    "project.sections",
    "state.keytexts",
    "stress.render",
    "stress.report",
    "stress.spread",
    "stress.steps",
    "tables.answers",
    "tables.filters",
    "tables.rules",
    "tables.sent",
    "tables.settle",
    "tables.wire",
    "core.visible",
}
"""Modules (a package stands for all of its modules) that take values and return values."""

VALUES = {"inspect.inventory", "tables.base", "core.clock", "tables.probe"}
"""Modules that pure ones may take values and types from, although they stand beside I/O."""

IO_MODULES = {
    "aiohttp",
    "asyncio",
    "azure",
    "click",
    "io",
    "logging",
    "os",
    "random",
    "shutil",
    "socket",
    "sqlalchemy",
    "sqlite3",
    "subprocess",
    "sys",
    "tempfile",
    "time",
    "tqdm",
    "urllib.request",
    "yoyo",
}

AZURE_SPEAKERS = (
    *("rekey/tables/", "rekey/project/secrets_source.py", "rekey/project/keyvault.py"),
    *("rekey/evidence/keyvault.py", "rekey/mapping/vault.py"),
)
AZURE_WITNESSES = ("rekey/rehearse/",)
"""A rehearsal's application and witness use the SDK on purpose: the copying does not vouch for itself."""
AZURE_CLIENTS = ("rekey/dualwrite/sdk/",)
"""The clients of applications are the SDK's own, with writes taken out of their pipeline (ADR 0020)."""

LAYERS: dict[str, set[str]] = {
    "tables": {"backfill", "delta", "dualwrite", "mapping", "reconcile", "planner", "runner", "cli", "state"},
    "mapping": {"backfill", "delta", "dualwrite", "reconcile", "planner", "runner", "cli"},
    "dualwrite": {"backfill", "delta", "reconcile", "planner", "runner", "cli"},
    "backfill": {"delta", "reconcile", "planner", "runner", "cli"},
    "delta": {"reconcile", "planner", "runner", "cli"},
    "reconcile": {"backfill", "delta", "planner", "runner", "cli", "state", "project.config", "spread"},
    "inspection": {"backfill", "delta", "dualwrite", "reconcile", "runner", "cli", "state"},
    "planner": {"runner", "cli", "state", "reconcile", "delta", "dualwrite"},
    "state": {"tables", "backfill", "delta", "dualwrite", "mapping", "reconcile", "planner", "cli"},
    "evidence": {"backfill", "delta", "dualwrite", "planner", "runner", "cli", "rehearse"},
    "runner": {"cli", "rehearse"},
    "spread": {"cli", "rehearse", "runner", "planner", "evidence", "delta"},
    "doctor": {"cli", "rehearse", "backfill", "delta", "reconcile"},
    "stress": {"cli", "rehearse", "runner", "state", "backfill", "delta", "dualwrite", "reconcile"},
}
"""What a package must not import, so that it can be read, tested and replaced without it."""


def python_files(folder: str) -> list[Path]:
    """Return the Python files under a folder of the repository, in order."""
    return sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a path as the messages here show it."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """Return the module's name within the package: `keys.text`, `runner.phases` for its `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text("utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module a file imports while it runs (what is for type checkers only is left out)."""
    skipped = {
        id(node)
        for block in ast.walk(tree_of(path))
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree_of(path)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, by their name within it."""
    known = {module_of(file) for file in python_files("rekey")}
    named = {name.removeprefix("rekey.") for name in imports_of(path) if name.startswith("rekey.")}
    return named & known


def among(module: str, listed: set[str]) -> bool:
    """Tell whether a module, or a package it is in, is listed."""
    return any(module == one or module.startswith(one + ".") for one in listed)


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{name_of(path)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in python_files("rekey")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert not long


def test_every_module_says_what_it_is_and_which_rules_it_keeps() -> None:
    silent = []
    for path in python_files("rekey"):
        text = path.read_text("utf-8")
        if not text.strip():
            continue
        doc = ast.get_docstring(tree_of(path)) or ""
        small = path.name == "__init__.py" or len(text.splitlines()) <= SMALL_MODULE_LINES
        if not doc or not (small or "Rules kept here" in doc):
            silent.append(name_of(path))
    assert not silent


def test_every_test_file_opens_with_what_it_shows() -> None:
    files = python_files("tests")
    silent = [name_of(path) for path in files if path.stat().st_size and not ast.get_docstring(tree_of(path))]
    assert not silent


def test_every_public_class_and_function_is_described() -> None:
    silent = [
        f"{name_of(path)}:{node.name}"
        for path in python_files("rekey")
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent


def test_only_the_edge_writes_to_the_terminal() -> None:
    """A `print` elsewhere would spoil the JSON document of `--json`, or show what must not be shown. The
    streams that a shell was begun with are for its edge alone."""
    writers = set()
    for path in python_files("rekey"):
        for node in ast.walk(tree_of(path)):
            called = isinstance(node, ast.Call) and ast.unparse(node.func) in PAST_THE_EDGE
            streams = isinstance(node, ast.Attribute) and ast.unparse(node) in STREAMS
            if called or streams:
                writers.add(name_of(path))
    assert writers == {TERMINAL, *BYTES_OF_OURS}


def test_only_bars_draw_past_the_edge() -> None:
    drawing = [name_of(path) for path in python_files("rekey") if "tqdm" in set(imports_of(path))]
    assert drawing == ["rekey/cli/progress.py"]


def test_pages_escape_by_the_one_function_that_spells_controls_out() -> None:
    escaping = {
        name_of(path)
        for path in python_files("rekey")
        if any(among(name, {"html", "xml.sax.saxutils"}) for name in imports_of(path))
    }
    assert escaping == {"rekey/present/page.py"}


def test_pure_modules_import_no_i_o() -> None:
    guilty = {
        f"{name_of(path)} imports {name}"
        for path in python_files("rekey")
        if among(module_of(path), PURE)
        for name in imports_of(path)
        if among(name, IO_MODULES)
    }
    assert not guilty


def test_pure_modules_build_on_pure_modules_and_values_only() -> None:
    guilty = {
        f"{name_of(path)} imports rekey.{name}"
        for path in python_files("rekey")
        if among(module_of(path), PURE)
        for name in own_imports(path)
        if not among(name, PURE | VALUES)
    }
    assert not guilty


def test_pure_modules_open_no_file() -> None:
    guilty = {
        f"{name_of(path)}:{node.lineno}"
        for path in python_files("rekey")
        if among(module_of(path), PURE)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("open", "read_text")
    }
    assert not guilty


def test_the_lists_above_name_modules_that_exist() -> None:
    """A renamed module must not drop out of a rule unnoticed."""
    known = {module_of(path) for path in python_files("rekey")}
    assert (PURE | VALUES | set(LAYERS)) <= known


def test_azure_is_spoken_in_the_tables_layer_only() -> None:
    speakers = {
        name_of(path)
        for path in python_files("rekey")
        if any(among(name, {"azure", "aiohttp"}) for name in imports_of(path))
    }
    allowed = AZURE_SPEAKERS + AZURE_WITNESSES + AZURE_CLIENTS
    assert {name for name in speakers if not name.startswith(allowed)} == set()


def test_the_state_file_is_spoken_to_in_the_state_package_only() -> None:
    """yoyo's migrations are the ledger's; everything else about SQLite stays behind `rekey.state`."""
    speakers = {
        name_of(path)
        for path in python_files("rekey")
        if any(among(name, {"sqlite3", "sqlalchemy", "yoyo"}) for name in imports_of(path))
    }
    assert {name for name in speakers if not name.startswith("rekey/state/")} <= {"rekey/state/ledger.py"}


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_a_package_knows_only_what_lies_below_it(package: str) -> None:
    guilty = {
        f"{name_of(path)} imports rekey.{name}"
        for path in python_files(f"rekey/{package}")
        for name in own_imports(path)
        if name.partition(".")[0] in LAYERS[package]
    }
    assert not guilty


# --- words -----------------------------------------------------------------------------------------------

MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:tmp|work|home|root|Users|private/var)/\w")
REGISTRIES = re.compile(
    r"https?://[^/\s\"]*(?:pypi|registry|pythonhosted|npmjs|artifact|index)[^/\s\"]*", re.I
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b")
TEXT_FILES = {".py", ".md", ".toml", ".sql", ".json", ".yml", ".yaml", ".cfg", ".txt", ".sh", ".svg", ""}
SKIPPED_FOLDERS = {
    ".git",
    ".venv",
    ".hypothesis",
    ".rekey",
    ".demo",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "__pycache__",
    "build",
    "dist",
    "first",
    "node_modules",
}


def texts() -> Iterator[tuple[str, str]]:
    """Yield every text file of the repository with its content, this test excepted."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        skipped = set(parts) & SKIPPED_FOLDERS or any(part.endswith(".egg-info") for part in parts)
        if skipped or not path.is_file() or path.suffix not in TEXT_FILES or path == Path(__file__):
            continue
        try:
            yield name_of(path), path.read_text("utf-8")
        except UnicodeDecodeError:
            continue


@pytest.mark.parametrize(
    "banned", [MACHINE_PATHS, REGISTRIES, UNFINISHED], ids=["machine paths", "registries", "unfinished"]
)
def test_the_project_speaks_of_itself_alone(banned: re.Pattern[str]) -> None:
    """Neither a path of somebody's machine, nor where its packages come from, nor a promise of later work.

    Lock files hold hashes, in which any three letters occur.
    """
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        for name, text in texts()
        if not name.endswith("package-lock.json") or banned is REGISTRIES
        for match in banned.finditer(text)
    ]
    assert not found


def test_lines_of_documents_end_cleanly() -> None:
    untidy = [
        f"{name}:{number}"
        for name, text in texts()
        if name.endswith((".md", ".py", ".sql", ".toml"))
        for number, line in enumerate(text.split("\n"), 1)
        if line != line.rstrip() or "\t" in line
    ]
    assert not untidy
