"""`rekey export`: what it writes, that a kill costs the parts under way alone, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shlex
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rekey.backup.export import _Export
from rekey.backup.folder import Unfinished, open_export
from rekey.backup.manifest import uncovered
from rekey.mapping.sealing import LocalWrappingKey
from rekey.model import EntityKey, KeyRange
from rekey.runner.refusals import refusal
from rekey.runner.run import StopFlag
from rekey.state.filelock import FileLock
from rekey.tables.parallel import Reader
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.fakes.faults import Call, Fault, FaultKind
from tests.worlds.backups import ROWS, canonical, contents, filled, manifest_of, parts_of, small_parts
from tests.worlds.odd_rows import generic
from tests.worlds.projects import WRAPPING_KEY, Project, applied
from tests.worlds.scripts import MOVE
from tests.worlds.small import user


@pytest.fixture
def world(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    small_parts(monkeypatch)
    return filled(project)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_an_export_has_every_row_once_and_says_what_it_is(world: Project, rekey: Commands, out: Path) -> None:
    said = rekey("export", "Users", str(out), "--plain", "--json").json
    manifest = manifest_of(out)
    assert (said["rows"], said["snapshot"], said["encrypted"]) == (ROWS, False, False)
    assert said["parts"] == len(manifest["parts"]) == len(parts_of(out)) > 10
    lines = [
        json.loads(line)
        for part in manifest["parts"]
        for line in gzip.decompress((out / part["file"]).read_bytes()).splitlines()
    ]
    assert canonical(lines) == canonical(contents(world, "Users"))
    assert manifest["about"].startswith("Not a snapshot")
    assert manifest["left_out"] == ["odata.etag", "Timestamp"]
    assert sorted(path.name for path in out.iterdir()) == sorted([*parts_of(out), "manifest.json"])
    assert every(path.stat().st_mode & 0o077 == 0 for path in out.iterdir())


def test_the_digest_is_the_one_that_verification_computes(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = applied(tmp_path, MOVE_SCRIPT, [user(f"user{number}@example.com") for number in range(200)])
    rekey = commands_on(project)
    verified = rekey("verify", "--json").json
    for table, digest in (
        ("Users", verified["source_digest"]),
        ("Users@targets", verified["tables"][0]["actual_digest"]),
    ):
        exported = rekey("export", table, str(tmp_path / table), "--json").json
        assert exported["digest"] == digest


MOVE_SCRIPT = MOVE.replace("SOURCE", "Users").replace("TARGET", "Users@targets")


def test_rows_written_since_the_export_began_are_counted(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    async def write_meanwhile(_call: Call) -> None:
        seen.append(1)
        if len(seen) == 2:  # the time was read, no page yet
            monkeypatch.setattr(world.tables, "gate", before)
            for row in contents(world, "Users")[-3:]:
                await world.tables.table("Users").upsert(row)

    before = world.tables.gate
    monkeypatch.setattr(world.tables, "gate", write_meanwhile)
    said = rekey("export", "Users", str(out), "--json").json
    assert (said["rows"], said["changed"]) == (ROWS, 3)


def test_an_encrypted_export_shows_no_key_and_no_value(project: Project, rekey: Commands, out: Path) -> None:
    filled(project, [user(f"secret{number}@example.com") for number in range(300)])
    said = rekey("export", "Users", str(out))
    everything = b"".join(path.read_bytes() for path in out.iterdir())
    assert b"secret" not in everything and b"example.com" not in everything
    assert "secret" not in said.all
    export = open_export(out, lambda: LocalWrappingKey(WRAPPING_KEY.encode()))
    assert canonical(export.rows(export.parts, 0)) == canonical(contents(project, "Users"))


def test_the_digest_of_few_rows_is_not_shown(project: Project, rekey: Commands, out: Path) -> None:
    filled(project, [user("user1@example.com")])
    sealed = rekey("export", "Users", str(out), "--json").json
    plain = rekey("export", "Users", f"{out}2", "--plain", "--json").json
    assert sealed["digest"] == "" and len(plain["digest"]) == 64
    assert plain["digest"] not in (out / "manifest.json").read_text("utf-8")


@pytest.mark.parametrize("count", [0, 1])
def test_a_small_table_is_one_part(project: Project, rekey: Commands, out: Path, count: int) -> None:
    filled(project, [user(f"user{number}@example.com") for number in range(count)])
    assert rekey("export", "Users", str(out), "--json").json["parts"] == 1
    assert rekey("import", str(out), "Back", "--json").json["inserted"] == count
    assert contents(project, "Back") == contents(project, "Users")


# --- the same parts, however it went ----------------------------------------------------------------------


@pytest.mark.parametrize("scans", [1, 3, 8])
def test_parts_do_not_depend_on_the_ranges_that_were_read_at_a_time(
    world: Project, rekey: Commands, out: Path, scans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits: list[KeyRange] = []
    split = KeyRange.split
    monkeypatch.setattr(KeyRange, "split", lambda self, middle: splits.append(self) or split(self, middle))
    rekey("export", "Users", str(out), "--plain")
    configuration = world.folder / "rekey.toml"
    text = configuration.read_text("utf-8").replace("[limits]", f"[limits]\nscans = {scans}")
    configuration.write_text(text, "utf-8")
    splits.clear()
    rekey("export", "Users", f"{out}2", "--plain")
    assert (scans > 1) is bool(splits)
    assert parts_of(out) == parts_of(Path(f"{out}2"))
    assert manifest_of(out)["parts"] == manifest_of(Path(f"{out}2"))["parts"]


def test_a_part_ends_when_it_is_large(
    project: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekey.backup.export.MOST_BYTES", 10_000)
    filled(project)
    rekey("export", "Users", str(out), "--plain")
    sizes = [part["bytes"] for part in manifest_of(out)["parts"]]
    assert len(sizes) > 10 and every(size < 12_000 for size in sizes)
    rekey("import", str(out), "Back", "--plain")
    assert contents(project, "Back") == contents(project, "Users")


class Killed(BaseException):
    """Ends the command as a kill would: nothing of it goes on."""


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, moment: str) -> Callable[[], None]:
    """Let the export end at its part of a number: before it is written, or written and not recorded."""
    written = [0]
    keep = Unfinished.keep

    def stop(self: Unfinished, within: KeyRange, lines: bytes, rows: int, changed: int) -> None:
        written[0] += 1
        if written[0] < number:
            keep(self, within, lines, rows, changed)
            return
        if moment == "written":
            self.write(within, lines, rows, changed)
        if moment == "recorded in part":
            keep(self, within, lines, rows, changed)
            journal = self.folder / "journal.jsonl"
            journal.write_bytes(journal.read_bytes()[:-20])
        raise Killed

    monkeypatch.setattr(Unfinished, "keep", stop)
    return lambda: monkeypatch.setattr(Unfinished, "keep", keep)


@pytest.mark.parametrize("moment", ["begun", "written", "recorded in part"])
@pytest.mark.parametrize("options", [("--plain",), ()], ids=["plain", "sealed"])
def test_killed_at_every_part_it_ends_as_if_undisturbed(
    project: Project,
    rekey: Commands,
    out: Path,
    moment: str,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run gets one part further than the one before, so that every part is the one under way once."""
    small_parts(monkeypatch, rows=32)
    filled(project, generic(300))
    peaceful = Path(f"{out}-peaceful")
    rekey("export", "Users", str(peaceful), "--plain")
    for number in range(len(parts_of(peaceful))):
        unkill = killed_at(monkeypatch, 2, moment)
        with pytest.raises(Killed):
            rekey("export", "Users", str(out), *options)
        unkill()
        assert not (out / "manifest.json").exists()
        assert len(parts_of(out)) >= number
        if number >= len(parts_of(peaceful)) - 2:
            break
    rekey("export", "Users", str(out), *options)
    ours, theirs = manifest_of(out), manifest_of(peaceful)
    assert [part["rows"] for part in ours["parts"]] == [part["rows"] for part in theirs["parts"]]
    assert sorted(path.name for path in out.iterdir()) == sorted([*parts_of(out), "manifest.json"])
    if options:
        assert parts_of(out) == parts_of(peaceful)
        assert {**ours, "export": 0, "proof": 0} == {**theirs, "export": 0, "proof": 0}
    wrapping = LocalWrappingKey(WRAPPING_KEY.encode())
    opened, other = (open_export(folder, lambda: wrapping) for folder in (out, peaceful))
    assert opened.manifest.digest == other.manifest.digest
    for number in range(len(opened.parts)):
        assert opened.rows(opened.parts, number) == other.rows(other.parts, number)


def test_killed_before_its_first_journal_was_there_it_begins_again(
    project: Project, rekey: Commands, out: Path
) -> None:
    filled(project, generic(3))
    out.mkdir()
    for name in (".rekey-x1y2z3", "journal.jsonl.lock"):
        (out / name).touch()
    rekey("export", "Users", str(out), "--plain")
    assert sorted(path.name for path in out.iterdir()) == sorted([*parts_of(out), "manifest.json"])


def test_what_it_says_next_can_be_typed(project: Project, rekey: Commands, tmp_path: Path) -> None:
    filled(project, generic(3))
    for options, folder in ((("--plain",), "in the clear"), ((), "sealed")):
        said = rekey("export", "Users", str(tmp_path / folder), *options).out
        (command,) = re.findall("  next +rekey (.+)", said)
        rekey(*shlex.split(command))


def test_parts_that_are_complete_are_not_read_again(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unkill = killed_at(monkeypatch, 8, "begun")
    with pytest.raises(Killed):
        rekey("export", "Users", str(out), "--plain")
    unkill()
    before, sent = parts_of(out), world.tables.sent.counts.copy()
    rekey("export", "Users", str(out), "--plain")
    assert before.items() <= parts_of(out).items()
    assert sum((world.tables.sent.counts - sent).values()) < 8, "the rest is two pages"


def test_a_part_that_is_not_as_it_was_written_is_written_again(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unkill = killed_at(monkeypatch, 10, "begun")
    with pytest.raises(Killed):
        rekey("export", "Users", str(out), "--plain")
    unkill()
    first, second, *_ = sorted(parts_of(out))
    (out / first).unlink()
    (out / second).write_bytes(b"cut off")
    rekey("export", "Users", str(out), "--plain")
    rekey("import", str(out), "Back", "--plain")
    assert contents(world, "Back") == contents(world, "Users")


def test_a_service_that_fails_leaves_complete_parts(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def decide(self, call: Call) -> Fault | None:
            is_late = call.action == "page" and len(parts_of(out)) > 3
            return Fault(FaultKind.BUSY) if is_late else None

    with monkeypatch.context() as patched:
        patched.setattr(world.tables, "faults", Failing())
        said = rekey("export", "Users", str(out), code=4)
    assert "run the same command again" in said.err
    assert rekey("export", "Users", str(out), "--json").json["rows"] == ROWS


def stop_if_requested(self: StopFlag) -> None:
    if self.requested():
        raise refusal("stopped")


def test_stopped_by_a_signal_it_continues(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(StopFlag, "requested", lambda _: out.exists() and len(parts_of(out)) > 3)
        patched.setattr(StopFlag, "check", stop_if_requested)
        said = rekey("export", "Users", str(out), code=130)
    assert "run the same command again" in said.err
    before = parts_of(out)
    assert len(before) > 3
    assert rekey("export", "Users", str(out), "--json").json["rows"] == ROWS


# --- what is refused --------------------------------------------------------------------------------------


def begun(rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Begin an export that is killed."""
    unkill = killed_at(monkeypatch, 2, "begun")
    with pytest.raises(Killed):
        rekey("export", "Users", str(out), *options)
    unkill()


def test_a_folder_that_holds_something_else_is_refused(world: Project, rekey: Commands, out: Path) -> None:
    out.mkdir()
    (out / "mine.txt").write_text("mine", "utf-8")
    assert "holds no export" in rekey("export", "Users", str(out), code=3).err
    assert "is a file" in rekey("export", "Users", str(out / "mine.txt"), code=2).err
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_a_complete_export_is_not_written_over(world: Project, rekey: Commands, out: Path) -> None:
    rekey("export", "Users", str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "holds an export already: Users" in rekey("export", "Users", str(out), code=3).err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_export_is_continued_as_it_was_begun_only(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(world.fill("Others", []))
    begun(rekey, out, monkeypatch, "--plain")
    assert "of Users in" in rekey("export", "Others", str(out), "--plain", code=3).err
    assert "is in the clear" in rekey("export", "Users", str(out), code=3).err
    begun(rekey, Path(f"{out}2"), monkeypatch)
    assert "is encrypted" in rekey("export", "Users", f"{out}2", "--plain", code=3).err
    (world.folder / "sealing.key").write_text("another key, of at least 32 bytes\n", "utf-8")
    assert "was encrypted with the wrapping key local:" in rekey("export", "Users", f"{out}2", code=3).err
    (out / "journal.jsonl").write_bytes(b"{}")
    assert "journal was changed" in rekey("export", "Users", str(out), "--plain", code=3).err


def test_two_commands_do_not_write_one_export(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(rekey, out, monkeypatch)
    with FileLock(out / "journal.jsonl"):
        assert "Another rekey command" in rekey("export", "Users", str(out), code=3).err
    rekey("export", "Users", str(out))


def test_without_a_wrapping_key_it_says_what_to_do(world: Project, rekey: Commands, out: Path) -> None:
    configuration = world.folder / "rekey.toml"
    text = configuration.read_text("utf-8").replace('[sealing]\nfile = "sealing.key"\n', "")
    configuration.write_text(text, "utf-8")
    said = rekey("export", "Users", str(out), code=2)
    assert "add [sealing]" in said.err and "--plain" in said.err and not out.exists()
    rekey("export", "Users", str(out), "--plain")


def test_a_table_that_is_not_there_and_a_name_that_cannot_be_are_usage(
    world: Project, rekey: Commands, out: Path
) -> None:
    said = rekey("export", "User", str(out), code=2)
    assert "write Users" in said.err and not out.exists()
    assert "not a table name" in rekey("export", "no-table", str(out), code=2).err
    assert "no such section" in rekey("export", "Users@targets", str(out), code=2).err


def test_a_range_that_was_read_to_its_end_is_not_split(
    world: Project, rekey: Commands, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle scan looks for a key while the last part of the range is written, and a client inserts one."""
    keep, late = Unfinished.keep, generic(1, seed=1)
    writing, looked = threading.Event(), threading.Event()
    behind = EntityKey("\U0001f9ff", "behind all others")

    def slow(self: Unfinished, within: KeyRange, lines: bytes, rows: int, changed: int) -> None:
        if within.upto is None:
            writing.set()
            looked.wait(5)
        keep(self, within, lines, rows, changed)

    async def middle(_self: _Export, reader: Reader) -> EntityKey | None:
        if reader.rest.upto is not None:
            return None
        while not writing.is_set():
            await asyncio.sleep(0)
        await world.fill("Users", ({**row, "PartitionKey": behind[0], "RowKey": behind[1]} for row in late))
        asyncio.get_running_loop().call_later(0.1, looked.set)
        return behind

    monkeypatch.setattr(Unfinished, "keep", slow)
    monkeypatch.setattr(_Export, "middle", middle)
    rekey("export", "Users", str(out))
    assert looked.is_set(), "it was looked for"
    assert uncovered(open_export(out, lambda: LocalWrappingKey(WRAPPING_KEY.encode())).parts) == []
    assert rekey("import", str(out), "Back", "--json").json["inserted"] == ROWS
