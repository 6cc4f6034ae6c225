"""The client over lost connections, crashes and lost links."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.protocols.relink.events import Resulted, UnknownOutcome
from fyrehose.protocols.relink.frames import Ack, Op
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.session import HelloReceived, ListenerSession
from fyrehose.testing import MemoryJournal


def outcome(done: Deferred[Any]) -> list[Any]:
    """Return a list to which the outcome of *done* is added when it fires."""
    found: list[Any] = []
    done.addCallbacks(lambda value: found.append("done"), lambda failure: found.append(type(failure.value)))
    return found


def test_send_fires_when_the_message_is_consumed(make_client: Any) -> None:
    client, wire = make_client()
    done = outcome(client.send(b"one"))
    assert done == []
    wire.pump()
    assert done == ["done"]
    assert wire.server.payloads() == [b"one"]


def test_messages_survive_a_lost_connection(make_client: Any) -> None:
    states: list[bool] = []
    client, wire = make_client(on_state=states.append)
    done = [outcome(client.send(b"%d" % i)) for i in range(3)]
    wire.cut()
    done.append(outcome(client.send(b"3")))
    wire.reconnect()
    assert done == [["done"]] * 4
    assert wire.server.payloads() == [b"0", b"1", b"2", b"3"]
    assert states == [True, False, True]


def test_messages_survive_a_server_crash(make_client: Any) -> None:
    client, wire = make_client()
    outcomes = [outcome(client.send(b"0"))]
    wire.pump()
    outcomes.append(outcome(client.send(b"1")))
    wire.crash()
    wire.reconnect()
    assert outcomes == [["done"], ["done"]]
    assert wire.server.payloads() == [b"0", b"1"]


def test_lost_link_fails_outstanding_messages(make_client: Any) -> None:
    lost: list[Any] = []
    client, wire = make_client(on_lost=lost.extend)
    settled, open_ = outcome(client.send(b"0")), []
    wire.pump()
    open_ = outcome(client.send(b"1"))
    wire.lose_link()
    wire.reconnect()
    assert (settled, open_) == (["done"], [UnknownOutcome])
    assert [(one.seq, one.parts) for one in lost] == [(1, (b"1",))]
    again = outcome(client.send(b"2"))
    wire.pump()
    assert again == ["done"]


def copied(server: Any) -> MemoryJournal:
    """Return a journal with the messages and the links that *server* has now."""
    journal = MemoryJournal()
    broker = Broker(server.clock, journal, Sequencer())
    broker.open()
    for stream in (".relink/x", "s"):
        for run in server.journal.read(stream, 1, 1 << 30):
            again = [attrs.evolve(run, first_seq=0, time=0)]
            broker.publish([], again) if stream[0] == "." else broker.publish(again)
    return journal


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_client_takes_a_new_link_if_the_server_was_restored_from_an_older_copy(
    make_client: Any, make_server: Any, kept: int
) -> None:
    lost: list[Any] = []
    client, wire = make_client(on_lost=lost.append)
    first = client.link
    for number in range(kept):
        client.send(b"%d" % number)
        wire.pump()
    copy = copied(wire.server)
    before = [outcome(client.send(b"lost %d" % number)) for number in range(5)]
    wire.pump()
    assert before == [["done"]] * 5
    wire.server.journal = copy
    wire.crash()
    unknown = outcome(client.send(b"on the way"))
    wire.pump(1)
    wire.pump(1)
    wire.pump(1)
    assert unknown == [UnknownOutcome]
    assert [[message.parts for message in messages] for messages in lost] == [[(b"on the way",)]]
    assert client.link is not first
    after = [outcome(client.send(b"after %d" % number)) for number in range(3)]
    wire.pump()
    assert after == [["done"]] * 3
    wire.crash()
    wire.reconnect()
    assert wire.server.payloads() == [b"%d" % number for number in range(kept)] + [b"after 0", b"after 1", b"after 2"]


def test_multicast_fires_when_all_channels_have_consumed_it(make_client: Any) -> None:
    client, wire = make_client()
    done = outcome(client.multicast([b"a", b"b"], (1, 2)))
    wire.pump()
    assert done == ["done"]
    assert [record.topic for record in wire.server.records()] == ["1", "2"]


def test_ready_fires_when_the_window_has_room(make_client: Any) -> None:
    client, wire = make_client(limits=LinkLimits(window=2))
    for payload in (b"0", b"1"):
        client.send(payload)
    with pytest.raises(LocalProtocolError, match="room"):
        client.send(b"2")
    ready = outcome(client.ready())
    assert ready == []
    wire.pump()
    assert ready == ["done"]
    assert outcome(client.ready()) == ["done"]


def test_callback_of_ready_that_closes_the_client_fails_the_others(make_client: Any) -> None:
    client, wire = make_client(limits=LinkLimits(window=1))
    client.send(b"0")
    first = client.ready()
    second = outcome(client.ready())
    first.addCallback(lambda _: outcome(client.close()))
    wire.pump()
    assert second == [Closed]


def test_close_settles_messages_and_ends_the_link(make_client: Any) -> None:
    client, wire = make_client()
    done, connections = outcome(client.send(b"0")), list[Any]()
    closed = outcome(client.close().addCallback(lambda _: connections.append(client.connection)))
    wire.pump()
    assert (done, closed, connections) == (["done"], ["done"], [None])
    assert not wire.server.registry.entries
    assert wire.attempts == 1
    with pytest.raises(LocalProtocolError):
        client.send(b"1")
    with pytest.raises(LocalProtocolError):
        client.ready()


def test_close_can_be_called_repeatedly(make_client: Any) -> None:
    client, wire = make_client()
    done = outcome(client.send(b"0"))
    closed = [outcome(client.close()), outcome(client.close())]
    assert closed == [[], []]
    wire.pump()
    closed.append(outcome(client.close()))
    assert (done, closed) == (["done"], [["done"]] * 3)


def test_close_times_out(make_client: Any) -> None:
    client, wire = make_client()
    done = outcome(client.send(b"0"))
    wire.cut()
    wire.refusing = True
    closed = outcome(client.close())
    wire.server.clock.pump([0.5] * 12)
    assert (done, closed) == ([Closed], ["done"])


def test_close_completes_when_the_listener_has_forgotten_the_link(make_client: Any) -> None:
    client, wire = make_client()
    done, closed = outcome(client.send(b"0")), outcome(client.close())
    wire.lose_link()
    wire.pump(1)
    assert (done, closed) == ([UnknownOutcome], ["done"])


def test_close_completes_when_only_the_listener_saw_the_shutdown(make_client: Any) -> None:
    client, wire = make_client()
    closed = outcome(client.close())
    wire.server.clock.advance(0)
    wire.far.dataReceived(wire.near.transport.value())  # The shutdown arrives; the answer is lost.
    wire.server.clock.advance(0)
    assert not wire.server.registry.entries
    wire.cut()
    wire.reconnect()
    assert closed == ["done"]
    assert wire.attempts == 2


def test_link_made_during_close_delivers_nothing(make_client: Any) -> None:
    taken: list[bytes] = []
    client, wire = make_client("subscribe:s@0", on_message=lambda channel, seq, parts: taken.append(parts[0]))
    wire.server.publish("s", b"1")
    wire.pump()
    closed = outcome(client.close())
    wire.server.clock.advance(0)
    wire.far.dataReceived(wire.near.transport.value())  # The listener receives the shutdown, and forgets the link.
    wire.server.clock.advance(0)
    wire.lose_link()
    wire.server.clock.advance(1)
    for one, other in ((wire.far, wire.near), (wire.near, wire.far)) * 2:
        said = one.transport.value()
        one.transport.clear()
        other.dataReceived(said)
    for _ in range(5):
        wire.server.clock.advance(0)
    wire.pump()  # The reply and the messages of the new link arrive together.
    assert (taken, closed) == ([b"1"], ["done"])


def test_calls_without_a_link_are_refused(make_client: Any, make_server: Any) -> None:
    server = make_server(auto=False)
    client, wire = make_client(server=server)
    with pytest.raises(LocalProtocolError, match="no link"):
        client.send(b"x")
    with pytest.raises(LocalProtocolError, match="create another client"):
        client.connect()
    ready = outcome(client.ready())
    closed = outcome(client.close())
    assert (ready, closed[:1]) == ([Closed], closed[:1])
    server.journal.commit()
    wire.pump()


def test_many_messages_are_delivered_without_recursion(make_server: Any, make_client: Any) -> None:
    """More messages than the recursion limit; each is handled by the loop, not by recursion."""
    server = make_server()
    server.publish("s", *(b"%d" % i for i in range(2_500)))
    got: list[bytes] = []
    _, wire = make_client("subscribe:s@0", server=server, on_message=lambda channel, seq, parts: got.append(parts[0]))
    wire.pump()
    assert got == [b"%d" % i for i in range(2_500)]


def test_messages_are_delivered_in_order_across_pause_and_crash(make_client: Any) -> None:
    got: list[Any] = []
    client, wire = make_client("subscribe:s@0", on_message=lambda *message: got.append(message))
    wire.server.publish("s", b"1", b"2")
    wire.pump()
    client.pause()
    wire.server.publish("s", b"3")
    wire.pump()
    assert [seq for _, seq, _ in got] == [0, 1]
    client.resume()
    wire.pump()
    assert got[2] == (0, 2, (b"3",))
    wire.crash()
    wire.server.publish("s", b"4")
    wire.reconnect()
    assert [parts for _, _, parts in got] == [(b"1",), (b"2",), (b"3",), (b"4",)]


def test_message_is_consumed_when_the_deferred_fires(make_client: Any) -> None:
    busy: list[Deferred[None]] = []

    def take(channel: int, seq: int, parts: Any) -> Deferred[None]:
        busy.append(Deferred())
        return busy[-1]

    client, wire = make_client("subscribe:s@0", on_message=take)
    wire.server.publish("s", b"1", b"2")
    wire.pump()
    (entry,) = wire.server.registry.entries.values()
    assert (len(busy), entry.link.sending[0].base) == (1, 0)
    busy[0].callback(None)
    wire.pump()
    assert (len(busy), entry.link.sending[0].base) == (2, 1)
    busy[1].callback(None)
    wire.pump()
    assert client.link is not None
    assert entry.link.sending[0].base == 2


def test_failing_on_message_ends_the_link(make_client: Any, logged_errors: Any) -> None:
    failing = [True]

    def take(channel: int, seq: int, parts: Any) -> None:
        if failing.pop():
            failing.append(False)
            raise ValueError("not today")
        failing.append(False)

    client, wire = make_client("subscribe:s@0", on_message=take)
    first = client.link
    wire.server.publish("s", b"1")
    wire.pump()
    wire.reconnect()
    assert first.over
    assert client.link is not first
    assert len(logged_errors.take()) == 1


def test_calls_with_and_without_transactions_are_exclusive(make_client: Any) -> None:
    plain, _ = make_client()
    with pytest.raises(LocalProtocolError, match="have no transactions"):
        plain.transaction()
    transactional, _ = make_client(transactional=True)
    with pytest.raises(LocalProtocolError, match="transactional"):
        transactional.send(b"x")


class ListenerFactory:
    """Builds a bare listener session, whose channel the test uses directly."""

    def __init__(self) -> None:
        self.sessions: list[ListenerSession] = []

    def buildProtocol(self, address: Any) -> Any:
        return _ListenerProtocol(self)


class _ListenerProtocol(Protocol):
    def __init__(self, factory: ListenerFactory) -> None:
        self.factory = factory
        self.session = ListenerSession()
        self.found: list[Any] = []

    def dataReceived(self, data: bytes) -> None:
        found = self.session.receive_data(data)
        for event in found:
            if isinstance(event, HelloReceived):
                self.session.accept(Link(event.hello.terms, False, 5, 6), resumed=False)
        self.found += found
        self.flush()

    def flush(self) -> None:
        self.transport.writeSequence(self.session.data_to_send())  # type: ignore[union-attr]


def test_listener_transactions_are_decided_and_acknowledged(
    make_client: Any, make_server: Any, logged_errors: Any
) -> None:
    got: list[bytes] = []

    def take(channel: int, seq: int, parts: Any) -> None:
        if parts[0] == b"bad":
            raise ValueError("not this one")
        got.append(parts[0])

    server = make_server()
    server.factory = ListenerFactory()
    client, wire = make_client("any", server=server, listener_transactional=True, on_message=take)
    session = wire.far.session
    for payload in (b"1", b"2", b"bad", b"3"):
        session.link.send((4,), (payload,))
    session.link.decide(4, Op.COMMIT, 0)
    session.link.decide(4, Op.ROLLBACK, 1)
    session.link.decide(4, Op.COMMIT, 3)
    wire.far.flush()
    wire.pump()
    assert got == [b"1", b"3"]
    assert [e for e in wire.far.found if isinstance(e, Resulted)] == [
        Resulted(channel=4, first=0, last=0, result=Ack.COMMITTED),
        Resulted(channel=4, first=2, last=2, result=Ack.UNCOMMITTED),
        Resulted(channel=4, first=3, last=3, result=Ack.COMMITTED),
    ]
    assert session.link.sending[4].base == 4
    session.link.close(4)
    wire.far.flush()
    wire.pump()
    assert not client.link.receiving
    assert len(logged_errors.take()) == 1


def test_messages_without_on_message_end_the_link(make_client: Any, logged_errors: Any) -> None:
    client, wire = make_client("subscribe:s@0")
    first = client.link
    wire.server.publish("s", b"1")
    wire.pump()
    assert first.over
    assert len(logged_errors.take()) == 1
