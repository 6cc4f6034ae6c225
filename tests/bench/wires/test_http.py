"""POSTs as our own server reads them, and answers as they are counted."""

from __future__ import annotations

import json

import h11
import pytest

from fyrehose.bench.wires.base import Job, WorkerPool, Wrong
from fyrehose.bench.wires.http import HttpPublisherWire, HttpWorkerWire, line


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


def test_refused_post_fails_the_load() -> None:
    wire = publisher(10)
    wire.block(1)
    data = bytearray(answer(status="503 Service Unavailable"))
    with pytest.raises(Wrong, match="503"):
        wire.scan(data, len(data))


def worker(pool: WorkerPool) -> HttpWorkerWire:
    return HttpWorkerWire(Job(stream="s", size=50, messages=10, extra={"leases": 100, "round": 1}), pool)


def leased(*numbers: int, token: str = "1.1") -> bytes:
    records = [{"token": token, "failures": 0, "stream": "s", "seq": number, "payload": "x"} for number in numbers]
    return answer(json.dumps({"lease": 30, "records": records}).encode())


@pytest.mark.parametrize(
    ("numbers", "items"),
    [((7, 8, 9), [[[7, 9], "1.1"]]), ((7, 9), [[7, "1.1"], [9, "1.1"]]), ((7,), [[[7, 7], "1.1"]])],
)
def test_worker_settles_the_records_that_it_has_leased(numbers: tuple[int, ...], items: list[object]) -> None:
    pool = WorkerPool()
    wire, other = worker(pool), worker(pool)
    data = bytearray(leased(*numbers))
    assert [wire.scan(data, cut) for cut in range(len(data))] == [0] * len(data)
    assert wire.scan(data, len(data)) == len(data)
    (body,) = bodies(bytes(wire.answers))
    assert json.loads(body) == {"done": items}
    wire.answers.clear()
    data = bytearray(answer(b'{"refused": [], "settled": []}'))
    assert wire.scan(data, len(data)) == len(data)
    assert (wire.done, other.done, other.done_by_all) == (len(numbers), 0, len(numbers))
    assert bytes(wire.answers) == wire.begin()


def test_a_worker_without_records_asks_again_and_notices_a_refusal() -> None:
    wire = worker(WorkerPool())
    data = bytearray(leased())
    wire.scan(data, len(data))
    assert bytes(wire.answers) == wire.begin()
    data = bytearray(leased(7))
    wire.scan(data, len(data))
    data = bytearray(answer(b'{"refused": [{"seq": 7, "why": "lease-lost"}]}'))
    with pytest.raises(Wrong, match="lease-lost"):
        wire.scan(data, len(data))
