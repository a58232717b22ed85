"""The house rules that a reader relies on, kept by a test: sizes, doc strings, layers, banned words.

What is listed in the tables below is an exception that somebody decided on; a new one needs a reason there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

# In one process: files are read and parsed once.
pytestmark = pytest.mark.xdist_group("tidy")
ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "rekey"

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
    "client.sdk.calls",
    "client.sdk.filters",
    "plan.advice",
    "backup.manifest",
    "backup.parts",
    "copy.aimd",
    "core.key_order",
    "core.joint",
    "core.key_space",
    "declaration.inverse",
    "declaration.key_space",
    "declaration.kinds",
    "declaration.old_references",
    "declaration.property_mapping",
    "declaration.references",
    "declaration.row_makers",
    "declaration.rows",
    "declaration.targets",
    "declaration.casts",
    "core.crockford",
    "core.endpoints",
    "core.macs",
    "declaration.migration",
    "doctor.judge",
    "doctor.observed",
    "doctor.report",
    "protocol.operations",
    "protocol.replicas",
    "protocol.rules",
    "protocol.stored",
    "core.edm",
    "core.eta",
    "core.plain",
    "errors",
    "evidence.keys",
    "evidence.merkle",
    "evidence.note",
    "evidence.statement",
    "inspect.kinds",
    "inspect.partitions",
    "inspect.profile",
    "inspect.render",
    "inspect.report",
    "inspect.shapes",
    "declaration.keys",
    "core.limits",
    "declaration.mapper",
    "core.safe_ids",
    "mapping.rows",
    "mapping.sealing",
    "model",
    "next_steps",
    "declaration.requirements",
    "present",
    "phases",
    "plan.compare",
    "plan.estimate",
    "plan.page",
    "plan.portrait",
    "plan.problems",
    "plan.render",
    "plan.result",
    "project.prices",
    "declaration.props",
    "declaration.query",
    "verify.confidence",
    "verify.digest",
    "verify.render",
    "verify.report",
    "verify.bucket_digests",
    "state.models",
    "copy.workers.tasks",
    "project.entra",
    "project.sections",
    "project.window",
    "proxy.batch",
    "proxy.explain",
    "proxy.parse",
    "proxy.access",
    "proxy.sas",
    "proxy.tokens",
    "stress.judge",
    "stress.mix",
    "stress.report",
    "stress.requests",
    "stress.spread",
    "tables.addresses",
    "tables.answers",
    "tables.rules",
    "tables.sent",
    "tables.wire",
    "core.severity",
}
"""Modules (a package stands for all of its modules) that take values and return values."""

VALUES = {
    *("project.config", "inspect.inventory", "tables.base", "core.clock", "tables.probe"),
    *("core.texts", "mapping.refusals", "state.refusals"),  # read texts that are part of the package
}
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
    *("rekey/evidence/signing.py", "rekey/mapping/vault.py"),
    "rekey/protocol/opening.py",
)
AZURE_WITNESSES = ("rekey/rehearse/",)
"""A rehearsal's application and witness use the SDK on purpose: the copying does not vouch for itself."""
AZURE_CLIENTS = ("rekey/client/sdk/", "rekey/serve/server.py", "rekey/serve/sockets.py", "rekey/proxy/")
"""The clients of applications are the SDK's own, with writes taken out of their pipeline (ADR 0020). What
serves progress speaks aiohttp to those who ask, and Azure to nobody. A proxy speaks the service's protocol to
applications, and passes it on (ADR 0040)."""

LAYERS: tuple[set[str], ...] = (
    {"errors", "model", "phases"},
    {"core", "present"},
    {"declaration", "tables", "executors", "next_steps"},
    {"state", "project"},
    {"mapping"},
    {"protocol", "verify", "inspect"},
    {"status", "serve"},
    {"copy", "client", "evidence", "stress"},
    {"", "aio", "plan", "rehearse", "proxy", "backup"},
    {"runner", "doctor"},
    {"cli"},
    {"__main__"},
)
"""The packages below `rekey` (a folder, or a module beside them; "" is `rekey` itself), from the bottom up.
A package imports only packages of layers below its own, so that it can be read, tested and replaced without
those above, and nothing imports in a circle."""

ARGS = re.compile(r"^Args:\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
"""The section of a docstring that describes parameters."""

MOST_PACKAGES, MOST_ARROWS = 30, 215
"""Of `rekey`: packages, and pairs of which one imports the other."""


@cache
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


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree."""
    return list(ast.walk(tree_of(path)))


@cache
def imports_of(path: Path, *, of_types: bool = False) -> tuple[str, ...]:
    """Return every module a file imports while it runs; with `of_types` also for type checkers."""
    skipped = {
        id(node)
        for block in nodes_of(path)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
        if not of_types
    }
    found: list[str] = []
    for node in nodes_of(path):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(found)


@cache
def modules() -> set[str]:
    """Return the names of all modules of the package within it."""
    return {module_of(file) for file in python_files("rekey")}


@cache
def own_imports(path: Path, *, of_types: bool = False) -> set[str]:
    """Return the modules of the package that a file imports, by their name within it. `of_types` as of
    `imports_of`."""
    imported = imports_of(path, of_types=of_types)
    named = {name.removeprefix("rekey.") for name in imported if name.startswith("rekey.")} & modules()
    packages = {name.rpartition(".")[0] for name in named}  # `from rekey.core import macs` takes the module
    return named - packages


def among(module: str, listed: set[str]) -> bool:
    """Tell whether a module, or a package it is in, is listed."""
    return any(module == one or module.startswith(one + ".") for one in listed)


def test_every_module_says_what_it_is() -> None:
    files = [path for path in python_files("rekey") if path.read_text("utf-8").strip()]
    assert not [name_of(path) for path in files if not ast.get_docstring(tree_of(path))]


def test_every_test_file_opens_with_what_it_shows() -> None:
    files = python_files("tests")
    silent = [name_of(path) for path in files if path.stat().st_size and not ast.get_docstring(tree_of(path))]
    assert not silent


def test_nothing_is_asserted_of_all_that_may_be_none() -> None:
    """`assert all(…)` holds of nothing; `tests.asserts.every` does not."""
    found = []
    for path in python_files("tests"):
        for node in nodes_of(path):
            match node:
                case ast.Assert(test=ast.Call(func=ast.Name(id="all"))):
                    found.append(f"{name_of(path)}:{node.lineno}")
    assert not found


def test_every_public_class_and_function_is_described() -> None:
    silent = [
        f"{name_of(path)}:{node.name}"
        for path in python_files("rekey")
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent


def test_every_name_in_an_args_section_is_a_parameter() -> None:
    strange = []
    for path in (*python_files("rekey"), *python_files("tests"), *python_files("benchmarks")):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                section = ARGS.search(f"{ast.get_docstring(node)}\n")
                lines = section[1] if section else ""
                described = re.findall(r"^ {4}([\w*`][\w*`, ]*):", lines, re.MULTILINE)
                names = {name.strip("*`") for names in described for name in names.split(", ")}
                parameters = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
                strange += [f"{name_of(path)}:{node.name}: {name}" for name in names - parameters]
    assert not strange


def test_only_the_edge_writes_to_the_terminal() -> None:
    """A `print` elsewhere would spoil the JSON document of `--json`, or show what must not be shown. The
    streams that a shell was begun with are for its edge alone."""
    writers = set()
    for path in python_files("rekey"):
        for node in nodes_of(path):
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
        if any(among(name, {"html", "jinja2", "markupsafe", "xml.sax.saxutils"}) for name in imports_of(path))
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
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("open", "read_text")
    }
    assert not guilty


def test_the_lists_above_name_modules_that_exist() -> None:
    """A renamed module must not drop out of a rule unnoticed."""
    known = {module_of(path) for path in python_files("rekey")}
    assert known >= (PURE | VALUES)


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


def package_of(module: str) -> str:
    """Return the package that a module is in."""
    return module.partition(".")[0]


def test_every_package_is_in_one_layer() -> None:
    listed = [package for layer in LAYERS for package in layer]
    assert len(listed) == len(set(listed))
    assert set(listed) == {package_of(module_of(path)) for path in python_files("rekey")}


def test_a_package_imports_only_packages_of_layers_below() -> None:
    layer = {package: number for number, packages in enumerate(LAYERS) for package in packages}
    guilty = {
        f"{name_of(path)} imports rekey.{name}"
        for path in python_files("rekey")
        for name in own_imports(path)
        if (own := package_of(module_of(path))) != package_of(name) and layer[own] <= layer[package_of(name)]
    }
    assert not guilty


def test_the_picture_of_all_packages_can_be_taken_in() -> None:
    files = python_files("rekey")
    arrows = {(package_of(module_of(path)), package_of(one)) for path in files for one in own_imports(path)}
    between = {(above, below) for above, below in arrows if above != below}
    assert len({package for arrow in between for package in arrow}) <= MOST_PACKAGES
    assert len(between) <= MOST_ARROWS, "see which package asks another for a single name"


def test_no_module_imports_in_a_circle() -> None:
    """Imports for type checkers count: a reader follows them, too."""
    known = {module_of(path): path for path in python_files("rekey")}
    imports = {module: own_imports(path, of_types=True) - {module} for module, path in known.items()}
    for module, named in imports.items():  # `from rekey.state import files` names the package as well
        named -= {one for one in named if module.startswith(one + ".")}
    TopologicalSorter(imports).prepare()


# --- words -----------------------------------------------------------------------------------------------

MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:tmp|work|home|root|Users|private/var)/\w")
REGISTRIES = re.compile(
    r"https?://[^/\s\"]*(?:pypi|registry|pythonhosted|npmjs|artifact|index)[^/\s\"]*", re.I
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b")
TEXT_FILES = {
    ".py",
    ".md",
    ".toml",
    ".sql",
    ".json",
    ".yml",
    ".yaml",
    ".cfg",
    ".txt",
    ".sh",
    ".svg",
    ".html",
    "",
}
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
    "site",
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
        if name.endswith((".md", ".py", ".sql", ".toml", ".html"))
        for number, line in enumerate(text.split("\n"), 1)
        if line != line.rstrip() or "\t" in line
    ]
    assert not untidy
