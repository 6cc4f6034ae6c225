"""Engines of archives and typed tables: the same results by Spark as in this process, in the order of the tasks."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.spark.engines import locally, on_spark

TASKS = [3, 1, 2]


def test_tasks_run_in_their_order() -> None:
    assert locally(str, TASKS) == ["3", "1", "2"]


@pytest.mark.slow
def test_spark_gives_the_same_results(spark: Any) -> None:
    engine = on_spark(spark)
    assert engine(str, []) == []
    assert engine(str, TASKS) == locally(str, TASKS)
