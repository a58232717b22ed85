"""Steering a running command from any terminal: pause, resume, other rates, proceed. The settings are in a
small file next to the state file, because the state file has one writer and the control row costs requests
(ADR 0023). Whoever may write to that folder may steer. The file holds rates, times and a user's name, no
keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rekey.errors import reason_of
from rekey.project.privatefiles import write_whole
from rekey.runner.refusals import refusal
from rekey.state.audit import current_actor, utc_now, utc_text
from rekey.status.reasons import reason

if TYPE_CHECKING:
    from rekey.copy.throttle import Rates

_SUFFIX = ".steering.json"


@dataclass(frozen=True, slots=True)
class Proceed:
    """What `rekey proceed` asked for: the cutover of one migration, by the run that follows it then."""

    script_id: str
    # May not be true later: so it is no lasting setting.
    writers_stopped: bool
    said_at: str
    said_by: str


@dataclass(frozen=True, slots=True)
class Steering:
    """The operator's last setting; it stays in force, also for later runs, until it is changed."""

    paused: bool = False
    # Rates in place of the configured ones; None: the configured one.
    entities_per_second: int | None = None
    partition_entities_per_second: int | None = None
    # When, and by which user; "": nothing was set. The same pause and rates, set again, are the same setting.
    said_at: str = field(default="", compare=False)
    said_by: str = field(default="", compare=False)
    proceed: Proceed | None = field(default=None, compare=False)

    @property
    def is_usual(self) -> bool:
        """Whether everything is as configured."""
        return not self.paused and self.entities_per_second is self.partition_entities_per_second is None

    def over(self, configured: Rates) -> Rates:
        """Return the rates in force over `configured` ones."""
        return replace(
            configured,
            account=self.entities_per_second or configured.account,
            partition=self.partition_entities_per_second or configured.partition,
            paused=self.paused,
        )

    def as_text(self) -> str:
        """Return the setting in words."""
        account, partition = self.entities_per_second, self.partition_entities_per_second
        code = "limits-account" if account else "limits-configured"
        if partition:
            code = "limits-both" if account else "limits-partition"
        limits = reason(code, account=account, partition=partition)
        return reason("paused", limits=limits) if self.paused else limits


def path_of(state: Path) -> Path:
    """Return the path of a state file's steering file."""
    return state.with_name(state.name + _SUFFIX)


def read(state: Path) -> Steering | None:
    """Return the last setting; the default when there is no file, None when it is unreadable."""
    try:
        text = path_of(state).read_text("utf-8")
    except FileNotFoundError:
        return Steering()
    except OSError:
        return None
    try:
        document = json.loads(text)
        rates = document["entities_per_second"], document["partition_entities_per_second"]
        if any(rate is not None and (type(rate) is not int or rate < 1) for rate in rates):
            return None
        proceed = document.get("proceed")
        return Steering(
            document["paused"] is True,
            *rates,
            str(document["said_at"]),
            str(document["said_by"]),
            None if proceed is None else Proceed(**proceed),
        )
    except (ValueError, KeyError, TypeError):
        return None


def is_paused(state: Path) -> bool:
    """Tell whether the last readable setting is a pause."""
    return (read(state) or Steering()).paused


def say(state: Path, steering: Steering) -> Steering:
    """Write a setting, whole or not at all; return it with time and user. Raises MachineFailed."""
    setting = replace(steering, said_at=utc_text(utc_now()), said_by=current_actor())
    _write(state, setting)
    return setting


def proceed(state: Path, script_id: str, *, writers_stopped: bool) -> Proceed:
    """Tell the run that follows a migration to cut over; the setting stays. Raises MachineFailed."""
    request = Proceed(script_id, writers_stopped, utc_text(utc_now()), current_actor())
    _write(state, replace(read(state) or Steering(), proceed=request))
    return request


def _write(state: Path, setting: Steering) -> None:
    path = path_of(state)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(setting)).encode())
    except OSError as error:
        raise refusal("not-steered", path=path, reason=reason_of(error)) from None


def follow(
    state: Path, changed: Callable[[Steering, bool], None], recorded: Steering
) -> Callable[[Rates], Rates]:
    """Return a function that reads the steering file and gives a throttle the rates in force.

    Args:
        state: the state file.
        changed: called with a setting that differs from the one before, or that is not the configured one at
            the beginning; and with whether it differs.
        recorded: the setting before, as the audit log has it.
    """
    setting, begins = recorded, True

    def rates(configured: Rates) -> Rates:
        nonlocal setting, begins
        # An unreadable file changes nothing.
        steering = read(state) or setting
        if steering != setting or (begins and not steering.is_usual):
            changed(steering, steering != setting)
        setting, begins = steering, False
        return setting.over(configured)

    return rates
