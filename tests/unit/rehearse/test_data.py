"""Loading rehearsal rows from files: what is kept, what is assumed and said, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rekey.errors import ConfigurationError, ExitCode
from rekey.model import Row
from rekey.rehearse.data import Format, JsonStream, open_data

NOT_KNOWN = "its column had no type until then, several, or one that does not fit"


def load(path: Path, text: str | bytes) -> tuple[list[Row], list[str]]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    data = open_data(path)
    return list(data.rows()), data.assumptions


def refused(path: Path, text: str | bytes) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(path, text)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint
    assert "SECRETKEY" not in str(caught.value)
    return caught.value


AZURE_CLI = {
    "items": [
        {
            "PartitionKey": "eu",
            "RowKey": "anna@mail.example",
            "Age": 5,
            "Big": {"edm_type": "Edm.Int64", "value": 9007199254740993},
            "Joined": "2024-01-02T03:04:05.123456+00:00",
            "Score": 3.0,
            "Odd": float("nan"),
            "Ok": True,
            "Name": "Anna",
            "Timestamp": "2024-05-05T00:00:00+00:00",
            "etag": "W/\"datetime'x'\"",
        }
    ],
    "nextMarker": {},
}


def test_azure_cli_output_becomes_wire_rows_and_says_what_it_assumed(tmp_path: Path) -> None:
    rows, assumptions = load(tmp_path / "users.json", json.dumps(AZURE_CLI, indent=2))
    assert rows == [
        {
            "PartitionKey": "eu",
            "RowKey": "anna@mail.example",
            "Age": 5,
            "Big": "9007199254740993",
            "Big@odata.type": "Edm.Int64",
            "Joined": rows[0]["Joined"],
            "Joined@odata.type": "Edm.DateTime",
            "Score": 3.0,
            **({"Score@odata.type": "Edm.Double"} if "Score@odata.type" in rows[0] else {}),
            "Odd": "NaN",
            "Odd@odata.type": "Edm.Double",
            "Ok": True,
            "Name": "Anna",
        }
    ]
    assert rows[0]["Joined"].startswith("2024-01-02T03:04:05.123456") and rows[0]["Joined"].endswith("Z")
    told = " ".join(assumptions)
    assert "taken for a DateTime" in told and "Edm.String" in told and "left out (2 values)" in told
    assert "anna" not in told.lower()


def test_a_next_marker_is_told_as_a_part_of_the_table_only(tmp_path: Path) -> None:
    document = {**AZURE_CLI, "nextMarker": {"NextPartitionKey": "x"}}
    _, assumptions = load(tmp_path / "users.json", json.dumps(document))
    assert any("part of the table" in sentence for sentence in assumptions)


def test_a_bare_array_and_utf16_as_some_shells_write_it_are_read(tmp_path: Path) -> None:
    rows, _ = load(tmp_path / "users.json", json.dumps(AZURE_CLI["items"]).encode("utf-16"))
    assert len(rows) == 1


def test_json_lines_keep_types_that_are_said_and_do_not_guess_at_text(tmp_path: Path) -> None:
    lines = [
        {
            "PartitionKey": "p",
            "RowKey": "1",
            "odata.etag": "W/x",
            "Timestamp": "t",
            "Text": "2024-01-02T03:04:05Z",
        },
        {
            "PartitionKey": "p",
            "RowKey": "2",
            "When": "1601-01-01T00:00:00.0000001Z",
            "When@odata.type": "Edm.DateTime",
            "Id": "ABCDEF00-0000-4000-8000-00000000abcd",
            "Id@odata.type": "Edm.Guid",
            "Long": 4294967296,
            "Gone": None,
        },
    ]
    rows, assumptions = load(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    assert rows[0] == {"PartitionKey": "p", "RowKey": "1", "Text": "2024-01-02T03:04:05Z"}
    assert rows[1]["When"] == "1601-01-01T00:00:00.0000001Z"
    assert rows[1]["Id"] == "abcdef00-0000-4000-8000-00000000abcd"
    assert (rows[1]["Long"], rows[1]["Long@odata.type"]) == ("4294967296", "Edm.Int64")
    assert "Gone" not in rows[1]
    assert any("Int64" in sentence for sentence in assumptions)


def test_a_json_file_with_one_row_a_line_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows, _ = load(path, '{"PartitionKey":"p","RowKey":"1"}\n{"PartitionKey":"p","RowKey":"2"}\n')
    assert len(rows) == 2
    assert open_data(path).format is Format.JSON_LINES


def test_csv_takes_types_from_the_header_or_from_a_column_beside(tmp_path: Path) -> None:
    text = (
        "\ufeffPartitionKey,RowKey:Edm.String,Age:Edm.Int32,Big:int64,When:Edm.DateTime,Any,Any@type,Plain,Timestamp\n"
        'p,"a, ""b""",-5,9223372036854775807,2024-01-02T03:04:05.1234567Z,1.5,Edm.Double,"two\nlines",t\n'
        "p,,7,,,x,,,t\n"
    )
    rows, assumptions = load(tmp_path / "rows.csv", text)
    first, second = rows
    assert first["RowKey"] == 'a, "b"' and first["Age"] == -5 and first["Plain"] == "two\nlines"
    assert (first["Big"], first["Big@odata.type"]) == ("9223372036854775807", "Edm.Int64")
    assert first["When"] == "2024-01-02T03:04:05.1234567Z"
    assert first["Any"] == 1.5
    assert second == {"PartitionKey": "p", "RowKey": "", "Age": 7, "Any": "x"}
    told = " ".join(assumptions)
    assert "empty CSV cell" in told and "without a type" in told and "left out" in told


def test_types_in_the_first_row_of_a_csv_file_count_for_later_rows_and_are_reported(tmp_path: Path) -> None:
    text = "PartitionKey,RowKey,Total,Total@type,Ok,Ok@odata.type\np,1,41,Int64,true,Edm.Boolean\n"
    rows, assumptions = load(
        tmp_path / "rows.csv", text + "".join(f"p,{n},{n},,false,\n" for n in range(2, 361))
    )
    assert [(row["Total"], row["Total@odata.type"], row["Ok"]) for row in rows[1:]] == [
        (str(n), "Edm.Int64", False) for n in range(2, 361)
    ]
    taken = "a CSV value with an empty type was taken for the one type that its column had until then"
    assert assumptions == [f"{taken} (718 values, Total: Edm.Int64, Ok: Edm.Boolean)"]


def test_a_csv_value_whose_type_cannot_be_known_is_text_and_is_reported(tmp_path: Path) -> None:
    """Before any type, after several, and where the one type does not fit."""
    text = (
        "PartitionKey,RowKey,Before,Before@type,Several,Several@type,Misfit,Misfit@type\n"
        "p,1,1,,1,Int32,1,Int32\n"
        "p,2,2,Int32,2,Int64,none,\n"
        "p,3,3,Int32,3,,3,\n"
    )
    rows, assumptions = load(tmp_path / "rows.csv", text)
    assert [row["Before"] for row in rows] == ["1", 2, 3]
    assert [row["Several"] for row in rows] == [1, "2", "3"] and "Several@odata.type" not in rows[2]
    assert [row["Misfit"] for row in rows] == [1, "none", 3]
    assert [one.partition(" was taken for ")[2] for one in assumptions] == [
        "the one type that its column had until then (1 value, Misfit: Edm.Int32)",
        f"Edm.String: {NOT_KNOWN} (3 values, Before, Misfit, Several)",
    ]


def test_an_empty_csv_cell_is_empty_text_where_its_type_says_so(tmp_path: Path) -> None:
    text = "PartitionKey,RowKey,Name,Name@type,Age,Age@type\np,1,,Edm.String,,Edm.Int32\np,2,,,7,Edm.Int32\n"
    rows, assumptions = load(tmp_path / "rows.csv", text)
    assert rows == [
        {"PartitionKey": "p", "RowKey": "1", "Name": ""},
        {"PartitionKey": "p", "RowKey": "2", "Age": 7},
    ]
    assert assumptions == [
        "an empty CSV cell with the type Edm.String was taken for empty text (1 value, Name)",
        "an empty CSV cell was taken for a property that the row lacks (2 values, Age, Name)",
    ]


def test_a_csv_column_without_a_type_is_reported_with_its_name_and_values(tmp_path: Path) -> None:
    _, assumptions = load(tmp_path / "rows.csv", "PartitionKey,RowKey,Total\np,1,41\np,2,42\n")
    assert assumptions == [
        "the values of a CSV column without a type were taken for Edm.String (2 values, Total)"
    ]


def test_json_lines_report_text_without_a_type(tmp_path: Path) -> None:
    _, assumptions = load(tmp_path / "rows.jsonl", '{"PartitionKey":"p","RowKey":"1","Total":"41"}\n')
    assert assumptions == ["text without a type was taken for Edm.String, as the service means it (1 value)"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "PartitionKey,Name\np,x\n", "line 1: there is no column RowKey"),
        ("a.csv", "PartitionKey,RowKey,A:Edm.Int31\n", "line 1: a type is none"),
        ("a.csv", "PartitionKey,RowKey,A,A\n", "line 1: column 4 has no name"),
        ("a.csv", "PartitionKey:Edm.Int32,RowKey\n", "PartitionKey is not Edm.String"),
        ("a.csv", "PartitionKey,RowKey,A:Edm.Int32\np,SECRETKEY,SECRETKEY\n", "line 2: A holds no Edm.Int32"),
        ("a.csv", "PartitionKey,RowKey\np,1\np,SECRETKEY,x\n", "line 3: there are 3 cells, the header has 2"),
        ("a.csv", 'PartitionKey,RowKey\np,"SECRETKEY" x\n', "line 2: this is not CSV"),
        ("a.csv", "PartitionKey,RowKey\np,SECRETKEY/1\n", "line 2: the service would refuse this row"),
        ("a.csv", "PartitionKey,RowKey\n", "holds no rows"),
        (
            "a.jsonl",
            '{"PartitionKey":"p","RowKey":"1"}\n{"RowKey":"SECRETKEY"}\n',
            "line 2: PartitionKey is missing",
        ),
        ("a.jsonl", '{"PartitionKey":"p","RowKey":"SECRETKEY"\n', "line 1, column"),
        ("a.jsonl", '["SECRETKEY"]\n', "line 1: this is not an object"),
        ("a.jsonl", '{"PartitionKey":"p","RowKey":"1","A":["SECRETKEY"]}', "line 1: A is a list"),
        (
            "a.jsonl",
            '{"PartitionKey":"p","RowKey":"1","A":1,"A@odata.type":"Edm.X"}',
            "line 1: a type is none",
        ),
        ("a.jsonl", '{"PartitionKey":"p","RowKey":"1","A":99999999999999999999}', "A holds no Edm.Int64"),
        (
            "a.json",
            '{"items": [{"PartitionKey":"p","RowKey":"1"},\n {"PartitionKey":"p"}]}',
            "item 2: RowKey",
        ),
        ("a.json", '{"items": [{"PartitionKey":"p","RowKey":"SECRETKEY"}', "a.json, line 1, column"),
        ("a.json", '{"items": [{"PartitionKey":"p",\n"RowKey":"SECRETKEY",}]}', "a.json, line 2, column"),
        ("a.json", '{"items": [], "nextMarker": {}}', "holds no rows"),
        (
            "a.json",
            '{"items":\n [{"PartitionKey":"p","RowKey":"1"}], "other": 1}',
            "not what `az storage entity",
        ),
        ("a.json", '{"items": [{"PartitionKey":"p","RowKey":"1"}]} trailing', "cut off"),
        ("a.json", b"\xff\xfe\x00", "not text in UTF-8"),
        ("a.json", b'{"items": ["\xe9"]}', "not text in UTF-8"),
        ("a.xml", "<x/>", "no known format"),
    ],
)
def test_unloadable_data_is_named_by_place(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    assert said in str(refused(tmp_path / name, text))


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_data(tmp_path / "none.json")


def test_a_large_document_is_streamed_across_chunk_borders(tmp_path: Path) -> None:
    """More than one chunk, with items and numbers cut by the borders, and memory for one item only."""
    items = [{"PartitionKey": "p", "RowKey": f"{n:06d}", "N": n, "T": "é" * (n % 90)} for n in range(20_000)]
    rows, _ = load(tmp_path / "big.json", json.dumps({"items": items, "nextMarker": {}}, ensure_ascii=False))
    assert [row["N"] for row in rows] == list(range(20_000))


def test_the_stream_is_independent_of_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document = {"a": {"b": [1, 2]}, "items": [12345, 'te"xt', [], {}, -1.5e3, None, True], "z": 9}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document, indent=1))
    for chunk in range(1, 40):
        monkeypatch.setattr("rekey.rehearse.data._CHUNK", chunk)
        with path.open() as file:
            members = list(JsonStream(file).members())
        assert [value for name, value in members if name == "items"] == document["items"]
        assert ("a", document["a"]) in members and ("z", 9) in members
