"""Relink's client for programs: one link to one endpoint, over connections that come and go.

    client = RelinkClient(reactor, clientFromString(reactor, "tcp:127.0.0.1:7733"), "publish:notes", transactional=True)
    client.connect()
    async with client.transaction() as transaction:
        await transaction.send(b"one")
        await transaction.send(b"two")
    await client.close()

It reconnects for ever and resumes its link: inside one link each message is processed once, in order.  When the
listener does not know the link any more, what was under way fails with UnknownOutcome, and the client goes on with a
new link.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import Closed, LocalProtocolError
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.connection import Connection
from fyrehose.protocols.relink.events import Unknown
from fyrehose.protocols.relink.frames import Ack
from fyrehose.protocols.relink.handshake import Hello, Terms
from fyrehose.protocols.relink.limits import Limits
from fyrehose.protocols.relink.link import Link
from fyrehose.protocols.relink.outcomes import Uncommitted, UnknownOutcome
from fyrehose.protocols.relink.parts import Parts, parts_of
from fyrehose.protocols.relink.session import ConnectorSession
from fyrehose.protocols.relink.tables import Sending
from fyrehose.protocols.relink.transactions import Transaction, Transactions

log = Logger()

#: How long :meth:`RelinkClient.close` waits for the listener to agree, in seconds.
FAREWELL = 5.0


def backoff(attempt: int, randomness: Callable[[], float] = random.random) -> float:
    """How long to wait before the next try, in seconds, after ``attempt`` tries have failed: 0, 0.1, 0.2, 0.4 ... 5,
    each 20 % more or less.  However long a server was away, its clients are back within 10 s."""
    return min(0.1 * 2.0 ** min(attempt - 1, 10), 5.0) * (0.8 + 0.4 * randomness()) if attempt > 0 else 0.0


@attrs.define(eq=False)
class RelinkClient:
    """A connector.

    :ivar clock: the reactor, or a Clock
    :ivar name: the endpoint's name, as the listener has it: ``publish:STREAM`` or ``subscribe:STREAM[@SEQ][?seq]``
    :ivar transactional: whether our messages count only when they are committed
    :ivar on_message: is called with channel, number and parts of each message of the listener, in order; when it has
        returned, or the Deferred that it returned has fired, the message is consumed.  If that fails, a committed
        message is reported as not processed; a plain one ends the link.
    :ivar rename: gives the endpoint's name anew for each new link; then a link that is lost is not replaced before that
    :ivar on_lost: is called with the messages whose outcome is not known, when the link was lost
    :ivar on_state: is called with True when the link can be used, with False when its connection is gone
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    name: str
    transactional: bool = attrs.field(default=False, kw_only=True)
    listener_transactional: bool = attrs.field(default=False, kw_only=True)
    id_size: int = attrs.field(default=4, kw_only=True)
    listener_id_size: int = attrs.field(default=4, kw_only=True)
    limits: Limits = attrs.field(factory=Limits, kw_only=True)
    on_message: Callable[[int, int, tuple[bytes, ...]], Any] | None = attrs.field(default=None, kw_only=True)
    rename: Callable[[], str] | None = attrs.field(default=None, kw_only=True)
    on_lost: Callable[[list[Unknown]], object] = attrs.field(default=lambda unknown: None, kw_only=True)
    on_state: Callable[[bool], object] = attrs.field(default=lambda connected: None, kw_only=True)
    retry: Callable[[int], float] = attrs.field(default=backoff, kw_only=True)
    link: Link | None = attrs.field(default=None, init=False)
    _transactions: Transactions = attrs.field(init=False)
    _service: ClientService | None = attrs.field(default=None, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)
    _first: Deferred[None] = attrs.field(factory=Deferred, init=False)
    _sent: dict[int, deque[tuple[int, Deferred[None]]]] = attrs.field(factory=dict, init=False)
    _rooms: list[tuple[int, Deferred[None]]] = attrs.field(factory=list, init=False)
    _closes: dict[int, list[Deferred[None]]] = attrs.field(factory=dict, init=False)
    #: messages of the listener that wait: channel, number (its complement: rolled back), parts (None: refused)
    _inbox: deque[tuple[int, int, tuple[bytes, ...] | None]] = attrs.field(factory=deque, init=False)
    _busy: bool = attrs.field(default=False, init=False)
    _handing_out: bool = attrs.field(default=False, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    _ended: Deferred[None] | None = attrs.field(default=None, init=False)
    _closing: bool = attrs.field(default=False, init=False)
    _tries: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._transactions = Transactions(self)

    # For programs.

    def connect(self) -> Deferred[None]:
        """Connect, and stay connected until :meth:`close`; fires when there is a link for the first time."""
        if self._service is not None or self._closing:
            raise LocalProtocolError("a client connects once")
        self._service = ClientService(self.endpoint, _Factory(self), retryPolicy=self._delay, clock=self.clock)
        self._service.startService()
        return self._first

    def send(self, parts: Parts, channel: int = 0) -> Deferred[None]:
        """Send a message on a plain channel; fires when the listener has consumed it.

        :raises LocalProtocolError: there is no link, or no room: see :meth:`ready`
        """
        return self.multicast(parts, (channel,))

    def multicast(self, parts: Parts, channels: Sequence[int]) -> Deferred[None]:
        """Send one message on each of several channels; fires when the listener has consumed all of them.

        :raises LocalProtocolError: as for :meth:`send`; then it was sent on none
        """
        if self.transactional:
            raise LocalProtocolError("the channels of this link are transactional: use transaction()")
        seqs = self._link().send(tuple(channels), parts_of(parts))
        waiting: list[Deferred[None]] = []
        for channel, seq in zip(channels, seqs, strict=True):
            waiting.append(Deferred())
            self._sent.setdefault(channel, deque()).append((seq, waiting[-1]))
        self.flush_soon()
        if len(waiting) == 1:
            return waiting[0]
        done: Deferred[Any] = gatherResults(waiting, consumeErrors=True)
        return done.addCallbacks(lambda _: None, lambda failure: failure.value.subFailure)

    def ready(self, channel: int = 0) -> Deferred[None]:
        """Fires when there is a link, and room for another message on ``channel``."""
        if self._closing:
            raise LocalProtocolError("the client is closed")
        if self.room(channel):
            return succeed(None)
        self._rooms.append((channel, Deferred()))
        return self._rooms[-1][1]

    def room(self, channel: int) -> int:
        """How many messages more ``channel`` has room for."""
        if self.link is None or self.link.over:
            return 0
        found = self.link.sending.get(channel)
        return self.limits.window if found is None else found.room

    def transaction(self, channel: int = 0) -> Transaction:
        """A transaction: ``async with``, or its methods.  One at a time on each channel is open; the others wait."""
        if not self.transactional:
            raise LocalProtocolError("the channels of this link are plain: use send()")
        return Transaction(self._transactions, channel)

    def close_channel(self, channel: int) -> Deferred[None]:
        """Close a channel when everything on it is consumed; fires when the listener has forgotten it.

        :raises LocalProtocolError: it is not open
        """
        self._link().close(channel)
        closed: Deferred[None] = Deferred()
        self._closes.setdefault(channel, []).append(closed)
        self.flush_soon()
        return closed

    def pause(self) -> None:
        """Hand out no more messages until :meth:`resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._hand_out()

    def close(self) -> Deferred[None]:
        """Settle what was sent, end the link, and let go of the listener; all of that for FAREWELL seconds at the most.

        What is not settled then fails with :class:`~fyrehose.errors.Closed`.
        """
        self._closing = True
        link = self.link
        if self._ended is not None:  # it was called before
            return self._when_ended()
        if self._service is None or link is None or link.over:
            return self._stop()
        self._transactions.abandon()
        for channel in list(link.sending.values()):
            if channel.mode is Sending.OPEN and not channel.undecided:
                link.close(channel.id)
        ended = self._ended = Deferred()
        patience = self.clock.callLater(FAREWELL, self._end)
        ended.addCallback(lambda _: patience.cancel() if patience.active() else None)
        ended.addCallback(lambda _: self._stop())
        done = self._when_ended()
        self.handle(link.shutdown())
        self.flush_soon()
        return done

    def _when_ended(self) -> Deferred[None]:
        """Fires when :meth:`close` has come to its end."""
        done: Deferred[None] = Deferred()
        assert self._ended is not None

        def tell(result: Any) -> None:
            done.callback(result)

        self._ended.addBoth(tell)
        return done

    # Inside.

    def _link(self) -> Link:
        if self._closing or self.link is None or self.link.over:
            raise LocalProtocolError("there is no link: wait until connect() has fired, or ready()")
        return self.link

    def _delay(self, attempt: int) -> float:
        self._tries += 1
        return self.retry(self._tries - 1)

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.callback(None)

    def _stop(self) -> Deferred[None]:
        self._fail(Closed("the client was closed before the listener had acknowledged it"))
        if not self._first.called:
            self._first.errback(Closed("the client was closed"))
        service, self._service = self._service, None
        if service is None:
            return succeed(None)
        stopped: Deferred[Any] = service.stopService()
        return stopped.addCallback(lambda _: None)

    def _fail(self, error: Exception) -> None:
        """Nothing that was under way will be settled."""
        waiting = [one for sent in self._sent.values() for _, one in sent]
        waiting += [one for closes in self._closes.values() for one in closes]
        self._sent.clear()
        self._closes.clear()
        self._inbox.clear()
        if self._closing:
            waiting += [one for _, one in self._rooms]
            self._rooms.clear()
        for one in waiting:
            one.errback(error)
        self._transactions.fail(error)

    def flush_soon(self) -> None:
        """Write what there is when this turn of the reactor is over."""
        if self._connection is not None:
            self._connection.flush_soon()

    # What a connection calls.

    def made(self, connection: Connection) -> ConnectorSession:
        """There is a transport: the session that begins on it."""
        if self._connection is not None:
            self._connection.give_up()
        self._connection = connection
        old = None if self.link is None or self.link.over else self.link
        if old is None and self.rename is not None:
            self.name = self.rename()
        terms = Terms(
            endpoint=self.name,
            connector_size=self.id_size,
            listener_size=self.listener_id_size,
            connector_transactions=self.transactional,
            listener_transactions=self.listener_transactional,
        )
        hello = Hello(
            terms=terms,
            require=old is not None and self.rename is not None,
            epoch=old.epoch if old else 0,
            link_id=old.id if old else 0,
        )

        def fresh(epoch: int, link_id: int) -> Link:
            return Link(terms, True, epoch, link_id, self.limits)

        return ConnectorSession(self.limits, old, hello=hello, fresh=fresh)

    def gone(self, connection: Connection) -> None:
        """The transport is gone; the link stays."""
        if self._connection is connection:
            self._connection = None
            self.on_state(False)
            if self._closing and self._ended is not None and self.link is not None and self.link.over:
                self._end()

    def broken(self) -> None:
        """The listener has broken a rule: the link is lost."""
        if self.link is not None:
            self._lose(self.link)

    def handle(self, found: Sequence[Any]) -> None:
        """Deal with what a session or the link says."""
        for event in found:
            if self._closing and self._ended is None:
                return  # it has come to its end: a link that was made meanwhile brings nothing
            getattr(self, f"_on_{type(event).__name__.lower()}")(event)
        self._make_room()

    def _on_linked(self, event: events.Linked) -> None:
        self._tries = 0
        if event.lost is not None and not self._lost(event.lost):
            return
        self.link = event.link
        if event.resumed:
            return
        if self._closing:
            self._end()
            return
        self._usable()

    def _on_refused(self, event: events.Refused) -> None:
        """The listener does not know our link any more: connect again, for a new one."""
        self._tries = 0
        if event.lost is None or not self._lost(event.lost):
            return
        if self._closing:
            self._end()
        elif self._connection is not None:
            self._connection.give_up()

    def _lost(self, link: Link) -> bool:
        """Deal with a link that the listener does not know any more; return False if that was its good end."""
        if link.shutdown_said and not link.sending:
            self._on_ended(None)  # it had come to its good end, and only we had not heard of it
            return False
        self._lose(link)
        return True

    def _on_resumed(self, event: events.Resumed) -> None:
        self._usable()

    def _usable(self) -> None:
        self.on_state(True)
        if not self._first.called:
            self._first.callback(None)

    def _lose(self, link: Link) -> None:
        unknown = link.unknown()
        link.over = True
        self.on_lost(unknown)
        self._fail(UnknownOutcome(unknown))

    def _on_consumed(self, event: events.Consumed) -> None:
        sent = self._sent.get(event.channel)
        while sent and sent[0][0] <= event.last:
            sent.popleft()[1].callback(None)

    def _on_resulted(self, event: events.Resulted) -> None:
        self._transactions.resulted(event.channel, event.last, event.result)

    def _on_closed(self, event: events.Closed) -> None:
        self._sent.pop(event.channel, None)
        for closed in self._closes.pop(event.channel, []):
            closed.callback(None)

    def _on_ended(self, event: events.Ended | None) -> None:
        if self._connection is not None:
            self._connection.finish()
        self._end()

    def _on_peershutdown(self, event: events.PeerShutdown) -> None:
        """The listener opens no more channels; what it has sent goes on."""

    def _on_finished(self, event: events.Finished) -> None:
        link = self.link
        if link is not None and event.channel in link.receiving:
            self.handle(link.forget(event.channel))

    def _make_room(self) -> None:
        rooms, self._rooms = self._rooms, []
        for channel, waiting in rooms:
            if self.room(channel) > 0:
                waiting.callback(None)
            else:
                self._rooms.append((channel, waiting))

    # Messages of the listener.

    def _on_received(self, event: events.Received) -> None:
        if self.link is None or self.link.over:
            return  # it was lost by a message that came together with these
        for seq, parts in enumerate(event.messages, event.first):
            self._inbox.append((event.channel, seq, parts))
        self._hand_out()

    def _on_decided(self, event: events.Decided) -> None:
        if self.link is None or self.link.over:
            return
        if event.dropped:
            self._inbox.append((event.channel, event.last if event.commit else ~event.last, None))
        for seq, parts in enumerate(event.messages, event.first):
            self._inbox.append((event.channel, seq if event.commit else ~seq, parts))
        self._hand_out()

    def _hand_out(self) -> None:
        """One message after the other; those that are taken at once in one loop, however many there are."""
        if self._handing_out:
            return
        self._handing_out = True
        try:
            while self._inbox and not self._busy and not self._paused:
                self._hand_out_one(*self._inbox.popleft())
        finally:
            self._handing_out = False
        self.flush_soon()

    def _hand_out_one(self, channel: int, seq: int, parts: tuple[bytes, ...] | None) -> None:
        link = self.link
        assert link is not None
        if seq < 0:
            link.consume(channel, ~seq)
            return
        if parts is None:
            link.consume(channel, seq, Ack.UNCOMMITTED)
            return
        self._busy = True
        done: Deferred[Any] = maybeDeferred(self._take, channel, seq, parts)
        done.addBoth(self._taken, link, channel, seq)

    def _take(self, channel: int, seq: int, parts: tuple[bytes, ...]) -> Any:
        if self.on_message is None:
            raise LocalProtocolError("the listener sends messages, and nobody takes them")
        return self.on_message(channel, seq, parts)

    def _taken(self, result: Any, link: Link, channel: int, seq: int) -> None:
        self._busy = False
        if link is not self.link or link.over:
            return
        ok = not isinstance(result, Failure)
        if not ok:
            log.failure("a message of {name} was not taken", result, name=self.name)
        if link.peer_transactions:
            link.consume(channel, seq, Ack.COMMITTED if ok else Ack.UNCOMMITTED)
        elif ok:
            link.consume(channel, seq)
        else:
            if self._connection is not None:
                self._connection.give_up()
            self._lose(link)
            return
        self._hand_out()


class _Factory(Factory):
    noisy = False

    def __init__(self, client: RelinkClient) -> None:
        self.client = client

    def buildProtocol(self, addr: Any) -> Connection:
        return Connection(self.client, self.client.clock)


__all__ = ["RelinkClient", "Transaction", "Uncommitted", "UnknownOutcome", "backoff"]
