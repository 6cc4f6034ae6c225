"""The client and the server on a network in memory, without and with losses."""

from __future__ import annotations

import socket
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock

from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.protocols.backbone.client import (
    BACKBONE_OPTIONS,
    MOST_UNSENT,
    BackboneClient,
    BackboneUnreachable,
    PushUnconfirmed,
)
from fyrehose.protocols.backbone.frames import MAX_DATA, Deliver, Forward, Push
from fyrehose.records import Run

Make = Callable[..., Any]


class Subscriber:
    """Records what a client delivers; keywords are passed to the client."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.gaps: list[tuple[int, int]] = []
        self.alive: list[bool] = []

    def take(self, run: Run) -> None:
        self.records += [(run.first_seq + i, bytes(payload)) for i, payload in enumerate(run.payloads())]

    def lose(self, first: int, last: int) -> None:
        self.gaps.append((first, last))

    @property
    def callbacks(self) -> dict[str, Any]:
        return {"take": self.take, "lost": self.lose, "on_state": self.alive.append}


def connected(world: Any, client: BackboneClient) -> BackboneClient:
    done = client.connect()
    world.run(0.05)
    assert done.called
    done.result  # noqa: B018 - raises if there is none
    return client


def outcome(deferred: Deferred[Any]) -> Any:
    """Return the result or the exception of *deferred*; None if it has not fired."""
    found: list[Any] = [None]
    deferred.addCallbacks(lambda value: found.__setitem__(0, value), lambda why: found.__setitem__(0, why.value))
    return found[0]


def test_publish_and_subscribe(make_world: Make) -> None:
    world, subscriber = make_world(), Subscriber()
    client = connected(world, world.client(1, **subscriber.callbacks))
    published = [client.publish(None, b"%d" % i) for i in range(200)]
    world.run(0.1)
    assert [outcome(each) for each in published] == list(range(1, 201))
    assert subscriber.records == [(i + 1, b"%d" % i) for i in range(200)]
    assert subscriber.alive == [True]
    assert (client.position, client.address) == (200, ("10.0.1.1", 5000))
    client.close()
    assert outcome(client.close()) is None
    world.run(1)
    assert world.network.ports.keys() == {world.address}


def test_messages_of_one_reactor_iteration_share_a_batch_of_datagrams(make_world: Make) -> None:
    world = make_world()
    client = connected(world, world.client(1))
    port = world.network.ports[client.address]
    port.counts.clear()
    for _ in range(64):
        client.publish(None, b"same size")
    world.run(0.05)
    assert port.counts == [64]


def test_catch_up_from_the_oldest_record(make_world: Make) -> None:
    world, subscriber = make_world(), Subscriber()
    for i in range(25):
        world.send(*[Push(data=b"%d" % i)] * 500)
    connected(world, world.client(1, after=0, **subscriber.callbacks))
    world.run(3, step=0.05)
    assert subscriber.records == [(seq + 1, b"%d" % (seq // 500)) for seq in range(12_500)]
    assert subscriber.gaps == []


def test_catch_up_from_a_sequence_with_removed_records(make_world: Make) -> None:
    world, late, early = make_world(), Subscriber(), Subscriber()
    for i in range(1, 21):
        world.send(Push(data=b"%d" % i))
    world.journal.forget("backbone", 11)
    connected(world, world.client(1, after=15, **late.callbacks))
    connected(world, world.client(2, after=0, **early.callbacks))
    world.run(15)
    assert late.records == [(i, b"%d" % i) for i in range(16, 21)]
    assert early.records == [(i, b"%d" % i) for i in range(11, 21)]
    assert (late.gaps, early.gaps) == ([], [(1, 10)])


def test_peer_answers_a_request(make_world: Make) -> None:
    """A subscriber misses one message; the peer that stores it sends it directly."""
    world, subscriber = make_world(), Subscriber()
    peer = connected(world, world.client(1, store=1 << 20))
    client = connected(world, world.client(2, **subscriber.callbacks))
    address = client.address
    for i in range(1, 31):
        data = b"%d" % i
        if i % 3 == 0:
            world.network.ports.pop(address)  # it is away while this goes out
        world.send(Push(data=data), source=("10.9.9.9", 1))
        world.network.ports[address] = client.transport
        world.run(0.5, step=0.05)
    world.run(2)
    assert subscriber.records == [(i, b"%d" % i) for i in range(1, 31)]
    forwards = [frame for frame in world.network.sent_to(peer.address) if isinstance(frame, Forward)]
    straight = [to for source, to, _ in world.network.log if source == peer.address and to == client.address]
    assert len(forwards) >= 3
    assert len(straight) >= 3


def test_client_for_which_every_error_is_final_ends_without_an_answer(make_world: Make) -> None:
    world = make_world()
    world.stop()
    client = world.client(1, process_exception=lambda error: error)
    refused = client.connect()
    world.run(5.1)
    assert "no backbone at 10.0.0.1:2323 has answered" in str(outcome(refused))
    assert world.network.ports == {}
    assert world.clock.getDelayedCalls() == []
    with pytest.raises(LocalProtocolError, match="not connected"):
        client.publish(None, b"x")


def test_client_reports_lost_and_found_server(make_world: Make) -> None:
    world, subscriber = make_world(), Subscriber()
    client = connected(world, world.client(1, timeout=3.0, **subscriber.callbacks))
    world.port.reading = False
    lost = client.publish(None, b"lost")
    world.run(8)
    assert isinstance(outcome(lost), PushUnconfirmed)
    assert subscriber.alive == [True, False]
    kept = client.publish(None, b"kept")
    world.port.reading = True
    world.run(2)
    assert subscriber.alive == [True, False, True]
    assert outcome(kept) == 1


def test_ready_fires_when_the_window_has_room_and_drained_when_every_publish_is_confirmed(make_world: Make) -> None:
    world = make_world(auto=False)
    client = connected(world, world.client(1, window=2))
    assert client.ready().called
    assert client.drained().called
    client.publish(None, b"1")
    client.publish(None, b"2")
    ready, drained = client.ready(), client.drained()
    world.run(0.1)
    assert not ready.called
    world.journal.commit()
    world.run(0.1)
    assert ready.called
    assert drained.called


def test_close_fails_unconfirmed_publishes(make_world: Make) -> None:
    world = make_world(auto=False)
    client = connected(world, world.client(1, window=1))
    published = [client.publish(None, b"1"), client.publish(None, b"2")]
    waiting = [client.ready(), client.drained()]
    world.run(0.1)
    assert client.close().called
    assert [type(outcome(each)) for each in published] == [PushUnconfirmed] * 2
    assert [type(outcome(each)) for each in waiting] == [Closed] * 2
    world.journal.commit()
    world.run(2)
    # Before it was connected:
    early = world.client(2)
    refused = early.connect()
    early.close()
    assert isinstance(outcome(refused), Closed)


def test_publish_is_refused_when_too_many_bytes_wait_for_the_window(make_world: Make) -> None:
    world = make_world(auto=False)
    client = connected(world, world.client(1, window=1))
    lost = [client.publish(None, bytes(MAX_DATA)) for _ in range(MOST_UNSENT // MAX_DATA + 1)]
    with pytest.raises(LocalProtocolError, match="more than 64 MiB wait to be sent; wait for ready"):
        client.publish(None, b"x")
    client.close()
    assert all(isinstance(outcome(each), PushUnconfirmed) for each in lost)


def test_failing_callback_does_not_stop_the_client(make_world: Make, logged_errors: Any) -> None:
    world, subscriber = make_world(), Subscriber()

    def take(run: Run) -> None:
        subscriber.take(run)
        raise RuntimeError("a bug of the program")

    client = connected(world, world.client(1, take=take))
    for _ in range(3):
        client.publish(None, b"x")
        world.run(0.1)
    assert len(subscriber.records) == 3
    assert len(logged_errors.take()) == 3


def test_client_may_be_closed_from_a_callback(make_world: Make) -> None:
    world = make_world()
    seen: list[Run] = []

    def take(run: Run) -> None:
        seen.append(run)
        client.close()

    client = connected(world, world.client(1, take=take))
    world.send(Push(data=b"x"))
    world.run(0.1)
    world.send(Push(data=b"y"))
    world.run(0.1)
    assert len(seen) == 1
    assert world.network.ports.keys() == {world.address}


def test_closing_the_client_in_a_callback_of_ready_fails_other_waiters(make_world: Make) -> None:
    world = make_world(auto=False)
    client = connected(world, world.client(1, window=1))
    published = client.publish(None, b"x")
    ready, other = client.ready(), client.ready()
    ready.addCallback(lambda _: client.close())
    world.run(0.1)
    world.journal.commit()
    world.run(0.1)
    assert outcome(published) == 1
    assert isinstance(outcome(other), Closed)
    assert world.network.ports.keys() == {world.address}


def test_a_congested_port_holds_pushes_back(make_world: Make) -> None:
    world = make_world()
    client = connected(world, world.client(1))
    port = world.network.ports[client.address]
    port.full = True
    client.publish(None, b"1")
    world.run(0.05)
    waiting = port.waiting
    client.publish(None, b"2")
    world.run(0.5)
    assert port.waiting == waiting
    port.relieve()
    world.run(0.1)
    assert world.payloads() == [b"1", b"2"]
    client.close()


def test_server_is_lost_and_found_although_the_port_sends_nothing_any_more(make_world: Make) -> None:
    world, subscriber = make_world(), Subscriber()
    client = connected(world, world.client(1, **subscriber.callbacks))
    world.network.ports[client.address].full = True
    client.publish(None, b"stays in the port").addErrback(lambda failure: failure.trap(PushUnconfirmed))
    world.run(8)
    assert subscriber.alive == [True, False, True], "another port took its place"
    published = client.publish(None, b"leaves")
    world.run(3)
    assert isinstance(outcome(published), int)
    client.close()


def test_datagrams_from_other_addresses_are_ignored_and_counted(make_world: Make) -> None:
    world, subscriber = make_world(), Subscriber()
    client = connected(world, world.client(1, **subscriber.callbacks))
    world.network.carry(Deliver(seq=7, data=b"forged").serialize(), ("10.6.6.6", 6), client.address)
    world.network.carry(b"\x40", ("10.6.6.6", 6), client.address)
    world.run(0.1)
    assert subscriber.records == []
    assert client.counters.counts == {(client.name, "not-requested"): 1, (client.name, "unknown-type"): 1}


def test_names_are_resolved_and_a_client_connects_once(make_world: Make) -> None:
    world = make_world()
    for name, works in (("here.example", True), ("nowhere.example", False)):
        clock = Names()
        clock.table["here.example"] = "10.0.0.1"
        client = BackboneClient(clock, name, 2323, bind=("10.0.1.9", 5000), open_port=world.network.open)
        done = client.connect()
        with pytest.raises(LocalProtocolError, match="was called before"):
            client.connect()
        sent = [d for source, _, d in world.network.log if source == ("10.0.1.9", 5000) and d[0] == 0x10]
        assert bool(sent) == works
        assert client.problem == ("" if works else f"no address for {name}")
        client.close()
        assert isinstance(outcome(done), Closed)
        assert clock.getDelayedCalls() == []
        world.network.log.clear()


class Names(Clock):
    """A clock that also resolves names, by a table that a test may change.

    :ivar asked: the names that were looked up
    """

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, str] = {}
        self.asked: list[str] = []

    def resolve(self, name: str) -> Deferred[str]:
        self.asked.append(name)
        return succeed(self.table[name]) if name in self.table else fail(OSError(f"no address for {name}"))


def named(
    world: Any, subscriber: Subscriber, retry: Callable[[int], float] = lambda failures: 3.0, **settings: Any
) -> BackboneClient:
    """Return a client that has to look the server's address up."""
    client = BackboneClient(
        world.clock,
        "bus.example",
        2323,
        bind=("10.0.1.1", 5000),
        open_port=world.network.open,
        on_state=subscriber.alive.append,
        connection_options=attrs.evolve(BACKBONE_OPTIONS, retry=retry),
        **settings,
    )
    client.subscribe(None, subscriber.take)
    return client


def move_server(world: Any, host: str) -> None:
    """Stop the server, and start one with the same journal at *host*."""
    world.stop()
    world.run(0.1)
    world.address = (host, 2323)
    world.serve()


def test_lost_server_is_found_at_the_new_address_of_its_name(make_world: Make) -> None:
    world, subscriber = make_world(clock=Names()), Subscriber()
    names = world.clock
    names.table["bus.example"] = "10.0.0.1"
    client = connected(world, named(world, subscriber))
    world.send(Push(data=b"before"))
    world.run(1)
    move_server(world, "10.0.0.9")
    world.send(Push(data=b"meanwhile"))
    names.table["bus.example"] = "10.0.0.9"
    world.run(15)
    assert subscriber.alive == [True, False, True]
    assert subscriber.records == [(1, b"before"), (2, b"meanwhile")]
    published = client.publish(None, b"after")
    world.run(3)
    assert outcome(published) == 3
    looked_up = len(names.asked)
    world.run(60)
    assert len(names.asked) == looked_up, "a server that answers is not looked up"
    client.close()
    assert names.getDelayedCalls() == []


def test_lost_server_is_found_again_while_its_name_cannot_be_resolved(make_world: Make) -> None:
    world, subscriber = make_world(clock=Names()), Subscriber()
    world.clock.table["bus.example"] = "10.0.0.1"
    client = connected(world, named(world, subscriber))
    world.clock.table.clear()
    world.stop()
    world.run(20)
    world.serve()
    world.run(8)
    assert subscriber.alive == [True, False, True]
    client.close()


def test_client_waits_for_its_name_to_be_resolved(make_world: Make) -> None:
    world, subscriber = make_world(clock=Names()), Subscriber()
    client = named(world, subscriber)
    done = client.connect()
    world.run(10)
    assert (done.called, client.problem) == (False, "no address for bus.example")
    world.clock.table["bus.example"] = "10.0.0.1"
    world.run(6)
    assert done.called
    assert subscriber.alive == [True]
    client.close()


def test_attempts_to_find_a_lost_server_follow_the_option_retry(make_world: Make) -> None:
    world, subscriber = make_world(clock=Names()), Subscriber()
    counts: list[int] = []

    def retry(attempt: int) -> float:
        counts.append(attempt)
        return 10.0

    client = named(world, subscriber, retry)
    client.connect()
    world.run(35)
    assert (counts, len(world.clock.asked)) == ([1, 2, 3, 4], 4)
    world.clock.table["bus.example"] = "10.0.0.1"
    world.run(10)
    assert subscriber.alive == [True]
    world.stop()
    counts.clear()
    world.run(30)
    assert counts == [1, 2, 3], "an answer begins the count again"
    client.close()
    assert world.clock.getDelayedCalls() == []


def test_lost_client_binds_again_until_its_address_is_free(make_world: Make) -> None:
    world, subscriber = make_world(), Subscriber()
    client = connected(world, world.client(1, retries=20, timeout=1.0, **subscriber.callbacks))
    published = client.publish(None, b"waits for a port")
    world.port.reading = False
    open_port, refused = client.open_port, []

    def taken(*arguments: Any) -> None:
        refused.append(arguments)
        raise CannotListenError("10.0.1.1", 5000, OSError("in use"))

    client.open_port = taken
    world.run(12)
    assert len(refused) > 1
    with pytest.raises(LocalProtocolError, match="no port"):
        _ = client.address
    client.open_port = open_port
    world.port.reading = True
    world.run(8)
    assert subscriber.alive == [True, False, True]
    assert isinstance(outcome(published), int)
    client.close()
    assert world.network.ports.keys() == {world.address}


@pytest.mark.parametrize("answer", ["10.0.0.1", OSError("no such name")])
def test_client_closed_during_name_resolution_opens_no_port(make_world: Make, answer: Any) -> None:
    world = make_world()
    found: Deferred[str] = Deferred()

    class Resolving(Clock):
        def resolve(self, name: str) -> Deferred[str]:
            return found

    client = BackboneClient(Resolving(), "slow.example", 2323, open_port=world.network.open)
    done = client.connect()
    client.close()
    found.callback(answer) if isinstance(answer, str) else found.errback(answer)
    assert isinstance(outcome(done), Closed)
    assert world.network.log == []


def test_address_in_use_fails_the_connection() -> None:
    class Silent(Clock):
        """A reactor to which no subscriber is added."""

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        client = BackboneClient(Silent(), "127.0.0.1", 9, bind=other.getsockname(), process_exception=lambda e: e)
        assert "Couldn't listen" in str(outcome(client.connect()))
    assert not isinstance(BackboneUnreachable("x"), PushUnconfirmed)


@pytest.mark.parametrize("seed", range(12))
def test_subscriber_over_a_lossy_network_gets_the_records_of_the_journal(make_world: Make, seed: int) -> None:
    """The network loses, duplicates and reorders datagrams; three clients publish, two of them are journal peers."""
    random = Random(seed)
    world = make_world()
    network = world.network
    network.random = Random(seed + 1_000)
    readers = [Subscriber() for _ in range(3)]
    clients = [
        connected(world, world.client(n, store=store, retries=3, timeout=1.0, **subscriber.callbacks))
        for n, (subscriber, store) in enumerate(zip(readers, (1 << 20, 1 << 12, 0), strict=True))
    ]
    world.send(Push(data=b"the first"))  # everybody knows where the stream begins
    world.run(0.1)
    network.loss, network.double, network.delay = random.choice(
        ((0.05, 0.05, 0.03), (0.2, 0.1, 0.1), (0.3, 0.0, 0.005))
    )
    published: dict[bytes, Deferred[int]] = {}
    for i in range(120):
        payload = b"%d" % i + bytes(random.randrange(60))
        published[payload] = random.choice(clients).publish(None, payload)
        world.run(random.random() * 0.06)
    world.run(10, step=0.02)
    network.loss = 0.0
    world.run(10, step=0.02)

    journal = list(enumerate(world.payloads(), 1))
    for subscriber in readers:
        assert subscriber.gaps == []
        assert subscriber.records == journal
    # Every confirmed message is in the journal with its sequence.
    results = {payload: outcome(deferred) for payload, deferred in published.items()}
    confirmed = {result: payload for payload, result in results.items() if isinstance(result, int)}
    assert confirmed.items() <= dict(journal).items()
    assert len(confirmed) > 100
    assert {type(result) for result in results.values()} <= {int, PushUnconfirmed}
    assert {payload for _, payload in journal} <= {b"the first", *published}
    # All DELIVERs with the same sequence are equal, whether a peer or the server sends them.
    delivers = {
        (frame.seq, frame.data)
        for client in clients
        for frame in network.sent_to(client.address)
        if isinstance(frame, Deliver)
    }
    assert delivers == set(journal)
    for client in clients:
        client.close()
