"""What workers send is counted: told with each result, added to the runner's own count, and kept with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.copy.workers.work import work
from rekey.phases import Phase
from rekey.project.config import Config
from rekey.tables.base import Accounts
from tests.fakes.executors import NAME, Inline, Plain, inline
from tests.scenarios.copy.test_executors import Ready, apply, counters, failing, with_users
from tests.worlds.projects import Project


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    project = Project(tmp_path)
    script_id = with_users(project)
    with inline(project) as executor:
        yield project, script_id, executor


def requests(project: Project, script_id: str) -> Counter[str]:
    """Requests that were kept with all runs of the phase that copies, by kind."""
    with project.session() as session:
        runs = [one for one in session.state.phase_runs(script_id) if one.phase == Phase.BACKFILL]
        return sum((Counter(one.requests) for one in runs), Counter())


def told_by(executor: Inline) -> Counter[str]:
    """Requests that workers told of, by kind."""
    return sum((Counter(one["sent"]) for one in executor.answers), Counter())


def test_what_workers_send_is_counted_with_what_the_runner_sends(tmp_path: Path) -> None:
    """While rows are copied, by kind as without workers, but for what a round of batches asks: control row,
    lease, and the time. (`reconcile` reads otherwise with workers, ADR 0036.)"""
    counted = []
    for name, executor in (("alone", ""), ("with workers", NAME)):
        project = Project(tmp_path / name)
        script_id = with_users(project, 800)
        with inline(project) as workers:
            apply(project, script_id, executor=executor)
        counted.append(requests(project, script_id))
    alone, spread = counted
    told = told_by(workers)
    rounds = spread["table"] - alone["table"]
    assert 0 < rounds <= told["batch"] + told["write"]
    assert abs(spread["read"] - 2 * rounds - alone["read"]) <= 12
    # A slice begins with a page of its own and ends with batches that nothing fills; where a range can
    # be split is asked for in pages.
    for kind, most in (("batch", 48), ("scan", 48)):
        assert abs(spread[kind] - alone[kind]) <= most, kind
    assert abs(spread["write"] + spread["operations"] - alone["write"] - alone["operations"]) <= 12
    assert told["operations"] >= 0.8 * alone["operations"]


def test_of_a_task_that_is_lost_its_own_requests_alone_are_not_known(ready: Ready) -> None:
    project, script_id, executor = ready
    accounts: list[Accounts] = []

    def connect(config: Config) -> Accounts:
        accounts.append(Project.connect(project, config))
        return accounts[-1]

    project.connect = connect  # type: ignore[method-assign]
    failing(executor, 1, _done_and_not_answered)
    apply(project, script_id)
    assert counters(project, script_id)["tasks_lost"] == 1
    assert accounts[0].by_workers == told_by(executor)


def _done_and_not_answered(plain: Plain) -> Plain:
    work(plain)
    raise ValueError


def test_what_workers_told_is_kept_with_each_checkpoint(ready: Ready) -> None:
    project, script_id, executor = ready
    executor.tasks = 1

    def carry(plain: Plain) -> Plain:
        if executor.answers:
            raise KeyboardInterrupt
        return work({**plain, "seconds": 0.0})

    executor.carry = carry
    with pytest.raises(KeyboardInterrupt):
        apply(project, script_id)
    with project.session() as session:
        [killed] = [one for one in session.state.phase_runs(script_id) if one.phase == "backfill"]
    assert Counter(killed.requests) >= told_by(executor) > Counter()
