"""A verification stops counting for cutover when rows change outside propagate after it began: by a restored
row, a repair, a copy made again or a rollback, from any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rekey.errors import GateClosed
from rekey.model import Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import verification
from rekey.runner.restore import restore
from rekey.status.facts import RETURNED_AFTER
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.worlds.company import Company, application, company_at
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import Killed, user

GHOST: Row = {"PartitionKey": "part0", "RowKey": "ghost", "Name": "of no source row"}
CHANGED = "rows were changed since the last full verification began"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Company]:
    """A migration before the gate of cutover, verified, with a client of each view."""
    rows = [user(f"user{number:02}@example.com") for number in range(12)]
    made = company_at(tmp_path, USERS_SCRIPT, rows, Phase.BACKFILL)
    path = made.project.folder / "rekey.toml"
    path.write_text(path.read_text("utf-8").replace('retention = "0s"', 'retention = "3d"'), "utf-8")
    with made:
        made.client(View.OLD)
        made.client(View.NEW)
        made.apply()
        yield made


def removed(made: Company) -> str:
    """Let a repair remove a row that no source row gives, and verify; return its safe id."""
    made.do(made.project.tables.table("UsersV2").insert(GHOST))
    [row] = made.verify(repair=True).repair.repairs
    assert made.verify().differences.stable == 0
    row_id: str = row.divergence.row_id
    return row_id


def restored(made: Company, row_id: str) -> None:
    with made.session() as session:
        assert restore(session, made.script_id, row_id).verify_again


def has_ghost(made: Company) -> bool:
    return key_of(GHOST) in {key_of(row) for row in made.project.rows("UsersV2")}


@contextmanager
def killing(made: Company, when: Callable[[Call], bool], *, after: bool = False) -> Iterator[None]:
    """Kill the runner before its first call of this kind or, with `after`, before the one after that."""
    met = 0

    async def kill(call: Call) -> None:
        nonlocal met
        if not application.get():
            met += bool(met) or when(call)
            if met > after:
                raise Killed

    made.project.tables.gate = made.project.restricted.gate = kill
    with pytest.raises(Killed):
        yield

    made.project.tables.gate = made.project.restricted.gate = instant_gate
    made.project.clock.advance(120)


def require_closed(made: Company) -> None:
    with pytest.raises(GateClosed, match=CHANGED):
        made.apply(Phase.CUTOVER)
    assert made.phase is ControlPhase.DUAL_WRITE


def on_another_machine(made: Company) -> None:
    """Go on with another state file, as on another machine; the same call comes back."""
    path = made.project.folder / "rekey.toml"
    text = path.read_text("utf-8")
    other = ("state.sqlite", "other.sqlite") if '"state.sqlite"' in text else ("other.sqlite", "state.sqlite")
    path.write_text(text.replace(*other), "utf-8")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this machine", "another machine"])
def test_a_row_restored_after_the_verification_does_not_go_live(made: Company, elsewhere: bool) -> None:
    row_id = removed(made)
    assert not made.status().verification_closes
    if elsewhere:
        on_another_machine(made)
    restored(made, row_id)
    if elsewhere:
        on_another_machine(made)
    found = made.status()
    assert CHANGED in found.verification_closes
    assert found.next["command"] == f"rekey verify {made.script_id} --mode full"
    require_closed(made)
    assert made.verify().differences.stable == 1
    with pytest.raises(GateClosed, match="1 row that differs"):
        made.apply(Phase.CUTOVER)
    made.verify(repair=True)
    assert made.verify().differences.stable == 0
    made.apply(Phase.CUTOVER)
    assert made.phase is ControlPhase.CUTOVER
    assert not has_ghost(made)
    made.assert_in_step()


def test_killed_anywhere_in_a_restore_the_row_is_not_there_or_the_gate_is_closed(made: Company) -> None:
    row_id, ended, at, there = removed(made), False, 1, 0
    while not ended:
        with made.killing_the_runner(at):
            restored(made, row_id)
            ended = True
        made.project.clock.advance(120)
        if has_ghost(made):
            there += 1
            require_closed(made)
            made.do(made.project.tables.table("UsersV2").delete(key_of(GHOST)))
            assert made.verify().differences.stable == 0
        at += 1
    assert there > 1


def test_a_restore_that_is_refused_leaves_the_verification_in_force(made: Company) -> None:
    row_id = removed(made)
    made.do(made.project.tables.table("UsersV2").insert({**GHOST, "Name": "another"}))
    with made.session() as session, pytest.raises(Exception, match="another row stands"):
        restore(session, made.script_id, row_id)
    assert not made.status().verification_closes


def test_a_repair_that_is_cut_off_ends_the_force_of_the_verification_before_it(made: Company) -> None:
    made.do(made.project.tables.table("UsersV2").insert(GHOST))
    with killing(made, lambda call: call.action == "delete" and call.table == "UsersV2", after=True):
        made.verify(repair=True)
    assert not has_ghost(made)
    require_closed(made)


def test_a_repair_that_finds_nothing_leaves_the_verification_in_force(made: Company) -> None:
    before = made.control
    made.verify(repair=True)
    assert made.control == before
    made.apply(Phase.CUTOVER)


def test_a_verification_that_was_cut_off_begins_anew_after_a_change(made: Company) -> None:
    """Its sums may hold a partition as it was before the change."""
    with made.session() as session, pytest.MonkeyPatch.context() as patch:
        run, bases = session.begin(made.script_id), []
        patch.setattr(verification, "_resumed", lambda _run, basis, **_options: bases.append(basis))
        for _ in range(2):
            made.do(verification.verify_full(run))
        made.do(run.control.mark_changed())
        made.do(verification.verify_full(run))
    assert bases[0] == bases[1] != bases[2]


def test_a_rollback_on_another_machine_ends_the_force_of_the_verification(made: Company) -> None:
    made.apply(Phase.CUTOVER)
    on_another_machine(made)
    assert made.rollback() == [Phase.CUTOVER]
    on_another_machine(made)
    with made.session() as session:  # also without what this machine would have noted
        session.state.set_fact(made.script_id, RETURNED_AFTER, None)
    require_closed(made)
    assert made.verify().differences.stable == 0
    made.apply(Phase.CUTOVER)


def test_a_canceled_copy_elsewhere_voids_the_verification(made: Company) -> None:
    """A row that is deleted while it is copied stands in the target until the sweep, which never came."""
    on_another_machine(made)
    with killing(made, lambda call: call.writes and call.table == "UsersV2"):
        made.apply()
    on_another_machine(made)
    require_closed(made)
