"""Which machine a run was made on, as far as it matters for the figures."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rekey.rehearse.azurite import find_node, pinned_version


def describe() -> dict[str, Any]:
    """Return processor, memory and versions; no names of machines or people."""
    node = subprocess.run([find_node().program, "--version"], capture_output=True, text=True, check=True)
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "node": node.stdout.strip().lstrip("v"),
        "azurite": pinned_version(),
        "rekey": version("rekey-tables"),
        "azure-data-tables": version("azure-data-tables"),
        "load_at_begin": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
