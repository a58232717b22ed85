"""Azure CLI, unmodified, through a proxy: `az storage entity` and `table` give what they give on Azurite.

It is installed from its package into an environment of its own, as it pins what it needs.

Soak: Azure CLI through a proxy.
Reason, and what `make test` covers: its package, with hundreds of others, from their index; the same requests
by hand in `tests/contract/test_proxy.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekey.rehearse.azurite import Azurite, AzuriteAccount
from rekey.tables.azure import AzureTableService
from tests.contract.test_proxy import STATES, begun_in, migration_of
from tests.worlds.proxy import config_of, proxied, through

pytestmark = [pytest.mark.azurite, pytest.mark.soak, pytest.mark.timeout(1800)]
VERSION = "2.91.0"
CALLS = (
    "table exists --name TABLE",
    "entity insert --entity PartitionKey=eu RowKey=a'b Nm=A Int=7 Int@odata.type=Edm.Int32",
    "entity insert --entity PartitionKey=eu RowKey=a'b Nm=A",
    "entity insert --entity PartitionKey=eu RowKey=b Nm=A --if-exists replace",
    "entity show --partition-key eu --row-key a'b",
    "entity show --partition-key eu --row-key a'b --select Nm",
    "entity show --partition-key eu --row-key none",
    "entity merge --entity PartitionKey=eu RowKey=a'b More=käse",
    "entity merge --entity PartitionKey=eu RowKey=none More=x",
    "entity replace --entity PartitionKey=eu RowKey=b Other=1",
    "entity query --num-results 1",
    "entity query --filter PartitionKey\u00a0eq\u00a0'eu'",
    "entity delete --partition-key eu --row-key b",
    "entity delete --partition-key eu --row-key b",
    "table policy list",
)


@pytest.fixture(scope="module")
def az(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CLI's Python, installed."""
    folder = tmp_path_factory.mktemp("az")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    said = subprocess.run([*pip, f"azure-cli=={VERSION}"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    return python


async def told(az: Path, endpoint: str, account: AzuriteAccount, table: str) -> list[Any]:
    """Return what came of each call: exit code, and output or error, without times and ETags."""
    where = (
        f"DefaultEndpointsProtocol=http;AccountName={account.name};AccountKey={account.key};"
        f"TableEndpoint={endpoint};"
    )
    settings = {"AZURE_CONFIG_DIR": str(az.parent / "config"), "AZURE_CORE_COLLECT_TELEMETRY": "false"}
    found = []
    for call in CALLS:
        words = [word.replace("\u00a0", " ") for word in call.replace("TABLE", table).split(" ")]
        named = [] if words[:2] == ["table", "exists"] else ["--table-name", table]
        process = await asyncio.create_subprocess_exec(
            *(str(az), "-m", "azure.cli", "storage", *words, *named, "--connection-string", where),
            env={**os.environ, **settings},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, failed = await process.communicate()
        code = [line for line in failed.decode().splitlines() if line.startswith("ErrorCode:")]
        found.append((call, process.returncode, plain(json.loads(out or b"null")), code))
    return found


def plain(value: Any) -> Any:
    """Return an output without times, ETags and addresses. Azurite says `Preference-Applied` also to who
    prefers nothing, so that the CLI shows the row of an insert, and its own version."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        left_out = {"etag", "odata.etag", "odata.metadata", "date", "timestamp", "version"}
        left_out |= {"client_request_id", "request_id", "content", "preference_applied"}
        return {name: plain(one) for name, one in value.items() if name.lower() not in left_out}
    return value


@pytest.mark.parametrize("state", ["plain", "dual_write", "cutover"])
async def test_each_call_gives_what_it_gives_without_a_proxy(
    state: str,
    az: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    azurite: Azurite,
    table_name: Callable[[str], str],
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
) -> None:
    declared, plain_table = migration_of(table_name), table_name("Plain")
    await begun_in(STATES[state], declared, tables_service, restricted_service)
    table = table_name("Alone") if state == "plain" else declared.migration.source
    await tables_service.create_table(table)
    await tables_service.create_table(plain_table)
    expected = await told(az, azurite.tables.endpoint, azurite.tables, plain_table)
    assert sum(code == 0 for _, code, *_ in expected) >= 10
    async with proxied(config_of(tmp_path, azurite, monkeypatch), declared) as proxy:
        found = await told(az, through(proxy, azurite), azurite.tables, table)
    for one, other in zip(found, expected, strict=True):
        assert json.loads(json.dumps(one).replace(table, plain_table)) == json.loads(json.dumps(other))
