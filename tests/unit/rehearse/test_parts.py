"""The parts of a rehearsal that need no tables: made-up rows, small changes, the report, the project."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from rekey import Index, Migration, Target, keys, props, rows
from rekey.core.edm import canonical_content
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.declaration.rows import Condition
from rekey.declaration.scripts import load_scripts
from rekey.errors import ConfigurationError
from rekey.model import Row, key_of
from rekey.project.config import Account
from rekey.rehearse.application import ADDED, changed_by_one, to_entity
from rekey.rehearse.data import open_data
from rekey.rehearse.project import Project, Result
from rekey.rehearse.report import Briefly, RehearsalReport, WithOutput
from rekey.rehearse.stock import Stock, meet, rows_for
from tests.worlds.small import DROPPING

EXAMPLES = Path(__file__).parents[3] / "migrations"
SECRET = b"0123456789abcdef"


def _mapper(**arguments: object) -> Mapper:
    migration = Migration(capture="delta", **arguments)  # type: ignore[arg-type]
    return Mapper(migration, {"s": SECRET})


@pytest.mark.parametrize("script", load_scripts(EXAMPLES), ids=lambda script: script.script_id)
def test_made_up_rows_suit_each_worked_example(script: Declared) -> None:
    migration = script.migration
    mapper = Mapper(migration, {"users": SECRET})
    stock = list(rows_for(mapper, 200, seed=3))
    made = [(table, key_of(row)) for source in stock for table, row in mapper.map(source)]
    assert len(stock) == 200
    assert len(made) == len(set(made)), "rows of a rehearsal do not collide"
    taken = Counter(kind.name for row in stock if (kind := mapper.kind_of(row)))
    assert taken.keys() == {kind.name for kind in migration.kinds}
    assert min(taken.values(), default=30) >= 30, "there are rows of every kind"


def test_some_made_up_rows_are_dropped_where_the_script_drops_rows() -> None:
    mapper = Mapper(DROPPING, {})
    stock = list(rows_for(mapper, 100, seed=3))
    dropped = sum(map(mapper.is_dropped, stock))
    taken = Counter(kind.name for row in stock if (kind := mapper.kind_of(row)))
    assert (dropped, dropped + sum(taken.values())) == (10, 100)
    assert min(taken.values()) == 45


CONDITIONS = {
    "prefix": rows.row_key(prefix="A_"),
    "whole key": rows.partition_key(one_of=["a", "b"]),
    "range of keys": rows.row_key(at_least="z"),
    "present": rows.prop("New"),
    "type": rows.prop("New", type="guid"),
    "text": rows.prop("New", equals="x"),
    "number": rows.prop("New", at_least=5, type="int64"),
    "moment": rows.prop("New", at_least="2024-01-01", type="datetime"),
    "all of several": rows.all_of(rows.prop("New"), rows.row_key(prefix="A_")),
    "any of several": rows.any_of(rows.row_key(prefix="A_"), rows.prop("New")),
    "none of several": rows.none_of(rows.prop("Old"), rows.prop("Number")),
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_made_up_row_is_changed_so_that_it_meets_a_condition(condition: Condition) -> None:
    row: Row = {
        "PartitionKey": "p",
        "RowKey": "r",
        "Old": "x",
        "Number": "1",
        "Number@odata.type": "Edm.Int64",
    }
    meet(condition, row)
    assert condition.compile()(row)


def test_made_up_rows_follow_what_the_declaration_reads() -> None:
    """Dates, numbers, separated text and casts come from the expressions around a property."""
    mapper = _mapper(
        source="Orders",
        target=Target(
            "OrdersByDay",
            partition_key=keys.date("yyyy-MM-dd", "Placed"),
            row_key=keys.join(
                "-", keys.zero_pad(12, "Number"), keys.part("_", 1, "RowKey"), keys.prop("RowKey")
            ),
            properties=[props.rename("Nm", "Name"), props.cast("Amount", "int64", was="int32")],
        ),
        indexes=[
            Index(
                "OrdersByTag",
                each=keys.split("Tags", ";"),
                partition_key=keys.item(),
                row_key=keys.opaque("RowKey", domain="order", secret="s"),
            )
        ],
        reverse=False,
    )
    rows = list(rows_for(mapper, 100, seed=0))
    assert len(rows) == 100
    assert rows[0]["Placed@odata.type"] == "Edm.DateTime"
    assert rows[0]["Number@odata.type"] == "Edm.Int64"
    assert isinstance(rows[0]["Amount"], int)
    assert len(mapper.map(rows[0])) == 1 + 4


def test_made_up_rows_have_what_a_computed_property_needs() -> None:
    target = Target(
        "Else",
        partition_key=keys.keep(),
        row_key=keys.keep(),
        properties=[props.compute("Of", keys.prop("PartitionKey"), needed=("Needed",))],
    )
    mapper = _mapper(source="Anything", target=target)
    stock = rows_for(mapper, 3, seed=0)
    assert ["Of" in mapper.map(row)[0].row for row in stock] == [True, True, True]


def test_the_same_seed_makes_the_same_rows() -> None:
    mapper = _mapper(
        source="Anything",
        target=Target("Else", partition_key=keys.prop("PartitionKey"), row_key=keys.lower("RowKey")),
        reverse=False,
    )
    assert list(rows_for(mapper, 60, seed=1)) == list(rows_for(mapper, 60, seed=1))
    assert list(rows_for(mapper, 60, seed=1)) != list(rows_for(mapper, 60, seed=2))


def test_a_file_is_asked_for_when_no_rows_can_be_made_up() -> None:
    mapper = _mapper(
        source="Odd",
        target=Target(
            "Even",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.regex(r"^(X[0-9]{9}Z)$", 1, "RowKey"),
        ),
        reverse=False,
    )
    with pytest.raises(ConfigurationError) as refused:
        rows_for(mapper, 30, 0)
    assert "--data" in refused.value.hint


_ROW: Row = {
    "PartitionKey": "p",
    "RowKey": "r",
    "Text": "abc",
    "Number": 4,
    "Long": "9007199254740993",
    "Long@odata.type": "Edm.Int64",
    "Flag": True,
    "Ratio": "NaN",
    "Ratio@odata.type": "Edm.Double",
    "Moment": "2024-01-31T12:00:00.1234567Z",
    "Moment@odata.type": "Edm.DateTime",
    "Id": "AB000000-0000-4000-8000-00000000000a",
    "Id@odata.type": "Edm.Guid",
    "Blob": "AAE=",
    "Blob@odata.type": "Edm.Binary",
}


def test_every_change_is_of_one_property_and_keeps_its_type() -> None:
    names = [name for name, _, _ in canonical_content(_ROW)]
    changes = list(changed_by_one(_ROW, names))
    for changed in changes:
        before, after = set(canonical_content(_ROW)), set(canonical_content(changed))
        assert len(after - before) == 1
        assert len(before - after) <= 1
        (name, edm, _) = next(iter(after - before))
        assert name == ADDED or edm in {was for known, was, _ in before if known == name}
    assert ADDED in changes[-1], "a row without a property that can be changed gets one"


def test_rows_become_sdk_entities_with_the_type_of_every_value() -> None:
    entity = to_entity(_ROW)
    assert entity["Moment"].value == "2024-01-31T12:00:00.1234567Z", "all seven digits"
    assert entity["Id"].value == "AB000000-0000-4000-8000-00000000000a", "the case of a Guid"
    assert entity["Long"].value == 9007199254740993
    assert entity["Blob"].value == b"\x00\x01"
    assert {name: value.edm_type.value for name, value in islice(entity.items(), 2, None)} == {
        name: edm for name, edm, _ in canonical_content(_ROW)
    }


def _report(**changed: object) -> RehearsalReport:
    values: dict[str, object] = {
        "script_id": "0001_users",
        "source": "Users",
        "targets": ("UsersV2",),
        "rows": 1900,
        "data": "made up from seed 0",
        "assumptions": (),
        "proofs": ("Nothing was lost.",),
        "left_out": (),
        "steps": (Result(("plan",), 0, "", 1.25),),
        "failure": "",
        "kept": "",
        "seconds": 12.0,
    }
    return RehearsalReport(**{**values, **changed})  # type: ignore[arg-type]


def test_a_report_passes_only_without_a_failure() -> None:
    assert _report().passed
    failed = _report(failure="rows are missing\n$ rekey verify", left_out=("rollback",), kept="/somewhere")
    assert not failed.passed
    assert failed.as_json()["passed"] is False
    assert "Failed:\n  rows are missing\n  $ rekey verify" in failed.text()
    assert "rollback" in failed.text()
    assert "Kept: /somewhere" in failed.text()
    assert "Passed" not in failed.text()


def test_a_report_is_one_json_document() -> None:
    told = json.loads(json.dumps(_report().as_json()))
    assert told["steps"] == [{"command": "rekey plan", "exit_code": 0, "seconds": 1.25}]
    assert told["proofs"] == ["Nothing was lost."]


def test_a_rehearsal_tells_of_commands_and_the_demo_shows_what_they_print() -> None:
    result = Result(("apply", "0001_users"), -9, "copying\n", 2.0)
    brief: list[str] = []
    Briefly(brief.append).ran(result)
    Briefly(brief.append).why("because")
    assert brief == ["  $ rekey apply 0001_users  (ended by signal 9, 2.0 s)"]
    shown: list[str] = []
    WithOutput(shown.append).ran(result)
    WithOutput(shown.append).why("because")
    assert shown == ["", "$ rekey apply 0001_users", "  copying", "  (ended by signal 9)", "  → because"]


def test_a_project_takes_along_what_a_script_needs_and_nothing_else(tmp_path: Path) -> None:
    """Scripts it depends on, by `__depends__` or through its source table, come first."""
    scripts = tmp_path / "migrations"
    scripts.mkdir()
    head = "from rekey import Migration, Target, keys\n"
    body = (
        'migration = Migration(source="{0}", target=Target("{1}", partition_key=keys.prop("PartitionKey"),'
        ' row_key=keys.opaque("RowKey", domain="d", secret="{2}")), capture="delta", reverse=False)\n'
    )
    (scripts / "0001_first.py").write_text(head + body.format("Aaa", "Bbb", "one"))
    (scripts / "0002_second.py").write_text(head + body.format("Bbb", "Ccc", "two"))
    (scripts / "0003_third.py").write_text(
        head + '__depends__ = {"0002_second"}\n' + body.format("Xxx", "Yyy", "one")
    )
    (scripts / "0004_alone.py").write_text(head + body.format("Zzz", "Www", "one"))
    third = Project(tmp_path, scripts / "0003_third.py")
    assert [one.script_id for one in third.scripts] == ["0001_first", "0002_second", "0003_third"]
    assert sorted(third.secrets) == ["one", "two"]
    alone = Project(tmp_path, scripts / "0004_alone.py")
    assert [one.script_id for one in alone.scripts] == ["0004_alone"]
    assert third.secrets["one"] != alone.secrets["one"], "secrets are each rehearsal's own"


def test_a_project_takes_along_scripts_that_a_reference_reads_and_applies_none(tmp_path: Path) -> None:
    scripts = tmp_path / "migrations"
    shutil.copytree(EXAMPLES, scripts)
    orders = scripts / "0006_orders_of_users.py"
    users = scripts / "0001_users_opaque_ids.py"
    for path in (orders, users):
        path.write_text(path.read_text().replace('capture="delta"', 'capture="delta", group="shop"'))
    (tmp_path / "own").mkdir()
    project = Project(tmp_path / "own", orders)
    account = Account("http://127.0.0.1:1/devstoreaccount1")
    project.write(account, account, window_rows=1, entities_per_second=1)
    assert [script.script_id for script in project.scripts] == ["0006_orders_of_users"]
    copied = {script.script_id: script for script in load_scripts(tmp_path / "own" / "migrations")}
    assert {name: script.migration.group for name, script in copied.items()} == {
        "0001_users_opaque_ids": "",
        "0006_orders_of_users": "shop",
    }
    assert copied["0006_orders_of_users"].digest == project.declared.digest


def test_a_project_applies_scripts_whose_mapping_a_rollback_reads_and_takes_them_out_of_the_group(
    tmp_path: Path,
) -> None:
    scripts = tmp_path / "migrations"
    shutil.copytree(EXAMPLES, scripts)
    orders = scripts / "0006_orders_of_users.py"
    users = scripts / "0001_users_opaque_ids.py"
    for path in (orders, users):
        text = path.read_text().replace('capture="delta"', 'capture="delta", group="shop"')
        path.write_text(text.replace('ids")]', 'ids", partition="PartitionKey", keep_old=False)]'))
    (tmp_path / "own").mkdir()
    project = Project(tmp_path / "own", orders)
    account = Account("http://127.0.0.1:1/devstoreaccount1")
    project.write(account, account, window_rows=1, entities_per_second=1)
    selected = {script.script_id: script.cli_selector for script in project.scripts}
    assert [*selected.items()] == [
        ("0001_users_opaque_ids", "0001_users_opaque_ids"),
        ("0006_orders_of_users", "--group shop"),
    ]
    copied = {script.script_id: script for script in load_scripts(tmp_path / "own" / "migrations")}
    assert copied["0001_users_opaque_ids"].migration.group == ""
    assert copied["0006_orders_of_users"].digest == project.declared.digest


def test_commands_use_the_rehearsals_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKEY_CONFIG", str(tmp_path / "another" / "rekey.toml"))
    (tmp_path / "own").mkdir()
    project = Project(tmp_path / "own", EXAMPLES / "0001_users_opaque_ids.py")
    account = Account("http://127.0.0.1:1/devstoreaccount1")
    project.write(account, account, window_rows=1, entities_per_second=1)
    assert project.start("history", "--json").finish().code == 0


def test_commands_bypass_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `no_proxy` and `NO_PROXY` the first counts, as for `rekey doctor --live` itself."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", ".private.example")
    (tmp_path / "told.py").write_text("import os; print(os.environ['no_proxy'])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "own" / "output").mkdir(parents=True)
    project = Project(tmp_path / "own", EXAMPLES / "0001_users_opaque_ids.py", program=("told",))
    assert ".private.example,127.0.0.1" in project.start("history").finish().output


def test_minus_zero_is_loaded_as_azurite_will_keep_it(tmp_path: Path) -> None:
    """Azurite makes 0.0 of -0.0; the book must say what is really there."""
    data = tmp_path / "rows.jsonl"
    rows = [
        {"PartitionKey": "p", "RowKey": str(number), "Ratio": -0.0, "Other": -1.5} for number in range(20)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mapper = _mapper(
        source="Some",
        target=Target("Other", partition_key=keys.prop("PartitionKey"), row_key=keys.lower("RowKey")),
        reverse=False,
    )
    stock = Stock.of(mapper, 0, open_data(data), 0)
    assert stock.count == 20
    assert {(str(row["Ratio"]), row["Other"]) for row in stock.rows()} == {("0.0", -1.5)}
    assert 0 < sum(map(stock.is_kept_back, range(20))) < 20
