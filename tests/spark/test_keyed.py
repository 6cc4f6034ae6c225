"""The publisher with keys, against a server that loses answers and refuses, and against a real one."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fyrehose.errors import ConfigError, InvalidName, PublishError
from fyrehose.spark.keyed import CHUNK, MESSAGES, KeyedPublisher, parse_url
from tests.verification.torture.plain_reader import records


class Keys(ThreadingHTTPServer):
    """A server that stores one body for each key; ``script`` lists its actions for the next requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Posts)
        self.stored: dict[tuple[str, str], list[bytes]] = {}
        self.script: list[Any] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Posts(BaseHTTPRequestHandler):
    server: Keys
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers.append(dict(self.headers))
        step = self.server.script.pop(0) if self.server.script else "store"
        messages = split(body) if self.headers.get("Content-Type") == MESSAGES else [body]
        if step in ("store", "lose"):
            self.server.stored.setdefault((self.path, self.headers["Idempotency-Key"]), messages)
        if step in ("lose", "close"):
            self.close_connection = True
        elif step == "store":
            self.answer(200, {"count": len(messages)})
        else:
            self.answer(*step)

    def answer(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        pass


def split(body: bytes) -> list[bytes]:
    messages = []
    while body:
        end = 4 + int.from_bytes(body[:4], "big")
        messages.append(body[4:end])
        body = body[end:]
    return messages


#: The first pause before a chunk is sent again, in seconds; short, because these tests wait for it.
PAUSE = 0.001


@pytest.fixture
def keys() -> Iterator[Keys]:
    server = Keys()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def publish(publisher: KeyedPublisher, rows: list[tuple[str, bytes]]) -> None:
    try:
        for stream, payload in rows:
            publisher.publish(stream, payload)
        publisher.flush()
    finally:
        publisher.close()


def stored(keys: Keys, stream: str) -> list[bytes]:
    chunks = {key: found for (path, key), found in keys.stored.items() if path == f"/streams/{stream}"}
    return [message for key in sorted(chunks, key=lambda key: int(key.split("/")[-1])) for message in chunks[key]]


def test_rows_are_stored_once_and_in_order_however_often_answers_are_lost(keys: Keys) -> None:
    dice = random.Random(1)
    rows = [(dice.choice("ab"), dice.randbytes(dice.choice([0, 10, 300_000]))) for _ in range(60)]
    for attempt in range(3):
        keys.script = dice.choices(["store", "lose", "close", (503, {"error": "later"})], k=20)
        publisher = KeyedPublisher(keys.url, "spark/q/0/0", first_pause=PAUSE)
        if attempt == 0:  # A task that is killed does not send its last chunks.
            for row in rows[:40]:
                publisher.publish(*row)
            publisher.close()
            assert 0 < publisher.acknowledged < 40
        else:
            publish(publisher, rows)
            assert publisher.acknowledged == 60
    for stream in "ab":
        assert stored(keys, stream) == [payload for name, payload in rows if name == stream]


def test_chunks_are_as_large_as_the_server_accepts(keys: Keys) -> None:
    rows = [b"x" * (CHUNK - 4), b"y" * (CHUNK - 3), b"\n", b"", b"z" * (CHUNK - 13)]
    publish(KeyedPublisher(keys.url, "k", first_pause=PAUSE), [("s ä/", row) for row in rows])
    assert [found for _, found in sorted(keys.stored.items())] == [rows[:1], rows[1:2], rows[2:]]
    assert {path for path, _ in keys.stored} == {"/streams/s%20%C3%A4%2F"}
    assert [headers.get("Content-Type") for headers in keys.headers] == [MESSAGES, None, MESSAGES]


def test_memory_is_limited_for_any_number_of_streams(keys: Keys) -> None:
    publisher = KeyedPublisher(keys.url, "k", most_buffered=1000, first_pause=PAUSE)
    for number in range(100):
        publisher.publish(f"s{number % 40}", bytes(50))
        assert publisher.buffered <= 1000
    publish(publisher, [])
    assert sum(map(len, keys.stored.values())) == 100


def test_rows_in_another_order_are_an_error_that_says_what_to_do(keys: Keys) -> None:
    keys.script = [(422, {"error": "key belongs to other messages"})]
    with pytest.raises(PublishError, match=r"in another order, under the key 'k/0'; nothing was published twice"):
        publish(KeyedPublisher(keys.url, "k", first_pause=PAUSE), [("s", b"x")])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, {"error": "not allowed"}), "refuses to publish: status 403: not allowed"),
        ((413, "no"), "refuses to publish: status 413: the answer is not that of a Fyrehose server"),
        ((200, {}), "is no HTTP listener of Fyrehose"),
        ((200, {"count": 2}), "acknowledged 2 messages of 1"),
    ],
)
def test_task_ends_with_an_error_if_the_server_refuses(keys: Keys, answer: Any, error: str) -> None:
    keys.script = [answer]
    with pytest.raises(PublishError, match=error):
        publish(KeyedPublisher(keys.url, "k", first_pause=PAUSE), [("s", b"x")])
    assert len(keys.headers) == 1


def test_temporary_refusal_is_an_error_after_a_timeout(keys: Keys) -> None:
    keys.script = [(503, {"error": "the disk is full"})] * 1000
    with pytest.raises(PublishError, match=r"failed for 1 s: status 503: the disk is full; 0 rows"):
        publish(KeyedPublisher(keys.url, "k", patience=1.0, first_pause=PAUSE), [("s", b"x")])
    keys.script = []


def test_proxy_without_a_server_behind_it_is_asked_again(keys: Keys) -> None:
    keys.script = [(502, "bad gateway"), (504, "timeout")]
    publish(KeyedPublisher(keys.url, "k", first_pause=PAUSE), [("s", b"x")])
    assert len(keys.headers) == 3
    assert list(keys.stored.values()) == [[b"x"]]


def test_token_is_sent(keys: Keys) -> None:
    publisher = KeyedPublisher(keys.url, "k", "secret-" * 3, first_pause=PAUSE)
    assert "secret" not in repr(publisher)
    publish(publisher, [("s", b"x")])
    assert keys.headers[0]["Authorization"] == f"Bearer {'secret-' * 3}"


def test_name_that_no_stream_can_have_is_refused(keys: Keys) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(InvalidName):
            KeyedPublisher(keys.url, "k", first_pause=PAUSE).publish(name, b"x")


def test_http_addresses_are_parsed() -> None:
    for url in ("http://h:8117", "https://[::1]:8117", "http://h"):
        assert parse_url(url) == url
        assert parse_url(f"{url}/") == url
    for wrong in ("", "h:8117", "ftp://h:1", "http://", "http://h:x", "http://h:0", "http://h:1/streams", "http://u@h"):
        with pytest.raises(ConfigError, match="exactlyOnce publishes by HTTP"):
            parse_url(wrong)


@pytest.mark.live
def test_two_attempts_of_a_task_at_once_publish_each_row_once(http_server: tuple[str, Path]) -> None:
    """As Spark's speculation runs a task twice at the same time."""
    url, journal = http_server
    dice = random.Random(2)
    rows = [(dice.choice("ab"), b"%d " % n + dice.randbytes(dice.choice([0, 90_000]))) for n in range(80)]
    failed: list[BaseException] = []

    def twin() -> None:
        try:
            publish(KeyedPublisher(url, "spark/q/0/0", first_pause=PAUSE), rows)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=twin) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for stream in "ab":
        found = [record.payload for record in records(journal) if record.stream == stream]
        assert found == [payload for name, payload in rows if name == stream]
    with pytest.raises(PublishError, match="in another order"):
        publish(KeyedPublisher(url, "spark/q/0/0", first_pause=PAUSE), rows[1:])
