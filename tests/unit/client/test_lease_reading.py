"""What a client does, given what it went by and what it reads now: go by it, go on, refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey.client.reading import ClientFacts, LeaseSettings, Reading, reading
from rekey.errors import ExitCode
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow

S, D, F, C = (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER)
DONE = (ControlPhase.COMPLETE, ControlPhase.RETIRED)
FACTS = ClientFacts("0001_users", "digest", {"users": "print", "spare": "other"}, "old", "web")
NEW = replace(FACTS, view="new")


def control(phase: ControlPhase, epoch: int = 5, run_id: str = "run-1", **more: object) -> ControlRow:
    made = ControlRow(
        "0001_users", phase, epoch, run_id, "digest", "Users", ("UsersV2",), {"users": "print"}, bytes(32)
    )
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param(None, None, id="never begun"),
        pytest.param(None, control(S, 1), id="begun"),
        pytest.param(None, control(C, 7), id="a client that starts late"),
        pytest.param(control(D, 5), control(D, 5, copied=True), id="nothing moved, more is copied"),
        pytest.param(control(D, 5), control(F, 6), id="one epoch on"),
        pytest.param(control(D, 5), control(C, 7), id="several epochs on: it was silent"),
        pytest.param(control(S, 3), None, id="taken back whole"),
        pytest.param(control(S, 3), control(S, 1, "run-2"), id="taken back and begun again"),
    ],
)
def test_a_client_goes_by_what_it_reads(before: ControlRow | None, now: ControlRow | None) -> None:
    assert reading(before, now, FACTS) == Reading(now)


@pytest.mark.parametrize(
    ("before", "now", "code"),
    [
        pytest.param(control(D), None, "control-gone", id="gone from dual_write"),
        pytest.param(control(ControlPhase.COMPLETE), None, "control-gone", id="gone after all"),
        pytest.param(control(D), control(D, 6, "run-2"), "other-run", id="another run, higher epoch"),
        pytest.param(control(D, 5), control(D, 4), "control-moved-back", id="an older copy"),
        pytest.param(control(S, 3), control(S, 1), "control-moved-back", id="an older copy of source"),
    ],
)
def test_an_unusable_control_row_refuses_reads(before: ControlRow, now: ControlRow | None, code: str) -> None:
    found = reading(before, now, FACTS)
    assert found.control is before
    assert found.refusal.reads_too
    error = found.refusal.error()
    assert (found.refuses, error.code, error.retryable) == (code, code, False)
    assert error.exit_code == ExitCode.REFUSED
    assert error.hint
    assert reading(found.control, before, FACTS) == Reading(before), "put right, it goes on"


@pytest.mark.parametrize("phase", [D, F, C], ids=str)
@pytest.mark.parametrize(
    ("facts", "code"),
    [
        pytest.param(replace(FACTS, digest="x"), "digest-moved", id="another declaration"),
        pytest.param(replace(FACTS, fingerprints={"users": "x"}), "secret-moved", id="another secret"),
        pytest.param(replace(FACTS, fingerprints={}), "secret-moved", id="no secret"),
    ],
)
def test_other_keys_are_refused_with_replicas(phase: ControlPhase, facts: ClientFacts, code: str) -> None:
    found = reading(control(S, 4), control(phase), facts)
    assert found.control == control(phase)
    assert (found.refusal.code, found.refuses) == (code, code)
    assert not found.refusal.reads_too, "the old view's table is the source, whatever the declaration says"


@pytest.mark.parametrize("phase", [S, *DONE], ids=str)
def test_where_nothing_follows_other_keys_do_no_harm_but_are_told(phase: ControlPhase) -> None:
    found = reading(None, control(phase), replace(FACTS, digest="x"))
    assert (found.refusal, found.refuses) == (None, "digest-moved")


def test_a_new_view_by_another_declaration_may_be_of_another_table_so_it_is_not_read() -> None:
    found = reading(None, control(C), replace(NEW, digest="x"))
    assert found.refusal.reads_too
    missing = reading(None, control(C), replace(NEW, fingerprints={}))
    assert not missing.refusal.reads_too, "reading needs no secret"


@pytest.mark.parametrize(
    "settings",
    [{"poll_s": 0}, {"poll_s": 15.0}, {"longest_operation_s": 1.9}, {"freeze_wait_s": -1}],
    ids=str,
)
def test_times_that_cannot_work_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LeaseSettings(**settings)


HERE = "https://here.table.core.windows.net"


@pytest.mark.parametrize("phase", [S, D, F, C, *DONE], ids=str)
def test_another_account_is_refused(phase: ControlPhase) -> None:
    """What it would write would be in tables that nobody migrates, whatever the phase."""
    row = control(phase, tables_endpoint=HERE)
    found = reading(None, row, replace(FACTS, tables_endpoint="https://there.table.core.windows.net"))
    assert (found.refuses, found.refusal.reads_too) == ("other-account", True)
    assert HERE in found.refusal.hint


@pytest.mark.parametrize(
    ("began", "client"),
    [
        (HERE, "https://HERE.privatelink.table.core.windows.net/"),
        (HERE, ""),
        ("", HERE),
        (HERE, "https://gateway.example.com/tables"),
        ("http://127.0.0.1:10002/devstoreaccount1", "http://azurite:20002/devstoreaccount1"),
    ],
)
def test_an_account_that_may_be_the_same_is_not_refused(began: str, client: str) -> None:
    """A private link, a gateway, another host of an emulator; a control row of an earlier version."""
    row = control(D, tables_endpoint=began)
    assert reading(None, row, replace(FACTS, tables_endpoint=client)) == Reading(row)


@pytest.mark.parametrize("phase", [S, D, F, C, *DONE], ids=str)
@pytest.mark.parametrize(("facts", "reads_too"), [(FACTS, False), (NEW, True)], ids=["old view", "new view"])
def test_another_target_account_is_refused(phase: ControlPhase, facts: ClientFacts, reads_too: bool) -> None:
    """What it would write would be in tables that nobody reads."""
    row = control(phase, target_account=HERE)
    for place in ("", "https://there.table.core.windows.net"):
        found = reading(None, row, replace(facts, target_account=place))
        assert (found.refuses, found.refusal.reads_too) == ("targets-moved", reads_too)
        assert HERE in found.refusal.hint
    spelled = "https://HERE.privatelink.table.core.windows.net/"
    assert reading(None, row, replace(facts, target_account=spelled)) == Reading(row)
