"""A run that cannot be stored fails its own publish; the journal and the other publishers notice nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.peer import publisher_for
from fyrehose.broker.publisher import fire
from fyrehose.broker.run_checks import check_draft
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import FyrehoseError, PublishError, StreamError
from fyrehose.interfaces import JournalState
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.records import MAX_NAME, MAX_PAYLOAD, Run
from fyrehose.testing import RecordingSink

MIB = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Return a broker with a journal on disk, whose commits run at once."""
    made = Broker(Clock(), FileJournal(Clock(), tmp_path / "data", worker=InlineWorker()), Sequencer())
    made.open()
    yield made
    made.close()


def draft(*payloads: bytes, **fields: Any) -> Run:
    return Run.of(fields.pop("stream", "orders"), payloads or [b"abc"], **{"source": "test", **fields})


def changed(**fields: Any) -> Run:
    """Return a run of one record with other columns, as ``attrs.evolve`` makes it."""
    return attrs.evolve(draft(), **fields)


def assigned(**fields: Any) -> Run:
    """Return a run of one record whose attributes were assigned after it was built."""
    run = draft()
    for name, value in fields.items():
        setattr(run, name, value)
    return run


#: Names of 70,000 characters, with lone surrogates (as in a file name from os.listdir), and of another type.
BAD_TEXTS = ["n" * 70_000, "\ud800", b"bytes", 5]

TEXTS = ("stream", "source", "producer", "topic", "content_type")

BAD: dict[str, Callable[[], Any]] = {
    **{f"{field} {text!r:.12}": lambda field=field, text=text: assigned(**{field: text})
       for field in TEXTS for text in BAD_TEXTS},
    **{f"new {field} {text!r:.12}": lambda field=field, text=text: draft(**{field: text})
       for field in TEXTS for text in BAD_TEXTS[:3]},
    "no stream name": lambda: draft(stream=""),
    "a stream of the server's own": lambda: draft(stream=".relink/links"),
    "stream None": lambda: assigned(stream=None),
    "source None": lambda: assigned(source=None),
    "source of 300 bytes in 150 characters": lambda: draft(source="ü" * 150),
    "payload shorter than the lengths": lambda: changed(payload=b"ab"),
    "payload longer than the lengths": lambda: changed(payload=b"abcd"),
    "payload assigned": lambda: assigned(payload=b"ab"),
    "payload of text": lambda: changed(payload="abc"),
    "payload that is strided": lambda: changed(payload=memoryview(b"a.b.c.")[::2]),
    "payload of larger items": lambda: changed(payload=memoryview(array("I", [1, 2, 3]))),
    "lengths of 3 bytes": lambda: changed(lengths=b"\3\0\0"),
    "lengths of 6 bytes": lambda: changed(lengths=b"\3\0\0\0\0\0"),
    "lengths of other items": lambda: changed(lengths=memoryview(array("I", [1, 2, 0, 0]))),
    "lengths as a list": lambda: changed(lengths=[3, 0, 0, 0]),
    "no records": lambda: changed(lengths=b"", payload=b""),
    "event_ids of 15 bytes": lambda: changed(event_ids=bytes(15)),
    "event_ids of text": lambda: changed(event_ids="0123456789abcdef"),
    "event_times for 2 records": lambda: changed(event_times=bytes(16)),
    "producer_seq for 2 records": lambda: changed(producer_seq=bytes(16)),
    "producer_seq negative": lambda: changed(producer_seq=-1),
    "producer_seq beyond 64 bits": lambda: draft(b"a", b"b", producer_seq=(1 << 64) - 1),
    "producer_seq assigned as text": lambda: assigned(producer_seq="12345678"),
    "number set": lambda: changed(first_seq=1),
    "number negative": lambda: changed(first_seq=-5),
    "time set": lambda: changed(time=1),
    "time negative": lambda: changed(time=-1),
    "a payload above the limit": lambda: draft(bytes(MAX_PAYLOAD + 1)),
    "a run above the limit": lambda: draft(*[bytes(MIB)] * 70),
    "bytes instead of a run": lambda: b"abc",
    "None instead of a run": lambda: None,
}  # fmt: skip


def outcome(publish: Callable[[], Any]) -> Any:
    """Return the result of the Deferred that *publish* returns, or the error with which it fails, or that it raises."""
    results: list[Any] = []
    try:
        publish().addBoth(results.append)
    except Exception as error:
        return error
    assert results, "the publish was settled"
    return getattr(results[0], "value", results[0])


def assert_sound(broker: Broker, first: int = 1) -> None:
    """Assert that an honest publish gets number *first* of its stream, and can be read."""
    assert outcome(lambda: broker.publish([draft(b"honest")])) == (first,)
    assert broker.journal.state is JournalState.WRITABLE
    assert [bytes(payload) for run in broker.read("orders", first, 1000) for payload in run.payloads()] == [b"honest"]


@pytest.mark.parametrize("make", BAD.values(), ids=[name.encode("ascii", "replace").decode() for name in BAD])
def test_run_that_cannot_be_stored_fails_its_own_publish_only(broker: Broker, make: Callable[[], Any]) -> None:
    try:
        run = make()
    except TypeError:  # refused where it is built
        return
    assert isinstance(outcome(lambda: broker.publish([run])), PublishError)
    assert isinstance(outcome(lambda: broker.publish([draft(b"good"), run])), PublishError)
    if getattr(run, "stream", None) != ".relink/links":
        assert isinstance(outcome(lambda: broker.publish([draft(b"good")], [run])), PublishError)
    with pytest.raises(PublishError):
        publisher_for(broker, None, fire, checked=True).publish([draft(b"good"), run], Deferred())
    assert dict(broker.journal.ends()) == {}
    assert_sound(broker)


def test_publish_of_nothing_is_refused(broker: Broker) -> None:
    for publish in (
        lambda: broker.publish([]),
        lambda: broker.publish((), ()),
        lambda: broker.publish([], key="k"),
        lambda: broker.publish([], [draft()], key="k"),
    ):
        assert isinstance(outcome(publish), PublishError)
    with pytest.raises(PublishError):
        publisher_for(broker, None, lambda items: None).publish([])
    assert_sound(broker)


def test_one_run_instead_of_a_list_raises_to_the_caller(broker: Broker) -> None:
    run: Any = draft()
    assert isinstance(outcome(lambda: broker.publish(run)), TypeError)
    assert_sound(broker)


@pytest.mark.parametrize("key", [b"bytes", 5])
def test_key_that_is_no_text_fails_its_own_publish(broker: Broker, key: Any) -> None:
    assert isinstance(outcome(lambda: broker.publish([draft()], key=key)), PublishError)
    assert_sound(broker)


def test_publish_with_a_key_to_two_streams_is_refused(broker: Broker) -> None:
    assert isinstance(outcome(lambda: broker.publish([draft(), draft(stream="b")], key="k")), PublishError)
    assert_sound(broker)


def test_key_with_a_lone_surrogate_is_stored_once(broker: Broker) -> None:
    assert outcome(lambda: broker.publish([draft()], key="\ud800")) == (1,)
    assert outcome(lambda: broker.publish([draft()], key="\ud800")) == (1,)
    assert_sound(broker, 2)


def test_record_that_was_delivered_is_published_as_a_copy_only(broker: Broker) -> None:
    sink = RecordingSink()
    broker.subscribe("orders", 0, sink).resumeProducing()
    broker.publish([draft()])
    delivered = broker.read("orders", 1, 1000)[0]
    assert isinstance(outcome(lambda: broker.publish([delivered])), PublishError)
    assert (delivered.first_seq, delivered.stream) == (1, "orders")
    copy = attrs.evolve(delivered, stream="copies", first_seq=0, time=0)
    assert outcome(lambda: broker.publish([copy])) == (1,)


@pytest.mark.parametrize(
    "run",
    [
        draft(b"a", b"", b"bc", producer="p", topic="ü" * MAX_NAME, content_type="", producer_seq=7),
        draft(b"a", b"b", producer_seq=memoryview(array("Q", [5, 9])).cast("B"), event_ids=bytearray(32)),
        draft(b"a", source="", event_times=memoryview(bytes(8))),
        draft(b"a", stream="n" * MAX_NAME, source="s" * MAX_NAME, producer_seq=(1 << 64) - 1),
    ],
)
def test_unusual_run_that_can_be_stored_is_accepted_and_read_back(broker: Broker, run: Run) -> None:
    check_draft(run)
    expected = [attrs.evolve(record, seq=0, time=0) for record in run.records()]
    assert outcome(lambda: broker.publish([run])) == (1,)
    stored = [record for each in broker.read(run.stream, 1, 1000) for record in each.records()]
    assert [attrs.evolve(record, seq=0, time=0) for record in stored] == expected


def elsewhere(call: Callable[[], object]) -> Any:
    """Return the result of *call* in another thread, or the error that it raises."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_call_from_another_thread_raises_and_names_the_way_to_call(broker: Broker) -> None:
    for call in (
        lambda: broker.publish([draft()]),
        lambda: broker.publish([]),
        lambda: broker.subscribe("orders", 0, RecordingSink()),
        lambda: broker.retire(["orders"]),
        lambda: broker.read("orders", 1, 1000),
        lambda: broker.latest(1000, ""),
        lambda: broker.named,
        lambda: publisher_for(broker, None, lambda items: None),
    ):
        error = elsewhere(call)
        assert isinstance(error, FyrehoseError)
        assert "reactor.callFromThread" in str(error)
    assert not isinstance(elsewhere(lambda: broker.publish([draft()])), PublishError | StreamError)
    assert_sound(broker)
