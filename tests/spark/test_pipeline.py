"""The example pipeline: every event once in silver, and gold that agrees with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fyrehose.records import Run

Opener = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
#: The time of the first batch of a journal that a test writes; each batch is a second later.
NOON = datetime.fromtimestamp(1_700_000_001, UTC)


@pytest.fixture
def opened(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from pipeline import Pipeline

    def pipeline(journal: Any, name: str = "tables", **settings: Any) -> Any:
        return Pipeline.at(spark, str(journal.directory), tmp_path / name, **settings)

    return pipeline


def event(seconds: float = 0, **fields: Any) -> bytes:
    at = (NOON + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"@timestamp": at} | fields).encode()


def request(seconds: float, status: int, host: str = "a") -> bytes:
    return event(seconds, host={"name": host}, http={"response": {"status_code": status}})


def beats(*events: bytes, stream: str = "lumberjack", port: int = 1) -> Run:
    return Run.of(stream, list(events), source="lumberjack", producer=f"10.0.0.1:{port}", producer_seq=1)


def silver(pipeline: Any) -> list[dict[str, Any]]:
    rows = pipeline.silver.table.delta.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["stream"], row["seq"]))


def gold(pipeline: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(tuple(row.values()) for row in table.delta.to_pyarrow_table().to_pylist())
        for name, table in pipeline.gold.tables.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_new_field_becomes_a_column_and_changed_type_is_rescued(spark: Any, written: Opener, opened: Any) -> None:
    journal = written()
    first, second = event(0, ms=1, tags=["x", "y"]), event(1, ms=2, stream="stdout")
    journal.append(beats(first, second))
    pipeline = opened(journal)
    assert pipeline.advance() == 2
    later = [
        event(2, ms=3, user={"name": "eve"}),
        event(3, ms="slow"),
        event(4, ms=2.5),
        b"no JSON",
        b"\xff\xfe",
        event(5, MS=7),
        b'{"user.name":"bob","nothing":null}',
        b"17",
        b'{"@timestamp":"0001-01-01T00:00:00Z"}',
    ]
    journal.append(beats(*later))
    assert pipeline.advance() == 9
    rows = silver(pipeline)
    assert [row["seq"] for row in rows] == list(range(1, 12))
    assert [row["ms"] for row in rows] == [1, 2, 3, *[None] * 8]
    assert [row["user.name"] for row in rows] == [None, None, "eve", *[None] * 5, "bob", None, None]
    assert [row["tags"] for row in rows[:2]] == ['["x","y"]', None]
    assert [row["stream_"] for row in rows[:2]] == [None, "stdout"]
    rescued = [None, None, None, *later[1:6], None, later[7], None]
    assert [row["rescued"] for row in rows] == rescued
    assert rows[3]["event_time"] == NOON + timedelta(seconds=3)
    assert [row["event_time"] == row["time"] for row in rows[5:]] == [True, True, False, True, True, True]
    assert "nothing" not in rows[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_field_with_several_types_in_the_first_round_has_the_most_frequent_one(
    spark: Any, written: Opener, opened: Any
) -> None:
    journal = written()
    odd = event(0, http={"response": {"status_code": "odd"}})
    journal.append(beats(request(0, 200), odd, request(1, 404)))
    pipeline = opened(journal)
    pipeline.advance()
    assert [row["http.response.status_code"] for row in silver(pipeline)] == [200, None, 404]
    assert [row["rescued"] for row in silver(pipeline)] == [None, odd, None]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rounds_of_any_size_give_the_same_tables(spark: Any, written: Opener, opened: Any) -> None:
    journal = written()
    small = opened(journal, "small", rows=7)
    expected: Counter[tuple[Any, ...]] = Counter()
    for batch in range(6):
        requests = [(batch * 40 + k, (200, 404, 500)[k % 3], "ab"[batch % 2]) for k in range(4)]
        for seconds, status, _ in requests:
            minute = (NOON + timedelta(seconds=seconds)).replace(second=0)
            expected[minute, status] += 1
        journal.append(
            beats(*(request(*one) for one in requests)), beats(event(batch), stream="other"), beats(stream=".own")
        )
        if batch in (1, 3):
            assert small.advance() == 10
    whole = opened(journal, "whole")
    assert (small.advance(), whole.advance()) == (10, 30)
    assert silver(small) == silver(whole)
    assert gold(small) == gold(whole)
    assert {row[:2]: row[2] for row in gold(small)["requests"]} == expected
    version = small.silver.table.delta.version()
    assert (small.advance(), opened(journal, "small").advance()) == (0, 0)
    assert opened(journal, "small").silver.table.delta.version() == version


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_event_sent_again_is_left_out_also_in_a_later_round(spark: Any, written: Opener, opened: Any) -> None:
    journal = written()
    journal.append(beats(request(0, 200), request(1, 200)))
    pipeline = opened(journal)
    pipeline.advance()
    journal.append(beats(request(0, 200), request(1, 200), request(2, 200), port=2))
    assert pipeline.advance() == 1
    assert [row["seq"] for row in silver(pipeline)] == [1, 2, 5]
    assert [row[2] for row in gold(pipeline)["requests"]] == [3]
    journal.append(beats(request(0, 200), port=3))
    assert pipeline.advance() == 0
    assert len(silver(pipeline)) == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_late_event_is_in_silver_and_not_counted(spark: Any, written: Opener, opened: Any) -> None:
    journal = written()
    journal.append(beats(request(0, 200), request(86400 * 365, 200, "clock ahead")))
    pipeline = opened(journal)
    pipeline.advance()
    before = gold(pipeline)
    # The watermark is an hour behind the server's clock, because the second event is in its future.
    journal.append(beats(request(-3599, 200), request(-3700, 200)))
    pipeline.advance()
    assert [row["late"] for row in silver(pipeline)] == [False, False, False, True]
    minutes = Counter({row[0]: row[2] for row in gold(pipeline)["requests"]})
    minutes.subtract({row[0]: row[2] for row in before["requests"]})
    assert {minute: count for minute, count in minutes.items() if count} == {
        (NOON - timedelta(seconds=3599)).replace(second=0): 1
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gold_has_errors_by_host_and_a_plot(spark: Any, written: Opener, opened: Any, tmp_path: Path) -> None:
    journal = written()
    severe = event(2, host={"name": "b"}, log={"level": "ERROR"})
    journal.append(beats(request(0, 200), request(1, 503), severe, event(3, log={"level": "info"}), b"nothing"))
    pipeline = opened(journal)
    pipeline.advance()
    minute = NOON.replace(second=0)
    assert gold(pipeline) == {
        "requests": [(minute, 200, 1), (minute, 503, 1)],
        "errors": [(minute, "a", 1), (minute, "b", 1)],
    }
    from pipeline import plot

    plot(pipeline.gold, tmp_path / "gold.png")
    assert (tmp_path / "gold.png").read_bytes().startswith(b"\x89PNG")
    plot(opened(written("empty"), "none").gold, tmp_path / "empty.png")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_files_are_merged_without_a_change_of_rows(
    spark: Any, written: Opener, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written()
    pipeline = opened(journal)
    for number in range(3):
        journal.append(beats(request(number, 200)))
        pipeline.advance()
    before, files = silver(pipeline), len(pipeline.silver.table.delta.file_uris())
    monkeypatch.setattr("tables.MANY", 2)
    journal.append(beats(request(9, 200)))
    pipeline.advance()
    pipeline.maintain()
    assert files >= 3
    assert len(pipeline.silver.table.delta.file_uris()) == 1
    assert silver(pipeline)[:3] == before
    assert pipeline.advance() == 0
    assert [row[2] for row in gold(pipeline)["requests"]] == [4]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_next_run_completes_a_round_that_was_interrupted(
    spark: Any, written: Opener, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written()
    expected = 0
    # The commits of a round: silver, requests, errors.
    for commits in range(3):
        pipeline, left = opened(journal), iter([True] * commits)

        def interrupted(commit: Any, left: Any = left) -> Any:
            def run(*words: Any) -> None:
                if not next(left, False):
                    raise KeyboardInterrupt
                commit(*words)

            return run

        journal.append(beats(request(commits, 200), request(commits, 500)))
        expected += 2
        table = type(pipeline.silver.table)
        with monkeypatch.context() as patch:
            patch.setattr(table, "append", interrupted(table.append))
            patch.setattr(table, "replace", interrupted(table.replace))
            with pytest.raises(KeyboardInterrupt):
                pipeline.advance()
        pipeline = opened(journal)
        assert pipeline.advance() == (2 if commits == 0 else 0)
        assert [row["seq"] for row in silver(pipeline)] == list(range(1, expected + 1))
        assert sum(row[2] for row in gold(pipeline)["requests"]) == expected
        assert sum(row[2] for row in gold(pipeline)["errors"]) == expected // 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stale_round_is_not_committed_twice(spark: Any, written: Opener, opened: Any) -> None:
    from deltalake.exceptions import CommitFailedError

    journal = written()
    journal.append(beats(request(0, 200)))
    first, second = opened(journal), opened(journal)
    first.advance()
    rows = first.silver.table.delta.to_pyarrow_table()
    with pytest.raises(CommitFailedError):
        second.silver.table.append(pa.table(rows), {f"{rows['server'][0]}/lumberjack": 1})


def test_second_pipeline_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from tables import alone

    with alone(tmp_path), pytest.raises(BlockingIOError), alone(tmp_path):
        pytest.fail("the second one began")
