"""A rehearsal: the whole life of a migration, with a kill and a rollback, on an Azurite of its own. A failed
check gives a report that did not pass; an error means that no rehearsal took place."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from azure.core.exceptions import AzureError

from rekey.client.sdk.client_sync import DualWriteTableClient
from rekey.core.joint import names_in
from rekey.core.limits import is_in_target_account
from rekey.mapping.sealing import LocalWrappingKey
from rekey.rehearse.application import Application, LiveApplication
from rekey.rehearse.azurite import Azurite
from rekey.rehearse.data import open_data
from rekey.rehearse.project import Project
from rekey.rehearse.report import Briefly, RehearsalReport
from rekey.rehearse.steps import Life, LifeUnderWrites, NotAsItMustBe
from rekey.rehearse.stock import Data, Stock, load
from rekey.rehearse.witness import Witness, key_of_account, open_service

DEFAULT_ROWS = 2000
# The demo's script; in a clone a link into `migrations/`, in a package a copy.
DEMO = Path(__file__).parent / "demo" / "0001_users_opaque_ids.py"
_WINDOWS = 20
# Approximate duration of the copy at the configured rate, so that the kill lands in its middle.
_COPY_SECONDS = 3
_MOST_ROWS_A_WINDOW = 4096
_WRITES_SHARE = 20
_WRITES_AT_MOST = 300


def rehearse(
    script: Path,
    *,
    rows: int = DEFAULT_ROWS,
    data: Path | Data | None = None,
    seed: int = 0,
    narrator: Briefly,
    folder: Path | None = None,
    keep: bool = False,
) -> RehearsalReport:
    """Take a migration through its whole life. Azurite, folder, keys and secrets are removed afterwards.

    Args:
        script: the migration script.
        rows: how many rows to generate; ignored with `data`.
        data: rows, all of which are used, or a file of rows (see `rekey.rehearse.data`); None: generated
            rows.
        seed: for generated rows and the application's choices.
        narrator: tells the progress.
        folder: parent of the rehearsal's own folder; None: the system's for temporary files.
        keep: do not remove that folder.

    Raises:
        DeclarationError: the script is wrong.
        ConfigurationError: too few rows, a bad data file, no rows can be generated, no Node.js.
        MachineFailed: Azurite does not start.
    """
    began, failure = time.monotonic(), ""
    with _own_folder(folder, keep=keep) as own:
        project = Project(own, script)
        migration = project.declared.migration
        stock = Stock.of(project.mapper, rows, open_data(data) if isinstance(data, Path) else data, seed)
        number = "three" if project.uses_target_account else "two"
        narrator.say(f"Starting an Azurite of its own, with {number} accounts.")
        with ExitStack() as stack:
            azurite = stack.enter_context(Azurite())
            life = _on_stage(project, azurite, stock, narrator, seed, stack)
            try:
                life.take_dependencies_through()
                narrator.say(f"Loading rows into {life.application.source_name}: {stock.described}.")
                source = azurite.targets if is_in_target_account(migration.source) else azurite.tables
                asyncio.run(load(source, stock, life.application))
                for assumption in stock.assumptions:
                    narrator.say(f"Assumed: {assumption}.")
                life.live()
            except NotAsItMustBe as problem:
                failure = str(problem)
            except AzureError as error:
                # its text may contain keys
                failure = f"the witness or the application could not use the tables ({type(error).__name__})"
            finally:
                project.stop()
            if keep:
                _keep_tables(life.witness, own / "tables")
    return RehearsalReport(
        script_id=project.declared.script_id,
        source=migration.source,
        targets=migration.table_names,
        rows=stock.loaded,
        data=stock.described,
        assumptions=stock.assumptions,
        proofs=tuple(life.proofs),
        left_out=tuple(life.left_out),
        steps=tuple(life.steps),
        failure=failure,
        kept=str(own) if keep else "",
        seconds=time.monotonic() - began,
    )


def _on_stage(
    project: Project, azurite: Azurite, stock: Stock, narrator: Briefly, seed: int, stack: ExitStack
) -> Life:
    """Write the project for this Azurite, and return the life with all its parts; `stack` closes clients."""
    project.write_for(
        azurite,
        window_rows=max(1, min(stock.count // _WINDOWS, _MOST_ROWS_A_WINDOW)),
        entities_per_second=max(10, stock.count * (1 + len(project.mapper.tables)) // _COPY_SECONDS),
    )
    tables, restricted, targets = map(open_service, (azurite.tables, azurite.restricted, azurite.targets))
    declared, migration = project.declared, project.declared.migration
    wrapping = LocalWrappingKey(project.wrapping_key) if migration.is_sealed else None
    witness = Witness(tables, restricted, declared.script_id, project.mapper, wrapping, targets)
    writes = min(_WRITES_AT_MOST, max(10, stock.count // _WRITES_SHARE))
    # The kill waits for a fifth to a half of all rows to be checkpointed.
    share = random.Random(f"kill/{seed}").uniform(0.2, 0.5)  # noqa: S311 - a repeatable choice
    kill_after = max(1, round(stock.count * share))
    if migration.capture == "delta":
        return Life(project, witness, Application(witness, seed), narrator, writes, kill_after)
    mains = names_in(migration.target.table)
    old, *new = (
        stack.enter_context(closing(_client(project, azurite, name))) for name in (migration.source, *mains)
    )
    live = LiveApplication(witness, seed, old, dict(zip(mains, new, strict=True)))
    return LifeUnderWrites(project, witness, live, narrator, writes, kill_after)


def _client(project: Project, azurite: Azurite, table: str) -> DualWriteTableClient:
    """Return a client of a table; it registers with its first call."""
    view = "old" if table == project.declared.migration.source else "new"
    return DualWriteTableClient(
        azurite.tables.endpoint,
        table,
        credential=key_of_account(azurite.tables),
        migration=project.declared,
        restricted_endpoint=azurite.restricted.endpoint,
        restricted_credential=key_of_account(azurite.restricted),
        targets_endpoint=azurite.targets.endpoint,
        targets_credential=key_of_account(azurite.targets),
        secrets=project.secrets,
        wrapping_key=project.wrapping_key,
        name=f"application-{view}",
        use_env_settings=False,
    )


@contextmanager
def _own_folder(parent: Path | None, *, keep: bool) -> Iterator[Path]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="rekey-rehearsal-", dir=parent)).resolve()
    is_kept = False
    try:
        yield own
        is_kept = keep
    finally:
        if not is_kept:
            shutil.rmtree(own, ignore_errors=True)


def _keep_tables(witness: Witness, folder: Path) -> None:
    """Write source and targets as JSON Lines, which `--data` reads; Azurite has them in memory only."""
    folder.mkdir()
    for name in (witness.source_name, *witness.mapper.migration.table_names):
        if witness.exists(name):
            with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                for row in witness.rows(name):
                    file.write(json.dumps(row) + "\n")
