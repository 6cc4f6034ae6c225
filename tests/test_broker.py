"""The broker: numbering, refusing, and letting go only what is durable."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from fyrehose.broker import Broker
from fyrehose.errors import InvalidName, PayloadTooLarge, ReadOnly, TooManyStreams
from fyrehose.interfaces import JournalState
from fyrehose.records import Run
from fyrehose.sequencer import Sequencer
from fyrehose.testing import MemoryJournal, RecordingSink


def make(auto: bool = True, **settings: object) -> tuple[Broker, MemoryJournal, Clock]:
    journal, clock = MemoryJournal(auto=auto), Clock()
    broker = Broker(clock, journal, Sequencer(), **settings)  # type: ignore[arg-type]
    broker.open()
    return broker, journal, clock


def drafts(*payloads: bytes, stream: str = "s") -> list[Run]:
    return [Run.of(stream, payloads, source="test")]


def test_nothing_leaves_before_it_is_durable() -> None:
    broker, journal, clock = make(auto=False)
    sink = RecordingSink()
    broker.subscribe("s", 0, sink).resumeProducing()
    published = broker.publish(drafts(b"a", b"b"))
    clock.advance(1)
    assert not published.called
    assert not sink.deliveries
    journal.commit()
    clock.advance(0)
    assert published.result == (1,)
    assert [(r.seq, r.payload) for r in sink.records] == [(1, b"a"), (2, b"b")]


def test_numbers_go_on_after_a_failed_append() -> None:
    broker, journal, _ = make(auto=False)
    first = broker.publish(drafts(b"lost"))
    journal.enter(JournalState.READ_ONLY, "full")
    first.addErrback(lambda f: f.trap(ReadOnly))
    journal.enter(JournalState.WRITABLE, "room")
    again = broker.publish(drafts(b"kept"))
    journal.commit()
    assert again.result == (1,)


@pytest.mark.parametrize(("stream", "error"), [("", InvalidName), ("x" * 256, InvalidName), ("\ud800", InvalidName)])
def test_names_that_are_none(stream: str, error: type[Exception]) -> None:
    broker, _, _ = make()
    failure = []
    broker.publish(drafts(b"a", stream=stream)).addErrback(failure.append)
    assert failure[0].check(error)


def test_a_restricted_stream_refuses_by_any_door() -> None:
    broker, journal, _ = make()
    broker.restrict("s", 3)
    failure = []
    broker.publish(drafts(b"abc", b"abcd")).addErrback(failure.append)
    assert failure[0].check(PayloadTooLarge)
    assert broker.publish(drafts(b"abc", b"abc")).result == (1,)
    assert journal.bounds("s") == (1, 2)


def test_too_many_streams() -> None:
    broker, _, _ = make(max_streams=1)
    failure = []
    broker.publish(drafts(b"a", stream="one"))
    broker.publish(drafts(b"a", stream="two")).addErrback(failure.append)
    assert failure[0].check(TooManyStreams)


def refused(deferred) -> Exception:  # type: ignore[no-untyped-def]
    failures: list = []  # type: ignore[type-arg]
    deferred.addErrback(failures.append)
    assert failures, "it should have been refused"
    return failures[0].value


def test_streams_that_were_never_made_are_not_counted() -> None:
    """Otherwise whoever publishes rubbish, or while the disk is full, would use up all the streams there may be."""
    broker, journal, _ = make(auto=False, max_streams=3)
    mixed = [*drafts(b"a", stream="one"), *drafts(b"b", stream="")]
    assert isinstance(refused(broker.publish(mixed)), InvalidName)
    waiting = broker.publish(drafts(b"lost", stream="two"))
    journal.enter(JournalState.READ_ONLY, "full")
    assert isinstance(refused(waiting), ReadOnly)
    for i in range(10):
        assert isinstance(refused(broker.publish(drafts(b"x", stream=f"while full {i}"))), ReadOnly)
    journal.enter(JournalState.WRITABLE, "room")
    for name in ("three", "four", "five"):
        broker.publish(drafts(b"x", stream=name))
    journal.commit()
    assert isinstance(refused(broker.publish(drafts(b"x", stream="six"))), TooManyStreams)


def test_a_refused_publish_makes_no_stream() -> None:
    broker, _, _ = make(max_streams=1)
    mixed = [*drafts(b"a", stream="one"), *drafts(b"b", stream="")]
    assert isinstance(refused(broker.publish(mixed)), InvalidName)
    assert broker.publish(drafts(b"x", stream="two")).result == (1,)


def test_a_stream_is_still_restricted_after_its_first_publish_failed() -> None:
    broker, journal, _ = make(auto=False)
    broker.restrict("s", 3)
    refused_later = broker.publish(drafts(b"ok"))
    journal.enter(JournalState.READ_ONLY, "full")
    refused(refused_later)
    journal.enter(JournalState.WRITABLE, "room")
    assert isinstance(refused(broker.publish(drafts(b"toolong"))), PayloadTooLarge)


def test_more_at_once_than_a_batch_can_hold_is_refused_before_it_has_numbers() -> None:
    broker, _, _ = make()
    runs = drafts(b"x" * (16 << 20)) * 4
    assert isinstance(refused(broker.publish(runs)), PayloadTooLarge)
    assert broker.publish(drafts(b"small")).result == (1,)


def test_more_streams_than_fit_into_the_beginning_of_a_segment() -> None:
    with pytest.raises(ValueError, match="200000"):
        make(max_streams=200_001)


def test_what_was_acknowledged_is_counted_by_its_source_and_what_was_refused_is_not() -> None:
    broker, journal, _ = make(auto=False)
    broker.publish(drafts(b"abc", b"d"))
    assert not broker.taken, "it is not durable yet"
    journal.commit()
    broker.publish(drafts(b"e"))
    journal.commit()
    broker.publish(drafts(b"x", stream="")).addErrback(lambda failure: None)
    taken = broker.taken["test"]
    assert (taken.publishes, taken.messages, taken.bytes) == (2, 3, 5)
    assert list(broker.taken) == ["test"]
