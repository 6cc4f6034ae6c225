"""Scrape a server's metrics each second while it is measured, as Prometheus does.

The scraper is a thread of the runner, which only waits meanwhile.  The CPU time of the server's answers is counted.
"""

from __future__ import annotations

import threading
import time
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from fyrehose.bench.makers import LoadFailed
from fyrehose.bench.servers import (
    LOOPBACK,
    CannotStart,
    Contestant,
    Durable,
    Running,
    fyrehose_version,
    port_of,
    start_fyrehose,
)

#: Interval of scrapes, and time limit of an answer, in seconds.
EVERY, PATIENCE = 1.0, 30.0
#: A line that every response of Fyrehose contains.
KNOWN = b"\nfyrehose_build_info{"


class Scraper:
    """A context manager that scrapes ``port`` of this machine; with port 0, it does nothing.

    :ivar scrapes: number of answers
    :raises LoadFailed: at the end of the context, if a scrape has failed
    """

    def __init__(self, port: int, every: float = EVERY) -> None:
        self.port, self.every = port, every
        self.scrapes = 0
        self._over = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def __enter__(self) -> Self:
        if self.port:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        if self.port:
            self._thread.join()
        if self._trouble and kind is None:
            raise LoadFailed(f"the metrics could not be scraped: {self._trouble}")

    def _run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            due = time.monotonic()
            while not self._over.wait(max(0.0, due - time.monotonic())):
                self._scrape(connection)
                due += self.every
        except (OSError, HTTPException) as error:
            self._trouble = f"{error!r}"
        finally:
            connection.close()

    def _scrape(self, connection: HTTPConnection) -> None:
        """Request the metrics once.

        :raises HTTPException: the response has another status, or is not that of Fyrehose
        """
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200 or KNOWN not in body:
            raise HTTPException(f"{answer.status} {answer.reason}, {len(body)} bytes")
        self.scrapes += 1


def start_with_metrics(directory: Path, protocol: str, durability: str) -> Running:
    """Start Fyrehose with the admin listener, too, whose port is among the settings of the server."""
    running = start_fyrehose(directory, protocol, durability, "--listen", f"admin={LOOPBACK}")
    running.extra["metrics"] = port_of(directory, "admin") if running.serves else 0
    return running


def metrics_version() -> str:
    """Return the version of Fyrehose if metrics are available.

    :raises CannotStart: prometheus-client is not installed
    """
    if find_spec("prometheus_client") is None:
        raise CannotStart("prometheus-client is not installed: pip install 'fyrehose[admin]'")
    return fyrehose_version()


#: Fyrehose with metrics that are scraped, to measure their cost.
FYREHOSE_METRICS = Contestant(
    name="fyrehose-metrics", durable=Durable.SYNCED, start=start_with_metrics, version=metrics_version
)
