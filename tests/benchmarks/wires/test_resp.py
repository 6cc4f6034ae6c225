"""Redis streams, as Redis documents them."""

from __future__ import annotations

import pytest

from benchmarks.wires.resp import GroupConsumer, Publisher, Subscriber, command
from fyrehose.bench.wires.base import Job, WorkerPool, Wrong, payload

JOB = Job(stream="news", size=50, messages=6)


def reply(*ids: bytes) -> bytearray:
    """Return what XREAD says."""
    entries = b"".join(
        b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nd\r\n$50\r\n%s\r\n" % (len(one), one, payload(50)) for one in ids
    )
    return bytearray(b"*1\r\n*2\r\n$4\r\nnews\r\n*%d\r\n" % len(ids) + entries)


def test_blocks_are_commands() -> None:
    assert command(b"PING") == b"*1\r\n$4\r\nPING\r\n"
    assert bytes(Publisher(JOB).block(2)) == command(b"XADD", b"news", b"*", b"d", payload(50)) * 2


def test_ids_are_counted_however_they_are_cut() -> None:
    said = b"$15\r\n1700000000000-0\r\n$16\r\n1700000000000-10\r\n$15\r\n1700000000001-0\r\n"
    for cut in range(len(said)):
        publisher = Publisher(JOB)
        used = publisher.scan(bytearray(said[:cut]), cut)
        rest = bytearray(said[used:])
        assert publisher.scan(rest, len(rest)) == len(rest)
        assert publisher.done == 3


def test_error_reply_fails_the_load() -> None:
    said = bytearray(b"-MISCONF no more\r\n")
    with pytest.raises(Wrong, match="MISCONF"):
        Publisher(JOB).scan(said, len(said))


def test_subscriber_requests_the_entries_behind_the_last_one() -> None:
    subscriber = Subscriber(JOB)
    assert subscriber.begin().endswith(command(b"news", b"0-0")[4:])
    first = reply(b"1700000000000-0", b"1700000000000-10")
    for cut in range(len(first)):
        assert subscriber.scan(first, cut) == 0
    assert subscriber.scan(first, len(first)) == len(first)
    assert (subscriber.done, bytes(subscriber.answers)) == (2, subscriber.begin())
    assert b"1700000000000-10" in subscriber.begin()
    subscriber.answers.clear()
    second = reply(b"1700000000001-0", b"1700000000001-1", b"1700000000001-2", b"1700000000001-3")
    assert subscriber.scan(second, len(second)) == len(second)
    assert (subscriber.done, bytes(subscriber.answers)) == (6, b"")


def test_reply_without_entries_fails_the_load() -> None:
    said = bytearray(b"-ERR a\r\nb\r\nc\r\nd\r\ne\r\nf")
    with pytest.raises(Wrong):
        Subscriber(JOB).scan(said, len(said))


def test_a_group_consumer_acknowledges_what_it_read() -> None:
    pool = WorkerPool()
    wire = GroupConsumer(Job(stream="news", size=50, messages=6, extra={"leases": 100, "round": 2}), pool)
    said = reply(b"1-0", b"1-1")
    assert [wire.scan(said, cut) for cut in range(len(said))] == [0] * len(said)
    assert wire.scan(said, len(said)) == len(said)
    assert bytes(wire.answers) == command(b"XACK", b"news", b"work-2", b"1-0", b"1-1")
    wire.answers.clear()
    assert wire.scan(bytearray(b":2\r\n"), 4) == 4
    assert (wire.done, pool.done) == (2, 2)
    assert bytes(wire.answers) == wire.begin()


def test_group_consumer_reads_again_after_an_empty_reply() -> None:
    wire = GroupConsumer(Job(stream="news", size=50, messages=6, extra={"leases": 100, "round": 2}), WorkerPool())
    assert wire.scan(bytearray(b"*-1\r\n"), 5) == 5
    assert bytes(wire.answers) == wire.begin()
