"""The search for what writers may send again: bounds, turns, the listeners that wait for it and share what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure

from fyrehose.broker.callback import CallbackBroker
from fyrehose.errors import JournalCorrupt
from fyrehose.net.turns import STEPS, Turns
from fyrehose.protocols.lumberjack import lookback
from fyrehose.protocols.lumberjack.ledger import EventIdentity
from fyrehose.protocols.lumberjack.lookback import SearchLimits, SharedRepetitions
from fyrehose.protocols.lumberjack.server import LumberjackFactory, LumberjackSettings
from fyrehose.records import Run, column_of

AGE = 600.0
DAY = 86400 * 1_000_000
#: More records than three turns search.
MANY = 3 * STEPS + 2


def run_of(number: int, time: int = 0, source: str = "lumberjack", producer: str = "10.0.0.1:5000") -> Run:
    """Return record *number* of a stream, an event with an identity."""
    column = column_of([b'{"@metadata":{"_id":"%d"}}' % number])
    return Run(
        stream="s",
        source=source,
        producer=producer,
        lengths=column.lengths,
        payload=column.payload,
        content_type="application/json",
        first_seq=number,
        time=time,
    )


class HandedTurns(Turns):
    """Turns that a world takes."""

    def __init__(self, clock: Clock, works: list[Any]) -> None:
        super().__init__(clock)
        self.works = works

    def ready(self, work: Any, share: str = "") -> None:
        self.works.append(work)


@attrs.define(eq=False)
class Work:
    """Another work of the server, which takes one turn."""

    taken: list[str]

    def take_turn(self) -> int:
        self.taken.append("work")
        return 1

    def failed(self, failure: Failure) -> None:
        raise AssertionError("it does not fail") from failure.value


class ReadingBroker(CallbackBroker):
    """A broker whose log is that of a world."""

    world: World

    def latest(self, size: int, source: str) -> Iterator[Run]:
        return self.world.latest(size, source)

    def bounds(self, stream: str) -> tuple[int, int]:
        return 1, len(self.world.log)


@attrs.define
class World:
    """A log, of which the runs that were read are counted, and listeners, one of whose connections has input."""

    log: list[Run]
    damaged_at: int = -1
    limits: SearchLimits = SearchLimits()
    events: int = 100_000
    read: int = 0
    ready: list[str] = attrs.field(factory=list)
    broker: Any = attrs.field(init=False)
    turns: list[Any] = attrs.field(factory=list)
    clock: Clock = attrs.field(factory=Clock)

    def __attrs_post_init__(self) -> None:
        self.broker = ReadingBroker(lambda run: None, turns=HandedTurns(self.clock, self.turns))
        self.broker.world = self

    def latest(self, size: int, source: str) -> Iterator[Run]:
        assert size == self.limits.reach * self.broker.budget.limit
        for n, run in enumerate(reversed(self.log)):
            if n == self.damaged_at:
                raise JournalCorrupt("damaged")
            self.read += 1
            yield run

    @property
    def shared(self) -> SharedRepetitions:
        return SharedRepetitions.of(self.broker, self.clock, self.events, AGE, limits=self.limits)

    def open(self, name: str) -> SharedRepetitions:
        shared = self.shared
        shared.open(name)
        if not shared.park(partial(self.ready.append, name)):
            self.ready.append(name)
        return shared

    def run(self) -> None:
        while self.turns:
            self.turns.pop(0).take_turn()


@pytest.fixture
def world() -> Callable[..., World]:
    """Return the function that makes worlds."""
    return lambda *runs, **options: World(list(runs), **options)


def test_listener_is_ready_after_turns_of_a_bounded_number_of_runs(world: Any) -> None:
    made = world(*map(run_of, range(1, MANY)))
    shared = made.open("a")
    assert (made.read, made.ready, shared.ready) == (STEPS, [], False)
    made.turns.pop().take_turn()
    assert (made.read, made.ready) == (2 * STEPS, [])
    made.run()
    assert (made.read, made.ready, shared.ready, shared.table.suspects) == (MANY - 1, ["a"], True, MANY - 1)


def test_short_log_is_searched_at_once(world: Any) -> None:
    made = world(*map(run_of, range(1, 5)))
    made.open("a")
    assert (made.ready, made.turns) == (["a"], [])


def test_search_is_bounded_by_runs_of_all_protocols(world: Any) -> None:
    runs = (run_of(n, source="figg" if n % 2 else "lumberjack") for n in range(1, 31))
    made = world(*runs, limits=SearchLimits(runs=15))
    shared = made.open("a")
    made.run()
    assert (made.read, made.ready, shared.table.suspects) == (15, ["a"], 8)


def test_search_ends_at_runs_older_than_resent_age_plus_an_hour(world: Any) -> None:
    hour = 3600 * 1_000_000
    made = world(run_of(1, 0), run_of(2, DAY), run_of(3, DAY + 600 * 1_000_000), run_of(4, DAY + hour))
    shared = made.open("a")
    assert (made.ready, shared.table.suspects) == (["a"], 3)


def test_damage_ends_the_search_and_is_logged(world: Any) -> None:
    made = world(*map(run_of, range(1, MANY)), damaged_at=2 * STEPS)
    with capturedLogs() as logs:
        shared = made.open("a")
        made.run()
    assert (made.ready, shared.table.suspects) == (["a"], 2 * STEPS)
    assert [event["log_level"] for event in logs] == [LogLevel.warn, LogLevel.info]


def test_listeners_share_one_search(world: Any) -> None:
    made = world(*map(run_of, range(1, MANY)))
    shared = made.open("a")
    assert made.open("b") is shared
    made.run()
    made.open("c")
    assert (made.read, made.ready) == (MANY - 1, ["a", "b", "c"])


@pytest.mark.parametrize(("windows", "kept"), [(5, 5), (8, 8), (9, 8), (20, 8)])
def test_only_the_last_windows_of_each_connection_are_remembered(world: Any, windows: int, kept: int) -> None:
    """Sequences of Beats begin at 1 again in each window."""
    runs = [
        attrs.evolve(run_of(100 * port + 2 * n + more, producer=f"10.0.0.1:{port}"), producer_seq=1 + more)
        for port in (5000, 5001)
        for n in range(windows)
        for more in (0, 1)
    ]
    made = world(*runs, limits=SearchLimits())
    shared = made.open("a")
    made.run()
    assert shared.table.suspects == 4 * kept


def test_last_windows_of_an_older_connection_displace_windows_before_the_last_of_a_newer_one(world: Any) -> None:
    runs = [
        attrs.evolve(run_of(n, producer=f"10.0.0.1:{port}"), producer_seq=1)
        for n, port in enumerate([5000] * 8 + [5001] * 8, 1)
    ]
    made = world(*runs, limits=SearchLimits(), events=12)
    shared = made.open("a")
    made.run()
    fresh, _ = shared.table.connected("10.0.0.1", lambda: None).sift(runs)
    assert [run.first_seq for run in fresh] == [1, 2, 3, 4, 9]
    assert made.broker.counters.counts["lumberjack", "resent-forgotten"] == 5


def test_input_waits_while_the_records_of_lost_connections_are_read_also_of_those_lost_meanwhile(world: Any) -> None:
    made = world()
    shared = made.open("first")

    def lose() -> None:
        sender = shared.table.connected("10.0.0.1", lambda: None)
        sender.publishing([run_of(1)], 1, 0)
        sender.close(1, 0)

    def handle(name: str) -> None:
        if not shared.park(partial(handle, name)):
            made.ready.append(name)
            if name == "last":
                lose()

    lose()
    for name in ("a", "last", "b", "c"):
        handle(name)
    assert (made.ready, len(made.turns)) == (["first"], 1)
    made.turns.pop().take_turn()
    assert (made.ready, len(made.turns)) == (["first", "a", "last"], 1)
    made.run()
    assert made.ready == ["first", "a", "last", "b", "c"]


def test_listeners_with_another_resent_age_or_identity_have_a_table_of_their_own(world: Any) -> None:
    made = world(run_of(1))
    told = [(1.0, EventIdentity()), (1.0, EventIdentity("id")), (2.0, EventIdentity("id"))]
    tables = [SharedRepetitions.of(made.broker, made.clock, 100_000, *one) for one in told]
    assert len({id(each) for each in (made.shared, *tables)}) == 4
    again = [SharedRepetitions.of(made.broker, made.clock, 100_000, *one) for one in told]
    assert all(one is other for one, other in zip(tables, again, strict=True))


def test_search_continues_when_one_of_its_listeners_is_closed(world: Any) -> None:
    made = world(*map(run_of, range(1, MANY)))
    shared = made.open("a")
    made.open("b")
    shared.close("a")
    made.run()
    assert (made.ready, shared.table.suspects) == (["a", "b"], MANY - 1)


def test_last_listener_ends_the_search_and_the_next_one_begins_it_again(world: Any) -> None:
    made = world(*map(run_of, range(1, MANY)))
    shared = made.open("a")
    shared.close("a")
    assert (made.ready, shared.table.suspects) == (["a"], 0)
    assert made.open("b") is shared
    assert len(made.turns) == 2, "the turn of the first search does nothing"
    made.run()
    assert (made.ready, shared.table.suspects) == (["a", "b"], MANY - 1)


def test_table_of_a_server_is_freed_with_its_last_listener(world: Any) -> None:
    made = world(run_of(1))
    shared = made.open("a")
    shared.close("a")
    del shared
    assert not [key for key in lookback._SHARED if key[0] == id(made.broker)]


def test_search_that_fails_is_logged_and_later_turns_of_others_are_taken(world: Any, logged_errors: Any) -> None:
    made = world(*map(run_of, range(1, MANY)))
    made.broker.turns = Turns(made.clock)
    shared = made.open("a")
    made.log[-2 * STEPS] = object()  # type: ignore[call-overload]
    taken: list[str] = []
    made.broker.turns.ready(Work(taken))
    made.clock.pump([0.1] * 3)
    assert (made.ready, shared.ready, taken) == (["a"], True, ["work"])
    (event,) = logged_errors.take()
    said = (
        "lumberjack: events that are sent again may be stored twice, because searching the log failed; please report "
        "this bug"
    )
    assert formatEvent(event) == said
    assert event["log_failure"].check(AttributeError)


@pytest.mark.parametrize(
    "producer", ["10.0.0.7:5000", "web-1 (10.0.0.7:5000)", "a (b) (10.0.0.7:1)", "[::ffff:10.0.0.7]:5"]
)
def test_network_of_a_run_is_read_from_its_producer(producer: str) -> None:
    assert "10.0.0.7" in lookback._network(run_of(1, producer=producer))


def test_listener_over_a_broker_without_a_journal_is_ready_at_once() -> None:
    factory = LumberjackFactory(CallbackBroker(lambda run: None), LumberjackSettings(resent="drop"), Clock())
    factory.doStart()
    assert factory.shared is not None
    assert factory.shared.ready


def test_writer_waits_until_the_search_is_complete_and_is_kept_alive_afterwards(server: Any, window: Any) -> None:
    made = server(auto=False)
    for _ in range(STEPS + 1):
        made.broker.publish((Run.of("lumberjack", [b"x"], source="figg"),))
        made.journal.commit()
    made.factory.doStart()
    peer = made.connect()
    peer.send(window(3))
    assert (peer.acks, made.broker.sequencer.last("lumberjack")) == ([], STEPS + 1)
    made.settle()
    assert (peer.acks, made.broker.sequencer.last("lumberjack")) == ([], STEPS + 4)
    made.clock.pump([1.0] * 5)
    assert peer.acks == [(2, 0)]
    made.journal.commit()
    assert peer.acks == [(2, 0), (2, 3)]
