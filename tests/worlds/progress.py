"""A progress document as `rekey status --json` makes it, for tests of what is made of it."""

from __future__ import annotations

from typing import Any

AS_OF = "2026-03-01T12:00:00.000000Z"


def client(name: str = "billing-api", **more: Any) -> dict[str, Any]:
    """Return a client of the application."""
    return {
        "client_id": "c0ffee", "name": name, "view": "old", "host": "app-1", "pid": 7, "version": "0.2.0",
        "epoch": 3, "current": True, "standing": "live", "over_at": AS_OF, "in_flight": 2, "left": 0,
        "refuses": "", "counters": {}, **more,
    }  # fmt: skip


def migration(**more: Any) -> dict[str, Any]:
    """Return a migration at its backfill."""
    eta = {"seconds": 90.0, "least_s": 80.0, "most_s": 110.0, "at": "2026-03-01T12:01:30.000000Z"}
    return {
        "script_id": "0001_users", "source": "Users", "targets": ["UsersV2"], "capture": "dual-write",
        "stage": "copying", "safe": True, "sentence": "Rows are being copied.",
        "phase": {"name": "backfill", "state": "at-work", "since": AS_OF},
        "phases": ["prepare", "dual_write"],
        "work": {"label": "backfill", "began_at": AS_OF, "rows": 4000, "estimated_rows": 10000,
                 "rows_per_second": 66.5, "eta": eta},
        "checkpoint": {"at": AS_OF, "age_s": 3.0}, "held_back": [], "divergences": None, "lag_s": 1.5,
        "following": None,
        "journal": {"depth": 2, "oldest_at": "2026-03-01T11:59:50.000000Z", "kept": 0},
        "clients": [client()],
        "counted": {"writes": 12, "replica_failures": 0, "matched": 3, "mismatched": 0, "ignored": 0},
        "next": {"command": "rekey status 0001", "remark": "It goes on by itself."},
        **more,
    }  # fmt: skip


def document(*migrations: dict[str, Any]) -> dict[str, Any]:
    """Return a progress document."""
    return {
        "format": "rekey/progress/v1",
        "as_of": AS_OF,
        "migrations": list(migrations) or [migration()],
        "steering": {"paused": False},
    }
