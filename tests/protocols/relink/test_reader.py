"""RelinkReader: it continues behind its last record after any loss."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.messages import CONTENT_TYPE, join, split
from fyrehose.protocols.relink.reader import RelinkReader
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.testing import MemoryJournal


@attrs.define(eq=False)
class Reading:
    """A reader on a wire, with the records and gaps that it has reported."""

    wire: Any
    after: int | None = None
    records: list[tuple[int, bytes]] = attrs.field(factory=list)
    gaps: list[tuple[int, int]] = attrs.field(factory=list)
    restarted: list[int] = attrs.field(factory=list)
    answers: list[Any] = attrs.field(factory=list)
    reader: RelinkReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        server = self.wire.server
        self.reader = RelinkReader(server.clock, self.wire)
        self.reader.subscribe("s", self.take, self.after, lambda *gap: self.gaps.append(gap), self.restarted.append)
        self.reader.connect()
        self.wire.pump()

    def take(self, run: Run) -> Any:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        payload = bytes(run.payload)
        parts = split(payload, 1_024) if run.content_type == CONTENT_TYPE else (payload,)
        self.records.append((run.first_seq, b"|".join(parts)))
        return answer

    def reconnect(self) -> None:
        for _ in range(3):
            self.wire.pump(1)


@pytest.fixture
def read(make_server: Any, make_wire: Any) -> Any:
    """Return a function that makes a reader: ``read(after=0)``."""
    return lambda server=None, **more: Reading(make_wire(server or make_server()), **more)


def test_records_are_delivered_with_their_numbers(make_server: Any, read: Any) -> None:
    server = make_server()
    server.publish("s", b"a", b"b")
    server.publish("s", join((b"x", b"", b"y")), content_type=CONTENT_TYPE)
    server.publish("s", join(()), content_type=CONTENT_TYPE)
    reading = read(server, after=1)
    assert reading.records == [(2, b"b"), (3, b"x||y"), (4, b"")]
    assert reading.gaps == []


def test_largest_records_are_delivered_with_numbers(make_server: Any, read: Any) -> None:
    server = make_server()
    server.publish("s", b"x" * MAX_PAYLOAD)
    many = join((b"y",) * 1_024)  # With its number the message would exceed the limit of parts.
    server.publish("s", many, content_type=CONTENT_TYPE)
    reading = read(server, after=0)
    reading.reconnect()
    assert [(seq, len(record)) for seq, record in reading.records] == [(1, MAX_PAYLOAD), (2, len(many))]
    assert reading.records[1][1] == many


def test_position_is_known_before_the_first_record(make_server: Any, read: Any) -> None:
    server = make_server()
    server.publish("s", b"a", b"b")
    assert read(server).reader.position == 2
    assert read(make_server()).reader.position == 0


@attrs.define(eq=False)
class Reread:
    """A reader whose link is lost, whose server crashes or has another journal, and what it should have reported."""

    server: Any
    reading: Reading
    dice: Random
    last: int = 0
    journals: int = 1
    records: list[tuple[int, bytes]] = attrs.field(factory=list)
    gaps: list[tuple[int, int]] = attrs.field(factory=list)
    restarted: list[int] = attrs.field(factory=list)

    def publish(self) -> None:
        self.last += 1
        payload = b"%d of journal %d" % (self.last, self.journals)
        self.server.publish("s", payload)
        self.records.append((self.last, payload))

    def lose(self) -> None:
        """Lose the link; retention may delete some of the records that are published meanwhile."""
        self.reading.wire.lose_link()
        seen, kept = self.last, len(self.records)
        for _ in range(self.dice.randrange(4)):
            self.publish()
        self.expire(seen, kept)

    def expire(self, seen: int, kept: int) -> None:
        """Let retention delete some records behind number *seen*, but the last."""
        lost = self.dice.randrange(self.last - seen) if self.last > seen else 0
        if lost:
            self.server.journal.forget("s", seen + lost + 1)
            self.gaps.append((seen + 1, seen + lost))
            del self.records[kept : kept + lost]

    def replace(self) -> None:
        """Start the server with another journal, which may be the longer one."""
        self.journals += 1
        self.server.journal = MemoryJournal(epoch=f"{self.journals:016x}")
        known, kept, self.last = self.last, len(self.records), 0
        near, self.reading.wire.near = self.reading.wire.near, None
        self.server.restart()
        for _ in range(self.dice.randrange(6)):
            self.publish()
        self.expire(0, kept)
        self.restarted += [self.last] * (known > 0)
        near.connectionLost(Failure(ConnectionDone()))


@pytest.mark.parametrize("seed", range(20))
def test_reader_reads_every_journal_once_from_its_start_over_lost_links_and_crashes(
    make_server: Any, read: Any, seed: int
) -> None:
    server = make_server()
    server.journal.epoch = f"{1:016x}"
    world = Reread(server, read(server, after=0), Random(seed))
    for _ in range(20):
        did = world.dice.choice([world.publish, world.lose, world.replace, world.reading.wire.crash])
        did()
        world.reading.wire.settle()
        told = (world.reading.records, world.reading.gaps, world.reading.restarted)
        assert told == (world.records, world.gaps, world.restarted), f"after {did.__name__}"


def test_reader_without_a_start_misses_nothing_after_losing_its_link(make_server: Any, read: Any) -> None:
    """A reader without any record continues at the start position of its channel."""
    server = make_server()
    server.publish("s", b"before")
    reading = read(server)
    reading.wire.lose_link()
    server.publish("s", b"meanwhile")
    reading.reconnect()
    assert reading.records == [(2, b"meanwhile")]
    assert (server.count("links-made"), server.count("links-unknown")) == (2, 1)


def test_reader_continues_after_its_link_expired(make_server: Any, read: Any) -> None:
    server = make_server(retention="20")
    reading = read(server)
    reading.wire.refusing = True
    reading.wire.cut()
    server.publish("s", b"1", b"2")
    server.clock.pump([1.0] * 30)
    assert server.count("links-expired") == 1
    reading.wire.refusing = False
    for _ in range(15):  # The first connection only learns that the link is gone, and the pauses are up to 6 s.
        reading.wire.pump(1)
    assert reading.records == [(1, b"1"), (2, b"2")]


def test_gap_is_reported_on_a_resumed_link(make_server: Any, read: Any) -> None:
    server = make_server(window="2")
    for seq in range(1, 9):
        server.publish("s", b"%d" % seq)
    reading = read(server, after=0)
    reading.reader.pause()
    reading.wire.cut()
    for seq in range(9, 12):
        server.publish("s", b"%d" % seq)
    server.journal.forget("s", 11)
    reading.reader.resume()
    reading.reconnect()
    assert [seq for seq, _ in reading.records] == [*range(1, 9), 11]
    assert reading.gaps == [(9, 10)]
    assert server.count("links-resumed") == 1


def test_position_beyond_the_end_is_told_as_a_restart_and_the_stream_is_read_from_its_start(
    make_server: Any, read: Any
) -> None:
    server = make_server()
    for number in range(1, 6):
        server.publish("s", b"%d" % number)
    reading = read(server, after=20)
    assert reading.restarted == [5]
    server.publish("s", b"6")
    reading.wire.pump()
    assert [seq for seq, _ in reading.records] == [1, 2, 3, 4, 5, 6]
    assert reading.gaps == []


def test_failed_record_is_delivered_again(make_server: Any, read: Any, logged_errors: Any) -> None:
    server = make_server()
    reading = read(server)
    later: Deferred[None] = Deferred()
    reading.answers = [None, ZeroDivisionError(), None, later]
    server.publish("s", b"1", b"2", b"3")
    reading.reconnect()
    later.errback(ZeroDivisionError())
    reading.reconnect()
    assert reading.records == [(1, b"1"), (2, b"2"), (3, b"3"), (3, b"3")]
    assert reading.gaps == []
    logged_errors.take()


def test_messages_without_record_numbers_are_refused(read: Any, logged_errors: Any) -> None:
    reading = read()
    for parts, cause in (((), "seq"), ((b"x",), "seq"), ((b"",), "seq"), ((b"",) * 4, "start-incomplete")):
        with pytest.raises(RemoteProtocolError, match=cause):
            reading.reader._on_message(0, 1, parts)


def test_closing_the_reader_ends_its_link(make_server: Any, read: Any) -> None:
    server = make_server()
    reading = read(server)
    closed = reading.reader.close()
    reading.wire.pump()
    assert closed.called
    assert not server.registry.entries
