"""The phases, one file each, each with the same lifecycle: gate, run, undo, again."""

from __future__ import annotations

from rekey.phases import Phase
from rekey.runner.phases import backfill, complete, cutover, dual_write, prepare, reconcile, retire
from rekey.runner.run import Lifecycle

PHASES: dict[Phase, Lifecycle] = {
    Phase.PREPARE: prepare,
    Phase.DUAL_WRITE: dual_write,
    Phase.BACKFILL: backfill,
    Phase.RECONCILE: reconcile,
    Phase.CUTOVER: cutover,
    Phase.COMPLETE: complete,
    Phase.RETIRE: retire,
}
