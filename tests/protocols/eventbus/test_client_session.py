"""The client's session: no event is missed, none is delivered twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.eventbus.client_session import (
    MOST_AHEAD,
    MOST_HELD,
    Confirmations,
    EventBusClientSession,
    EventBusOptions,
    Events,
    EventsExpired,
    Ignored,
    PubConfirmed,
    PubTimedOut,
    Restarted,
    ServerPort,
    Synchronised,
    SyncUnanswered,
)
from fyrehose.protocols.eventbus.frames import Dialect, Pub, pack_sequence
from tests.protocols.eventbus.world import World, make_world
from tests.protocols.eventbus.world import event as pub_of

TIME = b"2024-05-01T10:20:30.123Z"


def broadcast(seq: int, topic: bytes = b"/a/", uuid: bytes | None = None, data: bytes = b"x") -> list[bytes]:
    return [topic, pack_sequence(seq, Dialect.BINARY), b"me", TIME, b"u%d" % seq if uuid is None else uuid, data]


def sync(seq: int, topic: bytes = b"/a/") -> list[bytes]:
    return [b"SYNC", *broadcast(seq, topic)]


def end(seq: int, spec: bytes = b"") -> list[bytes]:
    return [b"SYNCEND", spec, pack_sequence(seq, Dialect.BINARY)]


def pub(uuid: bytes, topic: str = "/a/") -> Pub:
    return Pub(topic=topic, sequence=0, dialect=None, producer=b"me", timestamp=TIME, uuid=uuid, data=b"x")


def sequences(events: Sequence[Any]) -> list[int]:
    return [event.sequence for each in events if isinstance(each, Events) for event in each.events]


def session(**options: Any) -> EventBusClientSession:
    return EventBusClientSession(EventBusOptions(**options), Random(1), 0.0)


def requests(one: EventBusClientSession) -> list[tuple[ServerPort, int]]:
    """Return target and sequence of the SYNCSTARTs to send."""
    return [
        (to, int.from_bytes(bytes(frames[2]), "big"))
        for to, frames in one.data_to_send()
        if to is not ServerPort.COLLECTOR
    ]


def asking(**options: Any) -> EventBusClientSession:
    """Return a session that has sent its first SYNCSTART."""
    one = session(**options)
    one.connected(0)
    requests(one)
    return one


def ready(**options: Any) -> EventBusClientSession:
    """Return a session that has synchronized with an empty stream."""
    one = session(**options)
    one.connected(0)
    one.collector_connected(0)
    (request,) = requests(one)
    one.receive_syncs([end(request[1], b";".join(s.encode() for s in options.get("subtrees", ())))], 0)
    return one


class TestTheStart:
    def test_session_without_a_position_checks_the_server_and_delivers_new_events(self) -> None:
        one = session()
        one.connected(0)
        assert requests(one) == [(ServerPort.SNAPSHOT, 2**48 - 1)], "without a position: a check of the server"
        assert one.receive_broadcasts([broadcast(7)], 0) == []
        events = one.receive_syncs([end(2**48 - 1)], 0)
        assert sequences(events) == [7]
        assert one.position == 7

    def test_client_that_starts_with_new_events_accepts_the_first_event_after_a_long_pause(self) -> None:
        one = session()
        one.connected(0)
        one.receive_syncs([end(2**48 - 1)], 0)
        requests(one)
        assert sequences(one.receive_broadcasts([broadcast(7), broadcast(8)], 1)) == [7, 8]
        assert requests(one) == []

    def test_start_with_new_events_and_a_gap_before_the_first_answer(self) -> None:
        one = asking()
        assert one.receive_broadcasts([broadcast(7), broadcast(9)], 0) == []
        assert sequences(one.receive_syncs([end(2**48 - 1)], 0)) == [7]
        assert requests(one) == [(ServerPort.SNAPSHOT, 7)]
        assert one.position == 7, "the echoed sequence is no position"
        assert sequences(one.receive_syncs([sync(8), sync(9), end(9)], 0)) == [8, 9]
        assert sequences(one.receive_broadcasts([broadcast(10)], 0)) == [10]

    def test_outstanding_answer_is_not_mistaken_for_the_next_one(self) -> None:
        one = session(after=0)
        one.connected(0)
        assert requests(one) == [(ServerPort.SNAPSHOT, 0)]
        one.disconnected(1)
        one.connected(2)
        assert requests(one) == [(ServerPort.NEW_SNAPSHOT, 0)], "the first answer may still arrive"
        one.receive_syncs([end(0)], 3)
        one.disconnected(4)
        one.connected(5)
        assert requests(one) == [(ServerPort.SNAPSHOT, 0)]

    def test_start_after_a_sequence(self) -> None:
        one = session(after=5)
        one.connected(0)
        assert requests(one) == [(ServerPort.SNAPSHOT, 5)]
        assert sequences(one.receive_syncs([sync(5), sync(6), end(6)], 0)) == [6]

    def test_option_decimal_encodes_the_sequence_of_syncstart_as_digits(self) -> None:
        one = session(after=5, dialect=Dialect.DECIMAL)
        one.connected(0)
        assert one.data_to_send() == [(ServerPort.SNAPSHOT, [b"SYNCSTART", b"", b"5"])]
        frames = [b"SYNC", b"/a/", b"6", b"me", TIME, b"u", b"x"]
        assert sequences(one.receive_syncs([frames, [b"SYNCEND", b"", b"6"]], 0)) == [6]

    def test_invalid_subtrees_are_refused(self) -> None:
        with pytest.raises(LocalProtocolError):
            session(subtrees=("a",))


class TestGaps:
    def test_records_that_the_server_does_not_send_again_are_reported_as_lost(self) -> None:
        one = ready(after=0)
        one.receive_broadcasts([broadcast(1), broadcast(9)], 1)
        events = one.receive_syncs([sync(6), end(9)], 1)
        assert [event for event in events if isinstance(event, EventsExpired)] == [
            EventsExpired(first=2, last=5),
            EventsExpired(first=7, last=8),
        ]
        assert sequences(events) == [6, 9]
        one = ready(after=0)
        one.receive_broadcasts([broadcast(1), broadcast(9)], 1)
        events = one.receive_syncs([end(1)], 1)
        assert events[0] == EventsExpired(first=2, last=8), "the answer to a later request had none of them"
        assert sequences(events) == [9]

    @pytest.mark.parametrize(
        ("answer", "lost"),
        [([1], [EventsExpired(first=2, last=2)]), ([2], []), ([2, 3], []), ([2, 3, 4], [])],
    )
    def test_held_events_follow_the_end_of_the_snapshot(self, answer: list[int], lost: list[EventsExpired]) -> None:
        one = ready(after=0)
        assert sequences(one.receive_broadcasts([broadcast(1), broadcast(3), broadcast(4)], 1)) == [1]
        events = one.receive_syncs([*map(sync, answer), end(answer[-1])], 1)
        assert [event for event in events if isinstance(event, EventsExpired)] == lost
        assert sequences(events) == ([3, 4] if lost else [2, 3, 4])
        assert events[-1] == Synchronised(position=4)

    def test_gaps_with_subtrees_are_rechecked(self) -> None:
        one = ready(after=0, subtrees=("/a/",), recheck=60, quiet=1_000)
        assert sequences(one.receive_broadcasts([broadcast(3), broadcast(7), broadcast(9)], 1)) == [3, 7, 9]
        assert requests(one) == []
        assert one.tick(59) == []
        assert one.tick(80) == []
        assert requests(one) == [(ServerPort.SNAPSHOT, 0)]
        events = one.receive_syncs([sync(3), sync(5), sync(7), sync(9), sync(11), end(11, b"/a/")], 80)
        assert [(event.late, sequences([event])) for event in events if isinstance(event, Events)] == [
            (True, [5]),
            (False, [11]),
        ]
        assert one.position == 11
        assert one.next_due() >= 1_080, "there is nothing more to check"

    def test_events_from_a_server_that_lags_behind_its_cluster_are_not_delivered_twice(self) -> None:
        one = ready(after=0, subtrees=("/a/",))
        assert sequences(one.receive_broadcasts([broadcast(1), broadcast(3), broadcast(5)], 1)) == [1, 3, 5]
        one.disconnected(2)
        one.connected(2)
        assert requests(one)[-1] == (ServerPort.SNAPSHOT, 1)
        assert sequences(one.receive_syncs([end(1, b"/a/")], 2)) == []
        again = [broadcast(2, b"/b/"), *map(broadcast, range(3, 7))]
        assert sequences(one.receive_broadcasts(again, 3)) == [4, 6]

    @pytest.mark.parametrize(("seen", "recheck"), [([], 60), ([3], 0)])
    def test_complete_stream_or_recheck_0_sends_no_further_syncstart(self, seen: list[int], recheck: float) -> None:
        one = ready(after=0, subtrees=("/a/",), recheck=recheck, quiet=1_000)
        one.receive_broadcasts(list(map(broadcast, seen)), 0)
        assert one.next_due() >= 1_000

    def test_dropped_held_broadcasts_are_requested_again(self) -> None:
        one = asking(after=0)
        one.receive_broadcasts([broadcast(seq, data=bytes(1 << 20)) for seq in range(1, 40)], 0)
        assert one._held_bytes <= 16 << 20
        assert sequences(one.receive_syncs([end(0)], 0)) == list(range(1, 17))
        assert requests(one) == [(ServerPort.SNAPSHOT, 16)]
        one.receive_broadcasts([broadcast(seq, data=bytes(1 << 20)) for seq in range(40, 60)], 0)
        assert sequences(one.receive_syncs([*map(sync, range(17, 40)), end(39)], 0)) == list(range(17, 56))
        assert requests(one) == [(ServerPort.SNAPSHOT, 55)], "there is as much room as before"

    def test_broadcasts_beyond_the_limit_of_held_ones_are_requested_again(self) -> None:
        one = asking(after=0)
        one.receive_broadcasts([broadcast(seq) for seq in range(1, MOST_HELD + 3)], 0)
        assert sequences(one.receive_syncs([end(0)], 0)) == list(range(1, MOST_HELD + 1))
        assert requests(one) == [(ServerPort.SNAPSHOT, MOST_HELD)]
        last = [MOST_HELD + 1, MOST_HELD + 2]
        assert sequences(one.receive_syncs([*map(sync, last), end(last[-1])], 0)) == last
        assert requests(one) == [], "this time there was room"

    def test_many_events_with_subtrees_are_rechecked_sooner(self) -> None:
        one = ready(after=0, subtrees=("/a/",))
        others = [broadcast(seq) for seq in range(3, 2 * MOST_AHEAD + 3, 2)]
        one.receive_broadcasts(others[:-1], 1)
        assert requests(one) == []
        one.receive_broadcasts(others[-1:], 1)
        assert requests(one) == [(ServerPort.SNAPSHOT, 0)]


class TestTime:
    @pytest.mark.parametrize("state", ["disconnected", "asking", "quiet", "ahead", "publishing"])
    def test_timer_is_due_exactly_when_work_is_due(self, state: str) -> None:
        """next_due() is never in the past after a tick, so that the owner's timer neither loops nor is late."""
        subtrees = ("/a/",) if state == "ahead" else ()
        one = ready(after=0, subtrees=subtrees, recheck=5, confirm=5)
        if state == "disconnected":
            one.disconnected(2)
        elif state == "asking":
            one.resumed(2)
        elif state == "ahead":
            one.receive_broadcasts([broadcast(3)], 2)
        elif state == "publishing":
            one.publish(pub(b"1"), "handle", 2)
        one.data_to_send()
        due = one.next_due()
        assert state != "asking" or due == 12, "10 s after the request"
        assert (one.tick(due - 0.001), one.data_to_send()) == ([], [])
        one.tick(due)
        assert requests(one) == [
            (ServerPort.NEW_SNAPSHOT if state in ("disconnected", "asking") else ServerPort.SNAPSHOT, 0)
        ]
        assert one.next_due() > due

    def test_clients_spread_their_requests_over_time(self) -> None:
        dues = []
        for seed in range(200):
            one = EventBusClientSession(EventBusOptions(after=0, quiet=100), Random(seed), 0.0)
            one.connected(0)
            one.receive_syncs([end(0)], 0)
            dues.append(one.next_due())
        assert 100 <= min(dues) < 101
        assert 124 < max(dues) <= 125

    def test_broadcasts_do_not_count_as_an_answer_to_syncstart(self) -> None:
        one = session(after=0, answer=10)
        one.connected(0)
        one.receive_broadcasts([broadcast(1)], 5)
        assert one.tick(10) == [SyncUnanswered()]

    @pytest.mark.parametrize(
        ("options", "position"),
        [({"after": 0}, 1), ({"after": 0, "subtrees": ("/b/",)}, 0), ({"subscribe": False}, 2**48 - 1)],
        ids=["wanted", "of another topic", "only publishing"],
    )
    def test_silence_triggers_a_request(self, options: dict[str, Any], position: int) -> None:
        """Every broadcast shows that the connection is alive, also one that is not wanted."""
        one = ready(quiet=15, **options)
        assert one.next_due() >= 15
        one.receive_broadcasts([broadcast(1)], 10)
        assert one.tick(24) == []
        assert requests(one) == []
        one.tick(29)
        assert requests(one) == [(ServerPort.SNAPSHOT, position)]

    def test_unanswered_request_is_repeated_on_a_new_connection(self) -> None:
        one = asking(after=0, answer=10)
        one.receive_syncs([sync(1)], 5)
        assert one.tick(14) == []
        assert one.tick(15) == [SyncUnanswered()]
        assert requests(one) == [(ServerPort.NEW_SNAPSHOT, 1)]
        assert one.next_due() == 25

    def test_lost_connection_may_return_within_the_answer_timeout(self) -> None:
        one = ready(after=0, answer=10)
        one.disconnected(14)
        assert one.next_due() == 24
        assert one.tick(23) == []
        assert one.tick(24) == [SyncUnanswered()]


class TestAnotherJournal:
    def test_broadcast_that_repeats_the_last_number_means_another_journal(self) -> None:
        one = ready(after=0)
        events = one.receive_broadcasts([broadcast(1), broadcast(2), broadcast(2)], 1)
        assert events == [Events(events=events[0].events), Restarted(end=2)]
        assert sequences(events) == [1, 2]
        assert requests(one) == [(ServerPort.NEW_SNAPSHOT, 0)]

    @pytest.mark.parametrize("subtrees", [(), ("/a/",)])
    def test_events_of_the_old_journal_are_forgotten_after_a_restart(self, subtrees: tuple[str, ...]) -> None:
        one = ready(after=0, subtrees=subtrees)
        one.receive_broadcasts([broadcast(1), broadcast(3), broadcast(7)], 1)
        assert one.receive_broadcasts([broadcast(2)], 2) == [Restarted(end=2)]
        answer = [sync(1), sync(2), sync(3), sync(4), end(4, b";".join(map(str.encode, subtrees)))]
        events = one.receive_syncs(answer, 3)
        assert sequences(events) == [1, 2, 3, 4]
        assert not any(event.late for event in events if isinstance(event, Events))
        assert events[-1] == Synchronised(position=4)

    def test_decreasing_sequence_is_a_restart_without_prior_broadcasts(self) -> None:
        one = session(after=0)
        one.connected(0)
        one.receive_syncs([sync(1), sync(2), end(2)], 0)
        one.tick(100)
        one.receive_syncs([end(2)], 100)
        requests(one)
        assert one.receive_broadcasts([broadcast(1)], 101) != [Restarted(end=1)], (
            "the broadcast may have waited in the socket"
        )
        one = asking(after=5)
        one.receive_syncs([end(5)], 0)
        assert one.receive_broadcasts([broadcast(2)], 1) == [Restarted(end=2)]

    def test_answer_without_a_position_is_no_restart(self) -> None:
        one = session()
        one.connected(0)
        assert requests(one) == [(ServerPort.SNAPSHOT, (1 << 48) - 1)]
        assert Restarted(end=3) not in one.receive_syncs([end(3)], 0)


@attrs.define(eq=False)
class Unconfirmed:
    """A published event, in the model of :class:`Confirmations`."""

    frames: list[Any]
    sent: float
    tries: int = 1
    lost: bool = False


class TestPublishing:
    def test_events_are_sent_again_until_they_are_confirmed_or_have_no_retry_left(self) -> None:
        """Compare with a list; a lost connection gives back all retries, except of events that were not sent by it."""
        seen: Counter[str] = Counter()
        for seed in range(300):
            random, now, retries = Random(seed), 0.0, seed % 3
            pubs, model = Confirmations(5.0, retries), list[Unconfirmed]()
            for step in range(30):
                now += random.choice((0.0, 1.0, 2.5, 5.0))
                what = random.choice(("add", "add", "received", "resend", "resend", "lost"))
                if what == "add":
                    model.append(Unconfirmed([b"%d" % step], now))
                    pubs.add(b"%d" % step, model[-1].frames, step, now)
                    with pytest.raises(LocalProtocolError, match="use another UUID"):
                        pubs.add(b"%d" % step, [b""], "again", now)
                elif what == "lost":
                    sent = random.randint(0, len(model))
                    pubs.connection_lost({id(each.frames) for each in model[sent:]})
                    for each in model[:sent]:
                        each.tries, each.lost = 0, True
                elif what == "received":
                    one = random.choice([*model, Unconfirmed([b"unknown"], 0.0)])
                    expected = PubConfirmed(handle=int(one.frames[0]), sequence=7) if one in model else None
                    assert pubs.received(bytes(one.frames[0]), 7) == expected
                    model = [each for each in model if each is not one]
                else:
                    due = [each for each in model if each.lost or each.sent + 5.0 <= now]
                    failed = [each for each in due if each.tries > retries]
                    again = [each for each in due if each not in failed]
                    outcome = [PubTimedOut(handle=int(each.frames[0])) for each in failed]
                    assert pubs.resend(now) == ([each.frames for each in again], outcome)
                    for each in again:
                        each.sent, each.lost, each.tries = now, False, each.tries + 1
                    model = [*(each for each in model if each not in due), *again]
                    seen.update({"again": len(again), "failed": len(failed)})
                assert len(pubs) == len(model)
                dues = [-inf if each.lost else each.sent + 5.0 for each in model]
                assert pubs.next_due() == min(dues, default=inf)
            assert pubs.abandon() == [PubTimedOut(handle=int(each.frames[0])) for each in model]
            assert (len(pubs), pubs.next_due()) == (0, inf)
        assert min(seen["again"], seen["failed"]), seen

    def test_retries_are_not_spent_while_collector_is_not_connected(self) -> None:
        one = ready(subscribe=False, confirm=5, retries=1, quiet=1_000)
        one.publish(pub(b"1"), "handle", 0)
        first = one.data_to_send()
        one.collector_lost(set())
        assert one.tick(100) == []
        assert one.data_to_send() == []
        one.collector_connected(100)
        assert one.data_to_send() == first, "it is sent again at once"
        assert one.tick(105) == []
        assert one.data_to_send() == first, "with all its retries"
        assert one.tick(110) == [PubTimedOut(handle="handle")]

    def test_subscriber_synchronizes_before_it_sends_again_on_another_connection(self) -> None:
        one = ready(after=0)
        one.collector_connected(0)
        assert requests(one) == [], "no event has to be sent again"
        one.publish(pub(b"stored"), "stored", 0)
        one.publish(pub(b"other"), "other", 0)
        stored, other = one.data_to_send()
        one.publish(pub(b"unsent"), "unsent", 0)
        (unsent,) = one.data_to_send()
        one.collector_lost({id(unsent[1])})
        one.collector_connected(1)
        assert requests(one) == [(ServerPort.SNAPSHOT, 0)]
        events = one.receive_syncs([[b"SYNC", *broadcast(1, uuid=b"stored")], end(1)], 2)
        assert PubConfirmed(handle="stored", sequence=1) in events
        assert one.data_to_send() == [other], "and not the one that was never sent"
        assert stored != other


def test_options_have_the_documented_defaults() -> None:
    options = EventBusOptions()
    assert (options.subscribe, options.after, options.window, options.retries) == (True, None, 1_000, 5)
    assert (options.confirm, options.quiet, options.recheck, options.answer) == (5.0, 15.0, 60.0, 10.0)


def test_invalid_messages_are_ignored() -> None:
    one = ready(after=0)
    for frames in ([], [b"x"], [b"\xff", b"1", b"", b"", b"", b""], broadcast(0)):
        (event,) = one.receive_broadcasts([frames], 1)
        assert isinstance(event, Ignored)
        (event,) = one.receive_syncs([frames], 1)
        assert isinstance(event, Ignored)
    assert isinstance(one.receive_syncs([[b"SYNCEND", b""]], 1)[0], Ignored)
    assert one.receive_syncs([sync(1), end(1)], 1) == [], "answers without a request"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 30)),
        st.tuples(st.just("lose"), st.integers(1, 10)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 20.0])),
        st.tuples(st.just("drop"), st.just(0)),
        st.tuples(st.just("stall"), st.integers(0, 20)),
        st.tuples(st.just("forget"), st.integers(1, 30)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("send"), st.integers(1, 3)),
    ),
    max_size=12,
)


class Link:
    """A client session and a server with a network between them that loses broadcasts.

    :ivar got: the events of the present journal, with those in ``late`` and the numbers in ``expired``
    """

    def __init__(self, options: EventBusOptions) -> None:
        self.session = EventBusClientSession(options, Random(2), 0.0)
        self.lose = 0
        self.got: list[int] = []
        self.late: list[int] = []
        self.expired: list[int] = []
        self.confirmed: list[Any] = []
        self.restarted = self.forgotten = 0
        self.stalled = False
        self.connect(make_world())

    def connect(self, world: World) -> None:
        self.world, self.clock = world, world.clock
        self.session.connected(self.clock.seconds())
        self.session.collector_connected(self.clock.seconds())
        self.collector, self.publisher = world.collector(), world.subscriber(b"")
        self.others = world.collector()
        self.snapshot = world.snapshot()

    def restart(self) -> None:
        """Let another server take the place of this one, with an empty journal; the client notices if it had events."""
        self.lose, self.stalled = 0, False
        self.wait(80)  # an event that still waits for a gap to close would be delivered before the client notices
        if self.got and not self.session.position:
            return  # nothing tells the client: no answer has had an event of its subtrees
        had, before, world, self.forgotten = self.session.position, self.restarted, make_world(), 0
        world.clock.advance(self.clock.seconds())
        self.session.disconnected(self.clock.seconds())
        self.session.collector_lost(set())
        self.connect(world)
        self.carry()
        assert self.restarted - before == bool(had)

    def reconnect(self) -> None:
        """Ask by another connection, so that no answer to an earlier request arrives."""
        self.snapshot.leave()
        self.snapshot = self.world.snapshot()

    def drop(self) -> None:
        """Lose the snapshot connection and make another."""
        self.session.disconnected(self.clock.seconds())
        self.reconnect()
        self.session.connected(self.clock.seconds())

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Events):
                (self.late if event.late else self.got).extend(sequences([event]))
            elif isinstance(event, PubConfirmed):
                self.confirmed.append(event.handle)
            elif isinstance(event, Restarted):
                self.restarted += 1
                self.got, self.late, self.expired = [], [], []
            elif isinstance(event, EventsExpired):
                assert event.first > max([0, *self.got, *self.expired]), "lost events are reported in their place"
                self.expired += range(event.first, event.last + 1)
            assert not isinstance(event, Ignored | PubTimedOut)

    def carry(self, turns: int = 10) -> None:
        """Exchange messages until both are idle, but at most *turns* times, so that some stay under way."""
        for _ in range(turns):
            if not self._carry_once():
                break

    def _carry_once(self) -> bool:
        """Exchange the messages that are ready, and return whether there were any."""
        for peer in (self.collector, self.others):
            peer.hear()  # which answers the server's PING
        if self.snapshot.transport.disconnecting:
            self.drop()
        said = self.session.data_to_send()
        for to, frames in said:
            message = [bytes(frame) for frame in frames]
            if to is ServerPort.NEW_SNAPSHOT:
                self.reconnect()
            (self.collector if to is ServerPort.COLLECTOR else self.snapshot).say(message)
        broadcasts = self.publisher.hear()
        lost, self.lose = broadcasts[: self.lose], max(0, self.lose - len(broadcasts))
        mine = [] if self.stalled else self.snapshot.hear()
        now = self.clock.seconds()
        self.handle(self.session.receive_broadcasts(broadcasts[len(lost) :], now))
        self.handle(self.session.receive_syncs(mine, now))
        return bool(said or broadcasts or mine)

    def wait(self, seconds: float) -> None:
        for _ in range(max(1, int(seconds / 0.5))):
            self.clock.advance(min(seconds, 0.5))
            self.handle(self.session.tick(self.clock.seconds()))
            self.carry(3)


@settings(max_examples=100, deadline=None)
@given(subtrees=st.sampled_from([(), ("/a/",)]), steps=STEPS)
def test_every_event_is_delivered_once_in_order_over_a_lossy_network(
    subtrees: tuple[str, ...], steps: list[tuple[str, Any]]
) -> None:
    link = Link(EventBusOptions(after=0, subtrees=subtrees, retries=1_000))
    link.carry()
    n, sent = 0, 0
    for what, value in steps:
        if what == "publish":
            for _ in range(value):
                n += 1
                link.others.say(pub_of(n, topic=b"/a/" if n % 3 else b"/b/"))
        elif what == "lose":
            link.lose += value
        elif what == "wait":
            link.wait(value)
        elif what == "drop":
            link.drop()
        elif what == "stall":
            link.stalled = bool(value)
        elif what == "forget":
            oldest, end = link.world.broker.bounds("eventbus")
            if end > oldest:  # no answer names events that are deleted unless one is left
                link.forgotten = min(oldest + value - 1, end - 1)
                link.world.journal.forget("eventbus", link.forgotten + 1)
        elif what == "restart":
            link.restart()
        elif what == "send":
            for _ in range(value):
                sent += 1
                link.session.publish(pub(b"own-%d" % sent), sent, link.clock.seconds())
        link.carry(2)
    link.lose, link.stalled = 0, False
    link.wait(130)
    kept = link.world.broker.read("eventbus", link.forgotten + 1, 1 << 30)
    wanted = {
        seq for run in kept for seq in range(run.first_seq, run.last_seq + 1) if not subtrees or run.topic == "/a/"
    }
    delivered = link.got + link.late
    assert len(delivered) == len({*delivered}), "each event is delivered once"
    assert {seq for seq in delivered if seq > link.forgotten} == wanted
    assert link.got == sorted(link.got), "events that are not late are in order"
    assert not link.late or subtrees
    if not subtrees:
        assert sorted([*delivered, *link.expired]) == list(range(1, link.world.broker.bounds("eventbus")[1] + 1))
    assert sorted(link.confirmed) == list(range(1, sent + 1))
