"""The links of a listener over restarts, and their checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import fail

from fyrehose.errors import JournalCorrupt, OutcomeUnknown, ReadOnly
from fyrehose.identity import network_of
from fyrehose.interfaces import JournalState
from fyrehose.net.turns import STEPS, SteppedWork
from fyrehose.protocols.relink import registry as module
from fyrehose.protocols.relink.frames import Op
from fyrehose.protocols.relink.link import CHANNEL_MEMORY
from fyrehose.protocols.relink.linklog import SOURCE, RecordKind, name_of, pack

STREAM = ".relink/x"


def test_epoch_is_kept_with_the_links(make_server: Any) -> None:
    server = make_server()
    epoch = server.registry.epoch
    assert epoch == server.now
    server.now += 5_000_000
    server.restart()
    assert server.registry.epoch == epoch


def test_lost_links_advance_the_epoch_even_if_the_clock_goes_back(make_server: Any, logged_errors: Any) -> None:
    server = make_server()
    peer = server.used(b"x")
    epoch = server.registry.epoch
    server.broker.publish((), [module.Run.of(STREAM, [pack(RecordKind.ENTRY, epoch, 1, b"damaged")], source=SOURCE)])
    server.now = 7
    server.restart()
    assert server.registry.epoch == epoch + 1
    again = peer.reconnect()
    assert not again.events[0].resumed
    assert again.events[0].lost is peer.link
    assert logged_errors.take() == []


def test_when_one_link_is_damaged_all_are_lost_and_take_no_room(make_server: Any) -> None:
    """Lost links count neither toward the limit of links nor toward the memory of links."""
    server = make_server(max_links=2, link_memory=2 * CHANNEL_MEMORY)
    for peer in [server.used(b"x") for _ in range(2)]:
        peer.leave()
    body = list(server.registry.entries)[1] + b"\xff"
    server.broker.publish(
        (), [module.Run.of(STREAM, [pack(RecordKind.DELTA, server.registry.epoch, 1, body)], source=SOURCE)]
    )
    server.restart()
    peers = [server.used(b"y") for _ in range(2)]
    refused = server.linked()
    assert refused.closed
    assert [peer.closed for peer in peers] == [False, False]
    assert (server.count("links-displaced"), server.count("links-too-large")) == (0, 0)


def test_a_stream_of_links_that_cannot_be_read_loses_the_links(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    peer = server.used(b"x")
    peer.leave()

    def damaged(*_: Any) -> Any:
        raise JournalCorrupt("a bad disk")

    with monkeypatch.context() as patch:
        patch.setattr(type(server.journal), "read", damaged)
        server.now += 1
        server.restart()
    assert server.registry.epoch == server.now
    again = server.linked(old=peer.link)
    assert not again.events[0].resumed
    assert again.link.epoch == server.now


def test_a_clock_of_the_reactor_that_is_ten_years_off_discards_no_link(make_server: Any) -> None:
    server = make_server(retention="40")
    server.used(b"x").leave()
    server.off = 10 * 365 * 86_400.0
    server.clock.advance(server.off)
    server.clock.pump([1.0] * 39)
    assert len(server.registry.entries) == 1
    server.clock.advance(1)
    assert not server.registry.entries


def test_the_end_of_a_link_is_written_once(make_server: Any) -> None:
    server = make_server()
    server.used(b"x").leave()
    (entry,) = server.registry.entries.values()
    before = server.journal.ends()[STREAM]
    told: list[None] = []
    for _ in range(2):
        server.registry.forget(entry, lambda: told.append(None))
    assert server.journal.ends()[STREAM] == before + 1
    assert len(told) == 2


def test_too_many_undecided_messages_fail_the_oldest_transaction_of_the_network_with_the_most(
    make_server: Any,
) -> None:
    """The network that uses most memory loses its oldest transaction, and the next one, as long as it has the most."""
    server = make_server(link_memory=1_000_000)
    sizes = [("10.0.0.1", size) for size in (5_000, 105_000, 110_000)]
    sizes += [(f"10.0.1.{host}", 199_000) for host in range(4)]
    peers = [server.used(bytes(size), host=host, connector_transactions=True) for host, size in sizes]
    for peer in peers:
        peer.link.decide(0, Op.COMMIT)
        peer.talk()
    assert list(map(len, server.payloads())) == [110_000, *[199_000] * 4]
    assert not any(peer.closed for peer in peers)


@pytest.mark.parametrize("restarted", [False, True])
def test_too_many_channels_discard_the_oldest_link_of_the_network_with_the_most(
    make_server: Any, restarted: bool
) -> None:
    server = make_server(link_memory=100 * CHANNEL_MEMORY, retention="60")

    def use(peer: Any, *channels: int) -> Any:
        for channel in channels:
            peer.link.send((channel,), (b"x",))
        peer.talk()
        return peer

    sizes = [("10.0.0.1", 40), ("10.0.0.1", 10), ("10.0.0.2", 30), ("10.0.0.3", 15)]
    peers = [use(server.linked(host=host), *range(channels)) for host, channels in sizes]
    peers[0].leave()
    if restarted:
        for peer in peers[1:]:
            peer.leave()
        server.restart()
        peers[1:] = [server.linked(old=peer.link, host=peer.transport.getPeer().host) for peer in peers[1:]]
    last = use(server.linked(host="10.0.0.4"), *range(5))
    assert server.count("links-too-large") == 0, "that is as much as there may be"
    use(last, 5)
    assert server.count("links-too-large") == 1
    assert [one.closed for one in peers[1:]] == [False, False, False]
    assert not server.linked(old=peers[0].link, host="10.0.0.1").events[0].resumed
    assert server.count("links-too-large") == 1


@pytest.mark.parametrize("seed", range(8))
def test_memory_of_links_is_what_the_links_of_each_network_have(make_server: Any, seed: int) -> None:
    """Links come, publish, decide, leave, return from another network, close channels, and expire."""
    dice = Random(seed)
    server = make_server(link_memory=200_000, retention="5", max_links=12)
    here: list[Any] = []
    away: list[Any] = []
    hosts = ("10.0.0.1", "10.0.0.2", "192.0.2.7")

    def step() -> None:
        chance = dice.random()
        if here and chance < 0.5:
            peer = dice.choice(here)
            channel = dice.randrange(3)
            if dice.random() < 0.7:
                peer.link.send((channel,), (bytes(dice.choice((0, 10, 3_000, 40_000))),))
            elif channel in peer.link.sending and peer.link.sending[channel].undecided:
                peer.link.decide(channel, dice.choice((Op.COMMIT, Op.ROLLBACK)))
            peer.talk()
        elif here and chance < 0.65:
            here[0].leave()
            away.append(here.pop(0))
        elif away and chance < 0.8:
            here.append(server.linked(old=away.pop().link, host=dice.choice(hosts)))
        elif chance < 0.9:
            here.append(server.linked(connector_transactions=True, host=dice.choice(hosts)))
        else:
            server.clock.pump([1.0] * dice.choice((1, 6)))
        here[:] = [peer for peer in here if not peer.closed]

    for _ in range(150):
        step()
        memory, entries = server.registry.memory, server.registry.entries.values()
        expected: dict[str, int] = {}
        for entry in entries:
            network = network_of(entry.host)
            channels = CHANNEL_MEMORY * len(entry.link.receiving)
            expected[f"#{network}"] = expected.get(f"#{network}", 0) + channels
            expected[network] = expected.get(network, 0) + entry.undecided.size
            assert entry.channels.size == channels
            assert abs(entry.undecided.size - entry.link.undecided) < module.GRAIN
        found = {network: memory.used_by(network) for network in expected}
        assert found == expected
        assert memory.used == sum(expected.values()), "memory of links that are gone, or moved, is counted"
    for peer in here:
        peer.leave()
    server.clock.pump([1.0] * 6)
    assert (len(server.registry.entries), server.registry.memory.used) == (0, 0)


@attrs.define(eq=False)
class Known:
    """One link, as a registry should know it."""

    peer: Any
    host: str
    used: bool = False
    here: bool = True  #: whether it has a connection
    left: int = 0  #: which of the links without a connection came before
    expires: float = 0.0
    heard: float = 0.0  #: when the server last received something on its connection


class LinksHistory:
    """Makes, uses, leaves and resumes links at random, lets time pass, and restarts the server.

    A link that was never used is kept for a thirtieth of the option ``retention``.
    """

    def __init__(self, make_server: Any, seed: int) -> None:
        self.dice = Random(seed)
        self.server = make_server(max_links=6, retention="60")
        self.known: list[Known] = []
        self.gone: list[Known] = []
        self.order = 0

    def step(self) -> None:
        names = ("make", "make", "make", "use", "leave", "leave", "leave", "resume", "resume", "wait", "come_back")
        getattr(self, self.dice.choice((*names, "restart") if self.dice.random() < 0.3 else names))()
        names_now = {name_of(one.peer.link.epoch, one.peer.link.id) for one in self.known}
        assert set(self.server.registry.entries) == names_now

    def among(self, here: bool) -> list[Known]:
        return [one for one in self.known if one.here is here]

    def away(self, one: Known) -> None:
        self.order += 1
        one.here, one.left = False, self.order
        one.expires = self.server.clock.seconds() + (60 if one.used else 2)

    def make(self) -> None:
        host = self.dice.choice(("10.0.0.1", "10.0.0.2", "192.0.2.7"))
        before, idle = set(self.server.registry.entries), self.among(here=False)
        peer = self.server.linked(host=host)
        missing = before - set(self.server.registry.entries)
        if len(self.known) < 6:
            assert not missing, "there is room"
        elif not idle:
            assert peer.closed, "every link has a connection"
            assert self.server.count("too-many-links")
            return
        else:
            unused = [one for one in idle if not one.used] or idle
            (displaced,) = [one for one in unused if name_of(one.peer.link.epoch, one.peer.link.id) in missing]
            counts = Counter(one.host for one in unused)
            assert counts[displaced.host] == max(counts.values()), "the network that has the most loses one"
            assert all(displaced.left <= one.left for one in unused if one.host == displaced.host), "its oldest one"
            assert self.server.count("links-displaced")
            self.forget(displaced)
        self.known.append(Known(peer, host, heard=self.server.clock.seconds()))

    def forget(self, one: Known) -> None:
        self.known.remove(one)
        self.gone.append(one)

    def use(self) -> None:
        for one in self.among(here=True)[:1]:
            one.peer.publish(b"x")
            one.used, one.heard = True, self.server.clock.seconds()

    def leave(self) -> None:
        for one in self.dice.sample(self.among(here=True), k=min(1, len(self.among(here=True)))):
            one.peer.leave()
            self.away(one)

    def resume(self) -> None:
        for one in self.dice.sample(self.among(here=False), k=min(1, len(self.among(here=False)))):
            one.host, one.here = self.dice.choice(("10.0.0.1", "192.0.2.7")), True
            one.peer = self.server.linked(old=one.peer.link, host=one.host)
            assert one.peer.events[0].resumed
            one.used, one.heard = True, self.server.clock.seconds()  # resume is a packet

    def come_back(self) -> None:
        """Ask for a link that is lost: the peer gets a new one, if there is room without displacing another."""
        if self.gone and len(self.known) < 6:
            lost = self.gone.pop()
            again = self.server.linked(old=lost.peer.link, host=lost.host)
            assert not again.events[0].resumed
            self.known.append(Known(again, lost.host, heard=self.server.clock.seconds()))

    def wait(self) -> None:
        for _ in range(self.dice.choice((1, 1, 2, 29, 30))):
            self.server.clock.advance(1)
            for one in self.among(here=True):
                one.peer.talk()
                if self.server.clock.seconds() - one.heard >= 15:  # it was asked by a ping, and its answer is a packet
                    one.used, one.heard = True, self.server.clock.seconds()
        for one in self.among(here=False):
            if one.expires <= self.server.clock.seconds():
                assert self.server.count("links-expired")
                self.forget(one)

    def restart(self) -> None:
        for one in self.among(here=True):
            one.peer.leave()
            self.away(one)
        self.server.restart()
        for at, one in enumerate(self.known):
            one.host, one.used = "", True  # they count for no network, and have been used as far as is known
            one.left, one.expires = self.order + at, self.server.clock.seconds() + 60


@pytest.mark.parametrize("seed", range(12))
def test_links_are_kept_and_displaced_as_a_model_says(make_server: Any, seed: int) -> None:
    history = LinksHistory(make_server, seed)
    for _ in range(120):
        history.step()


def test_no_checkpoint_is_written_before_one_is_due(make_server: Any) -> None:
    server = make_server(retention="1000")
    peer = server.used(*(b"%d" % number for number in range(10)))
    for _ in range(10):
        peer.publish(b"x")
    peer.leave()
    last = server.journal.bounds(STREAM)[1]
    server.clock.pump([1.0] * 30)
    assert server.journal.bounds(STREAM) == (1, last)


def test_one_checkpoint_is_written_at_a_time(make_server: Any) -> None:
    server = make_server(auto=False)
    server.broker.publish((), [module.Run.of(STREAM, [b"of somebody else"], source="test")])
    server.journal.commit()
    server.journal.forget(STREAM, 2)
    server.clock.pump([1.0] * 5)
    server.journal.commit()
    assert server.journal.bounds(STREAM) == (2, 4)
    server.journal.commit()
    server.journal.commit()
    assert server.journal.bounds(STREAM) == (2, 5)


def test_closed_registry_stops_its_periodic_checks(make_server: Any) -> None:
    server = make_server()
    assert server.clock.getDelayedCalls()
    server.registry.close()
    assert not server.clock.getDelayedCalls()
    server.registry.close()


def test_a_listener_that_was_stopped_reads_its_links_when_it_is_started_again(make_server: Any) -> None:
    server = make_server()
    peer = server.used(b"x")
    peer.leave()
    server.factory.stopFactory()
    server.registry.entries.clear()
    server.factory.startFactory()
    assert server.linked(old=peer.link).events[0].resumed
    assert server.clock.getDelayedCalls(), "and looks for those that have expired"


def test_only_a_link_that_could_be_of_this_server_is_counted_as_unknown(make_server: Any) -> None:
    server = make_server()
    peer = server.used(b"x")
    peer.leave()
    peer.link.epoch += 1
    assert not server.linked(old=peer.link).events[0].resumed
    assert server.count("links-unknown") == 0, "its links are lost, so it is not guessed"
    guessed = server.linked()
    guessed.leave()
    guessed.link.id += 100
    assert not server.linked(old=guessed.link).events[0].resumed
    assert server.count("links-unknown") == 1


def test_a_bug_in_publishing_is_not_taken_for_a_refusal(
    make_server: Any, logged_errors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    server.used(b"x").leave()
    (entry,) = server.registry.entries.values()
    monkeypatch.setattr(type(server.broker), "publish", lambda *_: fail(ValueError("a bug")))
    server.registry.discard(entry)
    assert [error["log_failure"].type for error in logged_errors.take()] == [ValueError]


def test_opening_fails_if_the_links_cannot_be_written(make_server: Any) -> None:
    server = make_server()
    server.registry.close()
    server.journal.enter(JournalState.READ_ONLY, "full")
    registry = module.Registry(server.broker, server.clock, server.settings, STREAM, server.bits)
    failed: list[Any] = []
    registry.open().addErrback(failed.append)
    assert failed[0].check(ReadOnly)
    assert not server.clock.getDelayedCalls()


def links_of_another_server(server: Any, count: int) -> Any:
    """Return a registry, not opened, whose stream has *count* links."""
    for _ in range(count):
        server.used(b"x").leave()
    server.registry.close()
    return module.Registry(server.broker, server.clock, server.settings, STREAM, server.bits)


def test_links_are_read_in_turns_when_a_server_takes_over(make_server: Any) -> None:
    server, count = make_server(), 5 * STEPS
    registry = links_of_another_server(server, count)
    opened, found = list[object](), [0]

    def other_work() -> Iterator[None]:
        while not opened:
            found.append(len(registry.entries))
            for _ in range(STEPS):
                yield

    SteppedWork(server.broker.turns, other_work()).begin()
    registry.open().addBoth(opened.append)
    server.clock.advance(0)
    assert len(registry.entries) == count
    assert max(after - before for before, after in pairwise(found)) <= STEPS
    registry.close()


def test_a_link_is_kept_whose_peer_comes_back_while_those_that_expired_before_it_are_discarded(
    make_server: Any,
) -> None:
    server, count = make_server(retention="60"), 2 * STEPS
    peers = [server.used(b"x") for _ in range(count)]
    for each in peers:
        each.leave()
    back = []

    def come_back() -> Iterator[None]:
        while len(server.registry.entries) == count:
            yield
        back.append(server.linked(old=peers[-1].link))

    server.clock.advance(59)
    SteppedWork(server.broker.turns, come_back()).begin()
    server.clock.pump([1.0] * 6)
    assert len(server.registry.entries) == 1
    assert back[0].events[0].resumed
    assert back[0].publish(b"y")
    assert server.payloads()[-1] == b"y"


def test_a_listener_that_is_closed_while_it_reads_its_links_reads_no_more(make_server: Any) -> None:
    server = make_server()
    registry = links_of_another_server(server, STEPS)
    failed: list[Any] = []
    registry.open().addErrback(failed.append)
    waiting = registry.when_open().addErrback(failed.append)
    registry.close()
    assert [each.type for each in failed] == [OutcomeUnknown] * 2
    assert waiting.called
    server.clock.pump([0.0] * 5)
    assert not registry.entries


def test_links_are_counted_once_when_opening_is_repeated(make_server: Any) -> None:
    server = make_server()
    server.used(b"x").leave()
    server.registry.close()
    server.journal.enter(JournalState.READ_ONLY, "full")
    registry = module.Registry(server.broker, server.clock, server.settings, STREAM, server.bits)
    registry.open().addErrback(lambda _: None)
    weight = registry.memory.used
    assert weight > 0
    server.journal.enter(JournalState.WRITABLE, "there is room again")
    registry.open()
    assert (len(registry.entries), registry.memory.used) == (1, weight)
    registry.close()


def test_checkpoints_bound_the_stream(make_server: Any) -> None:
    server = make_server()
    server.registry.log.checkpoint_bytes = 200
    peer = server.used()
    for number in range(40):
        peer.publish(b"%d" % number)
        server.clock.advance(1)
    last = server.journal.bounds(STREAM)[1]
    assert server.registry.log.checkpoint > last - 20
    server.journal.forget(STREAM, server.registry.log.checkpoint)
    peer.leave()
    server.restart()
    assert server.linked(old=peer.link).events[0].resumed
    assert len(server.payloads()) == 40


def test_checkpoint_deleted_by_retention_is_rewritten(make_server: Any) -> None:
    server = make_server()
    peer = server.used(b"x")
    server.journal.forget(STREAM, 2)
    assert server.registry.log.checkpoint == 1
    server.clock.advance(1)
    peer.leave()
    server.restart()
    assert server.linked(old=peer.link).events[0].resumed


def test_refused_checkpoint_is_retried(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT", 10)
    server = make_server()
    server.used(b"x", b"y", b"z")
    server.restart()
    server.registry.log._bytes_since = 1_000_000
    server.journal.enter(JournalState.READ_ONLY, "full")
    server.clock.advance(1)
    before = server.registry.log.checkpoint
    server.journal.enter(JournalState.WRITABLE, "room")
    server.clock.advance(1)
    assert server.registry.log.checkpoint > before


def test_refused_write_is_rewound_before_the_next_checkpoint(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    (entry,) = server.registry.entries.values()
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer.publish(b"x")
    assert entry.link.receiving[0].done == -1
    assert entry.writes == 0


def test_link_ids_are_unique_and_within_range(make_server: Any) -> None:
    server = make_server()
    peers = [server.linked(host=f"10.0.0.{i}") for i in range(5)]
    assert sorted(peer.link.id for peer in peers) == [2, 3, 4, 5, 6]
    bits = iter([1, 1])
    server.registry.randbits = lambda count: next(bits, (1 << count) - 1)
    assert server.linked().link.id == 1
