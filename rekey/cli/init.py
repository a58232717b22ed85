"""`rekey init`: start a project. No file is overwritten; `.gitignore` gets the lines that it lacks.

The rows of `--example` go only to an Azurite that `rekey azurite` started, into a table that is new there.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from rekey.cli.shell import DEFAULT_CONFIG_PATH, Shell, command, flag
from rekey.errors import ExitCode, reason_of
from rekey.project.config import default_config, reading
from rekey.project.privatefiles import write_new, write_private
from rekey.rehearse.azurite import USUAL_PORT, endpoint_at, running_in_background
from rekey.runner.refusals import refusal

# What must not be committed: state, wrapping keys, secrets of ids, the key that signs evidence.
IGNORED = (".rekey/", "*.key", "*.secret", "evidence.pem")
WRAPPING_KEY = "sealing.key"
EXAMPLE_TABLE, EXAMPLE_ROWS, EXAMPLE_PARTITIONS = "Users", 1_200, 4
EXAMPLE_SECRET = "users.secret"  # noqa: S105 - the name of its file


@command("init", example="rekey init\nrekey init ./key-changes\nrekey init --example example")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@flag("--example", help="With a script, its secret, and a table of made-up users in a local Azurite.")
def init(shell: Shell, folder: Path, example: bool) -> ExitCode:
    """Start a project: configuration, key file, folder for scripts.

    Writes to FOLDER (the current one by default): the configuration with its defaults explained, a folder for
    migration scripts, the key that seals old keys, and .gitignore entries for the state file, keys (*.key,
    evidence.pem) and secrets (*.secret). Overwrites nothing. Where `rekey azurite --port` runs, the
    configuration names that port. With --example everything is there to try a first migration.
    """
    config = folder / (DEFAULT_CONFIG_PATH if shell.config.is_above else shell.config.path)
    text, ports = default_config(), running_in_background()
    if len(ports) == 1:
        text = text.replace(endpoint_at(USUAL_PORT), endpoint_at(ports[0]))
    migrations = config.parent / "migrations"
    keep = migrations / ".gitkeep"
    key = config.parent / WRAPPING_KEY
    ignore = config.parent / ".gitignore"
    if example:
        if config.exists():
            raise refusal("example-beside-project", config=config)
        text += f'\n[secrets.users]\nfile = "{EXAMPLE_SECRET}"\n'
        endpoint = _endpoint_of_example(ports)
        shell.do(_fill_example_table(shell, endpoint))
    try:
        migrations.mkdir(parents=True, exist_ok=True)
        files = {config: _write_new(config, text)}
        if files[config]:
            files[key] = _write_new(key, f"{secrets.token_hex(32)}\n", private=True)
        if example:
            files |= _write_example(config.parent / EXAMPLE_SECRET, migrations)
        else:
            files[keep] = not any(migrations.iterdir()) and _write_new(keep, "")
        files[ignore] = _ignore(ignore)
    except OSError as error:
        raise refusal("folder-not-written", folder=folder, reason=reason_of(error)) from None
    new = f"{shell.command('new NAME')} --source TABLE --target TABLE"
    lines = [f"{'wrote' if is_new else 'kept '}  {path}" for path, is_new in files.items()]
    then = f"Next: name your accounts in {config} (it says how), then write a first migration script:"
    if example:
        new = shell.command("plan")
        lines += [f"filled {EXAMPLE_TABLE} with {EXAMPLE_ROWS:,} made-up rows in {endpoint}"]
        then = "Next: see what the migration would do" + ("" if folder == Path() else f", in {folder}") + ":"
    lines += ["", then, f"  {new}"]
    written = [str(path) for path, is_new in files.items() if is_new]
    document = {"config": str(config), "migrations": str(migrations), "written": written, "next": new}
    return shell.emit(document, "\n".join(lines))


def _endpoint_of_example(ports: list[int]) -> str:
    """Return the endpoint of the Azurite for the example: the usual one, or the only one that runs.

    Only `rekey azurite` starts these, so made-up rows never go to an account that somebody uses.
    """
    if len(ports) == 1 or USUAL_PORT in ports:
        return endpoint_at(ports[0] if len(ports) == 1 else USUAL_PORT)
    raise refusal("example-without-azurite")


async def _fill_example_table(shell: Shell, endpoint: str) -> None:
    from rekey.rehearse.stock import insert, users

    async with shell.connect(reading(endpoint, None)) as accounts:
        if not await accounts.tables.create_table(EXAMPLE_TABLE):
            raise refusal("example-table-exists", table=EXAMPLE_TABLE, endpoint=endpoint)
        await insert(accounts.tables.table(EXAMPLE_TABLE), users(EXAMPLE_ROWS, partitions=EXAMPLE_PARTITIONS))


def _write_example(secret: Path, migrations: Path) -> dict[Path, bool]:
    """Write the script of the demo and its secret; return what was new."""
    from rekey.rehearse.rehearsal import DEMO

    script = migrations / DEMO.name
    return {
        secret: _write_new(secret, f"{secrets.token_hex(32)}\n", private=True),
        script: _write_new(script, DEMO.read_text("utf-8")),
    }


def _write_new(path: Path, text: str, *, private: bool = False) -> bool:
    """Write a new file, for its owner only if it is private; return False when one exists already."""
    try:
        (write_private if private else write_new)(path, text.encode("utf-8"))
    except FileExistsError:
        return False
    return True


def _ignore(path: Path) -> bool:
    """Add the entries of `IGNORED` to .gitignore; return False when it has them already."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    there = {line.strip() for line in before.splitlines()}
    missing = [entry for entry in IGNORED if entry not in there]
    if not missing:
        return False
    gap = "" if not before or before.endswith("\n") else "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(gap + "".join(f"{entry}\n" for entry in missing))
    return True
