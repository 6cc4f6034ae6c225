"""Tables of nothing, and of everything: the tour of docs/spark.md in small (more of them: jobs/test_archive.py)."""

from __future__ import annotations

import importlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from fyrehose.errors import JournalError
from fyrehose.spark.lake import Lake
from fyrehose.spark.tables import COLUMNS, escaped, of_lake, table


@pytest.mark.parametrize("stream", ["a", "a*", "[x]", "?", "a]b[c", "*?["])
def test_a_name_is_a_pattern_for_itself_alone(stream: str) -> None:
    assert fnmatchcase(stream, escaped(stream))
    assert not fnmatchcase(f"{stream}x", escaped(stream))
    assert not fnmatchcase("anything else", escaped(stream))


@pytest.mark.slow
def test_a_lake_without_a_round_is_empty_and_one_that_is_not_there_an_error(spark: Any, tmp_path: Any) -> None:
    lake = Lake.at(tmp_path / "lake")
    with pytest.raises(JournalError, match="is no lake: nothing was archived there"):
        table(spark, tmp_path / "lake")
    lake.lock()
    lake.unlock()
    frame = table(spark, tmp_path / "lake")
    assert frame.columns == list(COLUMNS)
    assert frame.count() == 0
    assert of_lake(spark, None, [], ["s"]).count() == 0  # type: ignore[arg-type]


def test_a_table_of_nothing(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="neither a lake nor a journal is given"):
        table(None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="streams is empty"):
        table(None, None, "j", streams=[])  # type: ignore[arg-type]


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_everything_that_was_acknowledged_is_in_the_table(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "torture"))
    spark_tour = importlib.import_module("spark_tour")
    logs = tmp_path / "logs"
    logs.mkdir()
    logs.joinpath("a.log").write_text("one line\nthe same\nthe same\n")
    args = spark_tour.arguments(["--events", "9000", "--rate", "3000", "--logs", str(logs)])
    assert spark_tour.tour(tmp_path / "t", args, spark, beside=False) == []
    said = capfd.readouterr().out
    assert "logs 6  lumberjack 3,006  orders 3,000  web 3,003" in said
    assert "doubles: lumberjack 3, web 3; planted were 6" in said
