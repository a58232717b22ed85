"""The collector of cycles is patient while rows stream, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from rekey.core.collector import patient_collector


def test_it_is_patient_as_long_as_any_stream_is_open() -> None:
    before = gc.get_threshold()
    first, second = patient_collector(), patient_collector()
    first.__enter__()
    second.__enter__()
    patient = gc.get_threshold()
    assert patient[0] > 50 * before[0]
    first.__exit__(None, None, None)
    assert gc.get_threshold() == patient
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_an_error_ends_it_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="wrong"), patient_collector():
        raise ValueError("wrong")
    assert gc.get_threshold() == before
