"""The collector of cycles is patient while rows stream, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rekey.core.collector import patient_collector


@pytest.fixture
def before() -> Iterator[tuple[int, int, int]]:
    """The thresholds with which Python begins: those of the tests are patient themselves."""
    of_tests = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*of_tests)


def test_it_is_patient_as_long_as_any_stream_is_open(before: tuple[int, int, int]) -> None:
    first, second = patient_collector(), patient_collector()
    first.__enter__()
    second.__enter__()
    patient = gc.get_threshold()
    assert patient[0] > 50 * before[0]
    first.__exit__(None, None, None)
    assert gc.get_threshold() == patient
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_an_error_ends_it_too(before: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="wrong"), patient_collector():
        raise ValueError("wrong")
    assert gc.get_threshold() == before
