"""Microsoft's SDK for Node.js, and the older package `azure-storage`, unmodified, through a proxy: each call
gives what it gives on Azurite.

Soak: the SDK for Node.js, and `azure-storage`, through a proxy.
Reason, and what `make test` covers: its packages, from their index; the same requests by hand in
`tests/contract/test_proxy.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import node_script
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.contract.test_proxy import STATES, begun_in, migration_of
from tests.worlds.proxy import config_of, proxied, through

pytestmark = [pytest.mark.azurite, pytest.mark.soak]
CALLS = ("proxy_calls.mjs", "proxy_calls_storage.mjs")


async def calls(script: str, endpoint: str, table: str, key: str) -> list[Any]:
    """Return what came of the calls on a table."""
    text = Path(__file__).with_name(script).read_text("utf-8")
    [program, beside] = node_script()
    process = await asyncio.create_subprocess_exec(
        *(program, "--input-type=module", "--eval", text, endpoint, table),
        cwd=Path(beside).parent,
        env={**os.environ, "PROXY_KEY": key},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    found: list[Any] = json.loads(out)
    return found


@pytest.mark.parametrize("script", CALLS)
@pytest.mark.parametrize("state", STATES)
async def test_each_call_gives_what_it_gives_without_a_proxy(
    state: str,
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    azurite: Azurite,
    table_name: Callable[[str], str],
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
) -> None:
    declared, plain = migration_of(table_name), table_name("Plain")
    await begun_in(STATES[state], declared, tables_service, restricted_service)
    table = table_name("Alone") if state == "plain" else declared.migration.source
    await tables_service.create_table(table)
    await tables_service.create_table(plain)
    key = azurite.tables.key
    expected = await calls(script, azurite.tables.endpoint, plain, key)
    async with proxied(config_of(tmp_path, azurite, monkeypatch), declared) as proxy:
        found = await calls(script, through(proxy, azurite), table, key)
    assert json.loads(json.dumps(found).replace(table, plain)) == expected
