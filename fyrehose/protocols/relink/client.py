"""Relink client for Twisted programs: one link to one endpoint, kept over any number of connections.

    client = RelinkClient(reactor, clientFromString(reactor, "tcp:127.0.0.1:7733"), "publish:notes", transactional=True)
    client.connect()
    async with client.transaction() as transaction:
        await transaction.send(b"one")
        await transaction.send(b"two")
    await client.close()

The client reconnects until it is closed, and resumes its link: within one link the listener processes each message
once, in order.  If the listener no longer knows the link, all unacknowledged messages fail with UnknownOutcome, and the
client continues on a new link.

Commits and rollbacks apply to messages in order, so a channel has at most one open transaction.  A commit need not wait
for the results of earlier transactions; results arrive in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock, gatherResults, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import Broken, Closed, ConfigError, LocalProtocolError
from fyrehose.interfaces import IPublisher
from fyrehose.net.clients import ClientConnection, ServerSilent, TCPClient
from fyrehose.options import shown_size
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.channels import Sending
from fyrehose.protocols.relink.events import Decided, Received, Uncommitted, UnknownOutcome, Unsettled
from fyrehose.protocols.relink.frames import Ack, Hello, Op, Terms
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.messages import MessageParts, message_parts
from fyrehose.protocols.relink.names import publish_name
from fyrehose.protocols.relink.session import ConnectorSession, Linked, LinkUnknown, SessionEvent

log = Logger()

#: Size of the listener's channel ids, in bytes.
LISTENER_ID_SIZE = 4
#: Called with channel, sequence number and parts of a message.
OnMessage = Callable[[int, int, tuple[bytes, ...]], Any]


@attrs.define(eq=False)
class Channel:
    """The results that the program waits for on one channel.

    :ivar sent: unconsumed messages in order: the number of each, and the Deferred that its sender waits for
    :ivar lock: the lock that the open transaction holds
    :ivar open: the open transaction
    :ivar committed: committed transactions that wait for their results, in order: number of the last message, count of
        messages, and the Deferred of the commit
    :ivar refused: whether a part of the first committed transaction was refused
    """

    sent: deque[tuple[int, Deferred[None]]] = attrs.field(factory=deque)
    lock: DeferredLock = attrs.field(factory=DeferredLock)
    open: Transaction | None = None
    committed: deque[tuple[int, int, Deferred[None]]] = attrs.field(factory=deque)
    refused: bool = False

    def consumed(self, last: int) -> None:
        """Fire the Deferreds of the messages up to number *last*."""
        while self.sent and self.sent[0][0] <= last:
            self.sent.popleft()[1].callback(None)

    def abandon(self) -> list[Deferred[None]]:
        """Return all Deferreds that wait for the listener, and forget them."""
        waiting = [deferred for _, deferred in self.sent]
        waiting += [deferred for _, _, deferred in self.committed]
        self.sent.clear()
        self.committed.clear()
        self.refused = False
        return waiting

    def resulted(self, last: int, result: Ack) -> None:
        """Record *result* for the messages up to number *last*, and fire the Deferreds of finished transactions."""
        end = -1
        while self.committed and end < last:
            self.refused = self.refused or result is Ack.UNCOMMITTED
            end, count, done = self.committed[0]
            if end > last:
                return
            refused, self.refused = self.refused, False
            self.committed.popleft()
            if refused:
                done.errback(Uncommitted(_refusal(count)))
            else:
                done.callback(None)


def _refusal(count: int) -> str:
    """Return the message of the error for a refused transaction of *count* messages.

    The protocol does not state the reason, so the message names the limits that listeners have.
    """
    limits = LinkLimits()
    return (
        f"the listener refused a transaction of {count} messages, and none of them is stored; a server takes at most "
        f"{2 * limits.backlog} undecided messages on a channel, and {shown_size(2 * limits.backlog_size)} on a link; "
        "its log says why it refused"
    )


@attrs.define(eq=False)
class Transaction:
    """One transaction of one channel.

        async with client.transaction() as transaction:
            await transaction.send(b"...")

    commits at the end of the block, and waits for the result; an exception rolls back.
    """

    _client: RelinkClient
    _state: Channel
    channel: int
    count: int = attrs.field(default=0, init=False)
    _link: Link | None = attrs.field(default=None, init=False)

    def begin(self) -> Deferred[Transaction]:
        """Begin the transaction; the Deferred fires with it when the previous transaction on this channel has ended."""
        acquired: Deferred[Any] = self._state.lock.acquire()

        def begun(_: Any) -> Deferred[Transaction]:
            ready: Deferred[Any] = maybeDeferred(self._client.when_room, self.channel)
            return ready.addCallbacks(opened, release)

        def opened(_: Any) -> Transaction:
            self._state.open, self._link = self, self._client.link
            return self

        def release(failure: Any) -> Any:
            self._state.lock.release()
            return failure

        return acquired.addCallback(begun)

    def send(self, parts: MessageParts) -> Deferred[None]:
        """Send a message as soon as the window has room; the Deferred fires when the link has taken the message.

        :raises LocalProtocolError: the transaction is not open, or already has as many messages as the window
        :raises UnknownOutcome: (through the Deferred) the link was lost, so no message of the transaction will be
            processed
        """
        self._check()
        client = self._client
        if self.count >= client.limits.window:
            raise LocalProtocolError(
                f"a transaction may not exceed the window of {client.limits.window} messages; commit it, or create the "
                "client with limits=LinkLimits(window=...)"
            )
        self.count += 1
        message = message_parts(parts)

        def send_now(_: Any = None) -> None:
            self._check()
            self._require_link().send((self.channel,), message)
            client.flush_soon()

        ready: Deferred[Any] = client.when_room(self.channel)
        return ready.addCallback(send_now)

    def commit(self) -> Deferred[None]:
        """Commit; the Deferred fires when the listener has processed all messages, or fails with Uncommitted.

        :raises LocalProtocolError: the transaction is not open
        """
        self._check()
        link = self._require_link()
        try:
            if not self.count:
                return succeed(None)
            _, last = link.decide(self.channel, Op.COMMIT)
            done: Deferred[None] = Deferred()
            self._state.committed.append((last, self.count, done))
            self._client.flush_soon()
            return done
        finally:
            # End the transaction last: the next one on the channel may begin and end within this call.
            self._end()

    def rollback(self) -> None:
        """Roll the transaction back.

        :raises LocalProtocolError: the transaction is not open
        """
        self._check()
        link = self._link
        try:
            if self.count and link is self._client.link and link is not None and not link.over:
                link.decide(self.channel, Op.ROLLBACK)
                self._client.flush_soon()
        finally:
            self._end()  # End it last, for the same reason as in commit.

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            await self.commit()
        elif self._state.open is self:
            self.rollback()

    def _check(self) -> None:
        if self._state.open is not self:
            raise LocalProtocolError("the transaction is not open")

    def _require_link(self) -> Link:
        """Return the link that the transaction began on.

        :raises UnknownOutcome: that link is lost; the transaction is over
        """
        link = self._link
        if link is None or link.over or link is not self._client.link:
            self._end()
            raise UnknownOutcome
        return link

    def _end(self) -> None:
        if self._state.open is self:
            self._state.open = None
            self._state.lock.release()


@attrs.define(eq=False)
class Inbox:
    """A queue that passes on messages, and waits while a Deferred that ``on_message`` returned has not fired.

    :ivar on_message: as for :class:`~.client.RelinkClient`
    :ivar refused: called if a message without a transaction could not be processed
    :ivar flush: called after messages were settled
    """

    on_message: OnMessage | None
    refused: Callable[[], object]
    flush: Callable[[], object]
    link: Link | None = None
    paused: bool = False
    #: the waiting messages: channel, sequence number, parts (None: they were dropped), and whether to process the
    #: message
    _waiting: deque[tuple[int, int, tuple[bytes, ...] | None, bool]] = attrs.field(factory=deque, init=False)
    _busy: bool = attrs.field(default=False, init=False)
    _delivering: bool = attrs.field(default=False, init=False)

    def add(self, link: Link, event: Received | Decided) -> None:
        """Pass on the messages of *event*, after the messages that already wait."""
        self.link = link
        process = True
        if isinstance(event, Decided):
            process = event.commit
            if event.dropped is not None:
                self._waiting.append((event.channel, event.last, None, process))
        for seq, parts in enumerate(event.messages, event.first):
            self._waiting.append((event.channel, seq, parts, process))
        self.deliver()

    def clear(self) -> None:
        """Forget all messages, because their link is lost."""
        self._waiting.clear()

    def deliver(self) -> None:
        """Pass on messages.

        Messages that are processed at once are handled by this loop, not by recursion, however many there are.
        """
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._waiting and not self._busy and not self.paused:
                self._deliver_one(*self._waiting.popleft())
        finally:
            self._delivering = False
        self.flush()

    def _deliver_one(self, channel: int, seq: int, parts: tuple[bytes, ...] | None, process: bool) -> None:
        link = self.link
        assert link is not None
        if not process or parts is None:
            link.consume(channel, seq, Ack.UNCOMMITTED if process else None)
            return
        self._busy = True
        done: Deferred[Any] = maybeDeferred(self._call_on_message, channel, seq, parts)
        done.addBoth(self._processed, link, channel, seq)

    def _call_on_message(self, channel: int, seq: int, parts: tuple[bytes, ...]) -> Any:
        if self.on_message is None:
            raise LocalProtocolError("received a message, but on_message is not set")
        return self.on_message(channel, seq, parts)

    def _processed(self, result: Any, link: Link, channel: int, seq: int) -> None:
        self._busy = False
        if link is not self.link or link.over:
            self.deliver()  # Messages of a new link may have arrived meanwhile.
            return
        failed = isinstance(result, Failure)
        if failed:
            log.failure("message {seq} of {name!r} could not be processed", result, seq=seq, name=link.terms.endpoint)
        if link.peer_transactions:
            link.consume(channel, seq, Ack.UNCOMMITTED if failed else Ack.COMMITTED)
        elif failed:
            self.refused()
            return
        else:
            link.consume(channel, seq)
        self.deliver()


class ConnectorConnection(ClientConnection):
    """The Twisted protocol of a connector: decodes packets, passes events to the client, and sends pings."""

    session: ConnectorSession

    def __init__(self, client: RelinkClient, session: ConnectorSession) -> None:
        super().__init__(session, client.handle)
        self.client = client
        self._over = False
        self._reading = True

    # Called by the reactor.

    def receive(self, data: bytes) -> None:
        if not self._over:
            self._dispatch(self.session.receive_data(data))

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008 - Twisted's signature
        self._over = True
        self.session.receive_eof()
        super().connectionLost(reason)

    # Called by the client.

    def begin(self) -> None:
        """Send the handshake, which the listener must answer in time."""
        self.timers.start(self.options.answer_timeout, self._handshake_timed_out)
        self.flush()

    def flush_soon(self) -> None:
        """Write pending packets at the end of this turn of the reactor."""
        if not self._over:
            self.timers.start(0, self._flush_now)

    def finish(self) -> None:
        """Close the connection of a link that has ended or is lost, after the link's last packets were sent."""
        self.flush()
        self._over = True
        self.close()

    def leave(self) -> None:
        """Abort the connection; data that still arrives has no effect."""
        self._over = True
        self.session.fenced()
        self.transport.abortConnection()

    # Private.

    def _dispatch(self, found: Sequence[Any]) -> None:
        """Pass events on to the client; an event Broken closes the connection after all earlier events."""
        if found and isinstance(found[0], Linked):
            self.timers.stop(self._handshake_timed_out)
            self.keep_alive()
        broken = found[-1] if found and isinstance(found[-1], Broken) else None
        valid = found if broken is None else found[:-1]
        self.confirmed = self.confirmed or bool(valid)
        self.handle(valid)
        if broken is not None:
            log.warn("the listener violates the protocol, so the link is lost: {error}", error=broken.error)
            self.reason = self.violation(broken.error)
            self.finish()  # Messages before the violation are acknowledged.
            self.session.fenced()
            self.client.protocol_broken()
        elif not self._over:
            self.flush()
            reading = not self.session.waiting  # False while too many messages wait for the client
            if reading != self._reading:
                self._reading = reading
                (self.transport.resumeProducing if reading else self.transport.pauseProducing)()

    def _flush_now(self) -> None:
        if not self._over:
            self._dispatch(self.session.receive_data(b""))

    # Called by the timers.

    @property
    def unheard(self) -> bool:
        return not self._reading

    def ping(self) -> None:
        if self.session.linked and self.session.link is not None:
            self.session.link.ping()
            self.flush()

    def _handshake_timed_out(self) -> None:
        self.abort(ServerSilent(f"the listener has not answered the handshake for {self.options.answer_timeout:g} s"))


@implementer(IPublisher)
@attrs.define(eq=False)
class RelinkClient(TCPClient):
    """A connector, which sends and receives messages over one link, and resumes the link on each new connection.

    :ivar name: the endpoint name: ``publish:STREAM`` or ``subscribe:STREAM[@SEQ][?seq]``; empty: see :meth:`prepare`
    :ivar transactional: whether the connector's channel uses transactions (specification, 1 and 3.2)
    :ivar id_size: size of the connector's channel ids, in bytes
    :ivar on_message: called with channel, sequence number and parts of each message of the listener, in order.  The
        message is consumed when the call has returned, or the Deferred that it returned has fired.  If that fails, a
        committed message is reported as uncommitted; a message without a transaction ends the link.
    :ivar rename: called before each new link is requested; returns the endpoint name.  With it the client requires its
        old link (handshake flag 2), so that the listener never replaces a lost link under the old name
    :ivar on_lost: called when the link is lost, with the messages that were not acknowledged.  A message whose outcome
        is UNKNOWN (:class:`~.events.MessageOutcome`) may have been processed, so sending it again may store it twice
    :ivar on_state: called with True when the link becomes usable, and with False when its connection is lost
    """

    name: str = ""
    transactional: bool = attrs.field(default=False, kw_only=True)
    listener_transactional: bool = attrs.field(default=False, kw_only=True)
    id_size: int = attrs.field(default=4, kw_only=True)
    limits: LinkLimits = attrs.field(factory=LinkLimits, kw_only=True)
    on_message: OnMessage | None = attrs.field(default=None, kw_only=True)
    rename: Callable[[], str] | None = attrs.field(default=None, kw_only=True)
    on_lost: Callable[[list[Unsettled]], object] = attrs.field(default=lambda unsettled: None, kw_only=True)
    link: Link | None = attrs.field(default=None, init=False)
    _channels: defaultdict[int, Channel] = attrs.field(factory=lambda: defaultdict(Channel), init=False)
    _inbox: Inbox = attrs.field(init=False)
    _ended: Deferred[None] | None = attrs.field(default=None, init=False)
    _closing: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._inbox = Inbox(self.on_message, self._message_refused, self.flush_soon)

    # The interface for programs.

    def prepare(self, stream: str | None) -> None:
        """Prepare a link that publishes to *stream*, before :meth:`connect`.

        :raises ConfigError: no stream was given, or the client is for another endpoint: a link belongs to one
        """
        if stream is None:
            raise ConfigError("no stream was given; use --stream NAME")
        name = publish_name(stream)
        if self.name not in ("", name):
            raise ConfigError(f"cannot publish to {stream!r} over a link to {self.name!r}; create another client")
        self.name = name

    def publish(self, stream: str | None, payload: bytes) -> Deferred[None]:
        """Send *payload* on channel 0, which publishes it to *stream*; see :meth:`send`.

        :raises ConfigError: as for :meth:`prepare`
        """
        self.prepare(stream)
        if self.room(0):
            return self.send(payload)
        ready: Deferred[Any] = self.ready()
        return ready.addCallback(lambda _: self.send(payload))

    def connect(self) -> Deferred[None]:
        """Connect, and reconnect until :meth:`close` is called.

        :return: a Deferred that fires when the first link is established
        :raises ConfigError: the client has no endpoint name, and no stream was prepared
        :raises LocalProtocolError: connect or close was called before
        """
        if not self.name:
            raise ConfigError("no stream was selected; call prepare() before connect(): a link has one stream")
        return super().connect()

    def send(self, parts: MessageParts, channel: int = 0) -> Deferred[None]:
        """Send a message on a channel without transactions.

        :return: a Deferred that fires when the listener has consumed the message; fails with UnknownOutcome if the link
            is lost
        :raises LocalProtocolError: there is no link, or the window is full (see :meth:`ready`)
        """
        return self.multicast(parts, (channel,))

    def multicast(self, parts: MessageParts, channels: Sequence[int]) -> Deferred[None]:
        """Send one message on each of several channels without transactions.

        :return: a Deferred that fires when the listener has consumed the message on all of these channels
        :raises LocalProtocolError: as for :meth:`send`; the message was sent on none of the channels
        """
        if self.transactional:
            raise LocalProtocolError("the channels of this link are transactional; use transaction()")
        seqs = self._require_link().send(tuple(channels), message_parts(parts))
        waiting: list[Deferred[None]] = []
        for channel, seq in zip(channels, seqs, strict=True):
            waiting.append(Deferred())
            self._channels[channel].sent.append((seq, waiting[-1]))
        self.flush_soon()
        if len(waiting) == 1:
            return waiting[0]
        done: Deferred[Any] = gatherResults(waiting, consumeErrors=True)
        return done.addCallbacks(lambda _: None, lambda failure: failure.value.subFailure)

    def ready(self, channel: int = 0) -> Deferred[None]:
        """Wait until there is a link, and *channel* has room for another message.

        :raises LocalProtocolError: the client is closed
        """
        if self._closing:
            raise LocalProtocolError("the client is closed")
        return self.watchers.when(lambda: not self._closing and self.room(channel) > 0)

    when_room = ready  #: as :meth:`ready`; transactions call it also where a subclass makes :meth:`ready` wait longer

    def room(self, channel: int) -> int:
        """Return how many more messages may be sent on *channel* now; 0 without a link."""
        if self.link is None or self.link.over:
            return 0
        found = self.link.sending.get(channel)
        return self.limits.window if found is None else found.room

    def transaction(self, channel: int = 0) -> Transaction:
        """Return a new transaction on *channel*; it begins when the previous transaction on this channel has ended.

        :raises LocalProtocolError: the channels of this link have no transactions
        """
        if not self.transactional:
            raise LocalProtocolError("the channels of this link have no transactions; use send()")
        return Transaction(self, self._channels[channel], channel)

    def pause(self) -> None:
        """Stop calling ``on_message`` until :meth:`resume`."""
        self._inbox.paused = True

    def resume(self) -> None:
        """Call ``on_message`` again, beginning with the messages that were received meanwhile."""
        self._inbox.paused = False
        self._inbox.deliver()

    def close(self) -> Deferred[None]:
        """Roll back open transactions, wait until all messages are settled, shut down the link, and disconnect.

        After ``connection_options.close_timeout``, messages that are not settled fail with
        :class:`~fyrehose.errors.Closed`.

        :return: a Deferred that fires when the client is disconnected
        """
        self._closing = True
        link = self.link
        if self._ended is not None:  # close() was called before.
            return self._wait_for_end()
        if self.closed or link is None or link.over:
            return self._stop()
        for transactions in list(self._channels.values()):
            if transactions.open is not None:
                transactions.open.rollback()
        for channel in list(link.sending.values()):
            if channel.mode is Sending.OPEN and not channel.undecided:
                link.close(channel.id)
        ended = self._ended = Deferred()
        timeout = self.clock.callLater(self.connection_options.close_timeout, self._end)
        ended.addCallback(lambda _: timeout.cancel() if timeout.active() else None)
        ended.addCallback(lambda _: self._stop())
        done = self._wait_for_end()
        self.handle(link.shutdown())
        self.flush_soon()
        return done

    def _wait_for_end(self) -> Deferred[None]:
        """Return a Deferred of its own for each call of :meth:`close`; all fire when the link has ended."""
        done: Deferred[None] = Deferred()
        assert self._ended is not None
        self._ended.addBoth(done.callback)
        return done

    # Internals.

    def _require_link(self) -> Link:
        """Return the link if it is usable.

        :raises LocalProtocolError: there is no link, or the client is closed
        """
        if self._closing or self.link is None or self.link.over:
            raise LocalProtocolError("there is no link; wait for connect() or ready()")
        return self.link

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.callback(None)

    def _stop(self) -> Deferred[None]:
        return self.end(Closed("the client was closed before the listener acknowledged the message"))

    def abandon(self, error: Exception) -> None:
        self._closing = True
        self._fail(error)
        self._end()

    def _fail(self, error: Exception) -> None:
        """Fail with *error* all Deferreds that wait for an answer of the listener."""
        waiting = [deferred for channel in self._channels.values() for deferred in channel.abandon()]
        self._inbox.clear()
        for deferred in waiting:
            deferred.errback(error)

    def flush_soon(self) -> None:
        """Write pending packets at the end of this turn of the reactor."""
        if self.connection is not None:
            self.connection.flush_soon()

    # Called by the shell and a connection.

    def new_connection(self) -> ConnectorConnection:
        """Return a connection that resumes the link if there is one."""
        old = None if self.link is None or self.link.over else self.link
        if old is None and self.rename is not None:
            self.name = self.rename()
        terms = Terms(
            endpoint=self.name,
            connector_size=self.id_size,
            listener_size=LISTENER_ID_SIZE,
            connector_transactions=self.transactional,
            listener_transactions=self.listener_transactional,
        )
        hello = Hello(
            terms=terms,
            require=old is not None and self.rename is not None,
            epoch=old.epoch if old else 0,
            link_id=old.id if old else 0,
        )

        def new_link(epoch: int, link_id: int) -> Link:
            return Link(terms, True, epoch, link_id, self.limits)

        return ConnectorConnection(self, ConnectorSession(self.limits, old, hello=hello, new_link=new_link))

    def connection_made(self, connection: ConnectorConnection) -> None:
        connection.begin()

    def connection_lost(self, connection: ConnectorConnection) -> None:
        """Record that the connection is lost; the link is kept."""
        self.on_state(False)
        if self._closing and self._ended is not None and self.link is not None and self.link.over:
            self._end()

    def protocol_broken(self) -> None:
        """Drop the link, because the listener violated the protocol; do nothing if it was lost before."""
        if self.link is not None and not self.link.over:
            self._drop_link(self.link)

    def handle(self, found: Sequence[Any]) -> None:
        """Handle events of the session or the link, in order."""
        for event in found:
            if self._closing and self._ended is None:
                return  # The client is closed; events of a link that was made meanwhile have no effect.
            self._handle(event)
        self.watchers.notify()

    def _handle(self, event: SessionEvent) -> None:
        link = self.link
        match event:
            case Linked():
                self._linked(event)
            case LinkUnknown():
                self._refused(event)
            case events.Resumed():
                self.established()
            case events.Received() | events.Decided():
                if link is not None and not link.over:  # An earlier message of the same read may have lost the link.
                    self._inbox.add(link, event)
            case events.Resulted():
                self._channels[event.channel].resulted(event.last, event.result)
            case events.Consumed():
                self._channels[event.channel].consumed(event.last)
            case events.Finished():
                if link is not None and event.channel in link.receiving:
                    self.handle(link.forget(event.channel))
            case events.Ended():
                self._link_ended()

    def _linked(self, event: Linked) -> None:
        if event.lost is not None and not self._listener_forgot(event.lost):
            return
        self.link = event.link
        if event.resumed:
            return
        if self._closing:
            self._end()
            return
        self.established()

    def _refused(self, event: LinkUnknown) -> None:
        """Reconnect for a new link, because the listener no longer knows the old link, which the client required."""
        if event.lost is None or not self._listener_forgot(event.lost):
            return
        if self._closing:
            self._end()
        elif self.connection is not None:
            self.connection.leave()

    def _listener_forgot(self, link: Link) -> bool:
        """Drop *link*, which the listener no longer knows; return False if the link had ended in good order."""
        if link.shutdown_ever_sent and not link.sending:
            self._link_ended()  # The link had ended, and only the listener's shutdown packet did not arrive.
            return False
        self._drop_link(link)
        return True

    def _drop_link(self, link: Link) -> None:
        """Mark *link* as lost, report its unacknowledged messages, and fail all Deferreds that wait for the link."""
        unsettled = link.unsettled()
        link.over = True
        self.on_lost(unsettled)
        self._fail(UnknownOutcome(unsettled))

    def _link_ended(self) -> None:
        if self.connection is not None:
            self.connection.finish()
        self._end()

    def _message_refused(self) -> None:
        """End the link, because a message without a transaction could not be processed."""
        if self.connection is not None:
            self.connection.leave()
        if self.link is not None:
            self._drop_link(self.link)
