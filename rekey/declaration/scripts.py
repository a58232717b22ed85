"""Reads and executes migration scripts of a folder. Errors show types, names and line numbers only; source
text and texts of exceptions are shown with `--debug` alone."""

from __future__ import annotations

import ast
import codecs
import importlib
import inspect
import re
import shlex
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import chain, combinations
from pathlib import Path
from types import ModuleType

import rekey
from rekey.declaration import keys, props, rows
from rekey.declaration.keys.base import InvalidDeclaration, invalid, refuse_if
from rekey.declaration.migration import MANY, Declared, Migration
from rekey.declaration.references import NewKeys, Referred, reading
from rekey.errors import ConfigurationError, DeclarationError, reason_of
from rekey.model import PARTITION_KEY, ROW_KEY

MAX_ID_CHARACTERS = 120
# Scripts per group: their control rows are moved in one transaction of the service.
MAX_MEMBERS = 100
_ID = re.compile(r"[0-9A-Za-z_-]{1,120}")
_MISSING = re.compile(r"([\w.]+)\(\) missing \d+ required [\w -]*arguments?: ([\w', ]+)")
_CODING = re.compile(rb"coding[:=]")  # PEP 263, in the first two lines
_FEW_BYTES = 100
# Compiler messages with names, brackets and keywords of the script at most, and none of its text.
_SAFE_MESSAGES = (
    "'(' ",
    "'[' ",
    "'{' ",
    "closing parenthesis ",
    "expected ",
    "expression cannot contain assignment",
    "f-string: ",
    "invalid character ",
    "invalid non-printable character ",
    "invalid syntax",
    "keyword argument repeated",
    "positional argument follows keyword argument",
    "unexpected EOF",
    "unexpected character after line continuation",
    "unexpected indent",
    "unindent ",
    "unmatched ",
    "unterminated ",
)
# Words that other tools use for expressions and operations.
_MEANT = {
    **dict.fromkeys(("remove", "delete", "exclude"), "drop"),
    **dict.fromkeys(("concat", "combine"), "join"),
    **dict.fromkeys(("const", "constant", "text"), "literal"),
    **dict.fromkeys(("column", "field", "property"), "prop"),
    **dict.fromkeys(("only", "include", "select"), "keep"),
}
_POSITIONAL = re.compile(r"([\w.]+)\(\) takes .* positional arguments? but .* given")
_UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument ('\w+')")


def load_scripts(folder: Path, kept: Iterable[Declared] = ()) -> list[Declared]:
    """Return all migrations of a folder, dependencies first, then by script id.

    Args:
        folder: the folder.
        kept: stored migrations whose files are gone; their dependencies may be missing, and a script with
            another id may fill their tables.

    Raises:
        ConfigurationError: the folder does not exist or cannot be read.
        DeclarationError: a script is wrong, or scripts contradict each other.
    """
    scripts, broken = read_scripts(folder, kept)
    for error in broken.values():
        raise error
    return scripts


def read_scripts(
    folder: Path,
    kept: Iterable[Declared] = (),
    begun: Collection[str] = (),
    kept_of: Callable[[Path, DeclarationError], Iterable[Declared]] = lambda _path, _error: (),
) -> tuple[list[Declared], dict[str, DeclarationError]]:
    """Return the usable migrations of a folder in the order of `load_scripts`, and the errors of the others
    by script id. An error in one script affects no other, unless that depends on it.

    Args:
        folder, kept: as for `load_scripts`.
        begun: ids of migrations that have begun. Where scripts contradict each other, the error is that of
            one that has not begun; a migration that has begun may lack a dependency.
        kept_of: returns the stored migrations of a file that cannot be read.

    Raises:
        ConfigurationError: the folder does not exist or cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".py" and path.is_file())
    except OSError as error:
        raise ConfigurationError(
            f"the migrations folder {folder} cannot be read ({reason_of(error)})",
            hint="name the folder under [migrations] in rekey.toml, or make one with `rekey init`",
        ) from error
    scripts, kept, broken = list[Declared](), list(kept), dict[str, DeclarationError]()
    for path in paths:
        # These are modules that scripts and `keys.custom` may import.
        if path.name.startswith("_"):
            continue
        try:
            scripts += _load(path)
        except DeclarationError as error:
            broken[path.stem] = error
            kept += kept_of(path, error)
    scripts.sort(key=lambda script: script.script_id not in begun)
    while True:
        try:
            chained = _with_chains([*scripts, *kept], begun, broken)
            _check_groups(chained)
            _check_parts(chained)
            return _ordered(chained, begun), broken
        except DeclarationError as error:
            broken[error.script] = error
            scripts = [script for script in scripts if script.script_id != error.script]


def load_script(path: Path | str, kept: bytes | None = None) -> Declared:
    """Return one migration, without checking that its dependencies exist. Raises DeclarationError.

    Args:
        path: its file; for a file that declares several, with the migration's id in place of the file's stem.
        kept: the stored content, if the file is gone.
    """
    path = Path(path)
    file = path if kept is not None else file_of(path)
    by_id = {script.script_id: script for script in _load(file, kept, path.stem)}
    if path.stem not in by_id:
        problem, cure = f"{file.name} makes no such migration", f"it makes: {', '.join(by_id)}"
        if file == path:
            problem, cure = "it makes several migrations", f"name one: {', '.join(by_id)}"
        raise DeclarationError(path.stem, "migrations", problem, cure=cure)
    return by_id[path.stem]


def file_of(path: Path) -> Path:
    """Return the file that declares the migration with the id `path.stem`, if it exists, else `path`."""
    stem = path.stem.rpartition("-")[0]
    of_many = path.with_name(f"{stem}.py")
    return of_many if stem and not path.is_file() and of_many.is_file() else path


def _load(path: Path, kept: bytes | None = None, wanted: str = "") -> list[Declared]:
    """Return the migrations that a file declares. For stored content, `wanted` is the migration's id."""
    script_id = path.stem
    if _ID.fullmatch(script_id) is None:
        form = f"letters, digits, _ and -; at most {MAX_ID_CHARACTERS} characters"
        cure = "rename the file, e.g. 0001_users.py; modules that scripts import begin with _"
        raise DeclarationError(path.name, "", f"the name is no script id ({form})", cure=cure)
    is_kept = kept is not None

    def declared(script_id: str, migration: Migration) -> Declared:
        doc, depends = (module.__doc__ or "").strip(), _depends(script_id, module)
        read = Declared(script_id, path, doc, depends, migration, migration.digest(), content, is_kept)
        return replace(read, refers_to=refers_to)

    try:
        content = _content(path) if kept is None else kept
        module, refers_to = _execute(script_id, path, content)
        several, migration = getattr(module, MANY, None), getattr(module, "migration", None)
        if several is None:
            return [declared(script_id, _checked_migration(migration))]
        refuse_if(migration is not None, MANY, "migration-and-migrations")
        refuse_if(isinstance(several, Migration), MANY, "migrations-is-single")
        are_migrations = isinstance(several, dict) and all(
            isinstance(entry, Migration) for entry in several.values()
        )
        refuse_if(not are_migrations, MANY, "no-migrations")
        if is_kept:
            script_id = wanted.rpartition("-")[0]
            path = path.with_name(f"{script_id}.py")
        return [declared(f"{script_id}-{name}", migration) for name, migration in several.items()]
    except InvalidDeclaration as error:
        problem = error.problem + _line_of(error, path)
        raise DeclarationError(script_id, error.field, problem, cure=error.cure, fault=error.fault) from None


def _checked_migration(value: object) -> Migration:
    problem = "there is no `migration`" if value is None else f"it is of type {type(value).__name__}"
    cure = "write `migration = Migration(…)`; a module that is no script must begin with _"
    if not isinstance(value, Migration):
        raise InvalidDeclaration("migration", problem, cure=cure)
    return value


# --- executing one script ----------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        there = sorted(file.stem for file in path.parent.glob("*.py") if not file.name.startswith("_"))
        cure = f"there are: {', '.join(there)}" if there else "`rekey new NAME` makes one"
        raise InvalidDeclaration("", f"there is no such script in {path.parent}", cure=cure) from None
    except OSError as error:
        raise invalid("", "script-unreadable", reason=reason_of(error)) from error


def _execute(script_id: str, path: Path, content: bytes) -> tuple[ModuleType, frozenset[str]]:
    """Return a script's module, and the ids of the scripts that it refers to."""
    try:
        # From bytes, so that a coding line is obeyed; with the path, so that tracebacks name the script.
        code = compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if not_utf8 := _not_utf8(content):
            cure = "save it as UTF-8, or name its encoding in line 1: # -*- coding: latin-1 -*-"
            raise InvalidDeclaration("", not_utf8, cure=cure) from None
        line = getattr(error, "lineno", None)
        where = f" in line {line}" if line else ""
        if isinstance(error, SyntaxError) and error.msg.startswith(_SAFE_MESSAGES):
            where += f": {error.msg}"
        fault = error.msg if isinstance(error, SyntaxError) else str(error)
        raise invalid("", "syntax-error", where=where, file=shlex.quote(_typed(path)), fault=fault) from None
    module = ModuleType(f"_rekey_script_{script_id}")
    module.__file__ = str(path)
    with (
        _importable(path.parent, module),
        reading(script_id, lambda via: _referred(path.parent, via)) as refers_to,
    ):
        try:
            exec(code, module.__dict__)  # noqa: S102 - runs the operator's own script by design
        except InvalidDeclaration:
            raise
        except ImportError as error:
            name = f" of {error.name}" if error.name else ""
            raise invalid("", "no-import", name=name, line=_line_of(error, path), fault=str(error)) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is raised again, as a DeclarationError
            # A script can raise anything, with any text: pass on type and line only.
            raise _failed(error, path) from None
    return module, frozenset(refers_to)


def _referred(folder: Path, script_id: str) -> Referred:
    """Return the migration of a script that another one refers to. Raises InvalidDeclaration."""
    try:
        declared = load_script(folder / f"{script_id}.py")
    except DeclarationError as error:
        raise invalid(error.field, "other-unusable", script=script_id, error=error, cure=error.hint) from None
    migration, target = declared.migration, declared.migration.target
    new_keys: NewKeys = {None: {PARTITION_KEY: target.partition_key, ROW_KEY: target.row_key}}
    targets: dict[str | None, str] = {None: target.table}
    if migration.kinds:
        new_keys = {kind.name: kind.keys for kind in migration.kinds}
        targets = {kind.name: kind.target.table for kind in migration.kinds}
    return Referred(
        new_keys, migration.source, targets, migration.key_space, migration.group, target.table, declared
    )


def _typed(path: Path) -> str:
    with suppress(OSError, ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


def _not_utf8(content: bytes) -> str:
    """Return what is wrong with a script's encoding, or ""."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:_FEW_BYTES]:
        return "the file is in UTF-16, or is no text"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return "" if _CODING.search(b"\n".join(content.split(b"\n", 2)[:2])) else f"line {line} is not UTF-8"
    return ""


@contextmanager
def _importable(folder: Path, module: ModuleType) -> Iterator[None]:
    """Make the folder's modules importable within the context, write no bytecode, and restore `sys.path` and
    `sys.modules` afterwards; installed packages that the script imported stay imported. A custom function
    must therefore import what it needs at the top of its module."""
    packages = {path.name for path in folder.iterdir() if (path / "__init__.py").is_file()}
    names = {path.stem for path in folder.glob("*.py")} | packages
    for name in sorted(names & (sys.stdlib_module_names | {"rekey"})):
        problem = "the name hides a module that scripts need"
        raise DeclarationError(f"{folder.name}/{name}", "", problem, cure="rename it")
    # modules of the same name from elsewhere are restored below
    namesakes = {name: loaded for name, loaded in sys.modules.items() if name.partition(".")[0] in names}
    known = sys.modules.keys() - namesakes
    for name in namesakes:
        del sys.modules[name]
    search, bytecode = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(folder.resolve()))
    sys.dont_write_bytecode = True
    # dataclasses and others look up their module by name
    sys.modules[module.__name__] = module
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = search
        sys.dont_write_bytecode = bytecode
        for name in sys.modules.keys() - known:
            if name.partition(".")[0] in {*names, module.__name__} or _lies_in(sys.modules[name], folder):
                del sys.modules[name]
        sys.modules.update(namesakes)
        importlib.invalidate_caches()


def _lies_in(module: ModuleType, folder: Path) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    files = [Path(place).resolve() for place in places if place]
    # A virtual environment may be in the folder; modules installed there stay imported.
    return any(file.is_relative_to(folder.resolve()) and "site-packages" not in file.parts for file in files)


def _line_of(error: BaseException, path: Path) -> str:
    """Return ` (line 7)`: the last line of the script that an exception passed through; "" when none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines and lines[-1] else ""


def _failed(error: BaseException, path: Path) -> InvalidDeclaration:
    where = _line_of(error, path)
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
    # Messages about wrong calls hold only names of functions and parameters.
    text = str(error) if isinstance(error, TypeError) else ""
    missing, unexpected = _MISSING.match(text), _UNEXPECTED.match(text)
    if match := missing or unexpected:
        call, names = match[1].removesuffix(".__init__"), match[2].replace("'", "").strip()
        function = _function_of(call, lines)
        which = f", which is {call}{_takes(function)}" if function is not None and call.islower() else ""
        problem, cure = f"{call} needs {names}{where}", f"add {names} to {call}(…){which}"
        if match is unexpected:
            problem, cure = f"{call} has no argument {names}{where}", _instead_of(names, call, function)
        return InvalidDeclaration(names, problem, cure=cure)
    if (match := _POSITIONAL.match(text)) and (function := _function_of(call := match[1], lines)):
        takes = _takes(function)
        cure = f"it is {call}{takes}" + (": what stands after * is given by name" if "*" in takes else "")
        return InvalidDeclaration("", f"{call} has too many values without a name{where}", cure=cure)
    if isinstance(error, AttributeError | NameError) and error.name:
        owner = getattr(error, "obj", None)
        of = f" in {owner.__name__}" if isinstance(owner, ModuleType) else ""
        cure = "correct the name; docs/reference/expressions.md lists all expressions and operations"
        if isinstance(error, NameError) and error.name in rekey.__all__:
            cure = f"import it: `from rekey import {error.name}`"
        elif isinstance(error, NameError) and not _similar(error.name, rekey.__all__):
            cure = f'names of properties and tables are text: write "{error.name}", in quotes'
        elif near := _similar(error.name, rekey.__all__ if owner is None else dir(owner)):
            cure = f"write {near}; docs/reference/expressions.md lists all expressions and operations"
        return InvalidDeclaration("", f"there is no `{error.name}`{of}{where}", cure=cure, fault=text)
    return invalid("", "script-raised", kind=type(error).__name__, where=where, fault=str(error))


def _function_of(call: str, lines: Sequence[str]) -> Callable[..., object] | None:
    """Return the function that was called; `lines`: of the script, one of which names its module."""
    modules = {"keys": keys, "props": props, "rows": rows, "rekey": rekey}
    named = {
        name: module for name, module in modules.items() if any(f"{name}.{call}(" in line for line in lines)
    }
    candidates = (named | modules).values()
    return next((getattr(module, call) for module in candidates if hasattr(module, call)), None)


def _takes(function: Callable[..., object]) -> str:
    """Return a function's parameters without types: `(source, *, to)`."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _instead_of(name: str, call: str, function: Callable[..., object] | None) -> str:
    if function is None:
        return "leave it out, or see the examples in migrations/"
    names = [
        parameter for parameter in inspect.signature(function).parameters if not parameter.startswith("_")
    ]
    near = _similar(name, names)
    return f"write {near}=" if near else f"leave it out; {call} takes {', '.join(names)}"


def _similar(name: str, names: Iterable[str]) -> str:
    plain = {name.replace("_", "").lower(): name for name in names}
    written = name.replace("_", "").lower()
    if _MEANT.get(written) in plain:
        return _MEANT[written]
    return next((plain[close] for close in get_close_matches(written, plain, 1, 0.6)), "")


def _depends(script_id: str, module: ModuleType) -> frozenset[str]:
    declared = getattr(module, "__depends__", ())
    names = [declared] if isinstance(declared, str) else declared
    field, are_names = "__depends__", isinstance(names, set | frozenset | list | tuple)
    are_names = are_names and all(isinstance(name, str) for name in names)
    refuse_if(not are_names, field, "depends-no-set")
    refuse_if(script_id in names, field, "depends-on-itself")
    return frozenset(names)


# --- scripts together --------------------------------------------------------------------------------


def _with_chains(
    scripts: Sequence[Declared], begun: Collection[str] = (), broken: Collection[str] = ()
) -> dict[str, Declared]:
    """Add the dependencies that tables imply: a script whose source another script fills depends on it.
    Raises DeclarationError for two scripts that may write rows of one table under the same keys, and for a
    dependency that does not exist or is `broken`."""
    fills: defaultdict[str, list[Declared]] = defaultdict(list)
    for script in scripts:
        for other in {id(each): each for table in script.fills for each in fills[table]}.values():
            table = script.collides_in(other)
            if table and not script.is_kept:  # stored ones come last
                problem = f"{other.script_id} fills the table {table} too"
                cure = "give each migration tables of its own"
                spaces = (each.migration.key_spaces.get(table) for each in (script, other))
                if any(spaces):
                    problem += ", and its PartitionKeys may be the same"
                    cure = (
                        "say shared=True in both targets, and begin their PartitionKeys with texts of which"
                        " none begins the other"
                    )
                raise DeclarationError(script.script_id, "target", problem, cure=cure)
        for table in script.fills:
            fills[table].append(script)
    known = {script.script_id for script in scripts}
    chained = {}
    for script in scripts:
        missing = sorted(script.depends - known)
        if missing and not script.is_kept and script.script_id not in begun:
            wrong = [dependency for dependency in missing if dependency in broken]
            if wrong:
                problem, cure = f"{wrong[0]} cannot be used", f"fix {wrong[0]} first"
                raise DeclarationError(script.script_id, "__depends__", problem, cure=cure)
            problem = f"there is no script {', '.join(missing)}"
            cure = "fix the id (a file's name without .py), or add the script"
            raise DeclarationError(script.script_id, "__depends__", problem, cure=cure)
        fillers = fills.get(script.migration.source.lower(), ())
        implied = frozenset(filler.script_id for filler in fillers if script.builds_on(filler))
        chained[script.script_id] = replace(script, depends=script.depends & known | implied)
    return chained


def _check_groups(scripts: Mapping[str, Declared]) -> None:
    """Raise DeclarationError for a script that cannot cut over with the others of its group: they need the
    same capture, a source each, and must not depend on each other."""
    first: dict[str, Declared] = {}
    owners: dict[tuple[str, str], str] = {}
    counts = Counter(script.migration.group for script in scripts.values() if script.migration.group)
    for script_id, script in scripts.items():
        migration, group = script.migration, script.migration.group
        if not group or script.is_kept:
            continue
        other = first.setdefault(group, script)
        same = owners.setdefault((group, migration.source.lower()), script_id)
        builds_on = sorted(depend for depend in script.depends if scripts[depend].migration.group == group)
        problem = ""
        if other.migration.capture != migration.capture:
            problem = f"{other.script_id} of the group {group} has capture={other.migration.capture!r}"
            cure = "give both the same capture, or another group"
        elif same != script_id and not (migration.where and scripts[same].migration.where):
            problem = f"{same} of the group {group} has the source {migration.source} too"
            cure = "a table can move to one target at a time: give one of them another group"
        elif builds_on:
            problem = f"it waits for {builds_on[0]} of the same group, so they cannot cut over at once"
            cure = "give it another group"
        elif counts[group] > MAX_MEMBERS:
            scripts_of_it = f"the group {group} has {counts[group]} scripts"
            problem = f"{scripts_of_it}; at most {MAX_MEMBERS} are moved at once"
            cure = "make two groups of it"
        if problem:
            raise DeclarationError(script_id, "group", problem + _line_of_group(script), cure=cure)


def _check_parts(scripts: Mapping[str, Declared]) -> None:
    """Raise DeclarationError for two scripts of one source that may migrate the same row, where one migrates
    a part."""
    sources: defaultdict[str, list[Declared]] = defaultdict(list)
    for script in scripts.values():
        if not script.is_kept:
            sources[script.migration.source.lower()].append(script)
    for first, second in chain.from_iterable(combinations(same, 2) for same in sources.values()):
        mine, theirs = second.migration.key_space, first.migration.key_space
        if mine is theirs is None:
            continue
        other = f"{first.script_id}, whose source is {first.migration.source} too,"
        if mine is None or theirs is None or not mine.is_apart_from(theirs):
            problem = f"{other} may migrate the same rows"
            cure = (
                f"write where= in {first.script_id} and {second.script_id} so that their PartitionKeys cannot"
                " be the same, e.g. rows.none_of(…) with the condition of the other"
            )
            raise DeclarationError(second.script_id, "where", problem, cure=cure)


def _line_of_group(script: Declared) -> str:
    """Return ` (line 7)`: where the script names its group; "" if not literally."""
    named = (node for node in ast.walk(ast.parse(script.content)) if isinstance(node, ast.keyword))
    lines = [node.lineno for node in named if node.arg == "group"]
    return f" (line {lines[0]})" if lines else ""


def _ordered(scripts: Mapping[str, Declared], begun: Collection[str] = ()) -> list[Declared]:
    """Return the scripts, dependencies first; of those whose dependencies are done, the smallest id first."""
    waiting = TopologicalSorter({name: sorted(script.depends) for name, script in sorted(scripts.items())})
    try:
        waiting.prepare()
    except CycleError as error:
        # graphlib lists the cycle against the direction of the dependencies, with its first script repeated
        # at the end.
        cycle = error.args[1][:0:-1]
        # Start with one that can be left out, if there is one.
        start = cycle.index(
            min(cycle, key=lambda script_id: (script_id in begun or scripts[script_id].is_kept, script_id))
        )
        cycle = cycle[start:] + cycle[:start]
        problem = f"a cycle: {' → '.join([*cycle, cycle[0]])}"
        cure = "take one dependency out (a script also depends on the one that fills its source table)"
        raise DeclarationError(cycle[0], "__depends__", problem, cure=cure) from None
    free: list[str] = []
    order: list[Declared] = []
    while waiting.is_active():
        free = sorted([*free, *waiting.get_ready()])
        order.append(scripts[free.pop(0)])
        waiting.done(order[-1].script_id)
    return order
