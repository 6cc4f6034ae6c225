"""The client over lost connections, crashes and lost links."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock

from fyrehose.broker.broker import Broker
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.net.clients import ConnectionOptions
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.channels import Sending
from fyrehose.protocols.relink.events import MessageOutcome, Uncommitted, UnknownOutcome, Unsettled
from fyrehose.protocols.relink.frames import Ack, Op
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.session import HelloReceived, ListenerSession
from fyrehose.testing import MemoryJournal
from tests.doubles.steps import advance_until


def outcome(done: Deferred[Any]) -> list[Any]:
    """Return a list to which the outcome of *done* is added when it fires."""
    found: list[Any] = []
    done.addCallbacks(lambda value: found.append("done"), lambda failure: found.append(type(failure.value)))
    return found


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


def test_callback_of_ready_that_closes_the_client_fails_the_others(make_client: Any) -> None:
    client, wire = make_client(limits=LinkLimits(window=1))
    client.send(b"0")
    first = client.ready()
    second = outcome(client.ready())
    first.addCallback(lambda _: outcome(client.close()))
    wire.pump()
    assert second == [Closed]


def test_close_times_out(make_client: Any) -> None:
    client, wire = make_client()
    done = outcome(client.send(b"0"))
    wire.cut()
    wire.refusing = True
    closed = outcome(client.close())
    wire.server.clock.pump([0.5] * 12)
    assert (done, closed) == ([Closed], ["done"])


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


def test_calls_with_and_without_transactions_are_exclusive(make_client: Any) -> None:
    plain, _ = make_client()
    with pytest.raises(LocalProtocolError, match="have no transactions"):
        plain.transaction()
    transactional, _ = make_client(transactional=True)
    with pytest.raises(LocalProtocolError, match="transactional"):
        transactional.send(b"x")


@attrs.define(eq=False)
class Call:
    """A call of the program that waits for the listener.

    :ivar messages: the channel and the payload of each of its messages
    :ivar commit: whether it is a commit, otherwise it is one message without a transaction
    """

    link: Link
    messages: list[tuple[int, bytes]]
    commit: bool
    found: list[Any]


class Listening:
    """A listener in memory, which processes messages when the history says so, and can forget its link."""

    def __init__(self, dice: Random, transactional: bool) -> None:
        self.dice, self.transactional = dice, transactional
        self.clock, self.factory = Clock(), self
        self.link: Link | None = None
        self.near: Any = None  #: the protocol of the present connection
        self.made = 0  #: how many links
        self.inbox: deque[tuple[int, int, bytes, bool]] = deque()
        self.answers: dict[tuple[int, bytes], list[Ack | None]] = defaultdict(list)
        self.leaving = False
        self.sent: list[bytes] = []  #: what the client has to take on the present link, in order
        self.undecided: list[bytes] = []
        self.decided: list[bytes] = []
        self.taken: list[bytes] = []  #: what the client's program has taken on the present link
        self.results: dict[bytes, Ack] = {}
        self.consumed: list[bytes] = []

    def buildProtocol(self, address: Any) -> Any:
        return _ListenerProtocol(self)

    def take(self, found: Sequence[Any]) -> None:
        for event in found:
            match event:
                case HelloReceived(hello=hello):
                    link, resumed = self.link, True
                    if link is None or (hello.epoch, hello.link_id) != (link.epoch, link.id):
                        self.made += 1
                        link, resumed = Link(hello.terms, False, 5, self.made), False
                        self.forget()
                        self.link = link
                    assert link is not None
                    self.take(self.near.session.accept(link, resumed=resumed))
                    if not resumed and self.made > 1 and self.dice.random() < 0.5:
                        self.send(b"with the reply %d" % self.made)
                case events.Received(channel=channel, first=first, messages=messages):
                    self.inbox += [(channel, seq, parts[0], True) for seq, parts in enumerate(messages, first)]
                case events.Decided(channel=channel, first=first, messages=messages):
                    self.inbox += [(channel, seq, parts[0], event.commit) for seq, parts in enumerate(messages, first)]
                case events.Resulted():
                    for payload in self.decided[event.first : event.last + 1]:
                        self.results[payload] = event.result
                case events.Consumed():
                    self.consumed += self.decided[event.first : event.last + 1]
                case events.Finished(channel=channel) if self.link is not None:
                    self.take(self.link.forget(channel))
                case events.PeerShutdown():
                    self.leaving = True
                case events.Ended():
                    self.forget()
                    self.near.transport.loseConnection()

    def forget(self) -> None:
        """Forget the link, as after its end, or by a loss of the listener's memory."""
        self.link = None
        self.inbox.clear()
        self.sent, self.undecided, self.decided, self.taken = [], [], [], []

    def process(self) -> None:
        """Process the oldest message."""
        if self.inbox and self.link is not None:
            channel, seq, payload, process = self.inbox.popleft()
            result = self.dice.choice((Ack.COMMITTED, Ack.COMMITTED, Ack.UNCOMMITTED))
            answer = result if self.link.peer_transactions and process else None
            self.answers[channel, payload].append(answer)
            self.link.consume(channel, seq, answer)

    def send(self, payload: bytes) -> None:
        """Send a message to the client, and decide some of those that are not decided yet."""
        link = self.link
        if link is None or self.leaving or link.channel(0).room < 1:
            return
        link.send((0,), self.dice.choice(((payload,), (payload, b"more"))))
        self.decided.append(payload)
        if not self.transactional:
            self.sent.append(payload)
            return
        self.undecided.append(payload)
        if self.dice.random() < 0.5:
            op = self.dice.choice((Op.COMMIT, Op.ROLLBACK))
            link.decide(0, op)
            self.sent += self.undecided if op is Op.COMMIT else []
            self.undecided.clear()

    def leave(self) -> None:
        """Close this side's channel, and shut down, because the client leaves."""
        link = self.link
        if link is None or not self.leaving:
            return
        for channel in list(link.sending.values()):
            if channel.undecided:
                link.decide(channel.id, Op.ROLLBACK)
            if channel.mode is Sending.OPEN:
                link.close(channel.id)
        self.take(link.shutdown())


class _ListenerProtocol(Protocol):
    def __init__(self, factory: Listening) -> None:
        self.factory = factory
        self.session = ListenerSession()
        factory.near = self

    def dataReceived(self, data: bytes) -> None:
        self.factory.take(self.session.receive_data(data))
        if self.session.linked:
            self.factory.take(self.session.receive_data(b""))
        self.flush()

    def connectionLost(self, reason: Any = None) -> None:
        self.session.fenced()

    def flush(self) -> None:
        self.transport.writeSequence(self.session.data_to_send())  # type: ignore[union-attr]


class ClientHistory:
    """A program that uses a client over lost connections and lost links, at random.

    Each call is answered as the listener has answered, or fails because its link was lost; what is reported as
    unsettled then are the messages without an answer.  Messages of the listener are passed on once, in order, and one
    at a time.
    """

    CHANNELS = (0, 1)

    def __init__(self, make_client: Any, seed: int, transactional: bool, listener_transactional: bool) -> None:
        self.dice, self.ran = Random(seed), Counter[str]()
        self.transactional, self.count = transactional, 0
        self.server = Listening(self.dice, listener_transactional)
        self.calls: list[Call] = []
        self.open: dict[int, tuple[Any, list[bytes], Link]] = {}  #: by channel, the open transaction
        self.lost: list[Link] = []
        self.states: list[bool] = []
        self.failed: set[bytes] = set()
        self.busy: list[tuple[bytes, Deferred[None]]] = []
        self.paused = False
        self.last: Link | None = None  #: the link, when the client began to close
        self.rolled_back: list[tuple[int, bytes]] = []
        self.watchers: list[tuple[int, list[Any]]] = []
        self.client, self.wire = make_client(
            "any",
            server=self.server,
            transactional=transactional,
            listener_transactional=listener_transactional,
            limits=LinkLimits(window=4),
            on_message=self.take,
            on_lost=self.lose,
            on_state=self.states.append,
            connection_options=ConnectionOptions(retry=lambda failures: 0.5, close_timeout=1_000.0),
        )

    # What the client calls.

    def take(self, channel: int, seq: int, parts: tuple[bytes, ...]) -> Deferred[None] | None:
        assert not self.busy, "the message before it is not processed yet"
        assert not self.paused, "the program has paused"
        assert not any(self.client.link is each for each in self.lost), "its link is lost"
        assert self.last in (None, self.client.link), "a link that was made while the client closes has no effect"
        if self.server.link is not None and self.client.link.id == self.server.link.id:
            taken, sent = self.server.taken, self.server.sent
            taken.append(parts[0])
            assert taken == sent[: len(taken)], "messages are passed on once, and in order"
        what = self.dice.random()
        if what < 0.1 and self.last is None:
            self.failed.add(parts[0])
            raise ValueError("not this one")
        if what < 0.5:
            return None
        self.busy.append((parts[0], Deferred()))
        return self.busy[0][1]

    def lose(self, unsettled: list[Unsettled]) -> None:
        """Note that the link is lost; compare what the client reports as unsettled with what has an answer."""
        link = self.client.link
        assert not any(link is each for each in self.lost), "each link is lost once"
        self.lost.append(link)
        found = {(each.channel, each.parts[0]): each.outcome for each in unsettled}
        pending = {m: MessageOutcome.UNKNOWN for call in self.of(link) if not call.found for m in call.messages}
        opened = {
            (channel, payload): MessageOutcome.NOT_PROCESSED
            for channel, (_, payloads, its) in self.open.items()
            for payload in payloads
            if its is link
        }
        surely = {message for message in pending if not self.server.answers[message]} | set(opened)
        assert found.items() <= (pending | opened).items(), "a message that has an outcome is reported, or as another"
        assert surely <= set(found), "a message without an answer is not reported"
        self.ran["lost with messages"] += bool(found)

    def answered(self, call: Call) -> bool:
        return all(len(self.server.answers[each]) >= call.messages.count(each) for each in call.messages)

    def of(self, link: Link) -> list[Call]:
        return [call for call in self.calls if call.link is link]

    # Steps.

    def step(self) -> None:
        names = ("call", "call", "call", "process", "process", "send", "deliver", "deliver", "deliver", "answer")
        rare = ("cut", "lose_link", "violate", "idle", "pause", "watch")
        getattr(self, self.dice.choice(names if self.dice.random() < 0.8 else rare))()
        self.check()

    def check(self) -> None:
        for call in self.calls:
            answers = [self.server.answers[message] for message in call.messages]
            for outcome in call.found:
                if outcome is UnknownOutcome:
                    assert call.link in self.lost, "the link is not lost"
                    continue
                assert self.answered(call), "answered before the listener has processed it"
                refused = call.commit and any(Ack.UNCOMMITTED in each for each in answers)
                assert outcome == (Uncommitted if refused else "done"), f"the listener has answered {answers}"
                self.ran[f"{outcome}"] += 1
            assert len(call.found) < 2
        assert all(self.server.answers[message] in ([], [None]) for message in self.rolled_back), "it was committed"
        assert not {payload for payload, _ in self.busy} & set(self.server.consumed), "consumed before it is processed"
        for channel, found in self.watchers:
            assert found or self.last is not None or not self.client.room(channel), "a caller waits in vain for room"

    def payload(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def call(self) -> None:
        """Send, or begin, use or end a transaction."""
        channel, link = self.dice.choice(self.CHANNELS), self.client.link
        if self.transactional:
            self.transact(channel)
            return
        targets = self.dice.choice(((channel,), (channel,), (0, 1), (channel, channel)))
        payload = self.payload()
        if any(self.client.room(each) < targets.count(each) for each in targets):
            before = [self.client.room(each) for each in targets]
            with pytest.raises(LocalProtocolError):
                self.client.multicast(payload, targets)
            assert [self.client.room(each) for each in targets] == before, "nothing was sent"
            return
        done = outcome(self.client.multicast(payload, targets))
        self.calls.append(Call(link, [(each, payload) for each in targets], False, done))

    def transact(self, channel: int) -> None:
        if channel not in self.open:
            transaction = self.client.transaction(channel)
            if self.client.room(channel):
                assert outcome(transaction.begin()) == ["done"]
                self.open[channel] = transaction, [], self.client.link
            return
        transaction, payloads, link = self.open[channel]
        alive = link is self.client.link and link not in self.lost
        what = self.dice.random()
        if what < 0.65:
            if len(payloads) == 4 or not self.client.room(channel):
                return
            payload = self.payload()
            assert outcome(transaction.send(payload)) == (["done"] if alive else [UnknownOutcome])
            payloads.append(payload)
            if not alive:
                del self.open[channel]
        elif what < 0.9:
            del self.open[channel]
            if not alive:
                with pytest.raises(UnknownOutcome):
                    transaction.commit()
                return
            messages = [(channel, payload) for payload in payloads]
            self.calls.append(Call(link, messages, True, outcome(transaction.commit())))
        else:
            del self.open[channel]
            transaction.rollback()
            self.rolled_back += [(channel, payload) for payload in payloads]

    def process(self) -> None:
        self.server.process()
        if self.dice.random() < 0.3:
            self.deliver()

    def send(self) -> None:
        self.server.send(b"to the client %b" % self.payload())

    def answer(self) -> None:
        """Let the program finish or fail the message that it processes."""
        if self.busy:
            payload, done = self.busy.pop()
            if self.dice.random() < 0.2 and self.last is None:
                self.failed.add(payload)
                done.errback(ValueError("not this one"))
            else:
                done.callback(None)
            if self.last is None and self.dice.random() < 0.3:
                self.idle()  # messages that waited for this answer, perhaps of another link, are passed on

    def deliver(self) -> None:
        """Deliver some of the bytes that one side has sent."""
        self.server.clock.advance(0)
        ends = [self.wire.near, self.wire.far]
        if None in ends:
            self.server.clock.advance(0.5)
            return
        self.wire.far.flush()
        self.dice.shuffle(ends)
        one, other = ends
        sent = one.transport.value()
        size = self.dice.choice((len(sent), self.dice.randint(0, len(sent))))
        one.transport.clear()
        one.transport.write(sent[size:])
        if size:
            other.dataReceived(sent[:size])
        self.ended()

    def ended(self) -> None:
        if self.wire.near and (self.wire.near.transport.disconnecting or self.wire.far.transport.disconnecting):
            self.wire.cut()

    def cut(self) -> None:
        self.ran["cut"] += self.wire.near is not None
        self.wire.cut()

    def lose_link(self) -> None:
        self.ran["lost"] += self.server.link is not None
        self.forget()

    def violate(self) -> None:
        """Let the listener send a packet that does not exist, by which the link is lost."""
        if self.wire.far is not None and self.wire.far.session.linked:
            self.ran["violated"] += 1
            self.wire.far.flush()
            self.wire.far.transport.write(bytes([0xA0]) + bytes(7))

    def forget(self) -> None:
        self.wire.cut()
        self.server.forget()

    def pause(self) -> None:
        self.paused = not self.paused
        (self.client.pause if self.paused else self.client.resume)()

    def watch(self) -> None:
        channel = self.dice.choice(self.CHANNELS)
        self.watchers.append((channel, outcome(self.client.ready(channel))))

    @property
    def linked(self) -> bool:
        return self.wire.near is not None and self.wire.near.session.linked

    def idle(self) -> None:
        """Let everything arrive; then each call whose messages have answers, or whose link is lost, has ended."""
        if self.wire.near is None:
            self.server.clock.advance(0.5)
        for _ in range(10):
            self.server.clock.advance(0)
            if self.wire.near is not None:
                self.wire.far.flush()
                self.wire.pump()
        if not self.linked:
            return
        self.ran["idle"] += 1
        assert self.states[-1] is True
        assert (True, True) not in pairwise(self.states), "a loss of a usable link is not told"
        for call in self.calls:
            assert call.found or not (self.answered(call) or call.link is not self.client.link), (
                "a call is never answered"
            )
        if not (self.busy or self.paused):
            assert self.server.taken == self.server.sent, "a message is not passed on"
            refused = not self.server.transactional and self.failed & set(self.server.taken)
            assert not refused, "a message without a transaction that fails ends the link"
            for payload in self.server.taken:
                if self.server.transactional:
                    assert self.server.results[payload] is (
                        Ack.UNCOMMITTED if payload in self.failed else Ack.COMMITTED
                    )

    def end(self) -> None:
        """Close the client while connections are lost; the link ends in good order, unless it is forgotten."""
        if self.paused:
            self.pause()
        advance_until(lambda: self.idle() or self.linked, self.server.clock)
        self.last, lost, before = self.client.link, len(self.lost), self.ran["lost"] + self.ran["violated"]
        self.rolled_back += [(channel, payload) for channel, (_, sent, _) in self.open.items() for payload in sent]
        self.open.clear()  # closing rolls back
        closed = [outcome(self.client.close())]
        for _ in range(400):
            what = self.dice.choice(("process", "answer", "leave", "deliver", "deliver", "deliver", "send", "rare"))
            if what == "rare" and self.dice.random() < 0.3:
                what = self.dice.choice(("cut", "cut", "close", "lose_link", "violate"))
                self.ran[f"{what} while it closes"] += not closed[0]
            if what == "close":
                closed.append(outcome(self.client.close()))
            elif what == "leave":
                self.server.leave()
            elif what != "rare":
                getattr(self, what)()
            self.check()
        assert closed == [["done"]] * len(closed), "closing does not end"
        forgotten = self.ran["lost"] + self.ran["violated"] > before
        assert len(self.lost) == lost or forgotten, "a link that ends in good order is reported as lost"
        assert all(call.found for call in self.calls)
        assert all(found for _, found in self.watchers), "a caller waits for a client that is closed"
        assert (self.client.connection, self.wire.near) == (None, None)
        for use in (lambda: self.client.multicast(b"x", (0,)), self.client.ready, self.client.connect):
            with pytest.raises(LocalProtocolError):
                use()


@pytest.mark.parametrize("listener_transactional", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_client_agrees_with_a_model_of_each_call(
    make_client: Any, logged_errors: Any, transactional: bool, listener_transactional: bool
) -> None:
    ran = Counter[str]()
    for seed in range(150):
        history = ClientHistory(make_client, seed, transactional, listener_transactional)
        try:
            for _ in range(120):
                history.step()
            history.end()
        except AssertionError as wrong:
            wrong.add_note(f"seed {seed}")
            raise
        ran += history.ran
    logged_errors.take()
    wanted = {"cut", "lost", "idle", "done", "lost with messages"} | ({str(Uncommitted)} if transactional else set())
    wanted |= {f"{what} while it closes" for what in ("cut", "close", "lose_link", "violate")}
    assert wanted - set(ran) == set(), "these never happened, so the histories prove nothing about them"


def test_messages_without_on_message_end_the_link(make_client: Any, logged_errors: Any) -> None:
    client, wire = make_client("subscribe:s@0")
    first = client.link
    wire.server.publish("s", b"1")
    wire.pump()
    assert first.over
    assert len(logged_errors.take()) == 1
