"""The file of a mix is checked with line and cure; requests have its shares; what refuses is told apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError
from rekey.project.config import read_toml
from rekey.stress.judge import Limit, MachineUse, Step, judge_ramp, measure, refusing, saturation
from rekey.stress.mix import Mix, OperationKind, read_mix
from rekey.stress.requests import Offered, Population, Request, Response
from rekey.stress.spread import Spread

READ, QUERY, INSERT, UPDATE, DELETE, BATCH = OperationKind
LEAST = "[mix]\npoint_read = 3\nupdate = 1\n[rows]\npartitions = 4\n"


def mix_of(folder: Path, text: str, *, spread_given: bool = False) -> Mix:
    path = folder / "mix.toml"
    path.write_text(text, "utf-8")
    return read_mix(read_toml(path, absent=""), spread_given=spread_given)


def test_shares_are_weights_and_the_rest_has_defaults(tmp_path: Path) -> None:
    mix = mix_of(tmp_path, LEAST)
    assert mix == Mix({READ: 0.75, UPDATE: 0.25}, partitions=4)
    assert mix.entities(mix.shares) == 1.0
    full = mix_of(
        tmp_path,
        "[mix]\nrange_query = 1\nbatch = 0.5\ndelete = 0\n[range_query]\ntop = 9\n[batch]\nrows = 3\n"
        "[rows]\ncount = 70\n[load]\nprocesses = 3\n",
        spread_given=True,
    )
    assert full == Mix({QUERY: 2 / 3, BATCH: 1 / 3}, 9, 3, 70, None, 3)
    assert full.entities(full.shares) == pytest.approx(7)


@pytest.mark.parametrize(
    ("text", "line", "names", "cure"),
    [
        (
            LEAST + "[mixes]\n",
            6,
            "[mixes]: unknown section",
            "known here: mix, range_query, batch, rows, load",
        ),
        (LEAST.replace("update", "updates"), 3, "[mix] updates: unknown key", "known here: point_read"),
        (
            LEAST.replace("3", "'3'"),
            2,
            "[mix] point_read: is not a number of at least 0",
            "write for example",
        ),
        (LEAST.replace("3", "-3"), 2, "[mix] point_read: is not a number of at least 0", "write for example"),
        (
            LEAST.replace("3", "nan"),
            2,
            "[mix] point_read: is not a number of at least 0",
            "write for example",
        ),
        ("[mix]\nupdate = 0\n", 1, "[mix]: has no share above 0", "point_read = 60"),
        ("# nothing\n[mix]\n", 2, "[mix]: is missing", "add a section [mix]"),
        ("mix = 3\n", 1, "[mix]: is not a section", "write it as a section"),
        (LEAST + "[range_query]\ntop = 1001\n", 7, "[range_query] top: is more than 1,000", "a smaller"),
        (LEAST + "[batch]\nrows = 101\n", 7, "[batch] rows: is more than 100", "a smaller number"),
        (
            LEAST + "[batch]\nrows = 2.5\n",
            7,
            "[batch] rows: is not a whole number",
            "write for example rows = 16",
        ),
        (LEAST + "count = 3\n", 5, "[rows] partitions: is more than 3", "a smaller number"),
        (LEAST + "[load]\nprocesses = 65\n", 7, "[load] processes: is more than 64", "a smaller number"),
        ("[mix]\nupdate = 1\n[rows]\ncount = 9\n", 3, "[rows] partitions: is missing", "TABLE or --design"),
    ],
)
def test_a_mistake_is_named_with_a_cure(tmp_path: Path, text: str, line: int, names: str, cure: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        mix_of(tmp_path, text)
    assert refused.value.what.startswith(f"{tmp_path / 'mix.toml'}, line {line}: {names}")
    assert cure in refused.value.hint


def test_partitions_are_said_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"line 5: \[rows\] partitions: TABLE or --design has"):
        mix_of(tmp_path, LEAST, spread_given=True)


def test_a_line_is_found_after_values_of_several_lines(tmp_path: Path) -> None:
    text = '[rows]\npartitions = 4\nsize = """\n[mix]\ntop = 3"""\n[mix]\nupdate = 1\nbatches = 2\n'
    with pytest.raises(ConfigurationError, match=r"line 8: \[mix\] batches: unknown key"):
        mix_of(tmp_path, text)


# --- requests ---------------------------------------------------------------------------------------------

MIX = Mix({READ: 0.4, QUERY: 0.1, INSERT: 0.1, UPDATE: 0.1, DELETE: 0.2, BATCH: 0.1}, 5, 3, rows=100)


def planned(population: Population, rate: float = 100.0) -> tuple[list[Request], list[Request]]:
    return population.plan({kind: share * rate for kind, share in MIX.shares.items()}, 4.0)


def test_kinds_have_their_shares_and_partitions_theirs_within_each_kind() -> None:
    _, requests = planned(Population(Spread("Users", (50, 30, 20)), 7, MIX))
    assert [one.due for one in requests] == sorted(one.due for one in requests)
    kinds = Counter(one.kind for one in requests)
    assert kinds == {kind: round(400 * share) for kind, share in MIX.shares.items()}
    for kind, count in kinds.items():
        met = Counter(one.place for one in requests if one.kind is kind)
        assert [met[place] / count for place in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.05)


def test_every_request_is_about_rows_that_are_there_or_are_new() -> None:
    """Carried out one after the other, over several steps, nothing is missing and nothing is there twice."""
    population = Population(Spread("Users", (50, 30, 20)), 7, MIX)
    there: set[tuple[str, str]] = set()

    def do(requests: list[Request]) -> None:
        for one in requests:
            keys = {(row["PartitionKey"], row["RowKey"]) for row in one.rows}
            if one.kind in (INSERT, BATCH):
                assert not keys & there
                there.update(keys)
            elif one.kind is DELETE:
                there.remove(one.key)
            elif one.kind is QUERY:
                following = [key for key in there if key[0] == one.key.partition and key[1] >= one.key.row]
                assert len(following) >= MIX.top
            else:
                assert keys <= there

    do(list(population.loading()))
    assert len(there) == population.rows == 100
    for _ in range(4):
        loading, requests = planned(population)
        assert max((one.size for one in loading), default=1) <= 100
        do([*loading, *requests])


def test_many_partitions_are_folded_into_as_many_as_there_are_rows() -> None:
    spread = Spread("Users", (5, 1, 1, 1), others=4).folded(3)
    assert spread == Spread("Users", (7, 3, 2))
    assert Spread("Users", (5, 1)).folded(3) == Spread("Users", (5, 1))
    assert Population(Spread("Users", (1,) * 1000), 0, MIX).spread.partitions == 100


# --- what refuses -----------------------------------------------------------------------------------------


def stepped(rate: float, refuses: dict[tuple[OperationKind | None, int | None], int]) -> Step:
    """A step of 4 s on ten partitions, half reads and half updates, of which every n-th is refused by kind
    (None: any) and partition (None: any)."""
    responses, met = [], Counter[tuple[OperationKind | None, int | None]]()
    for number in range(round(rate * 4)):
        kind, place, due = (READ, UPDATE)[number % 2], number // 2 % 10, number / rate
        refused = False
        for of, every in refuses.items():
            if of[0] in (None, kind) and of[1] in (None, place):
                met[of] += 1
                refused |= met[of] % every == 0
        request = Request(due, kind, 1, place, 0)
        responses.append(Response(request, due, due + 0.01, 503 if refused else None, 1))
    return measure(Offered(responses, 0.2), rate, 4.0, (READ, UPDATE))


def test_a_kind_that_refuses_names_no_partition() -> None:
    steps = [stepped(100, {}), stepped(160, {(UPDATE, None): 4})]
    judged = judge_ramp(steps)
    assert [one.limit for one in judged] == [Limit.NOTHING, Limit.SERVICE]
    assert judged[1].refused and all(reason.startswith("update: ") for reason in judged[1].reasons)
    assert judged[1].because_of == ("update",)
    found = saturation([one.kinds[UPDATE] for one in judged])
    assert (found.clean, found.saturated, found.rate) == (50, 80, pytest.approx(60, rel=0.02))
    assert refusing(steps) == {}


def test_a_partition_that_refuses_is_named_with_what_it_takes() -> None:
    step = stepped(200, {(None, 3): 3})
    assert refusing([step]) == {3: pytest.approx(200 / 10 * 2 / 3, rel=0.05)}
    [judged] = judge_ramp([step])
    assert judged.limit is Limit.SERVICE
    assert "partition 4 refuses more than others" in judged.reasons


def test_a_step_that_was_sent_late_names_no_partition() -> None:
    """Requests that come in bursts are refused by a partition that carries the same rate evenly."""
    step = stepped(200, {(None, 3): 3})
    assert refusing([replace(step, machine=MachineUse(late=0.2))]) == {}
    assert refusing([step, replace(step, machine=MachineUse(late=0.2))]) == refusing([step])


def test_a_partition_is_named_also_where_a_kind_is_refused_everywhere() -> None:
    assert list(refusing([stepped(400, {(UPDATE, None): 8, (None, 3): 2})])) == [3]


def test_a_few_refusals_that_fell_together_name_nothing() -> None:
    """Four in one partition of ten may be chance; twenty are none."""
    assert refusing([stepped(100, {(None, 3): 10})]) == {}
    assert list(refusing([stepped(100, {(None, 3): 2})])) == [3]
