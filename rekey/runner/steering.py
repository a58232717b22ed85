"""What the operator says while a runner works: pause, resume, other rates. From any terminal.

Rules kept here:

* It stands in a small file next to the state file. The state file has one writer, who holds its lock for as
  long as it works; the control row is what clients follow, costs requests, and cannot be reached when pausing
  is most wanted. A file that is replaced whole needs no lock (ADR 0023).
* Any user who may write the state file's folder may steer. The file holds rates and who said so, no keys.
* A file that cannot be read changes nothing: what was said last goes on to count.
* What is said stays said, also for the next run, until it is taken back; `status` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rekey.copy.throttle import Rates
from rekey.errors import MachineFailed
from rekey.project.privatefiles import write_whole
from rekey.state.audit import current_actor, utc_now, utc_text

_SUFFIX = ".steering.json"


@dataclass(frozen=True, slots=True)
class Steering:
    """What the operator said last.

    Attributes:
        paused: send nothing new.
        entities_per_second, partition_entities_per_second: instead of what is configured; None: as it is.
        said_at, said_by: when and who; "" when nothing was said.
    """

    paused: bool = False
    entities_per_second: int | None = None
    partition_entities_per_second: int | None = None
    said_at: str = ""
    said_by: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether everything is as configured."""
        return not self.paused and self.entities_per_second is self.partition_entities_per_second is None

    def over(self, given: Rates) -> Rates:
        """Return the rates that count where `given` is configured."""
        return Rates(
            self.entities_per_second or given.account,
            self.partition_entities_per_second or given.partition,
            self.paused,
        )

    def told(self) -> str:
        """Return in words what counts."""
        rates = []
        if self.entities_per_second is not None:
            rates.append(f"{self.entities_per_second:,} entities/s of the account")
        if self.partition_entities_per_second is not None:
            rates.append(f"{self.partition_entities_per_second:,} entities/s of a partition")
        limits = f"at most {', '.join(rates)}" if rates else "limits as in rekey.toml"
        return f"PAUSED until `rekey resume`; {limits}" if self.paused else limits

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def path_of(state: Path) -> Path:
    """Return where it stands for a state file."""
    return state.with_name(state.name + _SUFFIX)


def read(state: Path) -> Steering | None:
    """Return what was said last; None when the file cannot be understood."""
    try:
        text = path_of(state).read_text("utf-8")
    except FileNotFoundError:
        return Steering()
    except OSError:
        return None
    try:
        said = json.loads(text)
        rates = said["entities_per_second"], said["partition_entities_per_second"]
        if any(rate is not None and (type(rate) is not int or rate < 1) for rate in rates):
            return None
        return Steering(said["paused"] is True, *rates, str(said["said_at"]), str(said["said_by"]))
    except (ValueError, KeyError, TypeError):
        return None


def say(state: Path, steering: Steering) -> Steering:
    """Write it, whole or not at all; return it with who said it and when. Raises MachineFailed."""
    said = replace(steering, said_at=utc_text(utc_now()), said_by=current_actor())
    path = path_of(state)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(said.as_json()).encode())
    except OSError as error:
        raise MachineFailed(
            f"{path} cannot be written ({type(error).__name__})",
            kept="what was said before counts",
            hint="write to the folder of the state file, or stop the runner with Ctrl-C, which loses nothing",
        ) from None
    return said


def follow(state: Path, changed: Callable[[Steering], None]) -> Callable[[Rates], Rates]:
    """Return what a throttle asks for its rates.

    Args:
        state: the state file.
        changed: told when something else is said than before.
    """
    said = Steering()

    def rates(given: Rates) -> Rates:
        nonlocal said
        found = read(state)
        if found is not None and found != said:
            said = found
            changed(said)
        return said.over(given)

    return rates
