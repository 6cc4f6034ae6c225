"""Scrapes, against a small HTTP server: that they happen, that they end, and that a wrong answer is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks.peers import free_port
from benchmarks.scraping import Scraper
from fyrehose.bench.makers import LoadFailed

GOOD = b"# TYPE\nfyrehose_build_info{x} 1.0\n"


class Answering(HTTPServer):
    """Answers with ``body``, and keeps what was asked."""

    def __init__(self, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = body
        self.asked: list[str] = []
        self.third = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Answering

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)
        if len(self.server.asked) == 3:
            self.server.third.set()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def serving() -> Iterator[Answering]:
    with Answering(GOOD) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_metrics_are_scraped_until_the_context_ends(serving: Answering) -> None:
    with Scraper(serving.server_port, every=0.01) as scraper:
        assert serving.third.wait(30)
    assert scraper.scrapes == len(serving.asked) >= 3
    assert set(serving.asked) == {"/metrics"}


def test_an_answer_without_metrics_is_an_error(serving: Answering) -> None:
    serving.body = b"what?"
    scraper = Scraper(serving.server_port)
    scraper.__enter__()
    scraper._thread.join(30)
    with pytest.raises(LoadFailed, match=r"could not be scraped.*200 OK, 5 bytes"):
        scraper.__exit__(None)


def test_failed_scrape_does_not_hide_an_earlier_error() -> None:
    scraper = Scraper(free_port())
    scraper.__enter__()
    scraper._thread.join(30)
    with pytest.raises(LoadFailed, match="Connection refused"):
        scraper.__exit__(None)
    scraper.__exit__(ValueError)


def test_nothing_is_scraped_without_a_port() -> None:
    with Scraper(0) as scraper:
        assert not scraper._thread.is_alive()
    assert scraper.scrapes == 0
