"""A result on the disk: what is written is read, and what is no result is refused in one sentence."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.tree import ROOT

from fluxmq.spark.result import (
    EVENTS,
    SCHEMA,
    EventsWriter,
    Place,
    ResultError,
    Summary,
    create_result,
    open_result,
)


def rows(count: int, event: str = "publish") -> pa.RecordBatch:
    columns: dict[str, list[object]] = {name: [None] * count for name in SCHEMA.names}
    columns |= {"event": [event] * count, "client": ["one"] * count, "op": list(range(count)), "sent": [5] * count}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def made(path: Path, **changes: object) -> Place:
    place = create_result(path, Summary(run=7, **changes))  # type: ignore[arg-type]
    writer = EventsWriter(place, 3)
    writer.write(rows(4))
    writer.write(rows(2, "delivery"))
    writer.close()
    assert writer.counts == {"publish": 4, "delivery": 2} and writer.rows == 6
    return place


def test_what_is_written_is_read(tmp_path: Path) -> None:
    place = made(tmp_path / "r", options={"speed": 2.0}, cpu=[(1, 0.5)])
    result = open_result(tmp_path / "r")
    assert (result.summary.run, result.summary.options, result.summary.complete) == (7, {"speed": 2.0}, False)
    table = result.table()
    assert table.schema.equals(SCHEMA) and table.num_rows == 6
    assert set(table["event"].to_pylist()) == {"publish", "delivery"} < set(EVENTS)
    assert result.table(["op"]).column_names == ["op"]
    assert [Path(name).name for name in result.files] == ["part-0003-0001.parquet"]
    assert place.names("events", ".open") == []


def test_a_file_that_was_not_closed_is_not_read(tmp_path: Path) -> None:
    place = made(tmp_path / "r")
    writer = EventsWriter(place, 4)
    writer.write(rows(1))
    assert open_result(tmp_path / "r").table().num_rows == 6
    writer.close()
    assert open_result(tmp_path / "r").table().num_rows == 7


def test_a_partial_result_is_marked(tmp_path: Path) -> None:
    made(tmp_path / "r", why="the broker went away")
    with pytest.raises(ResultError, match="is a partial result: the broker went away"):
        open_result(tmp_path / "r", partial=False)


def test_a_directory_with_something_in_it_is_not_written_over(tmp_path: Path) -> None:
    made(tmp_path / "r")
    with pytest.raises(ResultError, match="is not empty"):
        create_result(tmp_path / "r", Summary())


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"is not a replay's result: it has no summary\.json"):
        open_result(tmp_path)
    summary = tmp_path / "summary.json"
    for text, complaint in [("{", "is not JSON"), ("[]", "format is not"), ('{"format": "other"}', "format is not"),
                            ('{"format": "fluxmq-result", "version": 2}', "has version 2, this FluxMQ reads up to 1"),
                            ('{"format": "fluxmq-result", "version": 1}', "has no 'id'")]:
        summary.write_text(text)
        with pytest.raises(ResultError, match=complaint):
            open_result(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "retyped"])
def test_damaged_events_are_named(tmp_path: Path, damage: str) -> None:
    made(tmp_path / "r")
    path = tmp_path / "r" / "events" / "part-0003-0001.parquet"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "foreign":
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        table = pq.read_table(path)
        pq.write_table(table.set_column(table.schema.get_field_index("op"), "op", table["op"].cast(pa.int32())), path)
    said = {"truncated": "is not a whole Parquet file", "foreign": "has no column 'event'",
            "retyped": "column 'op' is int32, not int64"}[damage]
    with pytest.raises(ResultError, match=said) as caught:
        open_result(tmp_path / "r")
    assert path.name in str(caught.value)


def test_a_later_minor_form_is_read(tmp_path: Path) -> None:
    made(tmp_path / "r")
    summary = tmp_path / "r" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"later": 1}))
    assert open_result(tmp_path / "r").summary.run == 7


def test_the_page_shows_the_schema() -> None:
    page = (ROOT / "docs" / "replay.md").read_text().split("<!-- columns -->")[1].split("\n\n")[0]
    shown = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", page, re.MULTILINE)
    assert shown == [(one.name, "dictionary string" if pa.types.is_dictionary(one.type) else str(one.type))
                     for one in SCHEMA]
    assert re.findall(r"`([\w-]+)`", page.splitlines()[3].split("|")[3]) == list(EVENTS)


def test_the_page_shows_the_summary() -> None:
    text = (ROOT / "docs" / "replay.md").read_text()
    named = re.search(r"`summary.json`: (.*?)\n\n", text, re.DOTALL)
    assert named is not None
    for key in json.loads(Summary().to_json()):
        assert f"`{key}`" in named[1], key
