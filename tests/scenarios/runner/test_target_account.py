"""Targets in another account: whole lives of tables that move, under the same name or another one.

Soak: a killed runner and keys from keys; more moments of a kill.
Reason, and what `make test` covers: keys from content, two moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rekey.core.limits import own_name
from rekey.errors import ConfigurationError, CredentialRefused, Moved
from rekey.evidence import contents
from rekey.model import content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.phases import PHASES
from rekey.runner.probe_tables import require_two_accounts
from rekey.runner.run import Options
from tests.asserts.command_line import CommandsOn
from tests.asserts.every import every
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTable, MemoryTableService
from tests.worlds.application_rows import (
    assert_kept,
    new_post,
    new_users,
    old_post,
    old_user,
    own_keys,
)
from tests.worlds.company import Company, Ledger, company, traffic
from tests.worlds.erasure import WHY, Lives, by_old, subject
from tests.worlds.evidence import exported, with_key
from tests.worlds.projects import MOVE_SCRIPT, POSTS_ELSEWHERE_SCRIPT, SKEW_S, USERS_ELSEWHERE_SCRIPT, Project
from tests.worlds.small import post, user

STOPPED = Options(writers_stopped=True)
SCRIPT = "0001_users"
ROWS = [user(f"user{number:03}@example.com", f"p{number % 3}") for number in range(60)]


@pytest.fixture
def moved(tmp_path: Path) -> Project:
    """A project that moves a table to another account under its own name; the keys stay as they are."""
    made = Project(tmp_path)
    made.move_elsewhere()
    made.script(MOVE_SCRIPT)
    asyncio.run(made.fill("Users", ROWS))
    return made


def contents_of(project: Project, table: str) -> list[dict[str, object]]:
    return [content_of(row) for row in project.rows(table)]


def apply(project: Project, to: Phase | None = None) -> None:
    with project.session(STOPPED) as session:
        commands.apply(session, SCRIPT, to=to)


def test_a_table_moves_to_another_account_under_its_own_name(moved: Project) -> None:
    apply(moved, Phase.CUTOVER)
    assert contents_of(moved, "Users@targets") == contents_of(moved, "Users")
    assert len(moved.targets.dump("Users@targets")) == len(ROWS)


@pytest.mark.parametrize("margin", ["0s", "1s"])
def test_a_write_after_cutover_returns_despite_clock_skew(moved: Project, margin: str) -> None:
    """By the source's clock the row seems to be older than the freeze, by more than the margin."""
    assert SKEW_S > 1
    config = moved.folder / "rekey.toml"
    config.write_text(config.read_text().replace("[gates]", f'[gates]\nmargin = "{margin}"'))
    apply(moved, Phase.CUTOVER)
    asyncio.run(moved.targets.table("Users@targets").insert(user("new@example.com", "p1")))
    with moved.session(STOPPED) as session:
        commands.rollback(session, SCRIPT, to=None, drop=None)
    assert contents_of(moved, "Users") == contents_of(moved, "Users@targets")
    assert "new@example.com" in {key_of(row).row for row in moved.rows("Users")}


# --- dual writes -------------------------------------------------------------------------------------------


@pytest.fixture(params=[USERS_ELSEWHERE_SCRIPT, POSTS_ELSEWHERE_SCRIPT], ids=["users", "posts"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Company]:
    rows = ROWS if request.param is USERS_ELSEWHERE_SCRIPT else [post(f"post-{n:03}") for n in range(40)]
    with company(tmp_path, request.param, rows) as made:
        yield made


def test_clients_of_both_views_write_while_a_table_moves_to_another_account_and_back(ours: Company) -> None:
    """Nothing that was acknowledged is lost, in whichever account it was written first."""
    source = ours.mapper.migration.source
    is_users = source == "Users"
    ledger, later = Ledger(), Ledger()
    keys = own_keys("w", "p0" if is_users else "blog")
    ours.writes(traffic(ours.client(), keys, old_user if is_users else old_post, ledger, seed=3))
    ours.live(5)
    ours.apply()
    ours.live(10)
    assert not ours.verify().findings
    ours.apply(Phase.CUTOVER)
    if is_users:
        theirs, change = new_users(ours, own_keys("n", "p2"))
    else:
        theirs, change = own_keys("n", "2024-01"), new_post
    ours.writes(traffic(ours.client(View.NEW), theirs, change, later, seed=5))
    ours.live(20)
    assert not ours.verify().findings
    ours.rollback()
    assert ours.phase is ControlPhase.DUAL_WRITE
    ours.live(10)
    ours.settle()
    assert ours.unsettled == []
    ours.live(90)  # then their clients have beaten long after what is kept: nothing of it can arrive any more
    ours.apply()
    assert ours.intents == []
    assert_kept(ours, ledger, source)
    ours.assert_in_step()


@pytest.mark.parametrize(
    ("ours", "moments"),
    [
        pytest.param(USERS_ELSEWHERE_SCRIPT, (5, 40, 90, 150), id="users", marks=pytest.mark.soak),
        pytest.param(POSTS_ELSEWHERE_SCRIPT, (5, 40, 90, 150), id="posts", marks=pytest.mark.soak),
        pytest.param(POSTS_ELSEWHERE_SCRIPT, (40, 150), id="posts, twice"),
    ],
    indirect=["ours"],
)
def test_a_runner_that_is_killed_while_a_table_moves_goes_on(ours: Company, moments: Sequence[int]) -> None:
    change = old_user if ours.mapper.migration.source == "Users" else old_post
    ours.writes(traffic(ours.client(), own_keys("w", "p0"), change, Ledger(), seed=1))
    for at in moments:
        with ours.killing_the_runner(at):
            ours.apply()
        with ours.little_traffic():
            ours.live(70)  # until its lease is over
    ours.apply()
    ours.apply(Phase.CUTOVER)
    ours.settle()
    ours.assert_in_step()


# --- what else is done with rows ----------------------------------------------------------------------------


def test_rows_in_the_target_account_are_erased_and_proved(lives: Lives) -> None:
    """Both of a person's rows go, in whichever account; evidence names both accounts and no secret."""
    rekey = lives.completed(POSTS_ELSEWHERE_SCRIPT)
    row = subject(rekey)
    [found] = rekey("lookup", *by_old(row), *WHY, "--json").json["rows"]
    assert {one["table"] for one in found["new"]} == {"PostsV2@targets", "PostsByTag"}
    with_key(rekey.project.folder)
    folder = str(exported(rekey))
    assert "recorded" in rekey("evidence", "verify", folder).out
    said = rekey("evidence", "recompute", folder, "--json").json
    assert every(one["equal"] for one in said["digests"])
    state = (Path(folder) / "data" / contents.STATE).read_text()
    assert "127.0.0.1:10002" in state and "127.0.0.1:10003" in state
    erased = rekey("erase", *by_old(row), *WHY, "--with-targets", "--json").json["target_rows"]
    assert erased == {"PostsV2@targets": 1, "PostsByTag": 2}
    assert len(rekey.project.rows("PostsV2@targets")) == 11
    assert rekey("evidence", "recompute", folder, "--json", code=1).json
    rekey("retire", "--table", "Posts", "--no-backup", "a test")
    assert not asyncio.run(rekey.project.tables.table_exists("Posts"))


def test_a_removed_row_is_restored_in_the_target_account(lives: Lives) -> None:
    rekey = lives.begun(USERS_ELSEWHERE_SCRIPT)
    config = rekey.project.folder / "rekey.toml"
    config.write_text(config.read_text().replace('retention = "0s"', 'retention = "3d"'))
    table = rekey.project.targets.table("Users@targets")
    stray = user("stray", "p1")
    asyncio.run(table.insert(stray))
    report = rekey("verify", "--repair", "--json", code=1).json
    [row_id] = [one["row"] for one in report["repair"]["repairs"] if one["kind"] == "extra"]
    assert asyncio.run(table.get(key_of(stray))) is None
    rekey("restore-row", row_id, *WHY)
    found = asyncio.run(table.get(key_of(stray)))
    assert found is not None and content_of(found) == content_of(stray)


def test_inspect_names_the_account_without_the_table(moved: Project, commands_on: CommandsOn) -> None:
    rekey = commands_on(moved)
    assert "[targets] endpoint" in rekey("inspect", "Users@targets", code=2).err
    apply(moved)
    assert "Users@targets" in rekey("inspect", "Users@targets").out


# --- what is refused ---------------------------------------------------------------------------------------


def writes_nothing(project: Project) -> bool:
    return not project.restricted.sent.counts["write"] and not project.targets.sent.counts.total()


def test_a_script_needs_its_target_account(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = Project(tmp_path)
    project.script(MOVE_SCRIPT)
    rekey = commands_on(project)
    for words in (("plan",), ("apply",), ("verify",), ("status",)):
        said = rekey(*words, code=2).err
        assert "0001_users.py, line 6: 0001_users has a table in the account of [targets]" in said
        assert "add [targets] with endpoint" in said
    assert writes_nothing(project)


def test_another_target_account_is_refused_before_any_write(moved: Project) -> None:
    apply(moved)
    config = moved.folder / "rekey.toml"
    config.write_text(config.read_text().replace(":10003/", ":10004/"))
    before = moved.restricted.sent.counts.copy(), moved.targets.sent.counts.copy()
    with pytest.raises(Moved, match="not the one that 0001_users began with") as refused:
        apply(moved)
    assert "http://127.0.0.1:10003/devstoreaccount1" in str(refused.value.hint)
    assert moved.targets.sent.counts == before[1]
    assert moved.restricted.sent.counts["write"] == before[0]["write"]


def test_the_state_file_may_be_lost_and_another_account_of_targets_is_refused_still(moved: Project) -> None:
    apply(moved)
    for path in moved.folder.glob("state.sqlite*"):
        path.unlink()
    config = moved.folder / "rekey.toml"
    config.write_text(config.read_text().replace(":10003/", ":10004/"))
    with pytest.raises(Moved, match="began with"):
        apply(moved)


def test_targets_in_the_account_of_the_tables_are_refused(moved: Project) -> None:
    """`Users` and `Users@targets` would be one table."""
    config = moved.folder / "rekey.toml"
    config.write_text(config.read_text().replace(":10003/", ":10002/"))
    with pytest.raises(ConfigurationError, match=r"line \d+: \[targets\] endpoint: is the account of"):
        apply(moved)


class SameAccount(MemoryTableService):
    """The account of the tables under another address, as the account of targets."""

    def __init__(self, project: Project) -> None:
        super().__init__(clock=project.clock, is_target_account=True)
        self.account = project.tables

    def table(self, name: str) -> MemoryTable:
        return self.account.table(own_name(name))

    multi_writer_table = table

    async def create_table(self, name: str) -> bool:
        return await self.account.create_table(own_name(name))

    async def delete_table(self, name: str) -> bool:
        return await self.account.delete_table(own_name(name))

    async def table_exists(self, name: str) -> bool:
        return await self.account.table_exists(own_name(name))


def tables_of(project: Project) -> list[str]:
    return sorted(asyncio.run(project.tables.table_names()))


@pytest.fixture
def empty(tmp_path: Path) -> Project:
    """A project that moves a table without rows, which no gate takes for somebody else's."""
    project = Project(tmp_path)
    project.move_elsewhere()
    project.script(MOVE_SCRIPT)
    asyncio.run(project.fill("Users", []))
    return project


def test_an_account_under_two_addresses_is_refused_before_anything_is_copied(empty: Project) -> None:
    """The endpoints do not say it: two ports may lead to one emulator, and a gateway to any account."""
    empty.targets = SameAccount(empty)
    with pytest.raises(ConfigurationError, match="a table that was made in the one is in the other"):
        apply(empty)
    assert tables_of(empty) == ["Users"]


@pytest.mark.parametrize("applied", [Phase.PREPARE, Phase.RECONCILE])
def test_a_table_is_not_dropped_as_its_own_copy(moved: Project, applied: Phase) -> None:
    """A migration that an earlier version began: its target is the source."""
    apply(moved, applied)
    moved.targets = SameAccount(moved)
    with moved.session() as session, pytest.raises(ConfigurationError, match="in the other, too"):
        commands.rollback(session, SCRIPT, to=None, drop=True)
    assert len(moved.rows("Users")) == len(ROWS)


def test_a_table_is_not_retired_as_its_own_copy(moved: Project) -> None:
    apply(moved, Phase.COMPLETE)
    moved.targets = SameAccount(moved)
    run = moved.session(Options(typed_table="Users"))
    with run as session, pytest.raises(ConfigurationError, match="in the other, too"):
        session.do(PHASES[Phase.RETIRE].run(session.resume(SCRIPT)))
    assert len(moved.rows("Users")) == len(ROWS)


def test_without_permission_to_prove_it_two_addresses_are_refused(
    empty: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = MemoryTableService.create_table

    async def refused(service: MemoryTableService, name: str) -> bool:
        if name.startswith("rekeyprobetwo"):
            raise CredentialRefused("create table: 403", code="AuthorizationPermissionMismatch", status=403)
        return await create(service, name)

    monkeypatch.setattr(MemoryTableService, "create_table", refused)
    with pytest.raises(ConfigurationError, match="do not say whether") as error:
        apply(empty)
    assert "by their own endpoints" in str(error.value.hint)
    assert tables_of(empty) == ["Users"]


@pytest.mark.parametrize("asked", [True, False])
def test_accounts_are_tried_only_where_their_endpoints_do_not_say(empty: Project, asked: bool) -> None:
    if not asked:
        config = empty.folder / "rekey.toml"
        config.write_text(
            config.read_text().replace("10003/devstoreaccount1", '10002/other"\nkey_env = "KEY')
        )
    calls = noted(empty.targets)
    apply(empty, Phase.PREPARE)
    assert any(call.table.startswith("rekeyprobetwo") for call in calls) is asked
    assert asyncio.run(empty.targets.table_names()) == ["Users@targets"]


def test_a_table_that_a_killed_run_left_does_not_prove_one_account(empty: Project) -> None:
    """It was made when [targets] was another address of [tables]; by now it is another account."""
    with empty.session() as session:
        run = session.begin(SCRIPT)
        record = run.state.migration(SCRIPT)
        assert record is not None
        session.do(empty.tables.create_table(f"rekeyprobetwo{record.run_id[:16]}"))
        session.do(require_two_accounts(run))
