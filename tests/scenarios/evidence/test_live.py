"""The report of `rekey doctor --live` in evidence: signed, exported with its own project only, checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rekey.doctor.live.run import keep
from rekey.evidence import contents, statement
from rekey.evidence.keys import Ed25519Signer, PublicKey, Signer
from tests.asserts.command_line import Commands
from tests.asserts.every import every
from tests.worlds.evidence import checked, codes, exported, key, rekey, restated, signer_of

LIVE = f"data/{contents.LIVE}"
STRANGER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))

__all__ = ["key", "rekey"]
ROWS = 4


def kept(rekey: Commands, signer: Signer | None, **said: Any) -> dict[str, Any]:
    """Keep a report as a run does, and return it."""
    config = rekey.project.config
    known = {"check": "values", "word": "altered", "wanted": "nothing", "seen": "minus zero", "known": True}
    checks = [{"check": "values", "account": "tables", "what": "every value stays", "deviations": [known]}]
    accounts = [{"section": "tables", "service": "Azurite"}]
    report = {
        "schema": contents.LIVE_SCHEMA,
        "endpoints": config.endpoints,
        "accounts": accounts,
        "checks": checks,
    }
    report |= {"ended_at": "2026-01-31T12:00:00.0000000Z", **said}
    keep(report, config, signer)
    return report


def test_a_bundle_holds_the_report_and_verify_checks_it(rekey: Commands, key: PublicKey) -> None:
    report = kept(rekey, signer_of(rekey))
    folder = exported(rekey)
    envelope = statement.parsed((folder / LIVE).read_bytes())
    assert envelope.is_by(key)
    assert envelope.statement(statement.LIVE_TYPE).predicate == report
    page = (folder / "data" / contents.REPORT).read_text("utf-8")
    assert every(
        one in page for one in ("What was tried", "every value stays", "minus zero", "[tables] is Azurite")
    )
    verdict = checked(folder, key)
    assert verdict.is_right
    assert any("doctor --live" in one for one in verdict.checked)
    assert contents.live_path(rekey.project.config.state).stat().st_mode & 0o077 == 0


def test_without_one_a_bundle_is_whole(rekey: Commands, key: PublicKey) -> None:
    folder = exported(rekey)
    assert not (folder / LIVE).exists()
    assert checked(folder, key).is_right


def test_a_report_of_other_origin_or_form_is_left_out(rekey: Commands, key: PublicKey) -> None:
    for number, (signer, said) in enumerate(
        [
            (STRANGER, {}),
            (None, {}),
            (signer_of(rekey), {"endpoints": "https://a https://b"}),
            (signer_of(rekey), {"schema": 2}),
        ]
    ):
        kept(rekey, signer, **said)
        folder = exported(rekey, f"bundle{number}")
        assert not (folder / LIVE).exists()
        assert checked(folder, key).is_right


def test_a_file_that_is_no_report_is_left_out(rekey: Commands, key: PublicKey) -> None:
    path = contents.live_path(rekey.project.config.state)
    other = statement.signed(
        statement.Statement({}, {"endpoints": rekey.project.config.endpoints}), signer_of(rekey)
    )
    for number, data in enumerate((b"", b"{}", other.data)):
        path.write_bytes(data)
        folder = exported(rekey, f"bundle{number}")
        assert not (folder / LIVE).exists()
        assert checked(folder, key).is_right


def test_a_report_signed_by_another_key_is_found(rekey: Commands, key: PublicKey) -> None:
    """Also a statement of another type, though the right key signed it."""
    report = kept(rekey, signer_of(rekey))
    folder = exported(rekey)
    forged = statement.Statement({}, report, statement.LIVE_TYPE)
    for data in (
        statement.signed(forged, STRANGER).data,
        statement.signed(forged, None).data,
        statement.signed(statement.Statement({}, report), signer_of(rekey)).data,
    ):
        (folder / LIVE).write_bytes(data)
        restated(folder, signer_of(rekey))
        assert codes(checked(folder, key)) == {"live"}


def test_of_a_project_without_a_key_the_report_is_not_signed_either(rekey: Commands) -> None:
    rekey("apply", "0001")
    kept(rekey, None)
    folder = exported(rekey)
    assert (folder / LIVE).exists()
    assert codes(checked(folder)) == {"unsigned"}


def test_a_folder_that_is_made_for_the_report_is_its_owners_alone(rekey: Commands, tmp_path: Path) -> None:
    """As for the state file, which comes to stand there."""
    folder = tmp_path / "made"
    keep({}, replace(rekey.project.config, state=folder / "state.sqlite"), None)
    assert folder.stat().st_mode & 0o777 == 0o700
