"""What is asked of a backfill, measured on the stub, each figure beside what is asked for.

    limits      30 ms a request, half of the rows in one partition, 20,000 rows/s and 2,000 a partition
    throttled   the same limits, partitions of one size, and a tenth of all requests refused
    requests    requests sent, against the least that the mapping allows
    row_check   every row tried, rows per second of processor
    sizes       resident memory and rows per second at several sizes

Rules kept here:

* What is allowed, and the least, are computed from the limits and the shape alone, never from a run.
* Time is the stub's, from the first request to the last; memory is that of the whole process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.dualwrite import KINDS
from benchmarks.dualwrite_cost import WRITERS
from benchmarks.project import SECRET
from benchmarks.shape import Shape
from benchmarks.stub import ACCOUNT_RATE, PARTITION_RATE
from benchmarks.stub_work import DECLARED, mapping_of
from benchmarks.stubbed import work
from rekey.declaration.mapper import Mapper
from rekey.model import EntityKey
from rekey.tables.base import MAX_BATCH_OPERATIONS, MAX_PAGE_ROWS

LATENCY = 0.03
Say = Callable[[str], None]

WANTED = {"copy": 15, "copy_targets": 30, "verify": 9}
"""Rows per second of processor, times the loop's."""
LEAST_ON_AZURITE = 3
LEAST_OF_ALLOWED, LEAST_THROTTLED = 0.90, 0.85
LEAST_CHECKED = 100_000
MOST_TIMES_NODE = {"cpu": 2, "wall": 3}
MOST_OF_COPY, MOST_REQUESTS_OF_APPLY = 2, 1.15
MOST_OF_WRITE, LEAST_OF_RATE = 2.5, 0.5
MOST_REQUESTS, MOST_MIB, LEAST_RATE = 1.1, 250, 0.9


def figure(asked: str, measured: float, met: bool, **more: Any) -> dict[str, Any]:
    """Return one figure beside what is asked for."""
    return {"asked": asked, "measured": round(measured, 3), "met": met, **more}


# --- rates ----------------------------------------------------------------------------------------------


def least_seconds(shape: Shape) -> float:
    """Return the seconds that the limits ask for at least: every row is read once and written once.

    The migration of the benchmarks keeps partitions, so the largest is the largest on both sides; reading and
    writing go on at the same time, and share the account's limit.
    """
    largest = max(Counter(shape.key(number)[0] for number in range(shape.rows)).values())
    return max(2 * shape.rows / ACCOUNT_RATE, largest / PARTITION_RATE)


def limits(rows: int, say: Say) -> dict[str, Any]:
    """Copy at the service's limits, half of the rows in one partition."""
    say(f"stub, {rows:,} rows, half of them in one partition: at the service's limits")
    done = work("rekey", "copy-limited", rows, "--limits", "--huge", "--latency", str(LATENCY))
    least = least_seconds(Shape(rows, huge=True))
    share = least / done["stub"]["seconds"]
    return figure(
        f"at least {LEAST_OF_ALLOWED} of what is allowed",
        share,
        share >= LEAST_OF_ALLOWED,
        rows=rows,
        seconds=round(done["stub"]["seconds"], 1),
        least_seconds=round(least, 1),
        cpu_seconds=round(done["cpu_seconds"], 1),
        refused=done["stub"].get("refused", 0),
    )


def throttled(rows: int, say: Say) -> dict[str, Any]:
    """Copy at the same limits while a tenth of all requests is refused, whatever they ask."""
    say(f"stub, {rows:,} rows: a tenth of all requests is refused")
    options = ("--limits", "--busy", "0.1", "--remember", "--latency", str(LATENCY))
    done = work("rekey", "copy-limited", rows, *options)
    stub = done["stub"]
    least = least_seconds(Shape(rows))
    share = least / stub["seconds"]
    lost = rows - stub["distinct_of"].get("UsersV2", 0)
    return figure(
        f"no row lost, at least {LEAST_THROTTLED} of what is allowed",
        share,
        share >= LEAST_THROTTLED and lost == 0,
        rows=rows,
        rows_lost=lost,
        mapping_rows_lost=2 * rows - stub["distinct_of"].get("rekeymap", 0),
        seconds=round(stub["seconds"], 1),
        least_seconds=round(least, 1),
        refused=stub["busy"] + stub.get("refused", 0),
    )


# --- requests -------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "partitions kept, 200 of one size": ("kept", ()),
    "partitions kept, half in one": ("kept", ("--huge",)),
    "all into 64 buckets": ("buckets", ()),
    "a partition for each row": ("apart", ()),
}


def least_requests(shape: Shape, mapping: str) -> dict[str, int]:
    """Return the least requests: full pages, and full batches of every partition that is written."""
    mapper = Mapper(DECLARED[mapping], {"users": SECRET.encode()})
    rows = mapping_of(DECLARED[mapping])
    targets: Counter[str] = Counter()
    mapped: Counter[str] = Counter()
    for number in range(shape.rows):
        source = shape.row(number)
        key = EntityKey(source["PartitionKey"], source["RowKey"])
        [(_, row)] = mapper.map(source)
        target = EntityKey(row["PartitionKey"], row["RowKey"])
        targets[target.partition] += 1
        mapped[rows.forward_key(key).partition] += 1
        mapped[rows.reverse_key(target).partition] += 1
    return {
        "read": -(-shape.rows // MAX_PAGE_ROWS),
        "targets": _batches(targets.values()),
        "mapping": _batches(mapped.values()),
    }


def _batches(sizes: Iterable[int]) -> int:
    return sum(-(-size // MAX_BATCH_OPERATIONS) for size in sizes)


def requests(rows: int, say: Say) -> dict[str, Any]:
    """Count what is sent for each mapping, against the least."""
    cases = {}
    for name, (mapping, options) in CASES.items():
        say(f"stub, {rows:,} rows: requests, {name}")
        stub = work("rekey", f"copy:{mapping}", rows, *options)["stub"]
        assert stub["tables"] == {"UsersV2": rows, "rekeymap": 2 * rows}, stub["tables"]
        least = least_requests(Shape(rows, huge="--huge" in options), mapping)
        sent = {
            "read": stub["pages"],
            "targets": stub["requests"].get("UsersV2", 0),
            "mapping": stub["requests"].get("rekeymap", 0),
        }
        ratio = sum(sent.values()) / sum(least.values())
        cases[name] = figure(
            f"at most {MOST_REQUESTS} times the least", ratio, ratio <= MOST_REQUESTS, sent=sent, least=least
        )
    return {"rows": rows, "cases": cases, "met": all(case["met"] for case in cases.values())}


# --- sizes ----------------------------------------------------------------------------------------------


def sizes(counts: tuple[int, ...], base: int, say: Say) -> dict[str, Any]:
    """Copy tables of several sizes: memory, and rows per second of the largest against one of `base` rows."""
    done = {}
    for rows in sorted({*counts, base}):
        say(f"stub, {rows:,} rows: memory and rows per second")
        done[rows] = work("rekey", "copy", rows)
    memory = {str(rows): round(done[rows]["peak_mib"], 1) for rows in counts}
    rates = {rows: one["rows"] / one["seconds"] for rows, one in done.items()}
    per_cpu = {rows: one["rows"] / one["cpu_seconds"] for rows, one in done.items()}
    largest = max(counts)
    most = max(memory.values())
    return {
        "peak_rss_mib": figure(f"at most {MOST_MIB} at every size", most, most <= MOST_MIB, sizes=memory),
        "rows_per_second": figure(
            f"{largest:,} rows at least {LEAST_RATE} of {base:,}",
            rates[largest] / rates[base],
            rates[largest] / rates[base] >= LEAST_RATE,
            sizes={str(rows): round(rate) for rows, rate in rates.items()},
            by_processor=round(per_cpu[largest] / per_cpu[base], 3),
        ),
    }


# --- row check ------------------------------------------------------------------------------------------


def row_check(rows: int, say: Say, tries: int) -> dict[str, Any]:
    """Try every row, as `apply` does before its first write: the best of some tries."""
    done = []
    for _ in range(tries):
        say(f"stub, {rows:,} rows: row check")
        done.append(work("rekey", "check", rows))
    rate = max(one["rows"] / one["cpu_seconds"] for one in done)
    return figure(
        f"at least {LEAST_CHECKED:,} rows per second of processor",
        round(rate),
        rate >= LEAST_CHECKED,
        rows=rows,
        peak_rss_mib=round(max(one["peak_mib"] for one in done), 1),
    )


# --- all of it ------------------------------------------------------------------------------------------


def asked_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every figure that something is asked of: what, what was measured, whether it is met."""
    found: dict[str, dict[str, Any]] = {}
    if "side_by_side" in document:
        ratio = document["side_by_side"]["ratio_same_rows"]["wall"]
        found["wall clock on Azurite"] = figure(
            f"at least {LEAST_ON_AZURITE} times the loop", ratio, ratio >= LEAST_ON_AZURITE
        )
    for work_done, wanted in WANTED.items() if "on_the_stub" in document else ():
        ratio = document["on_the_stub"][work_done]["ratio"]
        found[f"rows per second of processor, {work_done}"] = figure(
            f"at least {wanted} times the loop", ratio, ratio >= wanted
        )
    if "limits" in document:
        found["at the service's limits"] = document["limits"]
    if "throttled" in document:
        found["a tenth of requests refused"] = document["throttled"]
    if "freeze" in document:
        found["under freeze"] = document["freeze"]
    if "rates" in document:
        found["rates that follow the service"] = document["rates"]
    if "row_check" in document:
        found["row check"] = document["row_check"]
    if "peers" in document:
        ratios = document["peers"]["rekey_apply_to"]["node_sdk"]
        for clock, most in MOST_TIMES_NODE.items():
            found[f"`rekey apply` to the copy by the SDK for Node.js, {clock}"] = figure(
                f"at most {most} times", ratios[clock], ratios[clock] <= most
            )
        copying = document["peers"]["backfill_to_node_sdk"]
        found["backfill with sealed mapping to the copy by the SDK for Node.js, cpu"] = figure(
            f"at most {MOST_OF_COPY} times", copying, copying <= MOST_OF_COPY
        )
        sent = document["peers"]["requests_of_apply"]["ratio"]
        found["requests of `rekey apply`"] = figure(
            f"at most {MOST_REQUESTS_OF_APPLY} times the least", sent, sent <= MOST_REQUESTS_OF_APPLY
        )
    found |= _of_dual_writes(document.get("dual_write", {}))
    for name, case in document.get("requests", {}).get("cases", {}).items():
        found[f"requests, {name}"] = case
    for part in ("proxy", "sizes", "backup", "scale", "large_life"):
        found |= {f"{part}, {name}": one for name, one in document.get(part, {}).items() if "asked" in one}
    return {
        name: {"asked": one["asked"], "measured": one["measured"], "met": one["met"]}
        for name, one in found.items()
    }


def _of_dual_writes(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind in [one.name for one in KINDS if one.name in measured]:
        loads = [view["load"] for moment in measured[kind].values() for view in moment.values()]
        cpu = max(one["cpu_times_plain"] for load in loads for one in load.values())
        found[f"processor of a dual write, {kind}"] = figure(
            f"at most {MOST_OF_WRITE} times a plain one's", cpu, cpu <= MOST_OF_WRITE
        )
        rate = min(load["authority"]["rate_times_plain"] for load in loads if "authority" in load)
        found[f'rate of {WRITERS} writers, acknowledge="authority", {kind}'] = figure(
            f"at least {LEAST_OF_RATE} of the plain client's", rate, rate >= LEAST_OF_RATE
        )
    return found
