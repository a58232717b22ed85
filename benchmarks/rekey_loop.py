"""rekey's backfill alone: scan, map, pack, write, checkpoint, in one process."""

from __future__ import annotations

from pathlib import Path

from benchmarks.project import SCRIPT_ID
from rekey.declaration.scripts import load_scripts
from rekey.phases import Phase
from rekey.project.config import load_config
from rekey.runner.phases.backfill import copy_rows
from rekey.runner.session import Session


def main() -> None:
    """Prepare and copy the whole source, with mapping rows and checkpoints."""
    config = load_config(Path("rekey.toml"))
    scripts = {script.script_id: script for script in load_scripts(config.migrations)}
    with Session(config, scripts) as session:
        session.begin(SCRIPT_ID)
        session.ledger.apply(SCRIPT_ID, Phase.DUAL_WRITE)
        session.do(copy_rows(session.runs[SCRIPT_ID]))


if __name__ == "__main__":
    main()
