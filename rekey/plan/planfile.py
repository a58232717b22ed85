"""The plan file: `plan --out` writes it, `apply --plan` compares it with what is there later. Canonical JSON
with a format, a version and a SHA-256, so that edited and cut-off files are refused; it holds no keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rekey.core.severity import Severity
from rekey.declaration.migration import Declared
from rekey.errors import reason_of
from rekey.plan.refusals import refusal
from rekey.plan.result import Basis, Plan, TableState
from rekey.project.privatefiles import write_whole

FORMAT = "rekey/plan/v2"
SAMPLED_FACTOR = 2.0
SAMPLED_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan file as read. `errors`: how many the plan had; `bases`: one for each migration."""

    made_at: str
    exact: bool
    errors: int
    bases: tuple[Basis, ...]


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the content of a plan file as JSON-able data, without keys."""
    content = plan.as_json(keys=False)
    return {"format": FORMAT, "sha256": _digest(content), "plan": content}


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan file, whole or not at all. Raises ConfigurationError when the path cannot be written."""
    text = json.dumps(plan_document(plan), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    write_output(text, path, option="--out")


def write_output(text: str, path: Path, *, option: str) -> None:
    """Write a file, whole or not at all; `option` named the path. Raises ConfigurationError."""
    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise refusal("file-not-written", path=path, reason=reason_of(error), option=option) from None


def read_plan(path: Path) -> PlanFile:
    """Read a plan file. Raises ConfigurationError when it is missing, edited, cut off or of another kind."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise refusal("unusable", path=path, why=f"it cannot be read ({reason_of(error)})") from None
    except ValueError:
        raise refusal("unusable", path=path, why="it is not a whole JSON document") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise refusal("unusable", path=path, why=f"it is not of the format {FORMAT}")
    content: Any = document.get("plan")
    if document.get("sha256") != _digest(content):
        raise refusal("unusable", path=path, why="its content is not what was written: its digest differs")
    try:
        plans = content["migrations"]
        errors = sum(problem["severity"] == "error" for plan in plans for problem in plan["problems"])
        errors += sum(advice["blocks"] for plan in plans for advice in plan.get("advice", ()))
        bases = tuple(_basis(plan["basis"]) for plan in plans)
        return PlanFile(content["made_at"], content["exact"], errors, bases)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refusal("unusable", path=path, why=f"it lacks parts of the format {FORMAT}") from None


def moved(planned: Basis, now: Basis) -> list[str]:
    """Return the changes since the plan was made, a phrase for each; empty when the plan holds.

    Always compared: declaration, secrets, whether source and targets exist, foreign rows in targets, and
    codes and severities of errors and warnings on planned keys. The source: see `_moved_source`.
    """
    changes = []
    if planned.declaration != now.declaration:
        changes.append("the script declares something else now")
    names = sorted({*planned.secrets, *now.secrets})
    others = [name for name in names if planned.secrets.get(name) != now.secrets.get(name)]
    changes += [f"the secret {name!r} is another one now" for name in others]
    changes += _moved_source(planned, now)
    before = {target.table: target for target in planned.targets}
    for target in now.targets:
        was = before.get(target.table, target)
        if target.exists and not was.exists:
            changes.append(f"target table {target.table} exists now")
        if target.holds_rows and not was.holds_rows:
            changes.append(f"target table {target.table} holds rows now")
    was_given, is_given = planned.advice, now.advice
    came = [f"{code} ({is_given[code]})" for code in sorted(is_given.keys() - was_given.keys())]
    went = [f"{code} ({was_given[code]})" for code in sorted(was_given.keys() - is_given.keys())]
    changes += [f"advice that the plan did not have: {', '.join(came)}"] if came else []
    changes += [f"advice of the plan that is given no more: {', '.join(went)}"] if went else []
    for code in sorted(was_given.keys() & is_given.keys()):
        if was_given[code] != is_given[code]:
            weighs, weighed = _a(is_given[code]), _a(was_given[code])
            changes.append(f"the advice {code} is {weighs} now, {weighed} when planned")
    return changes


def _a(severity: Severity) -> str:
    return f"{'an' if severity is Severity.ERROR else 'a'} {severity}"


def _moved_source(planned: Basis, now: Basis) -> list[str]:
    """Return the changes of the source. A plan made with `--exact` moves with any write: it is for a source
    without writes. A sampled one moves only when the number of rows halves or doubles, and by 1,000 at least:
    estimates of one table differ."""
    source = planned.source
    if planned.source_exists != now.source_exists:
        return [f"source table {source} {'exists now' if now.source_exists else 'is gone'}"]
    if planned.inventory is None:
        low, high = sorted((now.rows, planned.rows))
        if high - low < SAMPLED_ROWS or high <= SAMPLED_FACTOR * low:
            return []
        return [f"{source} held about {planned.rows:,} rows when planned and holds about {now.rows:,} now"]
    if planned.inventory == now.inventory:
        return []
    if now.inventory is not None and len(planned.inventory) != len(now.inventory):  # 16 bytes in version 0.1
        return [f"the plan's digest of {source} is one that an earlier version of rekey made"]
    more = now.rows - planned.rows
    rows = f"{abs(more):,} {'more' if more > 0 else 'fewer'}" if more else "as many rows"
    change = (
        f"rows of {source} were inserted, changed or deleted ({rows}); the plan was made with --exact,"
        " which is for a source without writes: for a live one make a plan without it"
    )
    return [change]


def check_declared(file: PlanFile, chosen: Iterable[Declared]) -> None:
    """Require that a plan file is of these scripts, also of those that have begun.

    Raises:
        Moved: a script declares something else.
        ConfigurationError: a migration is not in the file.
    """
    planned = {basis.script_id: basis.declaration for basis in file.bases}
    for script in chosen:
        if script.script_id not in planned:
            raise refusal("not-planned", script=script.script_id)
        if planned[script.script_id] != script.digest:
            changed = f"{script.script_id}: the script declares something else now"
            raise refusal("moved-since", made_at=file.made_at, changes=changed)


def check_plan(file: PlanFile, now: Sequence[Basis]) -> None:
    """Compare a plan file with what is there now, after `check_declared`. Raises Moved, naming all that
    moved.

    Only for migrations that have not begun: afterwards their own targets exist, and the state guards
    declaration and secrets.
    """
    planned = {basis.script_id: basis for basis in file.bases}
    changes = [
        f"{basis.script_id}: {change}" for basis in now for change in moved(planned[basis.script_id], basis)
    ]
    if changes:
        raise refusal("moved-since", made_at=file.made_at, changes="; ".join(changes))


def _basis(content: dict[str, Any]) -> Basis:
    content = {"part": "", **content}  # of the whole table, none is named
    known = {field.name: content[field.name] for field in fields(Basis)}
    known["targets"] = tuple(TableState(**target) for target in content["targets"])
    known["advice"] = {code: Severity(severity) for code, severity in content["advice"].items()}
    return Basis(**known)


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
