"""The state file keeps what it was told, all of it or nothing, and for nobody else to read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rekey.errors import MachineFailed, Moved, StateUnusable
from rekey.model import EntityKey, KeyRange
from rekey.runner.session import require_same_place, require_same_rules
from rekey.state.models import MigrationRecord, StoredDigests, Verification
from rekey.state.store import State

SCRIPT = "0001_users"
NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def state(path: Path) -> Iterator[State]:
    with State.open(path, clock=lambda: NOON) as opened:
        yield opened


def register(state: State, **changes: object) -> None:
    given: dict[str, object] = {
        "digest": "d1",
        "source": "Users",
        "run_id": "run",
        "secret_fingerprints": {"users": "f1"},
        "endpoint_id": "account",
    }
    state.register(SCRIPT, **{**given, **changes})  # type: ignore[arg-type]


def verification(mode: str = "full", divergences: int = 0) -> Verification:
    return Verification(mode, "a", "b", "d1", 10, 20, divergences, 1, {"buckets": [1, 2]})


def test_the_file_and_its_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "state.sqlite"
    with State.open(path) as state:
        state.audit("x", None, {})
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "state.sqlite-wal" in modes
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "a b", "ä'\"b", "file:x?mode=memory"])
def test_whatever_the_path_holds_this_file_is_opened_and_no_other(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / f"{name}.sqlite"
    with State.open(path) as state:
        register(state)
    assert {entry.name for entry in tmp_path.iterdir()} == {name}
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, path.name + ".lock"}
    for read_only in (True, False):
        with State.open(path, read_only=read_only) as state:
            assert state.migration(SCRIPT) is not None


def recorded(state: State) -> MigrationRecord:
    register(state)
    made = state.migration(SCRIPT)
    assert made is not None
    return made


def test_a_migration_is_recorded_once(state: State) -> None:
    assert state.migration(SCRIPT) is None
    made = recorded(state)
    register(state, digest="d2")
    assert state.migration(SCRIPT) == made
    state.forget(SCRIPT)
    assert state.migration(SCRIPT) is None


@pytest.mark.parametrize(
    ("place", "names"),
    [
        (("Users", "other", "run"), "account"),
        (("Other", "account", "run"), "source table"),
        (("Users", "account", "other"), "run"),
    ],
)
def test_another_migrations_file_is_refused(state: State, place: tuple[str, str, str], names: str) -> None:
    record = recorded(state)
    require_same_place(record, "USERS", "account", "run")  # table names do not differ by case
    with pytest.raises(StateUnusable, match=f"another migration.*{names}"):
        require_same_place(record, *place)


def test_an_edited_script_and_a_changed_secret_are_refused_by_name(state: State) -> None:
    record = recorded(state)
    began = record.digest, record.secret_fingerprints
    require_same_rules(SCRIPT, began, ("d1", {"users": "f1"}))
    with pytest.raises(Moved, match="edited after its first phase"):
        require_same_rules(SCRIPT, began, ("d2", {"users": "f1"}))
    for fingerprints in ({"users": "f2"}, {}, {"users": "f1", "more": "f3"}):
        with pytest.raises(Moved, match=r"`users`|`more`"):
            require_same_rules(SCRIPT, began, ("d1", fingerprints))


def test_segments_come_back_as_they_were_saved(path: Path, state: State) -> None:
    """Also keys that are no valid text, which a service may hold all the same."""
    register(state)
    odd = EntityKey("p'%\x7f\U0001f600", "\ud800")
    ranges = [KeyRange(None, odd), KeyRange(odd, EntityKey("", "")), KeyRange(EntityKey("", ""), None)]
    first, second, third = state.add_segments(SCRIPT, "backfill", ranges)
    assert [s.rest for s in (first, second, third)] == ranges
    moved = replace(second, cursor=EntityKey("q", "r"), rows=5, bytes=700)
    state.checkpoint([replace(first, done=True), moved])
    assert state.segments(SCRIPT, "backfill") == [replace(first, done=True), moved, third]
    assert moved.rest == KeyRange(EntityKey("q", "r"), EntityKey("", ""))
    with State.open(path, read_only=True) as other:
        assert other.segments(SCRIPT, "backfill") == state.segments(SCRIPT, "backfill")
    state.add_segments(SCRIPT, "sweep", [KeyRange()])
    state.clear_segments(SCRIPT, "backfill")
    assert state.segments(SCRIPT, "backfill") == []
    assert len(state.segments(SCRIPT, "sweep")) == 1


def test_no_repr_shows_a_key(state: State) -> None:
    register(state)
    segment = state.add_segments(SCRIPT, "b", [KeyRange(EntityKey("alice@x", "1"), EntityKey("bob@x", "2"))])
    assert "alice" not in repr(segment)
    assert "bob" not in repr(segment)


def test_facts_are_set_replaced_and_removed(state: State) -> None:
    register(state)
    assert state.get_fact(SCRIPT, "watermark") is None
    state.set_fact(SCRIPT, "watermark", "1")
    state.set_fact(SCRIPT, "watermark", "2")
    state.set_fact(SCRIPT, "other", "x")
    assert state.facts(SCRIPT) == {"watermark": "2", "other": "x"}
    state.set_fact(SCRIPT, "watermark", None)
    assert state.get_fact(SCRIPT, "watermark") is None


def test_a_checkpoint_is_of_all_its_segments_or_of_none(state: State) -> None:
    register(state)
    first, second = state.add_segments(SCRIPT, "full", [KeyRange(), KeyRange()])
    state.checkpoint([replace(first, rows=1), replace(second, rows=1)])
    state._connection.execute(
        "CREATE TEMP TRIGGER no BEFORE UPDATE ON main.segment WHEN NEW.row_count = 3"
        " BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(MachineFailed):
        state.checkpoint([replace(first, rows=2), replace(second, rows=3)])
    assert [one.rows for one in state.segments(SCRIPT, "full")] == [1, 1]


def test_a_checkpoint_is_of_one_migration(state: State) -> None:
    with pytest.raises(ValueError, match="one migration"):
        state.checkpoint([])


def test_forgetting_a_migration_forgets_its_progress_and_keeps_its_history(state: State) -> None:
    register(state)
    state.add_segments(SCRIPT, "backfill", [KeyRange()])
    state.set_fact(SCRIPT, "x", "1")
    state.add_verification(SCRIPT, verification())
    state.start_phase(SCRIPT, "prepare")
    state.audit("x", SCRIPT, {})
    state.forget(SCRIPT)
    assert state.segments(SCRIPT, "backfill") == []
    assert state.facts(SCRIPT) == {}
    assert state.latest_verification(SCRIPT) is None
    assert len(state.phase_runs(SCRIPT)) == len(state.audit_events(SCRIPT)) == 1


def test_phase_runs_tell_finished_from_killed(state: State) -> None:
    killed = state.start_phase(SCRIPT, "backfill")
    finished = state.start_phase(SCRIPT, "backfill")
    state.finish_phase(finished, "done", {"rows": 7})
    first, second = state.phase_runs(SCRIPT)
    assert (first.id, first.outcome, first.finished_at) == (killed, None, None)
    assert (second.outcome, second.counters) == ("done", {"rows": 7})
    assert second.started_at == second.finished_at == "2024-01-31T12:00:00.000000Z"


def test_the_latest_verification_is_the_latest_of_its_mode(state: State) -> None:
    register(state)
    assert state.latest_verification(SCRIPT) is None
    state.add_verification(SCRIPT, verification(divergences=2))
    state.add_verification(SCRIPT, verification())
    state.add_verification(SCRIPT, verification(mode="count", divergences=9))
    assert state.latest_verification(SCRIPT) == replace(verification(), number=2)
    assert [v.divergences for v in state.verifications(SCRIPT)] == [2, 0, 9]


def test_what_is_written_to_any_table_of_the_schema_is_read_back(path: Path, state: State) -> None:
    register(state)
    state.keep_script(SCRIPT, ["UsersV2"], b"migration = ...")
    state.set_fact(SCRIPT, "watermark", "1")
    state.add_segments(SCRIPT, "backfill", [KeyRange()])
    state.start_phase(SCRIPT, "backfill")
    state.add_verification(SCRIPT, verification())
    state.keep_digests(SCRIPT, StoredDigests("{}", "2024-05-01T00:00:00Z", {"parts": []}))
    state.audit("x", SCRIPT, {"rows": [1, 2]})
    state.add_checkpoint(1, "note", "remark")
    read = {
        "migration": State.migrations,
        "script": State.kept_scripts,
        "fact": lambda one: one.facts(SCRIPT),
        "segment": lambda one: one.segments(SCRIPT, "backfill"),
        "phase_run": lambda one: one.phase_runs(SCRIPT),
        "verification": lambda one: one.verifications(SCRIPT),
        "partial_sums": lambda one: one.stored_digests(SCRIPT),
        "audit_event": State.audit_events,
        "audit_checkpoint": State.checkpoints,
    }
    made = state._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {name for (name,) in made if "yoyo" not in name and not name.startswith("sqlite_")} == set(read)
    with State.open(path, read_only=True) as other:
        for name, found in read.items():
            assert found(state), name
            assert found(other) == found(state), name


READER = """
import sys
from pathlib import Path
from rekey.state.models import StoredDigests
from rekey.state.store import State
with State.open(Path(sys.argv[1]), read_only=True) as state:
    print(state.get_fact("0001_users", "x"))
"""


def test_another_process_reads_while_a_transaction_is_open(path: Path, state: State) -> None:
    """`rekey status` beside `rekey apply`: it sees the last commit, and does not wait."""
    register(state)
    state.set_fact(SCRIPT, "x", "committed")
    with state._writing() as writer:
        writer.update("fact", {"value": "not yet"}, name="x")
        seen = subprocess.run(
            [sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True
        )
    assert seen.stdout == "committed\n"


def test_two_writers_take_turns(path: Path, state: State) -> None:
    """`rekey verify` records its result while `rekey apply` works; the audit chain stays one chain."""
    with State.open(path) as other:
        for number in range(5):
            state.audit("apply", None, {"n": number})
            other.audit("verify", None, {"n": number})
    assert [event.seq for event in state.audit_events()] == list(range(1, 11))
    assert state.check_chain() is None


def test_keys_of_one_migration_are_forgotten_and_counts_stay(tmp_path: Path) -> None:
    """Not only out of the rows: out of the file, its free pages and its log."""
    path = tmp_path / "state.sqlite"
    with State.open(path) as state:
        for script_id in ("0001_a", "0002_b"):
            state.register(script_id, "d", "Source", "r", {}, "e")
            bounds = [KeyRange(None, EntityKey("p", f"{script_id}-key{n}")) for n in range(200)]
            first = state.add_segments(script_id, "backfill", bounds)[0]
            cursor = replace(first, cursor=EntityKey("p", f"{script_id}-cursor"), rows=7)
            state.checkpoint([cursor])
        # Some builds of SQLite wipe what is freed; this must not depend on it.
        state._connection.execute("PRAGMA secure_delete = OFF")
        state.forget_keys("0001_a")
        found = state.segments("0001_a", "backfill")
        assert (len(found), found[0].rows) == (200, 7)
        assert {(one.after, one.upto, one.cursor) for one in found} == {(None, None, None)}
        assert state.segments("0002_b", "backfill")[0].cursor is not None
        everything = b"".join(one.read_bytes() for one in sorted(tmp_path.iterdir()))
        assert b"0001_a-key" not in everything and b"0001_a-cursor" not in everything
        assert b"0002_b-cursor" in everything
        state.forget_keys("0001_a")


def test_keys_of_a_running_verification_are_forgotten_repeatedly(tmp_path: Path) -> None:
    """A verification behind `complete` writes keys again; once it is over, free pages hold them."""
    bounds = ["part", EntityKey("p", "a-key"), None, EntityKey("p", "a-cursor"), False]
    with State.open(tmp_path / "state.sqlite") as state:
        state.register("0001_a", "d", "Source", "r", {}, "e")
        for ended in (False, True):
            state.keep_digests("0001_a", StoredDigests("{}", "2024-05-01T00:00:00Z", {"parts": [bounds]}))
            if ended:
                state.keep_digests("0001_a", None)
            state.forget_keys("0001_a")
            assert state.stored_digests("0001_a") is None
            everything = b"".join(one.read_bytes() for one in sorted(tmp_path.iterdir()))
            assert b"a-key" not in everything and b"a-cursor" not in everything


def test_a_failed_vacuum_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows held no key any more by then; what they had held was still in the file."""
    rewritten = []

    def full(_connection: object) -> None:
        rewritten.append(False)
        raise MachineFailed("the disk is full", hint="free space")

    with State.open(tmp_path / "state.sqlite") as state:
        state.register("0001_a", "d", "Source", "r", {}, "e")
        state.add_segments("0001_a", "backfill", [KeyRange(None, EntityKey("p", "key"))])
        with monkeypatch.context() as patched:
            patched.setattr("rekey.state.files.rewrite", full)
            with pytest.raises(MachineFailed):
                state.forget_keys("0001_a")
        monkeypatch.setattr("rekey.state.files.rewrite", lambda _connection: rewritten.append(True))
        state.forget_keys("0001_a")
        state.forget_keys("0001_a")
    assert rewritten == [False, True]
