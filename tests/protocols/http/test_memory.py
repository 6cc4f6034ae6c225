"""A server whose memory is full of subscriptions refuses what needs more, and says that it may be asked again."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.net.inflight import InFlight

from .test_consuming import World


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /streams/s/live", 429),
        ("GET /streams/s/live?subscription=old", 429),
        ("GET /streams/*/live?match=s", 429),
        ("GET /streams/s?subscription=new", 503),
        ("GET /streams/s/live?subscription=new", 503),
        ("GET /streams/*/live?match=s&subscription=new", 503),
    ],
)
def test_with_full_memory_every_refusal_says_try_again(request_line: str, status: int) -> None:
    world: Any = World(budget=InFlight(limit=1 << 20))
    assert world.ask("GET /streams/s?subscription=old&limit=0")[0] == 200
    room = world.broker.budget.limit // 2 - world.broker.budget.kept
    assert world.broker.budget.keep(room), "as the subscriptions of others do"
    peer = world.peer()
    answer = peer.request(request_line)
    assert (answer.status, answer.json["retriable"], answer.headers["retry-after"]) == (status, True, "5")
    assert "server.memory" in answer.json["error"]
    world.broker.budget.forget(room)
    peer.say(request_line)
    assert peer.hear().startswith(b"HTTP/1.1 200 "), "the same request, later"
