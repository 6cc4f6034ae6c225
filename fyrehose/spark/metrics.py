"""Metrics of an archive for Prometheus.

in: the state of the archive, some seconds apart      out: what :mod:`fyrehose.observe.exporting` exports
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
from prometheus_client.core import Metric

from fyrehose.observe.exporting import CommandMetrics, families

if TYPE_CHECKING:
    from fyrehose.spark.jobs.archive import ArchiveState

_LABELS = ("server", "lake")


@attrs.define(eq=False)
class Metrics(CommandMetrics):
    """The metrics of one archive."""

    _state: ArchiveState | None = attrs.field(default=None, init=False)
    _status: int | None = attrs.field(default=None, init=False)

    def update(self, state: ArchiveState) -> None:
        """Publish a state.

        :raises OSError: the first file cannot be written; later errors are logged, and the archive continues
        """
        first, self._state = self._state is None, state
        self.write(first)

    def ended(self, status: int) -> None:
        """Publish that the archive has ended, with its exit status."""
        self._status = status
        if self._state is not None:
            self.write(False)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last state."""
        state = self._state
        if state is None:
            return
        done = state.done
        gauges = {
            "archive_lag_records": ("Durable records that are not in the lake.", state.behind.records),
            "archive_lag_bytes": ("Bytes of the journal that are not in the lake.", state.behind.size),
            "archive_lag_seconds": ("Age of the oldest record that is not in the lake; 0 if none.", state.age()),
            "archive_position": ("The lake has every record of the journal before this position.", done.position),
            "archive_last_round_seconds": ("Duration of the last round.", done.last_seconds),
            "archive_updated_timestamp_seconds": ("When these metrics were updated.", time.time()),
            "archive_running": ("1 while the archive runs, 0 when it has ended.", int(self._status is None)),
            "lake_files": ("Parquet files that the lake's log names.", state.files),
            "lake_bytes": ("Size of these files.", state.size),
        }
        if self._status is not None:
            gauges["archive_exit_status"] = ("Exit status of the archive.", self._status)
        counters = {
            "archive_records": ("Records that were committed to the lake.", done.rows),
            "archive_rounds": ("Rounds that were committed.", done.rounds),
            "archive_round_seconds": ("Duration of all rounds.", done.seconds),
            "archive_written_bytes": ("Size of the Parquet files that were committed.", done.size),
            "archive_lost_numbers": ("Numbers that were declared lost.", done.gaps),
        }
        yield from families(gauges, counters, _LABELS, (state.server, state.lake))
