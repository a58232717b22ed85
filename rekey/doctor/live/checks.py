"""The checks: each tries one assumption of rekey and returns what it saw, by name. `checks.toml` says what
must be seen; anything else, or anything missing, is a deviation.

Checks use the same table interface as everything else (`rekey.tables.base`), so they run on tables in memory
too; `WIRE` has those that need HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from rekey.core import texts
from rekey.core.clock import TICKS_PER_SECOND, SystemClock, ticks_of
from rekey.core.edm import BINARY, INT64, canonical_content
from rekey.core.limits import MAX_KEY_UNITS, MAX_NAME_CHARACTERS, MAX_PROPERTIES
from rekey.doctor.live.stage import GONE, Scene, opened, outcome_of, sending
from rekey.errors import ServiceError
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, EntityKey, KeyRange, Row, key_of
from rekey.project.config import account_key
from rekey.protocol.registry import SAFETY_S
from rekey.tables.answers import Answer, read_batch
from rekey.tables.base import MAX_BATCH_OPERATIONS, SIGNED_S, Operation, Verb
from rekey.tables.credentials import SharedKey
from rekey.tables.odd_keys import probe_odd_keys
from rekey.tables.probe import ask
from rekey.tables.sent import RequestKind
from rekey.tables.transport import NoAnswer, NotSent, Request
from rekey.tables.wire import COMMON_HEADERS, Encoder, batch_body

CATALOGUE = Path(__file__).with_name("checks.toml")
_READ = texts.table(CATALOGUE)
PROMISES: Mapping[str, str] = _READ["promises"]
CHECKS: Mapping[str, Mapping[str, Any]] = _READ["checks"]
# Properties to write, with their annotations.
VALUES: Mapping[str, Any] = _READ["values"]
# The name under which a check says why it failed to run.
ERROR = "error"
# A deviation as reported: `word`, `wanted` and `seen`, whether it is `known` of Azurite (on Azurite), and the
# `promise` that rests on it.
Deviation: TypeAlias = dict[str, Any]
Seen: TypeAlias = Mapping[str, object]
Check: TypeAlias = Callable[[Scene], Awaitable[Seen]]
_STALE = "W/\"datetime'2001-01-01T00%3A00%3A00.0000000Z'\""
_CONDITIONAL = (Verb.REPLACE, Verb.MERGE, Verb.DELETE)
_SAFE_TICKS = round(SAFETY_S * TICKS_PER_SECOND)
# Seconds within which a request repeated by an intermediary would arrive again.
_SETTLED_S = 1.5


def _inserts(rows: Iterable[Row]) -> list[Operation]:
    return [Operation(Verb.INSERT, row) for row in rows]


def _each_once(rows: Sequence[Row], expected: Iterable[Row]) -> str:
    """Tell whether rows are the expected ones, each once."""
    counts = Counter(map(key_of, rows))
    counts.subtract(map(key_of, expected))
    lost, more = sum(n < 0 for n in counts.values()), sum(n > 0 for n in counts.values())
    return f"{lost} lost, {more} too many"


def _ordered(rows: Sequence[Row]) -> bool:
    orders = [key_of(row).order for row in rows]
    return orders == sorted(orders)


# --- writes and conditions -------------------------------------------------------------------------------


async def insert_once(on: Scene) -> Seen:
    """An insert never overwrites."""
    await on.table.insert(on.row(N=1))
    return {"again": await outcome_of(on.table.insert(on.row(N=2))), "kept": await on.number()}


async def update_needs_row(on: Scene) -> Seen:
    """An update or delete of a row that is not there does nothing."""
    seen = {
        str(verb): await outcome_of(on.table.write(Operation(verb, on.row(N=1)))) for verb in _CONDITIONAL
    }
    return {**seen, "after": await on.number()}


async def conditions(on: Scene) -> Seen:
    """A condition holds for the row's current ETag only."""
    stale = await on.table.insert(on.row(N=1))
    fresh = await on.table.replace(on.row(N=2), etag=stale)
    seen = {
        str(verb): await outcome_of(on.table.write(Operation(verb, on.row(N=3), stale)))
        for verb in _CONDITIONAL
    }
    seen["kept"] = await on.number()
    return {**seen, "current": await outcome_of(on.table.delete(key_of(on.row()), etag=fresh))}


async def one_winner(on: Scene) -> Seen:
    """Of concurrent writers with the same ETag one wins."""
    etag = await on.table.insert(on.row(N=0))
    ended = await asyncio.gather(*(outcome_of(on.table.merge(on.row(N=n), etag=etag)) for n in range(1, 7)))
    winners = [str(number) for number, ended_as in enumerate(ended, 1) if ended_as == "done"]
    return {"winners": len(winners), "kept_is_its": [await on.number()] == winners}


async def replace_and_merge(on: Scene) -> Seen:
    """A replace drops what it does not name, a merge keeps it, an upsert does either; nulls are dropped."""
    seen: dict[str, str] = {}
    for verb, properties in (
        (Verb.INSERT, {"A": 1, "B": 1, "C": None}),
        (Verb.MERGE, {"B": 2}),
        (Verb.INSERT_OR_MERGE, {"C": 3}),
        (Verb.REPLACE, {"B": 4}),
        (Verb.INSERT_OR_REPLACE, {"D": 5}),
    ):
        await on.table.write(Operation(verb, on.row(**properties)))
        row = await on.get()
        seen[verb] = ",".join(f"{name}{row[name]}" for name in "ABCD" if name in row)
    return seen


async def etags(on: Scene) -> Seen:
    """Every write gives an ETag that the row never had, and reads and scans return it."""
    verbs = (Verb.INSERT, Verb.REPLACE, Verb.MERGE, Verb.DELETE, Verb.INSERT)
    etags = [await on.table.write(Operation(verb, on.row(N=1))) for verb in verbs]
    etags += map(str, await on.table.transact([Operation(Verb.REPLACE, on.row(N=1), "*")]))
    scanned = [row.get(ETAG) for row in await on.scan()]
    read = (await on.get()).get(ETAG)
    return {"new": len(set(etags)) == len(etags), "read": read == etags[-1], "scanned": scanned == etags[-1:]}


async def read_after_write(on: Scene) -> Seen:
    """A point read shows every write that was answered before it."""
    seen: dict[str, bool] = {}
    for name in ("r0", "r1", "r2", "r3"):
        for verb, expected in ((Verb.INSERT, "1"), (Verb.MERGE, "2"), (Verb.DELETE, GONE)):
            await on.table.write(Operation(verb, on.row(name, N=expected)))
            seen[verb] = seen.get(verb, True) and await on.number(name) == expected
    return seen


async def not_repeated(on: Scene) -> Seen:
    """No intermediary repeats a write."""
    table, put, gone = on.table, on.row("put", N=1), on.row("gone", N=1)
    await table.insert(gone)
    await table.upsert(put)
    await table.delete(key_of(gone))
    await table.insert({**gone, "N": 2})
    etag = await table.merge({**put, "N": 2})
    await on.stage.clock.sleep(_SETTLED_S)
    row = await on.get("put")
    return {
        "put_once": (row.get("N"), row.get(ETAG)) == (2, etag),
        "delete_once": await on.number("gone") == "2",
    }


# --- scans ----------------------------------------------------------------------------------------------

# Keys that an intermediary could confuse or sort differently.
_ODD = (
    *("", " ", "0", "A", "a", "a ", "a.", "+", "'", "''", "%", "%25", "%2F", "&=;:@$,()", '"', "<x>"),
    *("\u00e9", "e\u0301", "\u6f22", "\ue000", "\ufffd", "\U0001f600", "\U0010ffff"),
)


async def order(on: Scene) -> Seen:
    """A scan returns rows by PartitionKey, then RowKey, each once."""
    table = await on.stage.new_table()
    rows = [
        {PARTITION_KEY: partition, ROW_KEY: row}
        for partition in ("b", "a", "A", "\U0001f600", "\ufffd")
        for row in "21"
    ]
    for number in range(0, len(rows), 2):
        await table.transact(_inserts(rows[number : number + 2]))
    await table.transact(_inserts(on.row(name) for name in _ODD))
    scanned = [row async for page in table.scan() for row in page.rows]
    return {
        "in_order": _ordered(scanned),
        "rows": _each_once(scanned, [*rows, *(on.row(name) for name in _ODD)]),
    }


async def odd_keys(on: Scene) -> Seen:
    """Keys stay unchanged and distinct in writes, queries and filters."""

    async def number(name: str) -> str:
        try:
            return await on.number(name)
        except ServiceError as error:
            return error.code

    await on.table.transact(_inserts(on.row(name, N=number) for number, name in enumerate(_ODD)))
    read = await asyncio.gather(*map(number, _ODD))
    wrong = 0
    for low, high in (("A", "b"), ("a", "a."), ("b", "\ufffd")):
        within = KeyRange(EntityKey(on.partition, low), EntityKey(on.partition, high))
        in_range = [row[ROW_KEY] async for page in on.table.scan(within) for row in page.rows]
        wrong += sorted(in_range) != sorted(name for name in _ODD if EntityKey(on.partition, name) in within)
    return {"read": read == [str(number) for number in range(len(_ODD))], "filtered": not wrong}


async def addresses(on: Scene) -> Seen:
    """Odd keys arrive unchanged in the address of a row."""
    misread = await probe_odd_keys(on.table, on.partition)
    return {"misread": ", ".join(misread.at_addresses) or "nothing"}


async def pages(on: Scene) -> Seen:
    """A scan in pages returns every row once, whatever the pages."""
    rows = [on.row(f"{number:02}", N=number) for number in range(23)]
    await on.table.transact(_inserts(rows))
    answers = [page.rows async for page in on.table.scan(on.own, page_rows=5)]
    scanned = [row for answer in answers for row in answer]
    most = max(map(len, answers))
    return {"rows": _each_once(scanned, rows), "in_order": _ordered(scanned), "at_most_as_asked": most <= 5}


async def moving_scan(on: Scene) -> Seen:
    """A scan returns every row that is not deleted meanwhile once, whatever else changes."""
    rows = [on.row(f"{number:02}", N=number) for number in range(1, 21)]
    await on.table.transact(_inserts(rows))
    gone, scanned = [rows[2], rows[14]], list[Row]()
    async for page in on.table.scan(on.own, page_rows=6, ahead=False):
        if not scanned:
            changes = [Operation(Verb.DELETE, row) for row in gone]
            changes += [Operation(Verb.MERGE, row, "*") for row in (rows[4], rows[10])]
            await on.table.transact(changes + _inserts([on.row("00"), on.row("085")]))
        scanned += page.rows
    staying = [row for row in rows if row not in gone]
    kept = [row for row in scanned if row[ROW_KEY] in {row[ROW_KEY] for row in staying}]
    return {"staying": _each_once(kept, staying), "twice": len(scanned) - len(set(map(key_of, scanned)))}


async def ranges(on: Scene) -> Seen:
    """A filter on keys returns exactly the rows of the range."""
    rows = [{PARTITION_KEY: f"{on.partition}{suffix}", ROW_KEY: row} for suffix in "abc" for row in "123"]
    for number in range(0, 9, 3):
        await on.table.transact(_inserts(rows[number : number + 3]))
    seen: dict[str, str] = {}
    for name, low, high in (("across", 1, 6), ("within", 0, 1), ("of_one", 2, 5)):
        within = KeyRange(key_of(rows[low]), key_of(rows[high]))
        in_range = [row async for page in on.table.scan(within) for row in page.rows]
        seen[name] = _each_once(in_range, rows[low + 1 : high + 1])
    return seen


async def selection(on: Scene) -> Seen:
    """A selection returns what it names, with keys, ETag and Timestamp."""
    await on.table.insert(on.row(A="1", B=2, **{"A" + TYPE_SUFFIX: INT64}))
    always = {PARTITION_KEY, ROW_KEY, ETAG, TIMESTAMP, "A", "A" + TYPE_SUFFIX}
    read = await on.table.get(key_of(on.row()), select=["A", "Z"]) or {}
    scanned = await on.scan(select=["A", "Z"])
    return {"read": set(read) == always, "scanned": [set(row) for row in scanned] == [always]}


# --- time ------------------------------------------------------------------------------------------------


async def timestamps(on: Scene) -> Seen:
    """Timestamps rise with the writes of a row, do not fall within a partition, and have 100 ns."""
    stamps: list[str] = []
    for number in range(8):
        await on.table.upsert(on.row("same" if number < 4 else f"r{number}", N=number))
        stamps.append(str((await on.get("same" if number < 4 else f"r{number}")).get(TIMESTAMP)))
    ticks = [ticks_of(stamp) for stamp in stamps]
    finest = next((unit for unit in (10_000_000, 10_000, 10) if not any(tick % unit for tick in ticks)), 1)
    return {
        "of_a_row_rise": all(a < b for a, b in pairwise(ticks[:4])),
        "of_a_partition_do_not_fall": ticks == sorted(ticks),
        "resolution": {10_000_000: "1 s", 10_000: "1 ms", 10: "1 us", 1: "100 ns"}[finest],
    }


async def changed_since(on: Scene) -> Seen:
    """A filter on Timestamp returns what was written at or after a time, and nothing older."""
    for number in range(3):
        await on.table.insert(on.row(f"r{number}"))
        await on.stage.clock.sleep(0.02)
    middle = str((await on.get("r1"))[TIMESTAMP])
    changed = [row[ROW_KEY] for row in await on.scan(modified_from=middle)]
    none = await on.scan(modified_from="2999-01-01T00:00:00.0000000Z")
    older, equal, newer = (name in changed for name in ("r0", "r1", "r2"))
    return {"older": older, "equal": equal, "newer": newer, "of_none": len(none)}


async def clock(on: Scene) -> Seen:
    """The service's time does not run backwards, and Timestamps match it."""
    service, moments, off = on.stage.service, list[int](), 0
    for number in range(4):
        moments.append(ticks_of(await service.server_time()))
        await on.table.upsert(on.row(N=number))
        stamp = ticks_of(str((await on.get())[TIMESTAMP]))
        moments.append(ticks_of(await service.server_time()))
        # Reported times are whole seconds: up to a second early.
        off += not moments[-2] - _SAFE_TICKS <= stamp <= moments[-1] + _SAFE_TICKS + TICKS_PER_SECOND
    return {"falls": max(a - b for a, b in pairwise(moments)) > _SAFE_TICKS, "timestamps_off": off}


async def service_time(on: Scene) -> Seen:
    """The service accepts the parameter that limits its work on a request."""
    table = on.stage.service.multi_writer_table(on.table.name)
    etag = await table.insert(on.row(N=1))
    await table.replace(on.row(N=2), etag=etag)
    return {"batch": await outcome_of(table.transact([Operation(Verb.MERGE, on.row(N=3), "*")]))}


# --- values and limits -----------------------------------------------------------------------------------


async def values(on: Scene) -> Seen:
    """Every value is returned as written, with its type."""
    row = on.row(**VALUES)
    await on.table.insert(row)
    kept = [canonical_content(content) for content in (await on.get(), *await on.scan())]
    altered = {value[0] for value in canonical_content(row) if not all(value in content for content in kept)}
    return {"altered": ", ".join(sorted(altered)) or "nothing", "read": len(kept)}


async def value_limits(on: Scene) -> Seen:
    """Strings and binary values of nearly 64 KiB are accepted, larger ones refused."""
    tried: dict[str, Row] = {f"string_{n}": {"V": "x" * n} for n in (2**15 - 1, 2**15 + 1)}
    tried |= {f"binary_{3 * n}": {"V": "AAAA" * n, "V" + TYPE_SUFFIX: BINARY} for n in (21844, 21846)}
    return {name: await outcome_of(on.table.insert(on.row(name, **row))) for name, row in tried.items()}


async def key_limits(on: Scene) -> Seen:
    """Keys of up to 1,024 units are accepted, longer ones and certain characters refused."""
    tried = {f"units_{n}": "k" * n for n in (MAX_KEY_UNITS // 2, MAX_KEY_UNITS, MAX_KEY_UNITS + 1)}
    tried |= {"slash": "a/b", "backslash": "a\\b", "hash": "a#b", "question": "a?b", "control": "a\x01b"}
    return {name: await outcome_of(on.table.insert(on.row(key))) for name, key in tried.items()}


async def row_limits(on: Scene) -> Seen:
    """Rows of 252 properties, names of 255 characters and about 1 MiB are accepted, larger ones refused."""
    tried: dict[str, Row] = {
        f"properties_{n}": {f"P{number}": number for number in range(n)}
        for n in (MAX_PROPERTIES, MAX_PROPERTIES + 1)
    }
    tried |= {f"name_{n}": {"n" * n: 1} for n in (MAX_NAME_CHARACTERS, MAX_NAME_CHARACTERS + 1)}
    tried |= {f"kib_{n * 62}": {f"P{number}": "x" * 31744 for number in range(n)} for n in (16, 18)}
    return {name: await outcome_of(on.table.insert(on.row(name, **row))) for name, row in tried.items()}


# --- transactions ----------------------------------------------------------------------------------------


async def transaction(on: Scene) -> Seen:
    """A transaction applies every verb, and returns ETags in order."""
    table, before = on.table, ("merged", "replaced", "deleted")
    await table.transact(_inserts(on.row(name, A=1, B=1) for name in before))
    verbs = [
        (Verb.INSERT, "new", "A=2"),
        (Verb.MERGE, "merged", "A=2,B=1"),
        (Verb.REPLACE, "replaced", "A=2"),
        (Verb.DELETE, "deleted", ""),
        (Verb.INSERT_OR_REPLACE, "upserted", "A=2"),
        (Verb.INSERT_OR_MERGE, "upmerged", "A=2"),
    ]
    etags = await table.transact([Operation(verb, on.row(name, A=2)) for verb, name, _ in verbs])
    rows = [await on.get(name) for _, name, _ in verbs]
    contents = [",".join(f"{name}={row[name]}" for name in "AB" if name in row) for row in rows]
    return {
        "as_written": contents == [content for *_, content in verbs],
        "etags_in_order": [row.get(ETAG) for row in rows] == etags,
    }


async def transaction_whole(on: Scene) -> Seen:
    """A transaction that fails changes nothing, and reports the failing operation and the reason."""
    await on.table.transact(_inserts(on.row(name, N=1) for name in ("there", "other")))
    before = await on.scan()
    others = [Operation(Verb.DELETE, on.row("other")), Operation(Verb.INSERT, on.row("new"))]
    failing = {
        "exists": Operation(Verb.INSERT, on.row("there")),
        "missing": Operation(Verb.MERGE, on.row("absent", N=2)),
        "changed": Operation(Verb.REPLACE, on.row("there", N=2), _STALE),
    }
    seen = {
        name: await outcome_of(on.table.transact([*others, operation])) for name, operation in failing.items()
    }
    seen["single"] = await outcome_of(on.table.transact([failing["exists"]]))
    return {**seen, "after_as_before": await on.scan() == before}


async def transaction_limits(on: Scene) -> Seen:
    """Transactions of 100 operations and nearly 4 MiB are accepted; larger and invalid ones refused."""
    account = on.stage.account
    encoder = Encoder(account.endpoint, on.table.name)

    async def send(operations: Sequence[Operation]) -> None:
        mark = secrets.token_hex(16)
        headers = {**COMMON_HEADERS, "Content-Type": f"multipart/mixed; boundary=batch_{mark}"}
        body = batch_body([encoder.encode(operation) for operation in operations], mark)
        answer: Answer = await transport.send(Request("POST", "$batch", "write a batch", headers, body))
        read_batch(answer, "write a batch", operations)

    def named(name: str, count: int, **properties: object) -> list[Operation]:
        return _inserts(on.row(f"{name}{number:03}", **properties) for number in range(count))

    most = MAX_BATCH_OPERATIONS
    tried = {
        "operations_100": named("a", most),
        "operations_101": named("b", most + 1),
        "mib_4": named("c", 66, V="x" * 31500, W="x" * 31500),
        "over_4_mib": named("d", 68, V="x" * 31500, W="x" * 31500),
        "one_row_twice": [*named("e", 1), *named("e", 1)],
        "two_partitions": [*named("f", 1), Operation(Verb.INSERT, {**on.row("f1"), PARTITION_KEY: "other"})],
    }
    seen: dict[str, str] = {}
    async with sending(account) as transport:
        for name, operations in tried.items():
            try:
                seen[name] = await outcome_of(send(operations))
            except (ValueError, NotSent, NoAnswer):
                seen[name] = "no answer"
    refused = {row[ROW_KEY][0] for row in await on.scan(select=[])} - {"a", "c"}
    return {**seen, "rows_of_refused": bool(refused)}


# --- tables, answers, credentials -----------------------------------------------------------------------


async def tables(on: Scene) -> Seen:
    """A table is created once, whatever the case of its name; a deleted one refuses everything, and its name
    stays reserved for a while."""
    service, table = on.stage.service, await on.stage.new_table()
    again = [await service.create_table(name) for name in (table.name, table.name.upper())]
    await table.insert(on.row())
    await service.delete_table(table.name)
    return {
        "made_again": any(again),
        "read": await outcome_of(table.get(key_of(on.row()))),
        "insert": await outcome_of(table.insert(on.row())),
        "name": await outcome_of(service.create_table(table.name)),
    }


async def lost_answers(on: Scene) -> Seen:
    """A write whose answer is lost is found in the table, and repeated only where that does no harm."""
    lose: list[RequestKind] = []

    def heard(kind: RequestKind, _status: int, _seconds: float) -> None:
        if lose and kind is lose[0]:
            lose.clear()
            raise ConnectionResetError  # simulates a connection that broke before the answer

    seen: dict[str, str] = {}
    async with opened(on.stage.account) as service:
        service.listen(heard)
        table, key = service.table(on.table.name), key_of(on.row())

        async def losing(name: str, kind: RequestKind, call: Awaitable[object]) -> None:
            lose[:] = [kind]
            seen[name] = f"{await outcome_of(call)}, {await on.number()}"

        await losing("insert", RequestKind.WRITE, table.insert(on.row(N=1)))
        etag = str((await on.get()).get(ETAG))
        await losing("replace", RequestKind.WRITE, table.replace(on.row(N=2), etag=etag))
        batch = [Operation(Verb.INSERT, on.row("b")), Operation(Verb.MERGE, on.row(N=3), "*")]
        await losing("batch", RequestKind.BATCH, table.transact(batch))
        etag = str((await on.get()).get(ETAG))
        multi_writer = service.multi_writer_table(on.table.name)
        await losing("shared", RequestKind.WRITE, multi_writer.merge(on.row(N=4), etag=etag))
        await losing("delete", RequestKind.DELETE, table.delete(key))
    return seen


async def credentials(on: Scene) -> Seen:
    """A request without a credential, with another key, or signed too long ago is refused."""
    account = on.stage.account
    path, own = f"{on.table.name}()?$top=1", account_key(account)
    strange = SharedKey(account.name, secrets.token_bytes(64))

    async def asked(key: SharedKey | None) -> str:
        heard = await ask(account.endpoint, path, key, clock=SystemClock())
        return "taken" if heard.accepted else "refused" if 400 <= heard.status < 500 else "no answer"

    seen = {"none": await asked(None), "another": await asked(strange), "signed_long_ago": "refused"}
    if own is not None:  # a token's lifetime cannot be tested
        # By the service's clock: this machine's may be minutes ahead.
        ahead = SystemClock().ticks() - ticks_of(await on.stage.service.server_time())
        ago = SIGNED_S + 120 + ahead / TICKS_PER_SECOND
        late = replace(SharedKey.of(account.name, own), signed_s_ago=ago)
        seen["signed_long_ago"] = await asked(late)
    return seen


def _named(*checks: Check) -> dict[str, Check]:
    return {check.__name__.replace("_", "-"): check for check in checks}


# Checks of any table, by id.
ALIKE = _named(
    *(insert_once, update_needs_row, conditions, one_winner, replace_and_merge, etags, read_after_write),
    *(
        not_repeated,
        order,
        odd_keys,
        addresses,
        pages,
        moving_scan,
        ranges,
        selection,
        timestamps,
        changed_since,
        clock,
    ),
    *(service_time, values, value_limits, key_limits, row_limits, transaction, transaction_whole, tables),
)
# Checks that need HTTP.
WIRE = _named(transaction_limits, lost_answers, credentials)


# --- what deviates --------------------------------------------------------------------------------------


def deviations(check: str, seen: Mapping[str, object], *, azurite: bool) -> list[Deviation]:
    """Return the deviations in what a check saw. `azurite`: the service says that it is Azurite."""
    holds, known = CHECKS[check]["holds"], CHECKS[check].get("azurite", {}) if azurite else {}
    if ERROR in seen:
        holds, seen = {ERROR: "none"}, {ERROR: seen[ERROR]}
    deviating = []
    for word in dict.fromkeys([*holds, *seen]):
        there, wanted = str(seen.get(word, "nothing")), holds.get(word, "nothing")
        patterns = [wanted] if isinstance(wanted, str) else wanted
        if word not in holds or not any(fnmatchcase(there, pattern) for pattern in patterns):
            is_known = word in known and fnmatchcase(there, known[word])
            deviation = {"word": word, "wanted": " or ".join(patterns), "seen": there, "known": is_known}
            deviating.append({**deviation, "promise": PROMISES[CHECKS[check]["promise"]]})
    return deviating
