"""The report of a bundle for people: one HTML file that needs nothing from outside.

Rules kept here:

* It says nothing that the other files of the bundle do not say, and says which file says it.
* It opens with what was proved and what was not: a bundle without a clean full verification says so in its
  first lines, and so does one that nobody signed.
* No script, nothing loaded: a content security policy forbids both. Every text is escaped.
* It prints on A4: tables repeat their heads, nothing is cut in two that can stay whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rekey.evidence import contents, note
from rekey.present.page import escape, mark, page, table, verdict, when
from rekey.present.plots import Pair, Span, duration, pairs, timeline
from rekey.state.audit import ERASURE_BEGUN, ERASURE_ENDED

_ERASED = (
    *("forward_rows", "reverse_rows", "source_rows", "source_rows_gone"),
    *("unreadable", "deleted_rows", "kept_rows"),
)
"""Counts of what an erasure deleted, as its event names them."""


def render(files: Mapping[str, bytes]) -> str:
    """Return the report.

    Args:
        files: the other files of the bundle, by path (`contents.files`).
    """
    state = json.loads(files[contents.STATE])
    events = [json.loads(line) for line in files[contents.EVENTS].splitlines()]
    checks = json.loads(files[contents.RECONCILIATION])
    checkpoint = note.parsed(files[contents.CHECKPOINT].decode())
    declaration = json.loads(files[contents.DECLARATION])
    exported = events[-1]
    full = [one for one in checks if one["mode"] == "full"]
    title = f"Evidence of {exported['script_id']}"
    what = f"{declaration['source']} to {_targets(declaration)}"
    who = f"exported {exported['at']} by {exported['actor']} on {exported['host']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(what)}; {escape(who)}</p>',
        *_verdicts(full[-1] if full else None, checkpoint),
        _facts(state, declaration, checkpoint),
        _phases(state),
        _comparisons(full, checks),
        _gates(json.loads(files[contents.GATES])),
        _erasures([event for event in events if event["script_id"] == exported["script_id"]]),
        _events(events, exported["script_id"]),
        _files(files),
    ]
    return page(title, parts)


def _targets(declaration: Mapping[str, Any]) -> str:
    return ", ".join(one["table"] for one in (declaration["target"], *declaration["indexes"]))


def _verdicts(last: Mapping[str, Any] | None, checkpoint: note.Note) -> list[str]:
    if last is None:
        found = [verdict(False, "Nothing was verified in full.", "No statement about the rows can be made.")]
    elif _wrong(last):
        said = (
            f"The last full verification, of {last['finished_at']}, found {_wrong(last):,} rows that differ."
        )
        found = [verdict(False, said, "See below, and the events after it.")]
    else:
        rows = " ".join(
            f"{one['table']} held {one['actual_rows']:,} rows, as its source rows give;"
            for one in last["tables"]
        )
        said = f"Every row and every property was compared on {last['finished_at']}: none differed."
        found = [
            verdict(True, said, f"{last['source_rows']:,} source rows of {last['source']}. {rows[:-1]}.")
        ]
    if not checkpoint.is_signed:
        said = "No key was configured: this bundle proves nothing against whoever can write its files."
        found.append(verdict(False, "Nobody signed this.", said))
    return found


def _wrong(check: Mapping[str, Any]) -> int:
    """Return how many rows keep a verification from being clean."""
    return sum(int(check.get(name, 0)) for name in ("stable", "unsettled", "unchecked"))


def _facts(state: Mapping[str, Any], declaration: Mapping[str, Any], checkpoint: note.Note) -> str:
    record = state["migration"] or {}
    listed = [
        (
            "Declaration",
            f"<code>{escape(record.get('digest', 'the state file does not know it any more'))}</code>",
        ),
        ("Accounts", escape(str(record.get("accounts", "–")))),
        ("Capture", escape(declaration["capture"])),
        ("Way back", "yes" if declaration["reverse"] else "none after cutover (reverse=False)"),
        ("Phases done", escape(", ".join(state["phases"]) or "none")),
        (
            "Audit log",
            f"<code>{escape(checkpoint.checkpoint.log)}</code>, {checkpoint.checkpoint.size:,} events",
        ),
    ]
    return "<h2>The migration</h2><dl>" + "".join(f"<dt>{a}</dt><dd>{b}</dd>" for a, b in listed) + "</dl>"


def _phases(state: Mapping[str, Any]) -> str:
    runs = [run for run in state["phase_runs"] if run["finished_at"]]
    spans = [
        Span(run["phase"], _moment(run["started_at"]), _moment(run["finished_at"]), run["outcome"] == "done")
        for run in runs
    ]
    rows = [
        [
            escape(run["phase"]),
            when(run["started_at"]),
            duration((span.end - span.begin).total_seconds()),
            mark(run["outcome"] == "done", run["outcome"]),
            escape(
                ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in run["counters"].items())
            ),
        ]
        for run, span in zip(runs, spans, strict=True)
    ]
    listed = table(("phase", "begun", "took", "ended", "counts"), rows)
    return (
        f"<h2>Phases</h2>{timeline(spans, 'Phases over time')}{listed}{_of(contents.STATE)}" if rows else ""
    )


def _comparisons(full: Sequence[Mapping[str, Any]], checks: Sequence[Mapping[str, Any]]) -> str:
    if not checks:
        return ""
    rows = [
        [
            escape(one["mode"]),
            when(one["finished_at"]),
            f"{one.get('source_rows', sum(part['checked'] for part in one.get('directions', []))):,}",
            mark(not _wrong(one), f"{_wrong(one):,}") if one["mode"] != "count" else _counted(one),
            f"seed {one['seed']}" if "seed" in one else "",
        ]
        for one in checks
    ]
    parts = ["<h2>Verifications</h2>"]
    parts.append(table(("mode", "finished", "rows looked at", "rows that differ", ""), rows, numbers=(2,)))
    if full:
        amounts = [Pair(t["table"], t["expected_rows"], t["actual_rows"]) for t in full[-1]["tables"]]
        names = ("rows that the source gives", "rows that are there")
        parts.append(pairs(amounts, "Rows of the last full verification", names))
        digests = [
            [escape(t["table"]), f"<code>{t['expected_digest']}</code>", f"<code>{t['actual_digest']}</code>"]
            for t in full[-1]["tables"]
        ]
        parts.append(table(("table", "content digest expected", "content digest found"), digests))
    return "".join(parts) + _of(contents.RECONCILIATION)


def _counted(check: Mapping[str, Any]) -> str:
    differing = sum(one["differing"] for one in check["tables"])
    return mark(not differing, f"{differing:,} partitions")


def _gates(gates: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [
            when(one["at"]),
            escape(one["phase"]),
            mark(one["open"], "open" if one["open"] else "closed"),
            escape("; ".join(one["reasons"])) or _saw(one["saw"]),
        ]
        for one in gates
    ]
    head = ("when", "gate before", "was", "because, or what it saw")
    return f"<h2>Gates</h2>{table(head, rows)}{_of(contents.GATES)}" if rows else ""


def _saw(saw: Mapping[str, Any]) -> str:
    verification = saw["verification"]
    words = []
    if verification is not None:
        words.append(f"{verification['divergences']:,} rows differing on {verification['finished_at']}")
    if saw["writers_stopped"]:
        words.append("writers stopped, as the operator said")
    if saw["table_name_typed"]:
        words.append("the table's name typed")
    return escape("; ".join(words))


def _erasures(events: Iterable[Mapping[str, Any]]) -> str:
    """Return what was erased of the mapping, and what was begun and never ended."""
    begun = {event["seq"]: event for event in events if event["event"] == ERASURE_BEGUN}
    ended = {event["details"]["begun"]: event for event in events if event["event"] == ERASURE_ENDED}
    rows = [
        [
            escape(event["at"]),
            escape(_meant(event["details"])),
            escape(event["details"]["reason"]),
            mark(seq in ended, ended[seq]["at"] if seq in ended else "not ended"),
            escape(_counts(ended[seq]["details"])) if seq in ended else "",
        ]
        for seq, event in begun.items()
    ]
    head = ("begun", "what", "why", "ended", "what was deleted")
    said = "<p>Rows are named by safe id. Rows of target tables are the application's to delete.</p>"
    return f"<h2>Erasures</h2>{said}{table(head, rows)}{_of(contents.EVENTS)}" if rows else ""


def _meant(details: Mapping[str, Any]) -> str:
    if details["kind"] != "subjects":
        return f"{details['kind']}: {', '.join(details['cohorts'])}"
    named = [f"rows {', '.join(details['rows'])}"] if details["rows"] else []
    for name, words in (("erased_before", "erased before"), ("unknown", "not known")):
        named += [f"{words}: {', '.join(details[name])}"] if details[name] else []
    return "; ".join(named)


def _counts(details: Mapping[str, Any]) -> str:
    counted = [
        f"{name.replace('_', ' ')} {value:,}" for name, value in details.items() if name in _ERASED and value
    ]
    if details.get("changed"):
        counted.append(f"not erased, because written since: {', '.join(details['changed'])}")
    if details["kind"] == "cohorts":
        counted.append(f"the data keys of {', '.join(details['cohorts'])}")
    return ", ".join(counted)


def _events(events: Sequence[Mapping[str, Any]], script_id: str) -> str:
    rows = [
        [
            str(event["seq"]),
            when(event["at"]),
            escape(event["event"]),
            escape(f"{event['actor']}@{event.get('host') or '?'}"),
            f"<code>{escape(event.get('command') or '')}</code>",
        ]
        for event in events
        if event["script_id"] in (script_id, None)
    ]
    listed = table(("event", "when", "what", "who", "command"), rows, numbers=(0,))
    others = len(events) - len(rows)
    more = f"<p>{others:,} events of other migrations are in the file.</p>" if others else ""
    return f"<h2>Audit log</h2>{listed}{more}{_of(contents.EVENTS)}"


def _files(files: Mapping[str, bytes]) -> str:
    listed = ", ".join(f"<code>data/{escape(name)}</code>" for name in sorted(files))
    return (
        "<h2>Check it</h2><p>This page is for reading. What proves is the bundle it lies in:"
        " <code>rekey evidence verify</code> checks it, and docs/verify-by-hand.md of rekey does so with"
        f" openssl, jq and sha256sum alone.</p><p>{listed}</p>"
    )


def _of(name: str) -> str:
    return f'<p class="soft">From <code>data/{escape(name)}</code></p>'


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
