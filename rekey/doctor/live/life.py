"""A small migration, taken through its life on throw-away tables: killed, resumed, cut over and rolled back,
while an application writes. Every command is a process with a project of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from rekey.client.reading import LeaseSettings
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import ClientOptions, Endpoint, connect, prepared_with
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.doctor.live.checks import Seen
from rekey.doctor.live.stage import Stage, credential
from rekey.errors import ExitCode
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import PARTITION_KEY, ROW_KEY, Row, content_of
from rekey.project.config import Config
from rekey.protocol.lease import Holder
from rekey.rehearse.project import Project
from rekey.state.models import BACKFILL
from rekey.tables.base import Accounts, Operation, Table, TableService, Verb

# Small windows and, until the kill, a low rate: the kill must land during the copy.
ROWS = 16
_POLL_S, _COMMAND_S = 0.02, 180.0
_SCRIPT = Path(__file__).with_name("script.txt")
_PROGRAM = "rekey.cli.live"
_SETTINGS = LeaseSettings(poll_s=1.0)
Write: TypeAlias = Callable[[Operation], Awaitable[object]]


class _Apart:
    """The tables of an account, under prefixed names."""

    def __init__(self, inner: TableService, prefix: str) -> None:
        self.inner, self.prefix = inner, prefix

    def __getattr__(self, name: str) -> Any:
        named = getattr(self.inner, name)
        if name in ("table", "multi_writer_table", "create_table", "delete_table", "table_exists"):
            return lambda table: named(self.prefix + table)
        return named


def apart(accounts: Accounts, prefix: str) -> Accounts:
    """Return accounts whose restricted store has prefixed table names, apart from any real migration."""
    return replace(accounts, restricted=cast("TableService", _Apart(accounts.restricted, prefix)))


async def life(capture: str, config: Config, *stages: Stage) -> Seen:
    """Take a small migration through its life, and return what was seen.

    Args:
        capture: of the migration.
        config: this project's accounts are used.
        stages: of its accounts (tables, targets if any, restricted); they remove the tables.
    """
    tables, targets, restricted = stages[0], stages[-2], stages[-1]
    prefix, seen = f"{tables.prefix}{capture[:2]}", dict[str, str]()
    source, target = f"{prefix}source", f"{prefix}target"
    tables.names.append(source)
    targets.names.append(target)
    restricted.names += [f"{prefix}{name}" for name in (CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE)]
    dual = capture == "dual-write"
    options = () if dual else ("--writers-stopped",)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rekey-live-")))
        (folder / "scripts").mkdir()
        script = folder / "scripts" / "0001_live.py"
        declared = target if targets is tables else target + TARGET_ACCOUNT_SUFFIX
        text = _SCRIPT.read_text("utf-8").format(source=source, target=declared, capture=capture)
        script.write_text(text, "utf-8")
        project = Project(folder, script, program=(_PROGRAM, prefix))
        project.write(config.tables, config.restricted, config.targets, window_rows=4, entities_per_second=4)
        stack.callback(project.stop)
        mapper = project.mapper
        await tables.service.create_table(source)
        old = tables.service.table(source)
        holds = {f"row{number:03}": number for number in range(ROWS)}
        rows = [_row(name, number) for name, number in holds.items()]
        await old.transact([Operation(Verb.INSERT, row) for row in rows])

        async def compared() -> str:
            source_rows = await _rows(old)
            expected = [mapper.map(row)[0].row for row in source_rows]
            if {row[ROW_KEY]: row["N"] for row in source_rows} != holds:
                return "the source is not what was written"
            same = _contents(await _rows(targets.service.table(target))) == _contents(expected)
            return "equal" if same else "the target is not what the source gives"

        async def command(step: str, *words: str) -> None:
            async with asyncio.timeout(_COMMAND_S):
                ended = (await asyncio.to_thread(project.start(*words).finish)).code
            seen[step] = await compared() if ended == 0 else f"`rekey {words[0]}` ended with {ended}"

        async with AsyncExitStack() as clients:

            async def client(table: str) -> Write:
                secrets, wrapping = project.secrets, project.wrapping_key
                prepared = prepared_with(project.declared, secrets, wrapping, ends.get("targets"))
                options = ClientOptions(prepared, table, name="live", settings=_SETTINGS)
                opened = partial(connect, **ends, settings=_SETTINGS, options={})
                core = ClientCore(options, lambda: apart(opened(), prefix))
                clients.push_async_callback(core.close)
                await core.open()
                return lambda operation: core.write([operation])

            ends = {
                name: Endpoint(account.endpoint, credential(account))
                for name, account in config.accounts.items()
            }
            in_old = await client(source) if dual else old.write
            running = project.start("apply", "0001_live")
            copied = 0
            while not running.ended and not copied:
                await asyncio.sleep(_POLL_S)
                copied = sum(segment.rows for segment in project.segments(BACKFILL))
            # Where a dead process cannot be detected (macOS), the next run would wait for its lease.
            here = Holder.current(prefix)
            is_seen = bool(here.boot and here.namespace)
            ended = (running.kill() if is_seen else running.stop()).code
            in_the_middle = (ended < 0 or ended == ExitCode.INTERRUPTED) and 0 < copied < ROWS
            how = "in the middle of copying" if is_seen else "stopped in the middle of copying"
            seen["killed"] = how if in_the_middle else f"not: it ended with {ended}"
            quicker = (folder / "rekey.toml").read_text("utf-8").replace("per_second = 4", "per_second = 500")
            (folder / "rekey.toml").write_text(quicker, "utf-8")
            await _write(in_old, holds, "first", _row)
            await command("resumed", "apply", "0001_live")
            if dual:
                await command("verified", "verify", "0001_live", "--mode", "full")
            await command("cut_over", "apply", "0001_live", "--to", "cutover", *options)
            in_new = await client(declared) if dual else targets.service.table(target).write
            await _write(in_new, holds, "second", lambda *row: mapper.map(_row(*row))[0].row)
            await command("taken_back", "rollback", "0001_live", *options)
    return seen


def _row(name: str, number: int) -> Row:
    return {PARTITION_KEY: "p", ROW_KEY: name, "N": number}


def _contents(rows: Iterable[Row]) -> list[str]:
    return sorted(repr(sorted(content_of(row).items())) for row in rows)


async def _rows(table: Table) -> list[Row]:
    return [row async for page in table.scan() for row in page.rows]


async def _write(write: Write, holds: dict[str, int], new: str, row_of: Callable[[str, int], Row]) -> None:
    """Insert, replace and delete a row each, and record it. `row_of`: makes a row of the view written in."""
    changed, gone = list(holds)[:2]
    await write(Operation(Verb.INSERT, row_of(new, -1)))
    await write(Operation(Verb.REPLACE, row_of(changed, -2), "*"))
    await write(Operation(Verb.DELETE, row_of(gone, holds.pop(gone)), "*"))
    holds |= {new: -1, changed: -2}
