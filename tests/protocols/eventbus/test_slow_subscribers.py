"""Slow subscribers that delay the others."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from fyrehose.protocols.eventbus import slow_subscribers
from fyrehose.protocols.eventbus.connections import AcceptedConnection
from fyrehose.protocols.eventbus.slow_subscribers import LEAST_RATE, LONGEST, SOON, SlowSubscribers

A, B, C = (AcceptedConnection(1, n, (f"10.0.0.{n}", 1)) for n in (1, 2, 3))
FAST, SLOW = 10 * LEAST_RATE, LEAST_RATE // 2


@pytest.mark.parametrize(
    ("behind", "taken", "elapsed", "slow"),
    [
        ([A], [0], 1.0, [A]),
        ([A], [SLOW], 1.0, [A]),
        ([A], [FAST], 1.0, []),
        ([A], [FAST * 4], LONGEST, [A]),
        ([A, B], [FAST, 0], 1.0, [B]),
        ([A, B], [FAST, FAST // 5], 1.0, [B]),
        ([A, B], [FAST, FAST // 3], 1.0, []),
        ([A, B, C], [SLOW, SLOW, 0], 1.0, [C]),
        ([A, B, C], [SLOW, SLOW, SLOW], LONGEST, []),
        ([A, B, C], [0, 0, 0], 1.0, [A, B, C]),
        ([], [], LONGEST, []),
    ],
)
def test_slow_subscribers_are_found(
    monkeypatch: pytest.MonkeyPatch,
    behind: list[AcceptedConnection],
    taken: list[int],
    elapsed: float,
    slow: list[AcceptedConnection],
) -> None:
    """Equally slow subscribers are not disconnected, because none of them delays another."""
    now = dict.fromkeys((1, 2, 3), 0)
    full = [each.descriptor for each in behind]
    monkeypatch.setattr(slow_subscribers, "_queued", full.__contains__)
    monkeypatch.setattr(slow_subscribers, "_acknowledged", now.__getitem__)
    found = SlowSubscribers(lambda: [A, B, C])
    assert found.slow(5.0 - SOON) == found.slow(5.0) == []
    now.update({each.descriptor: size for each, size in zip(behind, taken, strict=True)})
    assert found.slow(5.9) == [], "not yet"
    assert found.slow(5.0 + elapsed) == (slow if behind else None)


def test_server_keeps_waiting_while_every_subscriber_reads_and_zeromq_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_subscribers, "_queued", lambda descriptor: 0)
    found = SlowSubscribers(lambda: [A, B])
    assert [found.slow(now, released) for now, released in ((0.0, 7), (0.5, 8), (1.5, 8))] == [[], [], []]
    assert [found.slow(now, released) for now, released in ((2.0, 8), (2.5, 8), (3.5, 9))] == [[], [], []]
    assert [found.slow(now, 9) for now in (4.0, 4.5, 5.5)] == [[], [], None], "nothing was released meanwhile"


def test_send_queues_are_not_looked_at_for_a_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(slow_subscribers, "_queued", looked.append)  # which returns nothing, as for an empty queue
    found = SlowSubscribers(lambda: [A, B])
    for now in (0.0, SOON / 2, SOON, 1.5 * SOON):
        if now == SOON:
            found.forget()
        assert found.slow(now) == []
    assert not looked
    assert found.slow(2.5 * SOON) == []
    assert looked


def test_send_queue_shows_the_subscriber_that_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader, stopped = (socket.create_connection(listening.getsockname()) for _ in range(2))
        ours = [listening.accept()[0] for _ in range(2)]
    connections = [AcceptedConnection(1, each.fileno(), ("127.0.0.1", 1)) for each in ours]
    found = SlowSubscribers(lambda: connections)
    for each in ours:
        each.setblocking(False)
        while True:
            try:
                each.send(bytes(1 << 16))
            except BlockingIOError:
                break
    assert found.slow(-SOON) == found.slow(0.0) == []
    reader.settimeout(0.01)
    while slow_subscribers._queued(ours[0].fileno()):
        with suppress(TimeoutError):
            reader.recv(1 << 20)
    assert found.slow(1.0) == connections[1:]
    assert slow_subscribers._acknowledged(ours[0].fileno()) > 1 << 16
    for each in (reader, stopped, *ours):
        each.close()
    assert (slow_subscribers._queued(100_000), slow_subscribers._acknowledged(100_000)) == (0, 0)
