"""Run the tasks of archives and typed tables on Spark, or in this process.

in: a function, and a task for each of its calls      out: the results, in the order of the tasks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fyrehose.spark import memory
from fyrehose.spark.failures import own_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

#: An engine: runs a function for each task, and returns the results in the order of the tasks.
Engine = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def on_spark(spark: SparkSession) -> Engine:
    """Return the engine whose tasks run on Spark."""

    def run(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if not tasks:
            return []
        try:
            found = spark.sparkContext.parallelize(tasks, len(tasks)).map(partial(_in_worker, function)).collect()
        except Exception as error:
            raise own_error(error) or error from None
        return list(found)

    return run


def _in_worker(function: Callable[[T], R], task: T) -> R:
    memory.prepare_worker()
    return function(task)


def locally(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run tasks in this process, one after another; memory that a task frees is kept for the next task."""
    memory.keep()
    return [function(task) for task in tasks]
