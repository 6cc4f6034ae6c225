"""The outgoing half of every connection: data is written in pieces (sessions.py).

    acknowledgements, answers    -> flush() ---------------------------> transport
    records of a subscription    -> a piece in each turn -> flush() ---> transport
    a record larger than a piece -> send_record() -> a piece in each turn, while the transport wants more

No records are buffered for a peer that does not read: a subscription continues behind the last record that it sent,
and a large record is read from the journal again for its next piece.  It is kept between two pieces only while the
memory budget has room for it.  Acknowledgements and answers that come while a record is half sent are sent
after the record.

An answer that was computed as a whole, such as a list or the metrics, cannot be read again.  Answers that are larger
than a piece and left unread share that part of the memory budget.  When it is used up, the network with the most loses
its oldest: a record, or a connection; a single connection may exceed the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
from twisted.python.failure import Failure

from fyrehose.errors import FyrehoseError, JournalCorrupt
from fyrehose.interfaces import ISubscription
from fyrehose.net.inflight import UnreadMemory
from fyrehose.net.turns import ROUND
from fyrehose.records import Run
from fyrehose.sessions import PIECE

if TYPE_CHECKING:
    from fyrehose.net.tcp import SessionProtocol

#: Returns the piece of a record that begins at a position, and the next position; None after the last piece.  An empty
#: piece is not sent: the record is only prepared in that turn, which may take as long as a round.
Cut = Callable[[Run, int], tuple[bytes, int | None]]


@attrs.define(eq=False)
class LargeRecord:
    """A record that is larger than a piece.

    :ivar stream: the stream of the record; *seq* is the record's number
    :ivar cut: cuts a piece out of a run that holds only this record
    :ivar run: a run with only this record, while it is in memory
    :ivar position: where the next piece begins, in units of *cut*
    """

    stream: str
    seq: int
    cut: Cut
    run: Run | None
    position: int = 0


class Outgoing:
    """The outgoing half of one connection.

    Everything is written in order, and nothing within a record that is half sent.  The subscriptions are paused while
    the peer does not read, or while a record is half sent.

    :ivar record: the record that is half sent
    :ivar paused: True while the peer reads more slowly than the server writes
    :ivar written: most bytes that the peer must read before the transport resumes
    """

    __slots__ = (
        *("_behind", "_delivered", "_owner", "_queued", "_replies", "_subscriptions", "_unread"),
        *("paused", "record", "written"),
    )

    def __init__(self, owner: SessionProtocol) -> None:
        self._owner = owner
        self._unread: UnreadMemory = owner.broker.budget.unread
        self._behind: list[bytes] = []
        self._queued = False
        self._delivered = False  #: True if data was written since the last call of delivers()
        self._replies = 0  #: how many bytes of replies a peer that does not read was sent
        self._subscriptions: dict[ISubscription, None] = {}  #: in the order of attach()
        self.record: LargeRecord | None = None
        self.paused = False
        self.written = 0

    @property
    def network(self) -> str:
        """Return the network of the peer, for the memory that its unread data uses."""
        return self._owner.network

    @property
    def blocked(self) -> bool:
        """Return whether data that follows would have to wait for the peer, or for the rest of a record."""
        return self.paused or self.record is not None

    def attach(self, subscription: ISubscription) -> None:
        """Deliver *subscription* to the peer, as fast as the peer reads."""
        self._subscriptions[subscription] = None
        if not self.blocked:
            subscription.resumeProducing()

    def detach(self, subscription: ISubscription) -> None:
        """Stop *subscription*."""
        self._subscriptions.pop(subscription, None)
        subscription.stopProducing()

    def detach_all(self) -> None:
        """Stop all subscriptions."""
        for subscription in list(self._subscriptions):
            self.detach(subscription)

    def delivers(self) -> bool:
        """Return whether a subscription may have delivered anything since the last call."""
        delivered, self._delivered = self._delivered, False
        return delivered and bool(self._subscriptions)

    def flush(self, *more: bytes) -> None:
        """Write the data that the session has to send, and then *more*."""
        owner = self._owner
        out = owner.session.out
        data = [*out, *more]
        out.clear()
        if not data or not owner.writable:
            return
        # A transport that is not paused has hardly any unsent data left.
        self._delivered = True
        if self.record is None:
            self.written = sum(map(len, data)) + (self.written if self.paused else 0)
            owner.transport.writeSequence(data)
        else:
            self._behind.extend(data)

    def flush_replies(self) -> int:
        """Flush replies to a peer that does not read; return how many bytes of replies are unread."""
        self._replies += sum(map(len, self._owner.session.out))
        self.flush()
        return self._replies

    def send_record(self, record: LargeRecord) -> None:
        """Begin to send *record* behind the data that was flushed; no other record may be half sent.

        The subscriptions are paused until all of it is written.
        """
        self.flush()
        self._pause_subscriptions()
        self.record = record
        if record.run is not None and not self._unread.lend(self, len(record.run.payload)):
            record.run = None
        if not self.paused:
            self._continue()

    def resume(self) -> None:
        """Continue with the record that is half sent, or with the subscriptions: the transport wants more."""
        self.paused = False
        self.written = 0
        self._continue()
        if self.record is None:
            self._resume_subscriptions()

    def pause(self) -> None:
        """Pause the subscriptions: the peer does not read."""
        self.paused = True
        self._pause_subscriptions()
        if self.written > PIECE and self not in self._unread:
            self._unread.keep(self, self.written)

    @property
    def repeatable(self) -> bool:
        """Return whether a record is half sent, which can be read again, and its peer does not read at present."""
        return self.paused and self.record is not None and self.record.run is not None

    def displace(self) -> None:
        """Forget the record that is half sent, or end the connection, because others need the memory."""
        if self.record is not None and self.record.run is not None:
            self.record.run = None
        else:
            self._owner.abort_unread()

    def close(self) -> None:
        """Forget all unsent data, because the connection has ended."""
        self.record = None
        self._behind.clear()
        self._unread.discard(self)

    def take_turn(self) -> int:
        """Write the next piece of the record that is half sent."""
        self._queued = False
        record = self.record
        if record is None or self.paused or not self._owner.writable:
            return 0
        cost = 0
        try:
            run = record.run
            if run is None:
                run = self._read(record)
                cost = len(run.payload) // 16  # preparing the record takes about as long as writing this many bytes
            data, position = record.cut(run, record.position)
        except FyrehoseError as error:
            self._owner.record_lost(error)
            return 0
        record.run = run if position is not None and self._unread.lend(self, len(run.payload)) else None
        if position is None:
            self._finish(data)
        else:
            record.position = position
            if data:
                self._write_piece(data)
            if not self.paused:
                self._continue()
        return (len(data) or ROUND) + cost

    def failed(self, failure: Failure) -> None:
        """End the connection, because writing the record failed, so that its peer does not wait for the rest."""
        self._owner.failed(failure)

    def _continue(self) -> None:
        """Queue for a turn, if a record is half sent."""
        if self.record is None or self.record.run is None:  # the peer has read what it was sent
            self._unread.discard(self)
        if self.record is not None and not self._queued:
            self._queued = True
            self._owner.broker.turns.ready(self, self.network)

    def _pause_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            subscription.pauseProducing()

    def _resume_subscriptions(self) -> None:
        self._replies = 0
        for subscription in list(self._subscriptions):
            subscription.resumeProducing()

    def _read(self, record: LargeRecord) -> Run:
        runs = self._owner.broker.read(record.stream, record.seq, 1)
        if not runs or runs[0].first_seq != record.seq:
            raise JournalCorrupt(f"record {record.seq} of stream {record.stream!r} was deleted while it was sent")
        return runs[0].slice(0, 1)

    def _write_piece(self, data: bytes, behind: Sequence[bytes] = ()) -> None:
        """Write *data*, a piece of the record, and then the data that waited for its end."""
        self.written = len(data) + sum(map(len, behind))
        self._delivered = True
        self._owner.transport.writeSequence([*self._owner.frame(data), *behind])

    def _finish(self, data: bytes) -> None:
        """Write the last piece, and the data that waited for the end of the record."""
        self.record = None
        self._unread.discard(self)
        behind, self._behind = self._behind, []
        self._write_piece(data, behind)
        self._owner.record_sent()
        if not self.paused:
            self._resume_subscriptions()
