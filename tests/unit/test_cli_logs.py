"""What of the logs reaches standard error, at every verbosity."""

from __future__ import annotations

import logging

import pytest

from rekey.core import logs

KEY = "someone@example.com"
LIBRARIES = [
    "azure.core.pipeline.policies.http_logging_policy",
    "azure.identity",
    "aiohttp.client",
    "asyncio",
    "urllib3.connectionpool",
    "yoyo.migrations",
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("verbosity", [logging.WARNING, logging.INFO, logging.DEBUG])
def test_the_text_of_a_library_is_never_shown(
    library: str, verbosity: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with logs.configured():
        logging.getLogger("rekey").setLevel(verbosity)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(library).log(level, "GET /Users(RowKey='%s')", KEY)
    assert KEY not in capsys.readouterr().err


def test_that_a_library_warned_is_said_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        logging.getLogger("azure.identity").warning("no credential for %s", KEY)
        logging.getLogger("azure.identity").info("of no interest")
    said = capsys.readouterr().err
    assert said == "WARNING azure.identity: (text withheld: it may hold keys)\n"


def test_our_own_records_are_shown_as_far_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    own = logging.getLogger("rekey.tables")
    with logs.configured():
        own.info("unasked")
        logging.getLogger("rekey").setLevel(logging.INFO)
        own.info("asked")
    own.warning("afterwards everything is as before")
    assert capsys.readouterr().err == "INFO rekey.tables: asked\n"


def test_of_an_exception_in_a_record_only_the_type_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        try:
            raise ValueError(KEY)
        except ValueError:
            logging.getLogger("rekey.tables").exception("it failed", stack_info=True)
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert KEY not in said
    assert "Traceback" not in said


def test_a_record_that_cannot_be_formatted_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.configured():
        logging.getLogger("rekey.tables").warning("%d rows", KEY)
    assert KEY not in capsys.readouterr().err
