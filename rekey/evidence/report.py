"""The report of a bundle for people: one self-contained HTML file. It repeats the other files of the bundle,
names them, and begins with what was not proved: no clean full verification, no signature."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rekey.evidence import contents, note
from rekey.evidence.statement import LIVE_TYPE, parsed
from rekey.phases import shown as phase_name
from rekey.present.page import page
from rekey.present.plots import Pair, Span, pairs, timeline
from rekey.present.text import moment
from rekey.state.audit import BACKED_UP, ERASURE_BEGUN, ERASURE_ENDED
from rekey.verify.report import label_of

TAKEN_BACK = "taken back"
# Counts of an erasure in its event.
_ERASED = (
    *("forward_rows", "reverse_rows", "source_rows", "source_rows_gone"),
    *("removed_rows", "unreadable", "deleted_rows", "kept_rows"),
)


def render(files: Mapping[str, bytes]) -> str:
    """Return the report as HTML. `files`: the other files of the bundle, by path below `data/`."""
    state = json.loads(files[contents.STATE])
    events = [json.loads(line) for line in files[contents.EVENTS].splitlines()]
    checks = json.loads(files[contents.RECONCILIATION])
    script_id = events[-1]["script_id"]
    own = [event for event in events if event["script_id"] == script_id]
    shown = [event for event in events if event["script_id"] in (script_id, None)]
    full = [check for check in checks if check["mode"] == "full"]
    declaration = json.loads(files[contents.DECLARATION])
    capture = declaration["capture"]
    ended = [run for run in state["phase_runs"] if run["finished_at"]]
    runs = [{**run, "phase": phase_name(run["phase"], capture)} for run in ended] + list(
        _rolled_back(own, capture)
    )
    runs.sort(key=lambda run: datetime.fromisoformat(run["started_at"]))
    spans = list(map(_span, runs))
    amounts = [
        Pair(
            label_of(table["table"], table.get("partition_keys_begin", ""), table.get("row_keys_begin", "")),
            table["expected_rows"],
            table["actual_rows"],
        )
        for table in (full[-1]["tables"] if full else ())
    ]
    names = ("rows that the source gives", "rows that are there")
    live = files.get(contents.LIVE)
    return page(
        "evidence.html",
        exported=events[-1],
        declaration=declaration,
        target_tables=_tables(declaration),
        record=state["migration"] or {},
        phases=[phase_name(phase, capture) for phase in state["phases"]],
        checkpoint=note.parsed(files[contents.CHECKPOINT].decode()),
        runs=[(run, (span.end - span.begin).total_seconds()) for run, span in zip(runs, spans, strict=True)],
        timeline=timeline(spans, "Phases over time"),
        checks=[(check, _wrong(check)) for check in checks],
        last=full[-1] if full else None,
        wrong=_wrong(full[-1]) if full else 0,
        pairs=pairs(amounts, "Rows of the last full verification", names),
        saw=_saw,
        gates=json.loads(files[contents.GATES]),
        backups=[event for event in own if event["event"] == BACKED_UP],
        erasures=list(_erasures(own)),
        events=shown,
        others=len(events) - len(shown),
        names=contents,
        live=None if live is None else parsed(live).statement(LIVE_TYPE).predicate,
        files=sorted(files),
    )


def _span(run: Mapping[str, Any]) -> Span:
    begin, end = (datetime.fromisoformat(run[at]) for at in ("started_at", "finished_at"))
    back = run["outcome"] == TAKEN_BACK
    return Span(run["phase"], begin, end, back or run["outcome"] == "done", back)


def _tables(declaration: Mapping[str, Any]) -> list[str]:
    """Return the names of the tables that a declaration fills, the main target's first."""
    kinds = declaration.get("kinds", [declaration])
    targets = [kind["target"]["table"] for kind in kinds]
    indexes = [index["table"] for kind in kinds for index in kind["indexes"]]
    return list(dict.fromkeys([*targets, *indexes]))


def _rolled_back(events: Iterable[Mapping[str, Any]], capture: str) -> Iterator[dict[str, Any]]:
    """Yield rollbacks in the form of phase runs; only events record them. An interrupted one ends with the
    next phase that begins or is rolled back."""
    begun: Mapping[str, Any] | None = None
    for event in events:
        if event["event"] not in ("phase-undo", "phase-undone", "phase-begun"):
            continue
        if begun is not None:
            yield {
                "phase": f"back from {phase_name(begun['details']['phase'], capture)}",
                "started_at": begun["at"],
                "finished_at": event["at"],
                "outcome": TAKEN_BACK if event["event"] == "phase-undone" else "interrupted",
                "counters": {},
            }
        begun = event if event["event"] == "phase-undo" else None


def _wrong(check: Mapping[str, Any]) -> int:
    """Return how many rows keep a verification from being clean; in mode "count", how many partitions."""
    if check["mode"] == "count":
        return sum(table["differing"] for table in check["tables"])
    return sum(int(check.get(name, 0)) for name in ("stable", "unsettled", "unchecked"))


def _saw(saw: Mapping[str, Any]) -> str:
    """Return the facts that opened a gate as text."""
    words = []
    if (seen := saw["verification"]) is not None:
        words.append(f"{seen['divergences']:,} rows differing on {moment(seen['finished_at'])}")
    if saw["writers_stopped"]:
        words.append("writers stopped, as the operator said")
    if saw["table_name_typed"]:
        words.append("the table's name typed")
    return "; ".join(words)


def _erasures(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str, str, str]]:
    """Yield each erasure of the mapping: its event, what was erased, when it ended ("": not yet), counts."""
    ended = {event["details"]["begun"]: event for event in events if event["event"] == ERASURE_ENDED}
    for event in events:
        if event["event"] == ERASURE_BEGUN:
            end = ended.get(event["seq"])
            counts = _counts(end["details"]) if end else ""
            yield event, _meant(event["details"]), end["at"] if end else "", counts


def _meant(details: Mapping[str, Any]) -> str:
    if details["kind"] != "subjects":
        return f"{details['kind']}: {', '.join(details['cohorts'])}"
    words = {"rows": "rows ", "erased_before": "erased before: ", "unknown": "not known: "}
    return "; ".join(text + ", ".join(details[name]) for name, text in words.items() if details[name])


def _counts(details: Mapping[str, Any]) -> str:
    counts = {name.replace("_", " "): value for name, value in details.items() if name in _ERASED and value}
    counted = [f"{name} {value:,}" for name, value in counts.items()]
    counted += [f"rows of {table} {number:,}" for table, number in details.get("target_rows", {}).items()]
    if details.get("targets_changed"):
        counted.append(f"target rows changed meanwhile, and stay: {', '.join(details['targets_changed'])}")
    if details.get("changed"):
        counted.append(f"not erased, because written since: {', '.join(details['changed'])}")
    if details["kind"] == "cohorts":
        counted.append(f"the data keys of {', '.join(details['cohorts'])}")
    return ", ".join(counted)
