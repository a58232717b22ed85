"""Rehearsals on real Azurites: what passes, what does not, what is refused. The commands are forked (see
`forking`); with the installed one `test_installed.py` rehearses.

Soak: every EDM type from a file; keys from content in capture "delta"; a part of a table.
Reason, and what `make test` covers: a third, fourth and fifth whole rehearsal; keys from content in capture
"dual-write"; capture "delta" in `test_leaks.py`, from plan to retired, and `test_values.py`; lives of parts
in `tests/scenarios/runner/test_part_life.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.errors import ConfigurationError, DeclarationError
from rekey.model import content_of
from rekey.rehearse import project
from rekey.rehearse.rehearsal import rehearse
from rekey.rehearse.report import Briefly, RehearsalReport
from tests.asserts.every import every
from tests.worlds.example_rows import users
from tests.worlds.forking import ForkedInstead
from tests.worlds.odd_rows import generic

pytestmark = pytest.mark.azurite
EXAMPLES = Path(__file__).parents[2] / "migrations"

_SCRIPT = """\
from rekey import Migration, Target, keys, props
{more}
migration = Migration(
    source="Everything",
    target=Target(
        "EverythingV2",
        partition_key={partition_key},
        row_key={row_key},
        properties=[
            props.copy("PartitionKey", to="OldPartitionKey"),
            props.copy("RowKey", to="OldRowKey"),
            props.rename("Text", "Words"),
        ],
    ),
    capture="{capture}",
    reverse={reverse},
)
"""


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "subprocess", ForkedInstead)


def _script(folder: Path, **parts: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "0001_everything.py"
    usual = {
        "more": "",
        "partition_key": 'keys.bucket(4, "sha256", "PartitionKey")',
        "row_key": 'keys.opaque("PartitionKey", "RowKey", domain="all", secret="all")',
        "capture": "delta",
        "reverse": "True",
    }
    path.write_text(_SCRIPT.format(**{**usual, **parts}), "utf-8")
    return path


def _json_lines(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in generic(count, seed=5)), "utf-8")
    return path


def _commands(report: RehearsalReport) -> list[str]:
    return [step.words[0] for step in report.steps]


@pytest.mark.soak
def test_a_migration_with_content_derived_keys_and_index_tables_lives_its_whole_life(tmp_path: Path) -> None:
    """Kill, resume under writes, planted row, cutover, way back, cutover, complete, retire: all proved."""
    told: list[str] = []
    report = rehearse(
        EXAMPLES / "0002_posts_by_month.py", rows=120, narrator=Briefly(told.append), folder=tmp_path
    )
    assert report.passed, report.failure
    assert _commands(report).count("apply") >= 6
    assert {"plan", "verify", "rollback", "retire", "status"} <= set(_commands(report))
    assert [step.code for step in report.steps].count(-9) == 1, "killed by SIGKILL, once"
    proofs = "\n".join(report.proofs)
    for proof in (
        "no checkpoint ran ahead",
        "never stood behind",
        "No false alarm",
        "altered row",
        "rollback",
    ):
        assert proof in proofs
    assert report.left_out == ()
    assert any(line.startswith("  ✓") for line in told)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_migration_in_capture_dual_write_lives_its_life_while_the_application_never_stops(
    tmp_path: Path,
) -> None:
    """Both cutovers and the rollback under writes in both views; completion waits for the old version, and
    retire for the handover."""
    script = tmp_path / "0002_posts_by_month.py"
    text = (EXAMPLES / script.name).read_text("utf-8")
    script.write_text(text.replace('capture="delta"', 'capture="dual-write"'), "utf-8")
    report = rehearse(script, rows=120, narrator=Briefly(lambda _: None), folder=tmp_path / "own")
    assert report.passed, report.failure
    assert not [step for step in report.steps if "--writers-stopped" in step.words]
    last = ["handover", "verify", "handover", "retire", "evidence", "evidence", "export", "retire", "status"]
    assert _commands(report)[-len(last) :] == last
    proofs = "\n".join(report.proofs)
    for proof in (
        "in both views",
        "during the cutover, none lost",
        "during the rollback, none lost",
        "by name of the client that still uses old keys",
        "deletes in the new view",
        "After the handover",
    ):
        assert proof in proofs
    assert list((tmp_path / "own").iterdir()) == [], "nothing is left behind"


@pytest.mark.soak
def test_a_part_of_a_table_lives_its_life_beside_rows_that_stay(tmp_path: Path) -> None:
    script = tmp_path / "0007_invoices_of_a_tenant.py"
    text = (EXAMPLES / script.name).read_text("utf-8")
    script.write_text(text.replace('capture="dual-write"', 'capture="delta"'), "utf-8")
    report = rehearse(script, rows=120, narrator=Briefly(lambda _: None), folder=tmp_path / "own")
    assert report.passed, report.failure
    assert "holds the 24 rows beside the part, unchanged" in "\n".join(report.proofs)


@pytest.mark.soak
def test_every_edm_type_and_odd_keys_from_a_file_live_through_it_without_a_way_back(tmp_path: Path) -> None:
    """JSON Lines with every type at its limits; reverse=False leaves the rollback out and says so."""
    script = _script(tmp_path / "scripts", reverse="False")
    data = _json_lines(tmp_path / "rows.jsonl", 150)
    report = rehearse(script, data=data, narrator=Briefly(lambda _: None), folder=tmp_path / "own", keep=True)
    assert report.passed, report.failure
    assert "rollback" not in _commands(report)
    assert "reverse=False" in report.left_out[0]
    assert "rows.jsonl, read as JSON Lines" in report.data
    kept = Path(report.kept)
    assert (kept / "rekey.toml").exists()
    copied = [json.loads(line) for line in (kept / "tables" / "EverythingV2.jsonl").read_text().splitlines()]
    assert len(copied) > 100
    assert every("Words" in row for row in copied)
    assert not (kept / "tables" / "Everything.jsonl").exists(), "the source was retired"


def test_a_command_is_not_believed_when_the_tables_say_otherwise(tmp_path: Path) -> None:
    """A function that is not pure gives other keys to the command than to the witness: found, not passed."""
    script = _script(
        tmp_path / "scripts",
        row_key='keys.custom("_impure:key", version="1")',
        reverse="True",
    )
    (tmp_path / "scripts" / "_impure.py").write_text(
        "import os\n\n\ndef key(row):\n"
        '    here = "a" if "REHEARSAL_TABLES_KEY" in os.environ else "b"\n'
        '    return row["PartitionKey"] + here + row["RowKey"]\n'
    )
    data = _json_lines(tmp_path / "rows.jsonl", 60)
    report = rehearse(script, data=data, narrator=Briefly(lambda _: None), folder=tmp_path / "own")
    assert not report.passed
    assert "are not in the target" in report.failure


def test_what_cannot_be_rehearsed_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    def refused(script: Path, **how: object) -> ConfigurationError:
        with pytest.raises(ConfigurationError) as error:
            rehearse(script, narrator=Briefly(lambda _: None), folder=tmp_path / "own", **how)  # type: ignore[arg-type]
        return error.value

    script = _script(tmp_path / "scripts")
    assert "too few" in refused(script, rows=3).what
    assert "holds no rows" in refused(script, data=_json_lines(tmp_path / "empty.jsonl", 0)).what
    broken = tmp_path / "0001_broken.py"
    broken.write_text("from rekey import")
    with pytest.raises(DeclarationError):
        rehearse(broken, narrator=Briefly(lambda _: None), folder=tmp_path / "own")
    assert list((tmp_path / "own").iterdir()) == []


def test_two_rows_of_one_key_in_a_file_are_refused(tmp_path: Path) -> None:
    twice = tmp_path / "twice.jsonl"
    rows = [content_of(row) for row in users(30)]
    twice.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    with pytest.raises(ConfigurationError, match="row 31 has the key of an earlier row"):
        rehearse(
            EXAMPLES / "0001_users_opaque_ids.py",
            data=twice,
            narrator=Briefly(lambda _: None),
            folder=tmp_path / "own",
        )
    assert list((tmp_path / "own").iterdir()) == []


def test_the_demo_takes_neither_a_script_nor_rows_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["0001", "--demo"], ["--demo", "--data", "rows.jsonl"]):
        assert run(["rehearse", *words], Surroundings()) == 2
        assert "leave SCRIPT and --data out" in capsys.readouterr().err
