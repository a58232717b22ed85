"""The audit log of a whole migration: who, by which command, what plan, which gates and what they saw,
verifications with their digests, checkpoints at every phase boundary; and no text that was typed."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest

from rekey.evidence import keys, log, note, signing
from rekey.state.audit import AuditEvent
from rekey.state.models import PLAN_FACT
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.worlds.projects import USERS_SCRIPT, Project

SCRIPT = "0001_users"
EMAIL = "canary.someone@mail.example"
TO_CUTOVER = ("apply", "0001", "--to", "cutover", "--writers-stopped")


@pytest.fixture
async def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    rows = [{"PartitionKey": "eu", "RowKey": f"{number}{EMAIL}", "Nm": "n"} for number in range(30)]
    await project.fill("Users", rows)
    return commands_on(project)


def with_key(rekey: Commands) -> keys.PublicKey:
    folder = rekey.project.folder
    with (folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write('[evidence]\nkey_file = "evidence.pem"\n')
    return signing.make_key(folder / "evidence.pem")


def events(rekey: Commands, kind: str = "") -> list[AuditEvent]:
    with State.open(rekey.project.config.state, read_only=True) as state:
        return [event for event in state.audit_events() if not kind or event.event == kind]


def test_every_phase_boundary_has_a_signed_checkpoint(rekey: Commands) -> None:
    key = with_key(rekey)
    rekey("apply", "0001")
    rekey(*TO_CUTOVER)
    rekey("rollback", "0001", "--writers-stopped")
    with State.open(rekey.project.config.state) as state:
        stored = state.checkpoints()
        assert [one.remark.partition(": ")[2] for one in stored] == [
            *(f"`{phase}` done" for phase in ("prepare", "dual_write", "backfill", "reconcile", "cutover")),
            "`cutover` rolled back",
        ]
        assert every(note.parsed(one.note).is_by(key) for one in stored)
        assert log.problems_of(state.audit_events(), stored) == []
        ends = {event.seq for event in state.audit_events() if event.event in ("phase-done", "phase-undone")}
        assert ends == {one.size for one in stored}


def test_a_missing_key_is_said_before_anything_is_done(rekey: Commands) -> None:
    with_key(rekey)
    config = rekey.project.folder / "rekey.toml"
    config.write_text(config.read_text("utf-8").replace("evidence.pem", "own key.pem"), "utf-8")
    said = rekey("apply", "0001", code=2)
    assert not rekey.project.config.state.exists()
    [words] = re.findall("`rekey (evidence keygen .+?)`", said.err)
    rekey(*shlex.split(words))
    rekey("apply", "0001")


def test_gates_are_recorded_open_and_closed_with_what_they_saw(rekey: Commands) -> None:
    rekey("apply", "0001")
    assert events(rekey, "gate") == [], "a gate that is only shown is not recorded"
    rekey("apply", "0001", "--to", "cutover", code=3)
    rekey(*TO_CUTOVER)
    closed, opened = events(rekey, "gate")
    assert (closed.details["phase"], closed.details["open"]) == ("cutover", False)
    assert "--writers-stopped" in closed.details["reasons"][0]
    assert closed.details["saw"]["writers_stopped"] is False
    assert (opened.details["open"], opened.details["reasons"]) == (True, [])
    saw = opened.details["saw"]
    assert saw["writers_stopped"] is True
    assert saw["control"] == {"phase": "dual_write", "epoch": 2}
    assert saw["digest"] == rekey.project.scripts[SCRIPT].digest
    verified = events(rekey, "verification")[0].details
    assert saw["verification"]["content_digest"] == verified["tables"][0]["actual_digest"]
    assert saw["verification"]["divergences"] == 0


def test_a_refused_retire_is_recorded_too(rekey: Commands) -> None:
    rekey("apply", "0001")
    rekey(*TO_CUTOVER)
    rekey("apply", "0001", "--to", "complete", "--yes", SCRIPT)
    rekey("retire", "0001", "--table", "Other", code=3)
    last = events(rekey, "gate")[-1].details
    assert (last["phase"], last["open"], last["saw"]["table_name_typed"]) == ("retire", False, False)


@pytest.mark.parametrize(
    ("words", "said"), [((), "every source row was tried"), (("--skip-row-check",), "skipped")]
)
def test_plan_and_waiver_are_recorded(rekey: Commands, words: tuple[str, ...], said: str) -> None:
    rekey("apply", "0001", *words)
    [planned] = events(rekey, "planned")
    assert said in planned.details["row_check"]
    with State.open(rekey.project.config.state, read_only=True) as state:
        kept = state.get_fact(SCRIPT, PLAN_FACT) or ""
    assert planned.details["plan_sha256"] == hashlib.sha256(kept.encode()).hexdigest()
    assert json.loads(kept)["plan"]["migrations"][0]["basis"]["declaration"] == planned.details["digest"]
    assert EMAIL not in kept


def test_commands_are_recorded_without_the_texts_that_were_typed(rekey: Commands) -> None:
    rekey("apply", "0001", "--no-progress")
    rekey("lookup", "0001", "--old", "eu", f"1{EMAIL}", "--reason", "ticket 4711")
    rekey("verify", "0001", "--mode", "sample", "--rows", "7", "--seed", "3")
    commands = list(dict.fromkeys(event.command for event in events(rekey)))
    assert commands == [
        "rekey apply --no-progress",
        "rekey lookup --old=… --reason=…",
        "rekey verify --mode=sample --rows=7 --seed=3",
    ]
    assert every(event.host and event.actor and event.format == 2 for event in events(rekey))
    assert EMAIL not in b"".join(event.line for event in events(rekey)).decode()
