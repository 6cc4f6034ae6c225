"""POSTs as our own server reads them, and answers as they are counted."""

from __future__ import annotations

import json

import h11
import pytest

from fyrehose.bench.wires.base import Job, Wrong
from fyrehose.bench.wires.http import HttpPublisherWire, line


def publisher(messages: int, **extra: int) -> HttpPublisherWire:
    return HttpPublisherWire(Job(stream="s", size=50, messages=messages, extra=extra))


def bodies(data: bytes) -> list[bytes]:
    server, found = h11.Connection(h11.SERVER), []
    server.receive_data(data)
    while True:
        event = server.next_event()
        if isinstance(event, h11.Data):
            found.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            server.send(h11.EndOfMessage())
            server.start_next_cycle()
        elif not isinstance(event, h11.Request):
            return found


def answer(body: bytes = b"{}\n", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nDate: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_each_message_is_a_post() -> None:
    assert [len(body) for body in bodies(bytes(publisher(10).block(3)))] == [50] * 3


def test_a_batch_is_one_body_of_json_lines() -> None:
    found = bodies(bytes(publisher(100, batch=40).block(50)))
    assert [body.count(b"\n") for body in found] == [40, 10]
    assert all(json.loads(each) for body in found for each in body.splitlines())
    assert len(line(50)) == 50


def test_answers_are_counted_when_they_are_complete() -> None:
    wire = publisher(100, batch=40)
    wire.block(50)
    data = bytearray(answer() + answer()[:-1])
    assert wire.scan(data, len(data)) == len(answer())
    assert wire.done == 40
    rest = bytearray(answer())
    assert wire.scan(rest, len(rest)) == len(rest)
    assert wire.done == 50


def test_a_refusal_is_noticed() -> None:
    wire = publisher(10)
    wire.block(1)
    data = bytearray(answer(status="503 Service Unavailable"))
    with pytest.raises(Wrong, match="503"):
        wire.scan(data, len(data))
