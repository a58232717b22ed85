"""What the pure parts take: mapping, digests, encoding, in rows per second of processor time."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.project import SECRET, USERS
from benchmarks.project import rows as rows_of_users
from rekey import Migration, RowKind, Target, keys, props, rows
from rekey.declaration.mapper import Mapper
from rekey.model import Row
from rekey.tables.base import Operation, Verb
from rekey.tables.wire import Encoder, batch_body, decode_rows, encode_row
from rekey.verify.digest import Digester

KINDS = "UCLR"


def per_cpu_second(work: Callable[[], object], count: int) -> int:
    """Return rows per second of processor time: the best of three."""
    best = min(_cpu_seconds(work) for _ in range(3))
    return round(count / best)


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _target(prefix: str) -> Target:
    return Target(
        "UsersV2",
        partition_key=keys.keep(),
        row_key=keys.literal(prefix) + keys.opaque("RowKey", domain="user", secret="users"),
        properties=[props.copy("RowKey", to="OldRowKey")],
    )


def _one_kind() -> Migration:
    return Migration(source="Users", target=_target("U_"), capture="delta")


def _four_kinds() -> Migration:
    kinds = [
        RowKind(name, when=rows.row_key(prefix=f"{name}_"), target=_target(f"{name}_")) for name in KINDS
    ]
    return Migration(source="Users", kinds=kinds, capture="delta")


def measure(count: int) -> dict[str, int]:
    """Return the figures over `count` rows."""
    made = list(rows_of_users(count))
    mapper = Mapper(USERS, {"users": SECRET.encode()})
    digester = Digester("Users")
    page = b'{"value":[' + b",".join(encode_row(row) for row in made) + b"]}"

    def map_all() -> None:
        for row in made:
            mapper.map(row)

    mixed = [{**row, "RowKey": f"{KINDS[number % 4]}_{row['RowKey']}"} for number, row in enumerate(made)]
    mappers = [Mapper(declared, {"users": SECRET.encode()}) for declared in (_one_kind(), _four_kinds())]

    def pages_by(mapper: Mapper) -> Callable[[], None]:
        def map_pages() -> None:
            for start in range(0, count, 1000):
                for _ in mapper.map_tables(mixed[start : start + 1000], lambda *_: None):
                    pass

        return map_pages

    one_kind, four_kinds = (per_cpu_second(pages_by(mapper), count) for mapper in mappers)

    def digest_all() -> None:
        for start in range(0, count, 1000):
            digester.digests(made[start : start + 1000])

    def encode_all() -> None:
        encoder = Encoder("http://127.0.0.1:10002/account", "UsersV2")
        for start in range(0, count, 100):
            parts = [encoder.encode(Operation(Verb.INSERT, row)) for row in made[start : start + 100]]
            batch_body(parts, "0" * 32)

    def decode_all() -> list[Row]:
        return decode_rows(page)

    return {
        "map": per_cpu_second(map_all, count),
        "map_pages_of_one_kind": one_kind,
        "map_pages_of_four_kinds": four_kinds,
        "digest": per_cpu_second(digest_all, count),
        "encode_batches": per_cpu_second(encode_all, count),
        "parse_pages": per_cpu_second(decode_all, count),
    }
