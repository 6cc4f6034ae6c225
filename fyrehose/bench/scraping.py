"""Scrape a server's metrics each second while it is measured, as Prometheus does.

It is a thread of the runner, which only waits meanwhile; what it costs the server is the server's CPU and is counted.
"""

from __future__ import annotations

import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import Self

from fyrehose.bench.makers import LoadFailed

#: Seconds from one scrape to the next, and for an answer.
EVERY, PATIENCE = 1.0, 30.0
#: Line that every response of Fyrehose has.
KNOWN = b"\nfyrehose_build_info{"


class Scraper:
    """Context that scrapes ``port`` of this machine; with port 0, it does nothing.

    :ivar scrapes: how many answers there were
    :raises LoadFailed: (leaving) one of them was none
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
