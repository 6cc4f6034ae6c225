"""Metrics of an archive and of typed tables for Prometheus.

in: the state of the command, every few seconds      out: what :mod:`fyrehose.observe.exporting` exports
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fyrehose.observe.exporting import CommandMetrics, families

if TYPE_CHECKING:
    from fyrehose.spark.counting import Behind
    from fyrehose.spark.jobs.archive import ArchiveState
    from fyrehose.spark.jobs.tables import TablesState
    from fyrehose.spark.repeating import Done

T = TypeVar("T")


@attrs.define(eq=False)
class StateMetrics(CommandMetrics, Generic[T]):
    """The metrics of a command that passes its state to :meth:`update`; subclasses collect metrics from the state.

    :cvar name: the name of the command, which begins the names of its metrics
    :cvar into: the target of the command, such as ``the lake``, for the help of its metrics
    """

    name = ""
    into = ""
    _state: T | None = attrs.field(default=None, init=False)
    _status: int | None = attrs.field(default=None, init=False)

    def metrics(self, state: T) -> Iterator[Metric]:
        """Yield the metrics of a state."""
        raise NotImplementedError

    def collect(self) -> Iterable[Metric]:
        return () if self._state is None else self.metrics(self._state)

    def update(self, state: T) -> None:
        """Show *state* in the metrics from now on.

        :raises OSError: the first file cannot be written; later errors are logged, and the command continues
        """
        first, self._state = self._state is None, state
        self.write(first)

    def ended(self, status: int) -> None:
        """Publish that the command has ended, with its exit status."""
        self._status = status
        if self._state is not None:
            self.write(False)

    def gauges(self, behind: Behind, done: Done) -> dict[str, tuple[str, float]]:
        """Return the gauges that all of these commands have."""
        name, into = self.name, self.into
        found: dict[str, tuple[str, float]] = {
            f"{name}_lag_records": (f"Durable records that are not in {into}.", behind.records),
            f"{name}_lag_bytes": (f"Bytes of the journal that are not in {into}.", behind.size),
            f"{name}_lag_seconds": (f"Age of the oldest record that is not in {into}; 0 if none.", behind.age()),
            f"{name}_position": (f"Every record of the journal before this position is in {into}.", done.position),
            f"{name}_last_round_seconds": ("Duration of the last round.", done.last_seconds),
            f"{name}_updated_timestamp_seconds": ("When these metrics were updated.", time.time()),
            f"{name}_running": ("1 while the command runs, 0 when it has ended.", int(self._status is None)),
        }
        if self._status is not None:
            found[f"{name}_exit_status"] = ("Exit status of the command.", self._status)
        return found


@attrs.define(eq=False)
class ArchiveMetrics(StateMetrics["ArchiveState"]):
    """The metrics of one archive."""

    name = "archive"
    into = "the lake"

    def metrics(self, state: ArchiveState) -> Iterator[Metric]:
        done = state.done
        gauges = self.gauges(state.behind, done) | {
            "lake_files": ("Parquet files that the lake's log names.", state.files),
            "lake_bytes": ("Size of these files.", state.size),
        }
        counters = {
            "archive_records": ("Records that were committed to the lake.", done.rows),
            "archive_rounds": ("Rounds that were committed.", done.rounds),
            "archive_round_seconds": ("Duration of all rounds.", done.seconds),
            "archive_written_bytes": ("Size of the Parquet files that were committed.", done.size),
            "archive_lost_numbers": ("Numbers that were declared lost.", done.gaps),
        }
        yield from families(gauges, counters, ("server", "lake"), (state.server, state.lake))


@attrs.define(eq=False)
class TablesMetrics(StateMetrics["TablesState"]):
    """The metrics of one run of typed tables."""

    name = "tables"
    into = "all tables"

    def metrics(self, state: TablesState) -> Iterator[Metric]:
        counters = {
            "tables_rounds": ("Rounds that were committed.", state.done.rounds),
            "tables_round_seconds": ("Duration of all rounds.", state.done.seconds),
        }
        gauges = self.gauges(state.behind, state.done)
        yield from families(gauges, counters, ("output",), (state.output,))
        rows = CounterMetricFamily(
            "fyrehose_tables_rows", "Rows that were committed to a table.", labels=("output", "table")
        )
        outcomes = GaugeMetricFamily(
            "fyrehose_tables_outcomes",
            "Events of all runs by what became of them, such as rows, rescued, or failed/EXPECTATION.",
            labels=("output", "table", "outcome"),
        )
        for table in state.tables:
            rows.add_metric((state.output, table.name), table.rows)
            for outcome, count in table.counts.items():
                outcomes.add_metric((state.output, table.name, outcome), count)
        yield rows
        yield outcomes
