"""What `rekey copy --online` writes: a project that moves tables while their application goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rekey.backup.refusals import refusal
from rekey.errors import reason_of
from rekey.project.privatefiles import write_new

SCRIPT_ID = "0001_move"
_TEMPLATES = Path(__file__).parent


def script_of(names: Mapping[str, str]) -> str:
    """Return the script of the move. `names`: of the tables, and what they become; several keep theirs."""
    if len(names) == 1:
        [(name, target)] = names.items()
        return (_TEMPLATES / "move_script.txt").read_text("utf-8").format(table=name, target=target)
    listed = "".join(f'    "{name}",\n' for name in names)
    return (_TEMPLATES / "move_scripts.txt").read_text("utf-8").format(listed=listed)


def script_ids(names: Sequence[str]) -> list[str]:
    """Return the ids of the migrations of the script."""
    return [SCRIPT_ID] if len(names) == 1 else [f"{SCRIPT_ID}-{name}" for name in names]


def write_script(folder: Path, text: str) -> Path:
    """Write the script into the project, or leave it as it is there.

    Raises:
        Refused: the folder holds another one.
        ConfigurationError: it cannot be written.
    """
    path = folder / "migrations" / f"{SCRIPT_ID}.py"
    try:
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            write_new(path, text.encode("utf-8"))
        elif path.read_text("utf-8") != text:
            raise refusal("state-of-another", folder=folder)
    except OSError as error:
        raise refusal("folder-not-written", folder=folder, reason=reason_of(error)) from None
    return path


def instructions(config: Path, ids: Sequence[str], tables: Mapping[str, str]) -> list[str]:
    """Return what is to be done with the project, as lines."""
    old, new = next(iter(tables.items()))
    client = f'DualWriteTableClient.from_config("{config}", "{ids[0]}", view="old")'
    return [
        "Nothing was copied. First the application has to write through rekey:",
        f"  Python      {client}",
        f'              for {old}; after cutover view="new" for {new}',
        f"  others      `rekey proxy --config {config}`, whose address takes the place of the account's",
        "What clients and runner agree on is kept in the account of [restricted], which is the new one: name",
        "another there, before the first `rekey apply`, if the application may not write to it.",
        "`rekey runbook application-teams` says more. Then:",
        *(f"  rekey {command} --config {config}" for command in ("doctor", "plan", "apply")),
    ]
