"""The loop that teams write by hand: `list_entities`, map, `submit_transaction` of 100, in one process.

`python -m benchmarks.sdk_loop` writes the target's rows; with `--mapping` also the two mapping rows that
rekey writes for every source row, before them, so that both sides write the same rows.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableClient, TableServiceClient

from benchmarks.phases import Phases
from rekey.core.crockford import encode

PAGE = 1000
BATCH = 100


def opaque(secret: bytes, value: str) -> str:
    """Return the id that `keys.opaque(..., domain="user")` gives."""
    message = b"rekey/v1\0user\0" + value.encode()
    return encode(hmac.new(secret, message, hashlib.sha256).digest()[:20])


def service(config: dict[str, Any], section: str, key_env: str) -> TableServiceClient:
    """Return the SDK's client of one account of rekey.toml."""
    endpoint = config[section]["endpoint"]
    credential = AzureNamedKeyCredential(endpoint.rsplit("/", 1)[-1], os.environ[key_env])
    return TableServiceClient(endpoint, credential=credential)


def write(table: TableClient, entities: Iterable[dict[str, Any]]) -> None:
    """Insert entities in batches of one partition, up to 100 each."""
    partitions: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for entity in entities:
        partitions[entity["PartitionKey"]].append(entity)
    for members in partitions.values():
        for start in range(0, len(members), BATCH):
            table.submit_transaction([("create", entity) for entity in members[start : start + BATCH]])


def mapping_rows(secret: bytes, old: dict[str, Any], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the two rows that say which key became which."""
    keys = {"OldPartitionKey": old["PartitionKey"], "OldRowKey": old["RowKey"]}
    forward = opaque(secret, f"f{old['PartitionKey']}\0{old['RowKey']}")
    reverse = opaque(secret, f"r{new['PartitionKey']}\0{new['RowKey']}")
    targets = json.dumps([[0, new["PartitionKey"], new["RowKey"]]])
    return [
        {"PartitionKey": f"f.{forward[0]}", "RowKey": forward, **keys, "Targets0": targets},
        {"PartitionKey": f"r.{reverse[0]}", "RowKey": reverse, **keys},
    ]


def main() -> None:
    """Copy the whole source, and write down what start and copy took."""
    phases = Phases()
    config = tomllib.loads(Path("rekey.toml").read_text("utf-8"))
    secret = os.environ["BENCH_SECRET"].encode()
    tables = service(config, "tables", "BENCH_TABLES_KEY")
    phases.ended("start")
    source, target = tables.get_table_client("Users"), tables.create_table("UsersV2")
    mapping = None
    if "--mapping" in sys.argv:
        mapping = service(config, "restricted", "BENCH_RESTRICTED_KEY").create_table("mapping")
    for page in source.list_entities(results_per_page=PAGE).by_page():
        old = [dict(entity) for entity in page]
        new = [
            {**entity, "RowKey": opaque(secret, entity["RowKey"]), "ContactEmail": entity["RowKey"]}
            for entity in old
        ]
        if mapping is not None:
            pairs = zip(old, new, strict=True)
            write(mapping, (row for pair in pairs for row in mapping_rows(secret, *pair)))
        write(target, new)
    phases.ended("copy")
    phases.write()


if __name__ == "__main__":
    main()
