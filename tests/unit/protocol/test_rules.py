"""Which way an operation takes, for every phase and view; and what a refusal says."""

from __future__ import annotations

import pytest

from rekey.phases import ControlPhase
from rekey.protocol import rules
from rekey.protocol.rules import Route, View, authority, reads_refused, refusal, refusal_code, route

P = ControlPhase
ALL: tuple[ControlPhase | None, ...] = (None, *ControlPhase)

WAYS: list[tuple[ControlPhase | None, View, bool, bool, Route]] = [
    (None, View.OLD, False, True, Route.PLAIN),
    (None, View.NEW, False, True, Route.REFUSED),
    (P.SOURCE, View.OLD, False, True, Route.PLAIN),
    (P.SOURCE, View.NEW, True, True, Route.REFUSED),
    (P.DUAL_WRITE, View.OLD, False, True, Route.SAME_VIEW),
    (P.DUAL_WRITE, View.OLD, True, False, Route.SAME_VIEW),
    (P.DUAL_WRITE, View.NEW, False, True, Route.REFUSED),
    (P.DUAL_WRITE, View.NEW, True, True, Route.CROSS_VIEW),
    (P.DUAL_WRITE, View.NEW, True, False, Route.REFUSED),
    (P.FREEZE, View.OLD, True, True, Route.WAIT),
    (P.FREEZE, View.NEW, True, True, Route.WAIT),
    (P.CUTOVER, View.OLD, True, True, Route.CROSS_VIEW),
    (P.CUTOVER, View.OLD, True, False, Route.REFUSED),
    (P.CUTOVER, View.NEW, True, True, Route.SAME_VIEW),
    (P.CUTOVER, View.NEW, True, False, Route.PLAIN),
    (P.COMPLETE, View.OLD, True, True, Route.REFUSED),
    (P.COMPLETE, View.NEW, True, True, Route.PLAIN),
    (P.RETIRED, View.OLD, True, True, Route.REFUSED),
    (P.RETIRED, View.NEW, False, False, Route.PLAIN),
]


@pytest.mark.parametrize(("phase", "view", "copied", "reverse", "way"), WAYS)
def test_the_way_of_a_write(
    phase: ControlPhase | None, view: View, copied: bool, reverse: bool, way: Route
) -> None:
    assert route(phase, view, copied=copied, reverse=reverse) is way


@pytest.mark.parametrize(("phase", "view", "copied", "reverse", "way"), WAYS)
def test_after_complete_a_write_goes_as_in_cutover_while_clients_maintain_index_tables(
    phase: ControlPhase | None, view: View, copied: bool, reverse: bool, way: Route
) -> None:
    taken = route(phase, view, copied=copied, reverse=reverse, maintained=phase is P.COMPLETE)
    assert taken is (Route.SAME_VIEW if (phase, view) == (P.COMPLETE, View.NEW) else way)


def test_the_authority_is_what_the_table_of_phases_says() -> None:
    assert [authority(phase) for phase in ALL] == [
        "source",
        "source",
        "source",
        None,
        "target",
        "target",
        "target",
    ]


def test_the_old_view_reads_until_the_migration_is_complete() -> None:
    open_in = [p for p in ALL if not reads_refused(p, View.OLD, copied=True, reverse=True)]
    assert open_in == [None, P.SOURCE, P.DUAL_WRITE, P.FREEZE, P.CUTOVER]


def test_the_old_view_ends_at_cutover_where_nothing_keeps_the_source_current() -> None:
    assert reads_refused(P.CUTOVER, View.OLD, copied=True, reverse=False) == rules.OLD_VIEW_OVER


def test_the_new_view_opens_when_the_backfill_is_done_and_stays_open() -> None:
    for copied in (False, True):
        open_in = [p for p in ALL if not reads_refused(p, View.NEW, copied=copied, reverse=True)]
        early = [P.DUAL_WRITE, P.FREEZE] if copied else []
        assert open_in == [*early, P.CUTOVER, P.COMPLETE, P.RETIRED]


def test_an_index_table_is_the_applications_own_only_after_complete() -> None:
    assert [p for p in ALL if not rules.index_write_refused(p)] == [P.COMPLETE, P.RETIRED]


@pytest.mark.parametrize("phase", ALL)
@pytest.mark.parametrize("view", View)
@pytest.mark.parametrize("copied", [False, True])
def test_refused_routes_say_what_to_do(phase: ControlPhase | None, view: View, copied: bool) -> None:
    way = route(phase, view, copied=copied, reverse=False)
    if way in (Route.REFUSED, Route.WAIT):
        error = refusal(refusal_code(view, way, copied=copied), "Users")
        assert error.hint
        assert error.kept == "nothing was written"
        assert error.retryable == (way is Route.WAIT)
        assert "Users" in str(error)


def test_an_index_table_has_its_own_refusal() -> None:
    assert refusal(rules.INDEX_TABLE, "UsersByTag").code == "index-table"
