"""NATS and JetStream, as their protocol is documented."""

from __future__ import annotations

import json
import socket

import pytest

from benchmarks.wires.nats import Publisher, Puller, Subscriber, pub
from fyrehose.bench.wires.base import Job, WorkerPool, Wrong, payload

JOB = Job(stream="news", size=50, messages=6)
ACK = b'MSG %s.data 2 %d\r\n{"stream":"news","seq":%d}\r\n'
FLOW = b"HMSG %s.data 2 $JS.FC.news.abc.def 40 40\r\nNATS/1.0 100 FlowControl Request\r\n\r\n\r\n"


def message(number: int) -> bytes:
    return b"MSG news 2 $JS.ACK.news.x.1.%d.%d.170.0 50\r\n%s\r\n" % (number, number, payload(50))


def test_blocks_are_publications_with_a_reply() -> None:
    publisher = Publisher(JOB)
    assert bytes(publisher.block(2)) == pub(b"news", publisher.inbox + b".data ", payload(50)) * 2
    assert pub(b"a", b"", b"xy") == b"PUB a 2\r\nxy\r\n"


def test_each_publisher_has_an_inbox_of_its_own() -> None:
    assert len({Publisher(JOB).inbox for _ in range(100)}) == 100


def test_acknowledgements_are_counted_however_they_are_cut() -> None:
    publisher = Publisher(JOB)
    said = b"".join(ACK % (publisher.inbox, 26, number) for number in (1, 2)) + b"PING\r\n"
    said += ACK % (publisher.inbox, 26, 3)
    for cut in range(len(said)):
        publisher = Publisher(JOB)
        used = publisher.scan(bytearray(said[:cut]), cut)
        rest = bytearray(said[used:])
        assert publisher.scan(rest, len(rest)) == len(rest)
        assert (publisher.done, bytes(publisher.answers)) == (3, b"PONG\r\n")


def test_refused_publish_fails_the_run() -> None:
    said = bytearray(b'MSG x 2 70\r\n{"error":{"code":503,"description":"resource"},"stream":"news","seq":0}\r\n')
    with pytest.raises(Wrong, match="503"):
        Publisher(JOB).scan(said, len(said))


def test_messages_are_counted_and_flow_control_is_answered() -> None:
    subscriber = Subscriber(JOB)
    asked = subscriber.begin().splitlines()
    assert json.loads(asked[1])["config"]["deliver_subject"] == f"{subscriber.inbox.decode()}.data"
    whole = message(1) + FLOW % subscriber.inbox + message(2)
    heard = bytearray(whole + message(3)[:-1])
    assert subscriber.scan(heard, len(heard)) == len(whole)
    assert (subscriber.done, bytes(subscriber.answers)) == (2, pub(b"$JS.FC.news.abc.def", b"", b""))


def test_single_request_of_flow_control_is_answered_once() -> None:
    subscriber = Subscriber(JOB)
    heard = bytearray(FLOW % subscriber.inbox)
    assert subscriber.scan(heard, len(heard) - 1) == 0
    assert subscriber.scan(heard, len(heard)) == len(heard)
    assert subscriber.answers.count(b"PUB") == 1


def test_error_reply_fails_the_load() -> None:
    said = bytearray(b'MSG x 1 30\r\n{"error":{"code":400}}\r\n')
    with pytest.raises(Wrong, match="400"):
        Subscriber(JOB).scan(said, len(said))


def test_a_server_that_refuses_the_stream_is_not_measured() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'INFO {"x":1} \r\n')
        theirs.sendall(b"-ERR 'Authorization Violation'\r\n")
        with pytest.raises(Wrong, match="Authorization"):
            Publisher(JOB).hello(ours)


def test_a_puller_acknowledges_what_it_has_and_waits_for_the_answers() -> None:
    pool = WorkerPool()
    puller = Puller(Job(stream="news", size=50, messages=6, extra={"leases": 2, "round": 1}), pool)
    pull = puller.begin()
    said = bytearray(message(1) + message(2))
    assert [puller.scan(said, cut) for cut in range(len(said))] == [0] * len(said)
    assert puller.scan(said, len(said)) == len(said)
    reply = puller.inbox + b".ack "
    acks = [pub(b"$JS.ACK.news.x.1.%d.%d.170.0" % (number, number), reply, b"+ACK") for number in (1, 2)]
    assert bytes(puller.answers) == b"".join(acks)
    puller.answers.clear()
    said = bytearray(b"MSG %s.ack 3 0\r\n\r\n" % puller.inbox * 2)
    cut = len(said) // 2 + 3
    used = puller.scan(said, cut)
    assert (puller.done, used) == (1, len(said) // 2)
    assert puller.scan(said[used:], len(said) - used) == len(said) - used
    assert (puller.done, pool.done, bytes(puller.answers)) == (2, 2, pull)


def test_a_puller_settles_what_it_has_when_there_is_no_more() -> None:
    puller = Puller(Job(stream="news", size=50, messages=6, extra={"leases": 5, "round": 1}), WorkerPool())
    puller.begin()
    status = b"HMSG %s.data 2 30 30\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n" % puller.inbox
    said = bytearray(message(1) + status)
    assert puller.scan(said, len(said)) == len(said)
    assert bytes(puller.answers).count(b"+ACK") == 1
