"""Tables without a lake or a journal (with them: jobs/test_archive.py)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest

from fyrehose.spark.tables import COLUMNS, escaped, of_lake, table


@pytest.mark.parametrize("stream", ["a", "a*", "[x]", "?", "a]b[c", "*?["])
def test_a_name_is_a_pattern_for_itself_alone(stream: str) -> None:
    assert fnmatchcase(stream, escaped(stream))
    assert not fnmatchcase(f"{stream}x", escaped(stream))
    assert not fnmatchcase("anything else", escaped(stream))


@pytest.mark.slow
def test_a_lake_that_is_not_there_yet_is_empty(spark: Any, tmp_path: Any) -> None:
    frame = table(spark, tmp_path / "not")
    assert frame.columns == list(COLUMNS)
    assert frame.count() == 0
    assert of_lake(spark, None, [], ["s"]).count() == 0  # type: ignore[arg-type]


def test_a_table_of_nothing(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="of a lake, of a journal, or of both"):
        table(None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="streams names none"):
        table(None, None, "j", streams=[])  # type: ignore[arg-type]
