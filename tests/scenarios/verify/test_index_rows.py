"""Index rows compared with main rows alone, after cutover with capture "delta"."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from rekey.model import EntityKey, Row
from rekey.next_steps import next_step
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.projects import Project, project_of

TENANTS = """
from rekey import Migration, Target, keys

migration = Migration(
    source="Tenants",
    target=Target("TenantsV2", partition_key=keys.keep(), row_key=keys.literal("T_") + keys.prop("RowKey")),
    capture="delta",
    reverse=False,
)
"""
MEMBERS = """
from rekey import Index, Migration, RowKind, Target, keys, props, rows

def main(prefix):
    return Target("MembersV2", partition_key=keys.keep(), row_key=keys.literal(prefix) + keys.prop("RowKey"),
                  properties=[props.copy("RowKey", to="OldRow")])

migration = Migration(source="Members", capture="delta", kinds=[
    RowKind("user", when=rows.row_key(prefix="U_"), target=main("user:"), indexes=[
        Index("MembersByName", partition_key=keys.literal("all"), row_key=keys.prop("RowKey"), properties=[
            props.compute("Address", keys.lower("Mail"), needed=("Confirmed",)),
            props.reference("Tenant", to="TenantId", via="0000_tenants", partition="Region"),
        ])]),
    RowKind("role", when=rows.row_key(prefix="R_"), target=main("role:")),
])
"""
SOURCE: list[Row] = [
    {"PartitionKey": "p", "RowKey": f"U_{number}", "Mail": f"Ann{number}@x.example", "Tenant": "t", **more}
    for number, more in enumerate(
        [{}, {"Confirmed": True}, {"Region": "eu"}, {"Confirmed": True, "Region": "eu"}]
    )
]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations/0000_tenants.py").write_text(TENANTS)
    return project_of(tmp_path, MEMBERS, SOURCE, name="0001_members.py")


@pytest.fixture
def rekey(project: Project, commands_on: CommandsOn) -> Commands:
    rekey = commands_on(project)
    rekey("apply", "0001", "--to", "cutover", "--writers-stopped")
    return rekey


def test_properties_that_depend_on_others_being_there_are_as_main_rows_say(
    project: Project, rekey: Commands
) -> None:
    before = project.rows("MembersByName")
    assert [sorted({"Address", "TenantId"} & row.keys()) for row in before] == [
        [],
        ["Address"],
        ["TenantId"],
        ["Address", "TenantId"],
    ]
    rekey("verify", "0001")
    rekey("verify", "0001", "--repair")
    assert project.rows("MembersByName") == before
    asyncio.run(
        project.tables.table("MembersByName").merge({**before[3], "Address": "other", "TenantId": "other"})
    )
    rekey("verify", "0001", "--repair", code=1)
    rekey("verify", "0001")


def test_a_row_of_no_kind_is_listed_once_with_what_helps(project: Project, rekey: Commands) -> None:
    table = project.tables.table("MembersV2")
    asyncio.run(table.insert({"PartitionKey": "p", "RowKey": "of no kind"}))
    report = rekey("verify", "0001", "--json", code=1).json
    assert report["by_kind"] == {"refused": 1}
    assert [(row["kind"], row["code"]) for row in report["divergences"]] == [("refused", "no-kind")]
    step = next_step("fix-new-rows", script="0001_members")
    for words in (["verify", "0001"], ["verify", "0001", "--repair"]):
        assert f"rekey {step.command}" in rekey(*words, code=1).out
    assert "'of no kind'" in rekey(*shlex.split(step.command), code=1).out
    asyncio.run(table.delete(EntityKey("p", "of no kind")))
    rekey("verify", "0001")
