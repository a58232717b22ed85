"""Clients and the moves of the installed command: who is waited for, who is told what, who refuses to write.

No time is asserted anywhere; what was measured is printed.

Soak: ten clients at default settings.
Reason, and what `make test` covers: half a minute, ten processes; ten clients on the fake clock in
`tests/scenarios/client/test_lifecycle.py`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rekey import DualWriteTableClient
from rekey.client.lease import LeaseSettings
from rekey.client.sdk.errors import DualWriteRefused
from rekey.errors import SecretMissing
from rekey.rehearse.azurite import Azurite
from tests.fakes.weather import CALM, WeatherProcess
from tests.worlds.azurite_projects import Project, Ran
from tests.worlds.fleet import Fleet, Stage, waited_for

pytestmark = pytest.mark.azurite
CLIENTS = 10


@contextmanager
def staged(
    folder: Path, azurite: Azurite, rows: int = 60, settings: dict[str, float] | None = None
) -> Iterator[tuple[Stage, Fleet]]:
    """Set up a project with a filled source."""
    stage = Stage(Project(folder / "project", azurite), "users", settings=settings or {})
    stage.load(names := [f"r{number}" for number in range(rows)])
    with Fleet(folder / "clients", stage.where, "users", names[:12]) as fleet:
        yield stage, fleet


def freeze_seconds(stage: Stage, *words: str) -> tuple[Ran, float]:
    """Run a command that freezes; return how long the control row said so."""
    running = stage.project.start(*words)
    seen: list[tuple[float, str]] = []

    def ended() -> bool:
        seen.append((time.monotonic(), stage.phase()))
        return running.process.poll() is not None

    waited_for("the end of the command", ended)
    ran = running.wait()
    frozen = [at for at, phase in seen if phase == "freeze"]
    return ran, frozen[-1] - frozen[0] if frozen else 0.0


@pytest.mark.soak
def test_a_freeze_waits_for_ten_live_clients_at_default_settings_and_no_write_fails(
    tmp_path: Path, azurite: Azurite
) -> None:
    """All ten acknowledge; what they wrote meanwhile waited and went on."""
    with staged(tmp_path, azurite) as (stage, fleet):
        for number in range(CLIENTS):
            fleet.start(f"client-{number}", "new" if number == 9 else "old", pause=1.0, tasks=1)
        stage.project.run("apply").ended(0)
        fleet.until_writing(more=3)
        ran, seconds = freeze_seconds(stage, "apply", "--to", "cutover")
        ran.ended(0)
        fleet.until_writing(more=3)
        counters = stage.counters("cutover")
        assert counters["clients"] == CLIENTS
        clients = stage.clients()
        assert len(clients) == CLIENTS
        assert {client["epoch"] for client in clients} == {stage.control()["Epoch"]}
        stage.compare(fleet, "new")
        done = fleet.done
        assert "frozen" not in {one.why for one in done}, "somebody waited for too long"
        longest = max((one.ended or one.began) - one.began for one in done) / 1e9
        print(
            f"freeze with {CLIENTS} live clients: {counters['freeze_ms']} ms by the command's clock,"
            f" {seconds:.1f} s as seen in the control row; longest write {longest:.1f} s"
        )
        fleet.stop()


def test_a_silent_client_is_named_and_waited_for_until_nothing_of_it_can_take_effect(
    tmp_path: Path, azurite: Azurite
) -> None:
    """SIGSTOP: the freeze begins only once its lease, its longest operation and a margin are past."""
    settings = {"poll_s": 0.25, "lease_s": 1.5, "longest_operation_s": 2.0}
    with staged(tmp_path, azurite, settings=settings) as (stage, fleet):
        for name in ("awake", "asleep"):
            fleet.start(name, "old", pause=0.1, tasks=1)
        stage.project.run("apply").ended(0)
        fleet.until_writing(more=5)
        os.kill(fleet.pid("asleep"), signal.SIGSTOP)
        [asleep] = [client for client in stage.clients() if client["name"] == "asleep"]
        running = stage.project.start("apply", "--to", "cutover")
        said = ""
        while running.process.poll() is None and "silent" not in said:
            time.sleep(1.0)
            said = stage.project.run("status").ended(0).said
        running.wait().ended(0)
        assert f"asleep: process {fleet.pid('asleep')} on" in said
        assert "silent, over at" in said
        over_at = asleep["over_at"]
        frozen_at = stage.at("FrozenAt")
        assert frozen_at + 1 >= over_at, "the freeze began while it could still write; times in whole seconds"
        print(f"one silent client: frozen {frozen_at - asleep['beat_at']:.1f} s after its last sign")
        fleet.until_writing("awake", more=5)
        os.kill(fleet.pid("asleep"), signal.SIGCONT)
        fleet.until_writing("asleep", more=5)
        stage.compare(fleet, "new")
        fleet.stop()


# --- refusals ---------------------------------------------------------------------------------------------


def client_of(stage: Stage, **other: Any) -> DualWriteTableClient:
    """Make a client of the old view as the application of this project does, or as `other` says."""
    return DualWriteTableClient.from_config(
        stage.where.config, stage.script.stem, view="old", settings=LeaseSettings(poll_s=0.2), **other
    )


def refused(stage: Stage, client: DualWriteTableClient, *parts: str) -> DualWriteRefused:
    """Check that a write is refused with what to do, and that nothing was written."""
    before = stage.project.everything()
    with pytest.raises(DualWriteRefused) as error:
        client.upsert_entity(stage.world.entity("r1", "old", {"name": "refused"}))
    for part in parts:
        assert part in str(error.value), str(error.value)
    assert "Next:" in str(error.value)
    after = stage.project.everything()
    for table in (stage.project.source, stage.project.target, "rekeyjournal", "rekeymap"):
        assert after[table] == before[table]
    return error.value


def test_a_client_that_may_not_write_refuses_and_says_what_to_do(
    tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another declaration, another or no secret, an older epoch, a lease that cannot be renewed."""
    with staged(tmp_path, azurite, rows=5) as (stage, _):
        for name, value in stage.project.environment.items():
            monkeypatch.setenv(name, value)
        stage.project.run("apply").ended(0)
        text = stage.script.read_text("utf-8")

        stage.script.write_text(text.replace('props.drop("Ssn")', 'props.drop("Nothing")'), "utf-8")
        with client_of(stage) as client:
            assert refused(stage, client, "another declaration").code == "digest-moved"
        stage.script.write_text(text, "utf-8")

        monkeypatch.setenv("ACCEPTANCE_SECRET", "another secret of enough bytes")
        with client_of(stage) as client:
            assert refused(stage, client, "the secret users").code == "secret-moved"
        monkeypatch.delenv("ACCEPTANCE_SECRET")
        with pytest.raises(SecretMissing, match="users"):
            client_of(stage)
        monkeypatch.setenv("ACCEPTANCE_SECRET", stage.project.environment["ACCEPTANCE_SECRET"])

        with client_of(stage) as client:
            client.upsert_entity(stage.world.entity("r1", "old", {"name": "written"}))
            control = stage.control()
            stage.project.restricted.replace("rekeycontrol", {**control, "Epoch": "1"})
            waited_for("another look", lambda: stage.refusing())
            assert refused(stage, client, "gone back from epoch").code == "control-moved-back"
            stage.project.restricted.replace("rekeycontrol", control)


def test_a_client_whose_lease_ends_refuses_until_it_can_look_again(
    tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restricted store goes away: within a lease writes go on, then they are refused, retryably."""
    with staged(tmp_path, azurite, rows=5) as (stage, _):
        for name, value in stage.project.environment.items():
            monkeypatch.setenv(name, value)
        stage.project.run("apply").ended(0)
        short = LeaseSettings(poll_s=0.1, lease_s=0.5)
        endpoint = azurite.restricted.endpoint
        with WeatherProcess(endpoint, {"all": CALM}, 1, tmp_path / "log") as away:
            stage.project.configure(restricted=away.address("all", endpoint))
            client = DualWriteTableClient.from_config(
                stage.where.config, stage.script.stem, view="old", settings=short
            )
            client.upsert_entity(stage.world.entity("r1", "old", {"name": "written"}))
        time.sleep(short.lease_s)
        error = refused(stage, client, "lease", "[restricted]")
        assert error.code == "lease-lost"
        assert error.retryable
        client.close()
