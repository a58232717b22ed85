"""The phases, one file each. Each has the same lifecycle: gate, run, undo, again."""

from __future__ import annotations

from rekey.phases import Phase
from rekey.runner.phases.backfill import BACKFILL
from rekey.runner.phases.complete import COMPLETE
from rekey.runner.phases.cutover import CUTOVER
from rekey.runner.phases.dual_write import DUAL_WRITE
from rekey.runner.phases.prepare import PREPARE
from rekey.runner.phases.reconcile import RECONCILE
from rekey.runner.phases.retire import RETIRE
from rekey.runner.run import Operation

PHASES: dict[Phase, Operation] = {
    operation.phase: operation
    for operation in (PREPARE, DUAL_WRITE, BACKFILL, RECONCILE, CUTOVER, COMPLETE, RETIRE)
}
