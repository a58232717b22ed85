"""`rekey init`: begin a project.

Rules kept here:

* Nothing that is there is overwritten; `.gitignore` gets one more line when it lacks it.
"""

from __future__ import annotations

from pathlib import Path

import click

from rekey.cli.shell import Shell, command
from rekey.errors import ConfigurationError, ExitCode

IGNORED = ".rekey/"


@command("init", example="rekey init\nrekey init ./key-changes")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
def init(shell: Shell, folder: Path) -> ExitCode:
    """Begin a project in FOLDER (this one by default).

    Writes the configuration with its defaults explained, a folder for migration scripts, and an entry in
    .gitignore for rekey's state. Overwrites nothing.
    """
    from rekey.config import DEFAULT_CONFIG

    config = folder / shell.config_path
    migrations = config.parent / "migrations"
    ignore = config.parent / ".gitignore"
    try:
        migrations.mkdir(parents=True, exist_ok=True)
        made = {
            str(config): _write_new(config, DEFAULT_CONFIG),
            str(migrations / ".gitkeep"): not any(migrations.iterdir())
            and _write_new(migrations / ".gitkeep", ""),
            str(ignore): _ignore(ignore),
        }
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written ({type(error).__name__})",
            kept="what was there before",
            hint="name a folder that this user can write to: `rekey init FOLDER`",
        ) from None
    new = f"{shell.command('new NAME')} --source TABLE --target TABLE"
    lines = [f"{'wrote' if fresh else 'kept '}  {path}" for path, fresh in made.items()]
    lines += [
        "",
        f"Next: name your accounts in {config} (it says how), then write a first migration script:",
        f"  {new}",
    ]
    written = [path for path, fresh in made.items() if fresh]
    shell.emit(
        {
            "exit_code": int(ExitCode.DONE),
            "config": str(config),
            "migrations": str(migrations),
            "written": written,
            "next": new,
        },
        "\n".join(lines),
    )
    return ExitCode.DONE


def _write_new(path: Path, text: str) -> bool:
    """Write a file; False when there is one already."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


def _ignore(path: Path) -> bool:
    """Add our entry to .gitignore; False when it has it already."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if IGNORED in (line.strip() for line in before.splitlines()):
        return False
    gap = "" if not before or before.endswith("\n") else "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{gap}{IGNORED}\n")
    return True
