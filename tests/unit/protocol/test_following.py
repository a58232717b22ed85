"""Who is waited for at a move of the control row, and how they are named."""

from __future__ import annotations

from dataclasses import replace

from rekey.core.clock import TICKS_PER_SECOND
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import SAFETY_S, ClientRow
from rekey.runner.clients import Clients, Deadline, named
from tests.fakes.clock import FakeClock

CONTROL = ControlRow(
    script_id="0001_users",
    phase=ControlPhase.DUAL_WRITE,
    epoch=2,
    run_id="run-1",
    digest="d",
    source="Users",
    targets=("UsersV2",),
    fingerprints={},
    id_key=bytes(32),
)
CURRENT = ClientRow(
    client_id="a1",
    name="api",
    view="old",
    host="web-1",
    pid=4711,
    version="1.0",
    epoch=2,
    lease_s=15.0,
    longest_s=30.0,
    beat_at=1000 * TICKS_PER_SECOND,
    run_id="run-1",
)


def at(seconds: float, *rows: ClientRow) -> Clients:
    """The registry as listed so long after the beat of the rows above."""
    return Clients(rows, CURRENT.beat_at + round(seconds * TICKS_PER_SECOND))


def test_a_live_client_is_behind_until_it_has_acknowledged_this_epoch_of_this_run() -> None:
    late, other_run = replace(CURRENT, epoch=1), replace(CURRENT, epoch=9, run_id="run-0")
    assert at(1, CURRENT, late, other_run).behind(CONTROL) == [late, other_run]


def test_a_client_is_waited_for_until_lease_longest_operation_and_margin_are_past() -> None:
    late = replace(CURRENT, epoch=1)
    over = CURRENT.lease_s + CURRENT.longest_s + SAFETY_S
    assert at(over - 0.1, late).behind(CONTROL) == [late]
    assert at(over, late).behind(CONTROL) == []
    assert at(over, late).live == []


def test_before_a_freeze_a_client_that_gives_no_sign_is_waited_for_though_it_is_current() -> None:
    since = CURRENT.beat_at + 1
    assert at(1, CURRENT).unheard(CONTROL, CURRENT.beat_at) == []
    assert at(1, CURRENT).unheard(CONTROL, since) == [CURRENT]
    assert at(100, CURRENT).unheard(CONTROL, since) == []
    late = replace(CURRENT, epoch=1)
    assert at(1, late).unheard(CONTROL, since) == [late], "named once, whatever speaks against it"


def test_clients_are_named_with_what_is_known_of_them() -> None:
    said = named([replace(CURRENT, refuses="digest-moved", in_flight=3)], at(20).now)
    assert said == (
        "api (old view, host web-1, pid 4711; acknowledged epoch 2, refuses with `digest-moved`, silent,"
        " 3 operations in flight)"
    )
    many = named([CURRENT] * 13, at(1).now)
    assert many.count("web-1") == 10
    assert many.endswith("and 3 more")


def test_a_deadline_is_over_by_the_clock_that_waits() -> None:
    clock = FakeClock()
    deadline = Deadline(clock, 2.0)
    clock.advance(1.5)
    assert (deadline.over, deadline.elapsed_s) == (False, 1.5)
    clock.advance(0.5)
    assert deadline.over
