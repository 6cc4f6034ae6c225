"""Export the metrics of a command to Prometheus: in a text file (node_exporter's textfile collector), or over HTTP.

    in: FILE.prom or HOST:PORT, and the values that a subclass collects      out: FILE.prom, replaced as a whole;
    http://HOST:PORT/metrics

This module does not import Twisted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from threading import Thread
from wsgiref.simple_server import WSGIServer

import attrs
from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fyrehose.errors import ConfigError, FyrehoseError

log = logging.getLogger(__name__)

#: node_exporter reads files with this ending only.
SUFFIX = ".prom"

#: The text and the value of each metric, by its name without the prefix.
Values = Mapping[str, tuple[str, float]]


@attrs.define(eq=False)
class CommandMetrics(Collector):
    """The exporter of a command's metrics, whose values a subclass collects.

    :ivar where: a file whose name ends with ``.prom``, or HOST:PORT to listen on
    """

    where: str
    _registry: CollectorRegistry = attrs.field(factory=CollectorRegistry, init=False)
    _server: tuple[WSGIServer, Thread] | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Check the destination of the metrics; if it is an address, listen there.

        :raises ConfigError: ``where`` is neither a file nor an address
        :raises FyrehoseError: the address is in use
        """
        self._registry.register(self)
        if self.where.endswith(SUFFIX):
            return
        host, _, port = self.where.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"invalid --metrics {self.where!r}: expected FILE.prom or HOST:PORT")
        try:
            self._server = start_http_server(int(port), host.strip("[]"), self._registry)
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

    def write(self, strict: bool) -> None:
        """Replace the file by one with the current metrics; do nothing if the destination is an address.

        :param strict: raise an error instead of logging it
        :raises OSError: the file cannot be written
        """
        if not self.where.endswith(SUFFIX):
            return
        try:
            write_to_textfile(self.where, self._registry)
        except OSError as error:
            if strict:
                raise
            log.warning("metrics were not written to %s: %s", self.where, error)

    def collect(self) -> Iterable[Metric]:
        raise NotImplementedError


def families(
    gauges: Values, counters: Values, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> Iterator[Metric]:
    """Yield gauges and counters as metrics of Prometheus, whose names begin with the common prefix.

    :param labels: the names of the labels of all these metrics
    :param values: the values of these labels
    """
    for kind, metrics in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, (text, value) in metrics.items():
            family = kind(f"fyrehose_{name}", text, labels=labels)
            family.add_metric(values, value)
            yield family
