"""A proxy in front of an object store that loses answers, answers 503, resets connections, and delays requests.

It is a process of its own, because delta-rs does not let other threads of Python run while it waits for the store.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import attrs


@attrs.define(eq=False)
class StoreProxy:
    """The handle by which a test controls the proxy."""

    url: str
    rules: Path
    log: Path

    def set(self, *, only: str = "", most: int = 1 << 30, until: float = 0.0, **chances: float) -> None:
        """Choose what happens to requests from now on.

        :param only: only requests whose method and path contain this text
        :param most: only so many requests
        :param until: only until this time; 0: without end
        :param chances: the probability of each fate: ``lose`` (the request is executed, and its answer is lost),
            ``refuse`` (503), ``reset``, ``delay`` (half a second)
        """
        made = self.rules.with_suffix(".new")
        rules = {"only": only, "most": most, "until": until, "chances": chances, "number": time.monotonic_ns()}
        made.write_text(json.dumps(rules))
        made.replace(self.rules)

    @property
    def fates(self) -> Counter[str]:
        """Return how many requests had each fate."""
        return Counter(self.log.read_text().split())


@contextmanager
def store_proxy(store: str, directory: Path) -> Iterator[StoreProxy]:
    """Run a proxy in front of the store at a URL, on a free port of the loopback interface."""
    rules, log = directory / "rules", directory / "fates"
    rules.write_text("{}")
    log.write_text("")
    command = [sys.executable, __file__, store, str(rules), str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield StoreProxy(process.stdout.readline().strip(), rules, log)
    finally:
        process.terminate()
        process.communicate(timeout=60)


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"
    store: str
    rules: Path
    log: Path
    used: ClassVar[Counter[int]] = Counter()

    def _fate(self) -> str:
        rules: Mapping[str, Any] = json.loads(self.rules.read_text())
        chances = rules.get("chances", {})
        over = rules.get("until") and time.time() > rules["until"]
        if over or not chances or rules["only"] not in f"{self.command} {self.path}":
            return "pass"
        if self.used[rules["number"]] >= rules["most"]:
            return "pass"
        kinds, weights = ["pass", *chances], [max(0.0, 1 - sum(chances.values())), *chances.values()]
        fate = random.choices(kinds, weights)[0]
        self.used[rules["number"]] += fate != "pass"
        return fate

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fate = self._fate()
        with self.log.open("a") as file:
            file.write(f"{fate}\n")
        if fate == "delay":
            time.sleep(0.5)
        if fate == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.close_connection = True
        elif fate == "refuse":
            self._answer(503, [], b"", None)
        else:
            self._forward(body, lost=fate == "lose")

    def _forward(self, body: bytes, lost: bool) -> None:
        there = urlsplit(self.store)
        assert there.hostname is not None
        onward = HTTPConnection(there.hostname, there.port, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            onward.request(self.command, self.path, body or None, headers)
            answer = onward.getresponse()
            data = answer.read()
        finally:
            onward.close()
        if lost:
            self.close_connection = True
            return
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, answer.getheaders(), data, length)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: str | None) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    Handler.store, rules, log = sys.argv[1:]
    Handler.rules, Handler.log = Path(rules), Path(log)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
