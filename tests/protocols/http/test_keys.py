"""A POST with an Idempotency-Key that is repeated gets the same answer, and stores nothing."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from fyrehose.net.inflight import InFlight
from fyrehose.protocols.http.session import KEYED, NDJSON
from fyrehose.testing import ClientSide, MemoryJournal
from tests.doubles.http_world import HttpWorld


@attrs.define
class Answer:
    """The answer to a POST."""

    peer: ClientSide
    _said: str = ""

    def said(self) -> str:
        """Return all of it that has come so far."""
        self._said += self.peer.received().decode()
        return self._said

    def __call__(self) -> tuple[int, Any]:
        said = self.said()
        return int(said.split()[1]), json.loads(said.partition("\r\n\r\n")[2])


class World(HttpWorld):
    def __init__(self, auto: bool = True, memory: int = 512 << 20) -> None:
        super().__init__(journal=MemoryJournal(auto=auto), budget=InFlight(limit=memory))

    def post(self, body: bytes, key: str | None = "k", *headers: str, chunked: bool = False) -> Answer:
        """Send a POST; call the result for the status and the answer."""
        peer = ClientSide.connect(self.factory, self.clock)
        keys = [] if key is None else [f"Idempotency-Key: {key}"]
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        head = "\r\n".join(["POST /streams/s HTTP/1.1", "Host: localhost", length, *keys, *headers, "", ""])
        data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
        peer.send(head.encode("latin-1") + data)

        return Answer(peer)


def test_a_repeated_post_gets_the_same_answer() -> None:
    world = World()
    expected = (200, {"stream": "s", "count": 1, "first": 1, "last": 1})
    assert world.post(b"hello")() == expected
    assert world.post(b"other", None)()[1]["first"] == 2
    assert world.post(b"hello")() == expected
    assert world.post(b"hello", "another")()[1]["first"] == 3


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
def test_lines_with_a_key_may_have_1_mib(chunked: bool, more: int, status: int) -> None:
    body = b"x" * ((1 << 20) + more)
    assert World().post(body, "k", f"Content-Type: {NDJSON}", chunked=chunked)()[0] == status


def test_lines_with_a_key_are_one_publish() -> None:
    world = World()
    kind = f"Content-Type: {NDJSON}"
    for chunked in (False, True):
        answer = world.post(b"1\r\n\n2\n3", "k", kind, chunked=chunked)()
        assert answer == (200, {"stream": "s", "count": 3, "first": 1, "last": 3})
    assert world.post(b"\n\n", "empty", kind)() == (200, {"count": 0})
    assert world.journal.bounds("s") == (1, 3)


def test_a_repetition_during_the_first_attempt_waits_for_it() -> None:
    world = World(auto=False)
    first, again = world.post(b"hello"), world.post(b"hello")
    world.journal.commit()
    assert first() == again()
    assert world.journal.bounds("s") == (1, 1)


def test_a_key_with_another_body_is_refused() -> None:
    world = World()
    world.post(b"hello")()
    status, answer = world.post(b"bye")()
    assert status == 422
    assert "belongs to other messages" in answer["error"]


@pytest.mark.parametrize("key", ["", "x" * 256, "\xe4"])
def test_invalid_keys_are_refused(key: str) -> None:
    assert World().post(b"hello", key)()[0] == 400


@pytest.mark.parametrize("chunked", [False, True])
def test_lines_with_a_key_are_limited(chunked: bool) -> None:
    world = World()
    body = b"x\n" * (KEYED // 2 + 1)
    assert world.post(body, "k", f"Content-Type: {NDJSON}", chunked=chunked)()[0] == 413
    assert world.journal.bounds("s") == (1, 0)


@pytest.mark.slow
def test_many_requests_with_keys_are_accepted_with_1_mib_of_memory() -> None:
    world = World(memory=1 << 20)
    assert {world.post(b"hello", str(number))()[0] for number in range(900)} == {200}


def test_request_whose_key_finds_no_room_is_answered_with_retry_after() -> None:
    world = World(auto=False, memory=1 << 20)
    waiting: list[Any] = []
    for number in range(1_000):
        answer = world.post(b"hello", str(number))
        if answer.said():
            break
        waiting.append(answer)
    assert waiting, "keys whose messages are not durable yet cannot be forgotten"
    assert answer.said().startswith("HTTP/1.1 503 ")
    assert "\r\nRetry-After: 5\r\n" in answer.said()
    assert json.loads(answer.said().partition("\r\n\r\n")[2])["retriable"] is True
    world.journal.commit()
    world.journal.auto = True
    assert world.post(b"hello", str(number))()[1]["first"] == len(waiting) + 1
    assert world.post(b"hello", str(number - 1))()[1]["first"] == len(waiting)
