"""What the audit log is told of a migration: its plan, its gates and what they saw, checkpoints.

Rules kept here:

* A gate that was asked in order to be passed is recorded, open or closed, with what it said and what it saw:
  control row, last full verification, what the operator confirmed. A gate that is only shown is not recorded.
* The plan that a migration began with is kept whole in the state file; its digest is in the audit log.
* Nothing here holds a key: plans are kept without, gates name rows by safe id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rfc8785

from rekey.core.progress import Progress
from rekey.errors import GateClosed
from rekey.evidence.keys import Signer
from rekey.evidence.log import problems_of, seal
from rekey.phases import Phase
from rekey.runner.run import Run
from rekey.state.audit import expressible
from rekey.state.models import PLAN_FACT
from rekey.state.store import State

if TYPE_CHECKING:
    from rekey.plan.result import Plan


def keep_plan(state: State, script_id: str, plan: Plan, *, checked_rows: bool) -> None:
    """Keep the plan that a migration begins with."""
    from rekey.plan.planfile import plan_document  # what is planned with takes a while to import

    document = rfc8785.dumps(expressible(plan_document(plan)))
    state.set_fact(script_id, PLAN_FACT, document.decode())
    details = {
        "plan_sha256": hashlib.sha256(document).hexdigest(),
        "row_check": "every source row was tried" if checked_rows else "skipped (--skip-row-check)",
        "digest": plan.migrations[0].basis.declaration,
    }
    state.audit("planned", script_id, details)


async def record_gate(run: Run, phase: Phase, reasons: Sequence[str]) -> None:
    """Record what a gate said, and what it saw."""
    control = await run.control.read()
    last = run.state.latest_verification(run.script_id)
    saw: dict[str, Any] = {
        "control": None if control is None else {"phase": str(control.phase), "epoch": control.epoch},
        "digest": run.declared.digest,
        "writers_stopped": run.options.writers_stopped,
        "table_name_typed": run.options.typed_table == run.source.name,
        "verification": None
        if last is None
        else {
            "finished_at": last.finished_at,
            "divergences": last.divergences,
            "content_digest": last.digest,
        },
    }
    details = {"phase": str(phase), "open": not reasons, "reasons": list(reasons), "saw": saw}
    run.state.audit("gate", run.script_id, details)


async def pass_gate(run: Run, phase: Phase, reasons: Sequence[str], hint: str) -> None:
    """Record what a gate said and refuse when it is closed. Raises GateClosed."""
    await record_gate(run, phase, reasons)
    if reasons:
        raise GateClosed(phase, list(reasons), hint=hint)


def make_checkpoint(state: State, signer: Signer | None, reason: str, progress: Progress) -> None:
    """Make a checkpoint over the audit log; say it when the log does not hold together."""
    if seal(state, signer, reason) is None:
        for problem in problems_of(state.audit_events(), state.checkpoints()):
            progress.note(f"warning: {problem}; no checkpoint was made")
