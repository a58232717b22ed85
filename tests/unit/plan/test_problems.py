"""What a plan complains about: every problem has a stable code, no keys, and a cure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from rekey import Migration, RowKind, Target, keys, props, rows
from rekey.core.severity import Severity
from rekey.errors import SecretMissing
from rekey.inspect.inventory import Inventory
from rekey.inspect.sampling import RowEstimate
from rekey.plan import plan
from rekey.plan.absent import explained, named_properties, spelling_of
from rekey.plan.estimate import Batches, Workload, estimate
from rekey.plan.problems import (
    Started,
    declaration_problems,
    disk_problems,
    ordered,
    row_problems,
    table_problems,
    time_problems,
)
from rekey.plan.result import (
    EVERY_ROW,
    SAMPLED,
    SKIPPED,
    CollisionGroup,
    Collisions,
    Disk,
    MappingResult,
    Problem,
    RefusedRows,
    TableFill,
    TableState,
)
from rekey.plan.subject import PlanOptions
from rekey.project.config import Gates, Limits, Planning, RowCheck
from tests.worlds.plans import FINGERPRINTS, declared
from tests.worlds.small import POSTS, USERS

NO_COLLISIONS = Collisions(0, 0, exact=True)


def result(
    *refused: RefusedRows,
    collisions: Collisions = NO_COLLISIONS,
    fills: tuple[TableFill, ...] = (),
    sampled_rows: int = 0,
) -> MappingResult:
    return MappingResult(refused=refused, collisions=collisions, fills=fills, sampled_rows=sampled_rows)


def inventory(rows: int, *, exact: bool = True) -> Inventory:
    return Inventory("Users", RowEstimate(rows, rows, exact, True), 100 * rows, 1, 1, rows, None)


def found(problems: Iterable[Problem]) -> dict[str, Severity]:
    told = list(problems)
    assert not [problem.code for problem in told if not problem.cure or not problem.message]
    return {problem.code: problem.severity for problem in told}


def test_a_sound_declaration_has_no_problems() -> None:
    assert not list(declaration_problems(declared(USERS), None, (), FINGERPRINTS))
    started = Started("backfill", USERS.digest(), FINGERPRINTS)
    assert not list(declaration_problems(declared(USERS), started, (), FINGERPRINTS))


@pytest.mark.parametrize("kept", [True, False])
def test_a_kind_known_by_what_its_new_rows_do_not_hold_is_told(kept: bool) -> None:
    operations = [] if kept else [props.drop("Type")]
    target = Target(
        "New",
        partition_key=keys.keep(),
        row_key=keys.literal("U:") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="Old"), *operations],
    )
    kinds = [RowKind("user", when=rows.prop("Type", equals="user"), target=target)]
    migration = Migration("Old", kinds=kinds, capture="delta")
    told = {problem.code: problem for problem in declaration_problems(declared(migration), None, (), {})}
    assert list(told) == ([] if kept else ["kind-not-kept"])
    assert kept or "rows of user are known by Type" in told["kind-not-kept"].message


@pytest.mark.parametrize(
    ("row_key", "changes", "noted"),
    [
        (keys.zero_pad(12, "RowKey"), {}, True),
        (keys.zero_pad(12, "RowKey"), {"mapping": "none"}, False),
        (keys.prop("Number"), {}, False),
        (keys.keep(), {}, False),  # nothing changes
    ],
)
def test_a_mapping_that_the_keys_alone_say_is_noted_until_it_begins(
    row_key: Any, changes: dict[str, Any], noted: bool
) -> None:
    old_keys = [props.copy("PartitionKey", to="OldPartition"), props.copy("RowKey", to="OldRow")]
    target = Target("OrdersV2", partition_key=keys.keep(), row_key=row_key, properties=old_keys)
    migration = declared(Migration("Orders", target=target, capture="delta", **changes))
    assert ("mapping-not-needed" in found(declaration_problems(migration, None, (), {}))) is noted
    started = Started("backfill", migration.digest, {})
    assert "mapping-not-needed" not in found(declaration_problems(migration, started, (), {}))


def test_a_missing_secret_and_no_way_back_are_told() -> None:
    other = replace(USERS, reverse=False)
    short = SecretMissing("secret `users` is too short", hint="make one")
    told = list(declaration_problems(declared(other), None, (short,), {}))
    assert found(told) == {"secret-missing": Severity.ERROR, "no-way-back": Severity.WARNING}
    assert (told[0].message, told[0].cure) == (short.what, short.hint)


def test_capture_dual_write_says_that_clients_come_first() -> None:
    problems = list(
        declaration_problems(declared(replace(USERS, capture="dual-write")), None, (), FINGERPRINTS)
    )
    assert found(problems) == {"clients-first": Severity.NOTE}
    assert "Users" in problems[0].message
    assert "rekey status" in problems[0].cure


@pytest.mark.parametrize("capture", ["delta", "dual-write"])
def test_signatures_with_a_key_range_are_a_warning_where_the_configuration_names_them(capture: Any) -> None:
    migration = declared(replace(USERS, capture=capture))
    problems = list(declaration_problems(migration, None, (), FINGERPRINTS, key_ranges=True))
    assert found(problems)["key-ranges"] is Severity.WARNING
    [told] = [one for one in problems if one.code == "key-ranges"]
    assert "Users" in told.message
    assert "UsersV2" in told.cure


def test_index_tables_that_nobody_could_follow_are_an_error() -> None:
    one_way = replace(POSTS, capture="dual-write", reverse=False)
    problems = list(declaration_problems(declared(one_way), None, (), FINGERPRINTS))
    assert found(problems)["indexes-cannot-follow"] is Severity.ERROR
    assert "PostsByTag" in problems[0].message
    assert "indexes-cannot-follow" not in found(
        declaration_problems(declared(replace(POSTS, capture="dual-write")), None, (), FINGERPRINTS)
    )
    assert "indexes-cannot-follow" not in found(
        declaration_problems(declared(replace(POSTS, reverse=False)), None, (), FINGERPRINTS)
    )


def test_a_copied_timestamp_costs_round_trips_in_dual_writes() -> None:
    timed = replace(
        USERS,
        capture="dual-write",
        target=replace(USERS.target, properties=[*USERS.target.properties, props.copy("Timestamp", to="At")]),
    )
    assert "timestamp-copies" in found(declaration_problems(declared(timed), None, (), FINGERPRINTS))


def test_an_edited_script_and_a_changed_secret_are_errors_once_begun() -> None:
    started = Started("backfill", "0" * 64, {"users": "another fingerprint"})
    assert found(declaration_problems(declared(USERS), started, (), FINGERPRINTS)) == {
        "declaration-moved": Severity.ERROR,
        "secret-moved": Severity.ERROR,
    }


def test_a_missing_source_is_an_error_unless_an_earlier_script_makes_it() -> None:
    assert found(table_problems(declared(USERS), False, None, ())) == {"source-missing": Severity.ERROR}
    assert found(table_problems(declared(USERS), False, "0000_first", ())) == {
        "source-not-yet": Severity.NOTE
    }


def test_a_target_with_foreign_rows_is_an_error_and_an_empty_one_is_not() -> None:
    empty, taken = TableState("UsersV2", True, False), TableState("UsersByTag", True, True)
    problems = list(table_problems(declared(USERS), True, None, [empty, taken]))
    assert found(problems) == {"target-holds-rows": Severity.ERROR}
    assert "UsersByTag" in problems[0].message


def test_refusals_and_collisions_are_errors_with_counts_and_safe_ids() -> None:
    refused = RefusedRows("empty-key", "target.row_key", "the key is empty", "mend", 30, ("a1", "b2"))
    collided = Collisions(1, 3, True, (CollisionGroup("UsersV2", 3, ("c3", "d4", "e5")),))
    problems = list(row_problems(inventory(1_000), result(refused, collisions=collided), False, {}))
    assert found(problems) == {
        "row-refused": Severity.ERROR,
        "collision": Severity.ERROR,
        "ids-not-kept": Severity.NOTE,
    }
    assert problems[0].rows == 30 and problems[0].row_ids == ("a1", "b2")
    assert problems[1].rows == 3 and problems[1].row_ids == ("c3", "d4", "e5")


def test_an_empty_source_and_a_sample_are_told() -> None:
    problems = list(row_problems(inventory(0, exact=False), result(), True, {}))
    assert found(problems) == {"source-empty": Severity.WARNING, "sampled": Severity.NOTE}


def test_a_property_that_no_row_has_is_told_once_with_the_name_that_was_meant() -> None:
    there = {"PartitionKey", "RowKey", "Email", "Logins", "Logins@odata.type", "odata.etag"}
    absent = {"Emial": "target.row_key", "Logn": "props.drop", "_": "target.row_key"}
    every = RefusedRows(
        "missing-property", "target.row_key", "the row has no property Emial", "x", 30, ("a",)
    )
    typo = explained(every, 30, absent, there)
    assert (typo.problem, typo.cure) == (
        "no row has a property Emial",
        "write Email, or check the spelling; rows have: Email, Logins, PartitionKey, RowKey",
    )
    assert explained(every, 31, absent, there) is every, "the data, where some rows have it"
    cures = {name: (where, spelling_of(name, there)) for name, where in absent.items()}
    problems = list(row_problems(inventory(30), result(typo, sampled_rows=30), True, cures))
    assert [(one.code, one.message) for one in problems[1:]] == [
        ("property-not-found", "props.drop names the property Logn, and none of 30 rows has it"),
        ("property-not-found", "target.row_key names the property _, and none of 30 rows has it"),
    ]
    assert problems[1].cure.startswith("write Logins, ")
    assert problems[2].cure.startswith('constant text is keys.literal("_"); ')


def test_every_property_that_a_declaration_reads_is_among_those_that_are_looked_for() -> None:
    posts = named_properties(declared(POSTS).migration)
    assert posts["Tags"] == "index[PostsByTag].each"
    assert "PartitionKey" not in posts
    target = replace(
        declared(USERS).migration.target,
        properties=(
            props.keep("A", "D"),
            props.rename("B", "C"),
            props.cast("C", "int64", was="string"),
            props.cast("D", "int64", was="string"),
            props.copy("RowKey", to="ContactEmail"),
            props.copy("E", to="F"),
            props.compute("G", keys.prop("H"), needed=("I",)),
        ),
    )
    users = named_properties(replace(declared(USERS).migration, target=target, reverse=False))
    assert users == {
        "A": "props.keep",
        "D": "props.keep",
        "B": "props.rename",
        "E": "props.copy",
        "H": "target.properties(G)",
        "I": "props.compute",
    }


def test_a_partition_per_row_is_told_with_what_it_costs() -> None:
    alone = TableFill("UsersV2", 50_000, 50_000, 50_000, True, 1, 0.0)
    thin = replace(alone, table="Thin", batches=12_500)
    full = replace(alone, table="Full", batches=500)
    few = replace(alone, table="Few", rows=20, batches=20)
    problems = list(row_problems(inventory(50_000), result(fills=(alone, thin, full, few)), True, {}))
    assert found(problems) == {"batches-of-one": Severity.WARNING, "thin-batches": Severity.WARNING}
    assert "50,000 requests instead of 500" in problems[0].message
    assert "4.0 rows" in problems[1].message


def test_errors_come_first() -> None:
    note, error = Problem("a", Severity.NOTE, "m", "c"), Problem("b", Severity.ERROR, "m", "c")
    assert ordered([note, error]) == (error, note)


OUTLASTS, LONGER = "comparison-outlasts-its-age", "comparison-counts-longer"


@pytest.mark.parametrize(
    ("rows", "max_age_s", "severities"),
    [
        (10**8, 86_400, {}),
        (10**9, 86_400, {OUTLASTS: Severity.WARNING}),
        (10**8, None, {}),
        (10**9, None, {LONGER: Severity.NOTE}),
        (10**9, 200_000, {}),
    ],
)
def test_plan_says_when_a_comparison_outlasts_its_age_or_counts_for_longer_than_a_day(
    rows: int, max_age_s: float | None, severities: dict[str, Severity]
) -> None:
    fill = TableFill("T", rows, rows, rows // 100, True, 100, 0.0)
    work = Workload(rows, 1, Batches(rows // 100, 0, rows), [fill], follows=False)
    gates = Gates(verification_max_age_s=max_age_s)
    problems = list(time_problems(estimate(work, Limits()), gates, rows))
    assert found(problems) == severities
    assert not severities or "verification_max_age" in problems[0].cure


@pytest.mark.parametrize(
    ("rows", "severities"), [(10**7, {}), (10**9, {"long-write-downtime": Severity.WARNING})]
)
def test_plan_warns_of_a_long_stop_with_capture_delta(rows: int, severities: dict[str, Severity]) -> None:
    fill = TableFill("T", rows, rows, rows // 100, True, 100, 0.0)
    work = Workload(rows, 1, Batches(rows // 100, 0, rows), [fill])
    estimated = estimate(work, Limits().with_targets())
    problems = list(time_problems(estimated, Gates(verification_max_age_s=10**9), rows))
    assert found(problems) == severities
    # The figures are rows with which the same estimate keeps within the time.
    assert not severities or ("3,920,000" in problems[0].message and "23,520,000" in problems[0].message)


AUTO, FULL, SAMPLE = (Planning(mode, row_check_disk=1000) for mode in RowCheck)


@pytest.mark.parametrize(
    ("disk", "planning", "free", "codes"),
    [
        (Disk(EVERY_ROW, 900, 0), AUTO, 2000, {}),
        (Disk(SAMPLED, 5000, 0), AUTO, 2000, {"row-check-samples": Severity.NOTE}),
        (Disk(SAMPLED, 5, 0), SAMPLE, 2000, {"row-check-samples": Severity.NOTE}),
        (Disk(EVERY_ROW, 5000, 0), FULL, 2000, {"disk-too-small": Severity.ERROR}),
        (Disk(EVERY_ROW, 5000, 0), FULL, None, {}),
        (Disk(SKIPPED, 5000, 3000), FULL, 2000, {"disk-too-small": Severity.ERROR}),
    ],
)
def test_plan_refuses_a_disk_without_room_and_says_when_rows_are_sampled(
    disk: Disk, planning: Planning, free: int | None, codes: dict[str, Severity]
) -> None:
    assert found(list(disk_problems(disk, planning, free))) == codes


@pytest.mark.parametrize(
    ("options", "needed", "row_check"),
    [
        (PlanOptions(planning=AUTO), 1000, EVERY_ROW),
        (PlanOptions(planning=AUTO), 1001, SAMPLED),
        (PlanOptions(planning=AUTO, free_disk=900), 901, SAMPLED),
        (PlanOptions(planning=AUTO, exact=True, most_disk=1000), 1001, EVERY_ROW),
        (PlanOptions(planning=FULL, free_disk=900), 10**9, EVERY_ROW),
        (PlanOptions(planning=SAMPLE), 1, SAMPLED),
        (PlanOptions(planning=FULL, tries_rows=False), 1, SKIPPED),
    ],
)
def test_every_row_is_tried_while_that_fits_unless_the_project_says_otherwise(
    options: PlanOptions, needed: int, row_check: str
) -> None:
    assert plan._row_check(options, needed) == row_check
