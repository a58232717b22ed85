"""A plan as JSON-able data: what `--json` prints and what a plan file holds.

Rules kept here:

* Names and units are those of `result.py`; times are seconds, sizes are bytes.
* Keys are only there when the plan holds them and the caller does not leave them out.
"""

from __future__ import annotations

from typing import Any

from rekey.model import EntityKey
from rekey.plan.advice.facts import Advice
from rekey.plan.advice.rating import Answer
from rekey.plan.portrait import Load, Portrait
from rekey.plan.result import Basis, Example, MigrationPlan, Money, Plan, Storage


def plan_json(plan: Plan, *, keys: bool | None = None) -> dict[str, Any]:
    """Return a plan as JSON-able data.

    Args:
        plan: the plan.
        keys: False leaves keys out even when the plan holds them; by default they are in it when it does.
    """
    with_keys = plan.shows_keys if keys is None else keys and plan.shows_keys
    return {
        "made_at": plan.made_at,
        "exact": plan.exact,
        "ids_hold": plan.ids_hold,
        "shows_keys": with_keys,
        "exit_code": int(plan.exit_code),
        "migrations": [_migration_json(migration, with_keys) for migration in plan.migrations],
    }


def _migration_json(migration: MigrationPlan, keys: bool) -> dict[str, Any]:
    return {
        "script_id": migration.script_id,
        "title": migration.title,
        "basis": _basis_json(migration.basis),
        "inventory": _inventory_json(migration),
        "mapped_rows": migration.mapped_rows,
        "examples": [_example_json(example, keys) for example in migration.examples],
        "collisions": _collisions_json(migration, keys),
        "refused": [
            {
                "code": one.code,
                "field": one.field,
                "problem": one.problem,
                "cure": one.cure,
                "rows": one.rows,
                "row_ids": list(one.row_ids),
                **({"old_keys": [list(key) for key in one.old_keys]} if keys and one.old_keys else {}),
            }
            for one in migration.refused
        ],
        "targets": [
            {
                "table": fill.table,
                "rows": fill.rows,
                "batches": fill.batches,
                "rows_per_batch": round(fill.rows_per_batch, 2),
                "partitions": fill.partitions,
                "partitions_exact": fill.partitions_exact,
                "largest_partition": fill.largest_partition,
                "stored_bytes": fill.stored_bytes,
            }
            for fill in migration.fills
        ],
        "estimate": _estimate_json(migration),
        "portraits": [_portrait_json(one) for one in migration.portraits],
        "loads": [_load_json(one) for one in migration.loads],
        "problems": [
            {
                "code": problem.code,
                "severity": problem.severity.value,
                "message": problem.message,
                "cure": problem.cure,
                "rows": problem.rows,
                "row_ids": list(problem.row_ids),
            }
            for problem in migration.problems
        ],
        "advice": [advice_json(one) for one in migration.advice],
        "queries": [
            {
                **one.query.canonical(),
                "today": _answer_json(one.today),
                "planned": _answer_json(one.planned),
            }
            for one in migration.queries
        ],
    }


def advice_json(one: Advice) -> dict[str, Any]:
    """Return a piece of advice as JSON-able data."""
    return {
        "code": one.code,
        "severity": one.severity.value,
        "where": one.where,
        "keys": "today" if one.today else "planned",
        "evidence": one.evidence,
        "reason": one.reason,
        "cure": one.cure,
        "blocks": one.blocks,
        **({"waived": one.waived} if one.waived is not None else {}),
        **({"answered": True} if one.answered else {}),
    }


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {"access": str(answer.access), "requests": answer.requests, "table": answer.table}


def _basis_json(basis: Basis) -> dict[str, Any]:
    return {
        "script_id": basis.script_id,
        "declaration": basis.declaration,
        "secrets": dict(basis.secrets),
        "source": basis.source,
        "source_exists": basis.source_exists,
        "exact": basis.exact,
        "rows": basis.rows,
        "inventory": basis.inventory,
        "targets": [
            {"table": target.table, "exists": target.exists, "holds_rows": target.holds_rows}
            for target in basis.targets
        ],
        "advice": {code: severity.value for code, severity in basis.advice.items()},
    }


def _inventory_json(migration: MigrationPlan) -> dict[str, Any] | None:
    inventory = migration.inventory
    if inventory is None:
        return None
    return {
        "table": inventory.table,
        "rows": inventory.rows.rows,
        "rows_at_least": inventory.rows.at_least,
        "exact": inventory.exact,
        "settled": inventory.rows.settled,
        "stored_bytes": inventory.stored_bytes,
        "pages_read": inventory.pages,
        "partitions_met": inventory.partitions,
        "largest_partition": inventory.largest_partition,
        "basis": inventory.basis,
    }


def _example_json(example: Example, keys: bool) -> dict[str, Any]:
    return {
        "row_id": example.row_id,
        **_key_json("old_key", example.old_key, keys),
        "new_keys": [
            {
                "table": new.table,
                "row_id": new.row_id,
                "partition_units": new.partition_units,
                "row_units": new.row_units,
                **_key_json("new_key", new.new_key, keys),
            }
            for new in example.new_keys
        ],
    }


def _collisions_json(migration: MigrationPlan, keys: bool) -> dict[str, Any] | None:
    collisions = migration.collisions
    if collisions is None:
        return None
    return {
        "keys": collisions.keys,
        "rows": collisions.rows,
        "exact": collisions.exact,
        "first": [
            {
                "table": group.table,
                "rows": group.rows,
                "row_ids": list(group.row_ids),
                **({"old_keys": [list(key) for key in group.old_keys]} if keys and group.old_keys else {}),
            }
            for group in collisions.first
        ],
    }


def _key_json(name: str, key: EntityKey | None, keys: bool) -> dict[str, Any]:
    return {name: list(key)} if keys and key is not None else {}


def _estimate_json(migration: MigrationPlan) -> dict[str, Any] | None:
    estimate = migration.estimate
    if estimate is None:
        return None
    return {
        "requests": [
            {
                "phase": one.phase,
                "what": one.what,
                "kind": one.kind.value,
                "count": one.count,
                **({"operations": one.operations} if one.operations else {}),
            }
            for one in estimate.requests
        ],
        "requests_total": estimate.requests_total,
        "storage": _storage_json(estimate.storage),
        "money": _money_json(estimate.money),
        "prices_missing": list(estimate.prices_missing),
        "durations": [
            {
                "phase": one.phase,
                "at_targets_s": round(one.at_targets_s, 3),
                "at_targets_bound": one.at_targets_bound,
                "at_limits_s": round(one.at_limits_s, 3),
                "at_limits_bound": one.at_limits_bound,
            }
            for one in estimate.durations
        ],
    }


def _storage_json(storage: Storage | None) -> dict[str, Any] | None:
    if storage is None:
        return None
    return {
        "source_bytes": storage.source_bytes,
        "target_bytes": storage.target_bytes,
        "mapping_bytes": storage.mapping_bytes,
        "days": round(storage.days, 2),
    }


def _money_json(money: Money | None) -> dict[str, Any] | None:
    if money is None:
        return None
    return {
        "currency": money.currency,
        "requests_batch_as_one": round(money.batch_as_one, 6),
        "requests_batch_each": round(money.batch_each, 6),
        "storage": round(money.storage, 6),
    }


def _portrait_json(one: Portrait) -> dict[str, Any]:
    return {
        "table": one.table,
        "keys": "today" if one.today else "planned",
        "rows": one.rows,
        "partitions_by_rows": dict(one.sizes),
        "largest": [{"partition_id": name, "rows": rows} for name, rows in one.largest],
        "key_lengths": {
            key: {str(low): count for low, count in lengths.items()} for key, lengths in one.lengths.items()
        },
        "mean_key_bytes": round(one.key_bytes, 1),
        "batches_by_rows": {str(rows): count for rows, count in one.fills.items()},
    }


def _load_json(one: Load) -> dict[str, Any]:
    return {
        "table": one.table,
        "keys": "today" if one.today else "planned",
        "times": list(one.times),
        "partitions": [{"partition_id": name, "rows": list(rows)} for name, rows in one.lanes],
        "other_partitions": one.others,
        "others_rows": list(one.others_rows),
        "busiest": [round(share, 4) for share in one.busiest],
    }
