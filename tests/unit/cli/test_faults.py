"""What is told of an exception: never its text, always a way on."""

from __future__ import annotations

import errno

import pytest

from rekey.cli.main import FaultOfRekey, as_rekey_error, places
from rekey.errors import EndpointDown, ExitCode, Interrupted, Locked, MachineFailed

KEY = "someone@example.com"


def raised(error: BaseException) -> BaseException:
    """Return the exception as it is after having been raised."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_an_error_of_ours_is_told_as_it_is() -> None:
    error = Locked("taken")
    assert as_rekey_error(error) is error


def test_an_error_of_ours_is_found_in_a_group_of_tasks() -> None:
    error = Locked("taken")
    group = ExceptionGroup("tasks", [ValueError(KEY), ExceptionGroup("more", [error])])
    assert as_rekey_error(group) is error


def test_a_failure_of_the_service_says_what_was_kept() -> None:
    """The tables layer cannot know it; the command does."""
    told = as_rekey_error(EndpointDown("no connection", hint="check the network"))
    assert str(told).splitlines() == [
        "no connection",
        "Kept: everything up to the last checkpoint; nothing is half done",
        "Next: check the network",
    ]


def test_what_nobody_foresaw_is_a_fault_of_rekey_told_without_its_text() -> None:
    told = as_rekey_error(raised(KeyError(KEY)))
    assert isinstance(told, FaultOfRekey)
    assert told.exit_code is ExitCode.SERVICE
    assert "KeyError" in told.what
    assert "test_faults.py:" in told.what
    assert "fault of rekey" in told.what
    assert "--debug" in told.hint
    assert KEY not in str(told)


def test_the_places_of_a_fault_hold_neither_text_nor_source_lines() -> None:
    try:
        try:
            raise KeyError(KEY)
        except KeyError as cause:
            raise ValueError(f"row {KEY}") from cause
    except ValueError as error:
        shown = places(error)
    assert shown.index("KeyError") < shown.index("which led to") < shown.index("ValueError")
    assert "in test_the_places_of_a_fault_hold_neither_text_nor_source_lines" in shown
    assert KEY not in shown
    assert "raise" not in shown


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EFBIG, errno.EROFS, errno.ENOMEM])
def test_a_machine_that_is_full_is_no_fault_of_rekey(number: int) -> None:
    told = as_rekey_error(OSError(number, "text", f"/data/{KEY}"))
    assert isinstance(told, MachineFailed)
    assert errno.errorcode[number] in told.what
    assert KEY not in str(told)


def test_no_memory_is_told_with_what_to_lower() -> None:
    assert "window_rows" in as_rekey_error(MemoryError()).hint


def test_a_signal_gives_130() -> None:
    told = as_rekey_error(KeyboardInterrupt())
    assert isinstance(told, Interrupted)
    assert told.exit_code == 130
