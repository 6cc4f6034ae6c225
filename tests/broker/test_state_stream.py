"""Streams of state: what is replayed, where a replay begins, and when a checkpoint is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.broker import state_stream
from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.state_stream import SLICE_BYTES, Replayed, StateStream
from fyrehose.errors import JournalCorrupt, ReadOnly
from fyrehose.interfaces import JournalState
from fyrehose.net.turns import STEPS
from fyrehose.records import Record, Run
from fyrehose.testing import MemoryJournal

STREAM, SOURCE = ".state", "server"


@attrs.define
class Total:
    """The sum of the numbers in the records: ``SINCE +N`` adds, ``SINCE =N`` is the sum until then."""

    total: int = 0
    applied: list[int] = attrs.field(factory=list)

    def clear(self) -> None:
        self.total, self.applied = 0, []

    def begin(self, newest: Record) -> int:
        since, _ = newest.payload.split()
        return int(since)

    def apply(self, record: Record) -> None:
        change = record.payload.split()[1]
        self.applied.append(record.seq)
        self.total = int(change[1:]) + (0 if change.startswith(b"=") else self.total)


class Reactor(Clock):
    """A clock that makes one turn of the reactor out of each second."""

    def callLater(self, delay: float, *args: Any, **kw: Any) -> Any:
        return super().callLater(max(delay, 1), *args, **kw)


class World:
    """A stream of state in a journal; *appended* is the sum of what was appended."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.journal = journal or MemoryJournal()
        self.clock = Reactor()
        self.broker = Broker(self.clock, self.journal, Sequencer())
        self.broker.open()
        self.state, self.appended = Total(), 0
        self.stream = StateStream(
            STREAM,
            SOURCE,
            self.state,
            self.journal.read,
            self.journal.bounds,
            lambda runs: self.broker.publish([], runs),
            everything=lambda: [b"0 =%d" % self.appended],
            end=lambda begin: b"%d +0" % begin,
            turns=self.broker.turns,
            checkpoint_bytes=100,
        )

    def add(self, number: int) -> Any:
        self.appended += number
        return self.stream.append(b"%d +%d" % (self.stream.checkpoint, number))

    def replayed(self) -> tuple[int, Replayed]:
        """Return the total of a server that starts now."""
        again = World(self.journal)
        found = again.stream.open()
        return again.state.total, found


@pytest.mark.parametrize(
    ("sources", "seq"),
    [((), 0), (("other",), 0), (("own", "own"), 2), (("own", *["other"] * 7), 1), (("other", "own", "other"), 2)],
)
def test_the_last_record_of_a_source_is_found(sources: tuple[str, ...], seq: int) -> None:
    world = World()
    for source in sources:
        world.broker.publish([Run.of("s", [b"x"], source=source)])
    found = state_stream.last_record(world.journal.read, "s", world.journal.bounds("s"), "own")
    assert (0 if found is None else found.seq) == seq


def test_records_are_read_from_a_number_on() -> None:
    world = World()
    for _ in range(3):
        world.broker.publish([Run.of("s", [b"x"], source="own")])
    read = world.journal.read
    assert [record.seq for record in state_stream.records(read, "s", 2, 3)] == [2, 3]
    assert list(state_stream.records(read, "s", 4, 3)) == []
    assert list(state_stream.records(read, "s", 4, 9)) == []


def test_a_new_stream_has_the_empty_state() -> None:
    assert World().replayed() == (0, Replayed())


def test_a_checkpoint_contains_what_was_appended_and_is_not_durable() -> None:
    world = World(MemoryJournal(auto=False))
    world.add(5)
    world.stream.write_checkpoint()
    world.add(1)  # names no checkpoint, because none is durable yet
    world.journal.commit()
    assert world.replayed() == (6, Replayed(last=4))
    world.journal.commit()
    assert world.replayed() == (6, Replayed(last=5, checkpoint=2))
    world.add(2)  # names the checkpoint
    world.journal.commit()
    world.journal.forget(STREAM, 2)
    assert world.replayed()[0] == 8


def test_missing_records_are_counted_since_the_checkpoint() -> None:
    world = World()
    for number in (1, 2, 3):
        world.add(number)
    world.journal.forget(STREAM, 3)
    assert world.replayed() == (3, Replayed(last=3, missing=2))
    world.stream.write_checkpoint()
    world.add(1)
    assert world.replayed() == (7, Replayed(last=7, checkpoint=4))


@pytest.mark.parametrize("payload", [b"", b"x +1", b"0 +x"])
def test_an_invalid_record_stops_the_replay(payload: bytes) -> None:
    world = World()
    world.broker.publish([], [Run.of(STREAM, [payload], source=SOURCE)])
    with pytest.raises(JournalCorrupt, match=r"record 1 of stream \.state cannot be replayed"):
        world.replayed()


def test_a_follower_replays_only_what_is_new() -> None:
    world = World()
    for number in (1, 2, 3):
        world.add(number)
    follower = World(world.journal)
    follower.stream.open()
    assert follower.state.applied == [1, 2, 3]
    world.add(4)
    follower.stream.follow()
    assert (follower.state.total, follower.state.applied) == (10, [1, 2, 3, 4])
    world.stream.write_checkpoint()
    world.add(5)
    follower.stream.follow()
    assert (follower.state.total, follower.state.applied) == (15, list(range(1, 9)))
    assert follower.stream.checkpoint == 5


def test_a_follower_replays_in_turns_and_completes_its_state_when_it_leads() -> None:
    world = World()
    for _ in range(5):
        world.add(1)
    follower = World(world.journal)
    for number in range(2_000):
        world.add(number)
    follower.stream.follow()
    first = len(follower.state.applied)
    assert 0 < first <= STEPS
    assert follower.stream.lag == 2_005 - first
    follower.stream.open()
    assert (follower.stream.lag, follower.state.total) == (0, world.appended)
    follower.stream.draft(b"0 +7").first_seq = 2_006  # it leads; a turn that waits must not replay now
    follower.clock.advance(1)
    assert follower.state.total == world.appended


def test_a_state_that_was_emptied_is_replayed_afresh() -> None:
    world = World()
    world.add(5)
    world.stream.write_checkpoint()
    server = World(world.journal)
    server.stream.open()
    server.state.clear()
    list(server.stream.steps(afresh=True))
    assert (server.state.total, server.state.applied) == (5, [2, 3, 4])


def test_a_change_that_is_refused_leaves_the_state_as_it_is() -> None:
    world = World()
    world.add(1)
    follower = World(world.journal)
    follower.stream.open()
    follower.stream.draft(b"0 +1")  # and the journal refuses it
    world.add(2)
    follower.stream.follow()
    assert (follower.state.total, follower.state.applied) == (3, [1, 2])
    reads: list[int] = []
    world.journal.before_read = lambda stream, start: reads.append(start)
    world.add(3)
    follower.stream.follow()
    assert reads == [3], "nothing before it is read again"


def test_a_damaged_record_stops_the_replay_of_a_follower_and_fails_its_take_over() -> None:
    world = World()
    world.add(1)
    follower = World(world.journal)
    follower.stream.open()
    world.broker.publish([], [Run.of(STREAM, [b"0 +x"], source=SOURCE)])
    follower.stream.follow()
    world.add(1)
    reads: list[int] = []
    world.journal.before_read = lambda stream, start: reads.append(start)
    follower.stream.follow()
    assert not reads, "a damaged stream is not read again and again"
    with pytest.raises(JournalCorrupt, match=r"record 2 of stream \.state"):
        follower.stream.open()


def test_a_checkpoint_is_written_when_the_records_behind_it_exceed_its_size_four_times() -> None:
    world = World()
    world.stream.everything = lambda: [b"0 =%d" % world.appended + b" " * 100]
    world.stream.maintain()
    assert world.journal.bounds(STREAM) == (1, 0)
    for _ in range(26):
        world.add(1)
    world.stream.maintain()
    assert (world.stream.checkpoint, world.replayed()[0]) == (27, 26)
    for _ in range(50):
        world.add(1)
    world.stream.maintain()
    assert world.stream.checkpoint == 27, "250 bytes are less than four times 104"
    for _ in range(50):
        world.add(1)
    world.stream.maintain()
    assert (world.stream.checkpoint, world.replayed()[0]) == (130, 126)


def test_one_checkpoint_is_written_at_a_time() -> None:
    world = World(MemoryJournal(auto=False))
    world.stream.maintain(must_move=True)
    world.stream.maintain(must_move=True)
    world.journal.commit()
    world.journal.commit()
    assert world.journal.bounds(STREAM) == (1, 3)


def test_a_checkpoint_is_written_in_slices_between_which_others_append() -> None:
    """Each of many subscriptions takes 20 us to pack, and the reactor does nothing else meanwhile."""
    world, packed = World(MemoryJournal(auto=False)), list[int]()

    def everything() -> Iterator[bytes]:
        for number in range(100):
            packed.append(number)
            yield b"%d =%d" % (world.stream.checkpoint, world.appended) + b" " * 1_024

    world.stream.everything = everything
    world.add(5)
    world.stream.write_checkpoint()
    turns = list[int]()
    while not world.stream.checkpoint:
        turns.append(len(packed))
        packed.clear()
        world.add(1)
        world.journal.commit()
        assert world.replayed()[0] == world.appended
        world.clock.advance(1)
    assert len(turns) > 2
    assert max(turns) * 1_024 <= SLICE_BYTES + 1_024
    world.journal.forget(STREAM, world.stream.checkpoint)
    assert world.replayed()[0] == world.appended
    assert not world.stream.is_due()


class Members(Total):
    """How often each name was added: ``SINCE +N`` adds N once more, ``SINCE -N`` forgets it, ``SINCE =N:M`` sets."""

    def clear(self) -> None:
        super().clear()
        self.names = Counter[int]()

    def apply(self, record: Record) -> None:
        self.applied.append(record.seq)
        self.change(record.payload.split()[1])

    def change(self, text: bytes) -> None:
        name, _, times = text[1:].partition(b":")
        if text[:1] == b"-":
            self.names.pop(int(name), None)
        else:
            self.names[int(name)] = int(times) if times else self.names[int(name)] + 1


@pytest.mark.parametrize("seed", range(20))
def test_server_and_followers_have_what_was_appended_whatever_retention_deletes(seed: int) -> None:
    """Delete what only a follower has not read, which the checkpoint behind it replaces.

    Appends become durable later, or are refused because the disk is full; an operator writes to the stream, too.  The
    server applies a change when it is accepted, so that a replay of the same record would count it twice.
    """
    dice, world = Random(seed), World(MemoryJournal(auto=False))
    durable, full = Counter[int](), False
    world.stream.everything = lambda: [
        b"%d =%d:%d" % (world.stream.checkpoint, *each) for each in sorted(names.items()) if each[0]
    ]
    world.stream.end = lambda begin: b"%d =0:0" % begin
    follower = World(world.journal)
    for each in (world, follower):
        each.stream.state = each.state = Members()
        each.stream.open()
    names = world.state.names

    def append(change: bytes) -> None:
        written = world.stream.append(b"%d %s" % (world.stream.checkpoint, change))
        if not isinstance(written.result if written.called else None, Failure):
            world.state.change(change)
        after = +names
        written.addCallbacks(lambda _: (durable.clear(), durable.update(after)), lambda refused: None)

    for step in range(80):
        kinds = ("add", "add", "remove", "checkpoint", "retention", "follow", "follow", "open", "full")
        match dice.choice((*kinds, "commit", "commit", "operator")):
            case "add" | "remove" as kind:
                append(b"%c%d" % (b"+-"[kind == "remove"], dice.randint(1, 6)))
            case "checkpoint":
                world.stream.write_checkpoint().addErrback(lambda refused: None)
            case "commit":
                world.journal.commit()
            case "operator":
                run = Run.of(STREAM, [b"of an operator"], source="http")
                world.broker.publish([], [run]).addErrback(lambda refused: None)
            case "full":
                full = not full
                world.journal.enter(JournalState.READ_ONLY if full else JournalState.WRITABLE, "the disk")
            case "retention" if world.stream.checkpoint > world.journal.bounds(STREAM)[0]:
                world.journal.forget(STREAM, world.stream.checkpoint)
            case "follow":
                follower.stream.follow()
                world.clock.advance(1)
                follower.clock.pump([1] * 5)
                assert +follower.state.names == durable, f"step {step}: the follower has other names"
            case "open":
                world.journal.commit()
                world.stream.open()
                names = world.state.names
                assert +names == durable, f"step {step}: a server that leads again has other names"
    again = World(world.journal)
    again.stream.state = again.state = Members()
    again.stream.open()
    assert +again.state.names == durable, "a server that starts now has other names"


def test_a_refused_checkpoint_is_due_again() -> None:
    world = World()
    for _ in range(30):
        world.add(1)
    world.journal.enter(JournalState.READ_ONLY, "full")
    world.stream.maintain()
    assert world.stream.is_due()
    world.stream.write_checkpoint().addErrback(lambda failure: failure.trap(ReadOnly))
    world.journal.enter(JournalState.WRITABLE, "room")
    world.stream.maintain()
    assert (world.stream.checkpoint, world.stream.is_due()) == (31, False)


def test_a_draft_is_published_in_one_batch_with_its_messages() -> None:
    world = World(MemoryJournal(auto=False))
    world.broker.publish([Run.of("s", [b"x"], source="figg")], [world.stream.draft(b"0 +1", b"0 +2")])
    world.journal.commit()
    assert (world.journal.bounds("s"), world.replayed()[0]) == ((1, 1), 3)


def test_the_last_record_of_a_checkpoint_is_known() -> None:
    """A checkpoint that begins in a sealed segment, and ends in the active one, must not be written again and again."""
    world = World()
    world.add(1)
    world.stream.write_checkpoint()
    assert (world.stream.checkpoint, world.stream.checkpoint_end) == (2, 4)
    again = World(world.journal)
    again.stream.open()
    assert (again.stream.checkpoint, again.stream.checkpoint_end) == (2, 2)
