"""Parts of an event that is larger than a record are one row again, wherever a table has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.journal import parts
from fyrehose.journal.parts import JSON, LAST_PART, PART, Joiner
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.spark import joined, statements, table
from fyrehose.spark.columns import COLUMNS
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.parse import parsed
from fyrehose.spark.joining import _events, joined_batches, run_of, whole_events

Opener = Callable[..., Any]
Row = dict[str, Any]
#: The size of a part in the tests that generate events.
SMALL = 8
SCHEMA = pa.schema([("server", pa.string()), *COLUMNS.items()])


def records_of(document: bytes, number: int) -> list[Row]:
    """Return the records that the server stores for an event."""
    pieces = [document[at : at + SMALL] for at in range(0, len(document), SMALL)]
    kinds = [JSON] if len(pieces) == 1 else [PART] * (len(pieces) - 1) + [LAST_PART]
    return [
        {"payload": piece, "content_type": kind, "producer_seq": number, "topic": "t"}
        for piece, kind in zip(pieces, kinds, strict=True)
    ]


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Records of some producers in turn; the last event of each may be incomplete, because its connection was lost."""
    waiting = {}
    for server in ("a", "b"):
        for stream, producer in (("s", "1"), ("s", "2"), ("t", "1")):
            sizes = draw(st.lists(st.integers(0, 4 * SMALL), max_size=3))
            events = [records_of(b'{"m":"%b"}' % (b"x" * size), n) for n, size in enumerate(sizes)]
            events += [[{"payload": b"x" * SMALL, "content_type": None}]] * draw(st.booleans())
            some = [row for event in draw(st.permutations(events)) for row in event]
            whole = len(some) - draw(st.integers(0, 2))
            if whole > 0:
                waiting[server, stream, producer] = some[:whole]
    rows: list[Row] = []
    ends = defaultdict[Any, int](int)
    while waiting:
        key = draw(st.sampled_from(sorted(waiting)))
        server, stream, producer = key
        ends[server, stream] += 1
        names = {"server": server, "stream": stream, "producer": producer, "source": "lumberjack"}
        rows.append(names | {"seq": ends[server, stream], "time": len(rows)} | waiting[key].pop(0))
        if not waiting[key]:
            del waiting[key]
    return rows[draw(st.integers(0, 2)) :]  # A reader may begin anywhere.


def batches(rows: list[Row], size: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows[at : at + size], SCHEMA) for at in range(0, len(rows), size)]


def brief(found: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    names = ("server", "stream", "seq", "time", "producer", "producer_seq", "content_type", "payload")
    return [itemgetter(*names)(row) for batch in found for row in batch.to_pylist()]


def expected(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Return what the joiner of `tail` and HTTP makes of the records of one server."""
    joiner, by_key = Joiner(), {}
    runs: list[Run] = []
    for batch in batches(rows, 1):
        run = run_of(batch, 0)
        by_key[run.stream, run.first_seq] = batch
        runs += joiner.join(run)
    found = []
    for run in [*runs, *joiner.end()]:
        server, stream, seq, time, producer, number, _, _ = brief([by_key[run.stream, run.first_seq]])[0]
        found.append((server, stream, seq, time, producer, number, run.content_type, bytes(run.payload)))
    return found


@patch.object(parts, "MAX_PAYLOAD", SMALL)
@given(rows=logs(), size=st.integers(1, 5))
def test_batches_are_joined_as_runs_are(rows: list[Row], size: int) -> None:
    ours = [row for row in rows if row["server"] == "a"]
    assert brief(list(joined_batches(batches(ours, size), Joiner()))) == expected(ours)


@patch.object(parts, "MAX_PAYLOAD", SMALL)
@given(rows=logs(), size=st.integers(1, 5))
def test_joining_only_the_sorted_parts_gives_equal_events(rows: list[Row], size: int) -> None:
    pieces = [row for row in rows if row["content_type"] in parts.PARTS]
    others = [row for row in rows if row["content_type"] not in parts.PARTS]
    pieces.sort(key=itemgetter("server", "stream", "producer", "seq"))
    found = brief([*_events(batches(pieces, size)), *batches(others, size)])
    assert sorted(found) == sorted(
        row for server in "ab" for row in expected([r for r in rows if r["server"] == server])
    )


@patch.object(parts, "MAX_PAYLOAD", SMALL)
@patch.object(statements, "MAX_PAYLOAD", SMALL)
@given(rows=logs())
@settings(max_examples=25)
def test_view_of_duckdb_has_the_same_events(rows: list[Row]) -> None:
    names = ("server", "stream", "seq", "time", "producer", "producer_seq", "content_type", "payload")
    query = statements.joined("select * from records")
    with duckdb.connect() as connection:
        connection.register("records", pa.Table.from_batches(batches(rows, 5), SCHEMA))
        found = connection.sql(f"select {', '.join(names)} from ({query})").to_arrow_table()
    assert sorted(brief(found.to_batches())) == sorted(
        row for server in "ab" for row in expected([r for r in rows if r["server"] == server])
    )


@patch.object(parts, "MAX_PAYLOAD", SMALL)
@given(rows=logs(), cuts=st.sets(st.integers(0, 40)), size=st.integers(1, 5))
def test_events_are_one_row_each_wherever_a_journal_is_cut_into_rounds(
    rows: list[Row], cuts: set[int], size: int
) -> None:
    ours = [row for row in rows if row["server"] == "a"]
    found: list[tuple[Any, ...]] = []
    for begin, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(ours)), len(ours)]):
        before, some = batches(ours[:begin], 3), batches(ours[begin:end], size)
        found += brief(list(whole_events(some, lambda before=before: before)))  # type: ignore[misc]
    assert [row[2] for row in found] == [row["seq"] for row in ours if row["content_type"] != PART]
    payloads = {(row[1], row[2]): row[-1] for row in found}
    assert [payloads[row[1], row[2]] for row in expected(ours) if row[-2] == JSON] == [
        payload for payload in payloads.values() if payload.startswith(b"{") and payload.endswith(b"}")
    ]


@patch.object(parts, "MAX_PAYLOAD", SMALL)
def test_row_of_an_event_that_is_not_json_or_too_large_has_the_available_payload() -> None:
    events = [*records_of(b"-" * 20, 1), *records_of(b"=" * 36, 2), *records_of(b"+" * 20, 3)[2:]]
    events.append(events[0] | {"payload": b"short"})
    rows = [{"stream": "s", "source": "lumberjack", "producer": "1", "seq": n} | row for n, row in enumerate(events, 1)]
    with patch("fyrehose.spark.joining.LARGEST", 32):
        found = list(whole_events(batches(rows, 2), list))
    assert [(row[2], row[-1]) for row in brief(found)] == [(3, b"-" * 20), (8, b"===="), (9, b"++++"), (10, b"short")]


@patch.object(parts, "MAX_PAYLOAD", SMALL)
def test_event_beyond_the_bound_stays_in_parts_and_the_next_one_is_joined() -> None:
    events = [*records_of(b'{"m":"%b"}' % (b"x" * 5 * SMALL), 1), *records_of(b'{"m":"%b"}' % (b"y" * 2 * SMALL), 2)]
    rows = [{"stream": "s", "source": "lumberjack", "producer": "1", "seq": n} | row for n, row in enumerate(events, 1)]
    with patch("fyrehose.spark.joining.LARGEST", 4 * SMALL):
        found = list(_events(batches(rows, 2)))
    assert [row[2] for row in brief(found)] == [1, 2, 3, 4, 5, 6, 9]
    assert brief(found)[-1][-2:] == (JSON, b'{"m":"yyyyyyyyyyyyyyyy"}')


def part(payload: bytes, *, last: bool = False, producer: str = "10.0.0.1:1") -> Run:
    labels = {"producer": producer, "producer_seq": 7, "topic": "t", "content_type": LAST_PART if last else PART}
    return Run.of("web", [payload], source="lumberjack", **labels)


@pytest.mark.slow
def test_event_whose_parts_are_in_the_lake_and_in_the_journal_is_one_row(
    spark: Any, written: Opener, tmp_path: Path
) -> None:
    journal, lake = written(), tmp_path / "lake"
    event = b'{"m": "%b"}' % (b"x" * (MAX_PAYLOAD + 5))
    other = Run.of("web", [b'{"m": "small"}'], source="lumberjack", producer="10.0.0.2:1", content_type=JSON)
    journal.append(part(event[:MAX_PAYLOAD]))
    archive(None, str(journal.directory), lake)
    journal.append(other)
    journal.append(part(event[MAX_PAYLOAD:], last=True), part(event[:MAX_PAYLOAD], producer="10.0.0.3:1"))
    where = str(journal.directory)
    found = table(spark, lake, where, parts="join")
    assert found.schema == table(spark, lake, where).schema
    rows = found.sort("seq").collect()
    assert [(row.seq, row.content_type, len(row.payload)) for row in rows] == [
        (2, JSON, len(other.payload)),
        (3, JSON, len(event)),
        (4, PART, MAX_PAYLOAD),
    ]
    assert (bytes(rows[1].payload), rows[1].producer_seq) == (event, 7)
    assert {(row.server, row.date, row.time.microsecond) for row in rows} == {(rows[0].server, rows[0].date, 0)}
    few = table(spark, None, where).select(
        "stream", "seq", *(name for name in COLUMNS if name not in ("stream", "seq"))
    )
    values = parsed(joined(few), "m string").where("value is not null").selectExpr("length(value.m) size", "seq")
    assert sorted(map(tuple, values.collect())) == [(5, 2), (MAX_PAYLOAD + 5, 3)]
    assert table(spark, lake, where).count() == 4
    journal.append(other)
    assert joined(few).count() == 3  # Both reads have what was durable when the records were first read.


def test_parts_are_joined_or_kept() -> None:
    with pytest.raises(ValueError, match="invalid parts 'some': expected join or keep"):
        table(None, None, None, parts="some")  # type: ignore[arg-type]
