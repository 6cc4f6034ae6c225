"""Metrics of an archive for Prometheus: in a text file (node_exporter's textfile collector), or over HTTP.

in: the state of the archive, some seconds apart      out: FILE.prom, replaced as a whole, or http://HOST:PORT/metrics
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

import attrs
from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.spark.publisher import parse_place

if TYPE_CHECKING:
    from fyrehose.spark.jobs.archive import ArchiveState

log = logging.getLogger(__name__)

#: node_exporter reads files with this ending only.
SUFFIX = ".prom"
_LABELS = ("server", "lake")


@attrs.define(eq=False)
class Metrics(Collector):
    """The metrics of one archive.

    :ivar where: a file whose name ends with ``.prom``, or HOST:PORT to listen on
    """

    where: str
    _state: ArchiveState | None = attrs.field(default=None, init=False)
    _status: int | None = attrs.field(default=None, init=False)
    _registry: CollectorRegistry = attrs.field(factory=CollectorRegistry, init=False)
    _server: tuple[WSGIServer, Thread] | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Check the place of the metrics, and listen if that is an address.

        :raises ConfigError: it is neither a file nor an address
        :raises FyrehoseError: the address is in use
        """
        self._registry.register(self)
        if self.where.endswith(SUFFIX):
            return
        try:
            host, port = parse_place(self.where)
        except ConfigError:
            raise ConfigError(f"invalid --metrics {self.where!r}: expected FILE.prom or HOST:PORT") from None
        try:
            self._server = start_http_server(port, host, self._registry)
        except OSError as error:
            raise FyrehoseError(f"cannot listen on {self.where} for --metrics: {error.strerror}") from error

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None

    def update(self, state: ArchiveState) -> None:
        """Publish a state.

        :raises OSError: the first file cannot be written; later errors are logged, and the archive continues
        """
        first, self._state = self._state is None, state
        self._write(first)

    def ended(self, status: int) -> None:
        """Publish that the archive has ended, with its exit status."""
        self._status = status
        if self._state is not None:
            self._write(False)

    def _write(self, strict: bool) -> None:
        if not self.where.endswith(SUFFIX):
            return
        try:
            write_to_textfile(self.where, self._registry)
        except OSError as error:
            if strict:
                raise
            log.warning("metrics were not written to %s: %s", self.where, error)

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
        labels = (state.server, state.lake)
        for kind, values in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in values.items():
                family = kind(f"fyrehose_{name}", text, labels=_LABELS)
                family.add_metric(labels, value)
                yield family
