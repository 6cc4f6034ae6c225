"""The broker as one peer may use it: publish, subscribe, read and consume, within the rights and limits of the peer.

    broker.identified(identity) -> Peer -> publish, subscribe, read ... or Forbidden

The server itself is a peer, too: :class:`.Broker`, which has all rights and no limits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.broker.consuming import Consuming
from fyrehose.broker.fanout import Cursor
from fyrehose.broker.publisher import DeferredPublisher, Publisher, Settled, fire, publish_deferred
from fyrehose.broker.run_checks import check_publish
from fyrehose.errors import InvalidName, PublishError
from fyrehose.identity import Action, Identity, network_of
from fyrehose.interfaces import IBroker, ISink
from fyrehose.net.inflight import Account, InFlight
from fyrehose.net.turns import Turns
from fyrehose.observe.counters import Counters
from fyrehose.records import Run
from fyrehose.standing import Standing

if TYPE_CHECKING:
    from fyrehose.broker.broker import Broker
    from fyrehose.broker.guard import PeerRights

log = Logger()


@implementer(IBroker)
@attrs.define(eq=False)
class Peer:
    """The broker for the peers of one identity; see :class:`.IBroker`.

    :ivar rights: what the access policy allows these peers; None: everything, because this is the server itself
    :ivar permits: see :meth:`.IBroker.permits`; *check* is :meth:`.IBroker.check`
    :ivar network: the network of the peers, for which their subscriptions count; empty: the server itself
    """

    broker: Broker
    rights: PeerRights | None
    counters: Counters = attrs.field(init=False)
    budget: InFlight = attrs.field(init=False)
    turns: Turns = attrs.field(init=False)
    permits: Callable[[Action, str], bool] = attrs.field(init=False)
    check: Callable[[Action, str], None] = attrs.field(init=False)
    network: str = attrs.field(init=False)
    #: the number of subscriptions and of requests that wait, and the timer that ends them when the signed token expires
    _subscribed: int = attrs.field(default=0, init=False)
    _end: IDelayedCall | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.counters, self.budget, self.turns = self.broker.counters, self.broker.budget, self.broker.turns
        if self.rights is None:
            self.permits, self.check, self.network = _permit_all, _allow_all, ""
        else:
            self.permits, self.check = self.rights.permits, self.rights.check
            self.network = network_of(self.rights.identity.host)

    @property
    def standing(self) -> Standing:
        """Return what this server is now, and whether it may write."""
        standing: Standing = self.broker.journal.standing
        return standing

    @property
    def epoch(self) -> str:
        """Return the identity of the journal as a short text; see :class:`.IJournal`."""
        epoch: str = self.broker.journal.epoch
        return epoch

    def when_leading(self) -> Deferred[None]:
        return self.broker.when_leading()

    def when_stuck(self, let_go: Callable[[str], None]) -> None:
        self.broker.when_stuck(let_go)

    def record_time(self) -> int:
        """Return the time that a record would get now, in microseconds since 1970 UTC; see :class:`.IJournal`."""
        now: int = self.broker.journal.clock.now()
        return now

    def monotonic(self) -> int:
        """Return the microseconds of a clock that never steps; see :class:`.IJournal`."""
        now: int = self.broker.journal.clock.monotonic()
        return now

    # Rights.

    def identified(self, identity: Identity) -> Peer:
        """Return the broker with the rights of another peer, and with none of the rights of this one."""
        return self.broker.guard.peer(self.broker, identity)

    def admit(self, proofs: Collection[str]) -> None:
        if self.rights is not None:
            self.rights.admit(proofs)

    def has(self, action: Action) -> bool:
        return self.rights is None or self.rights.has(action)

    # Publishing.

    def publisher(self, account: Account | None, settled: Settled) -> Publisher:
        """Return a publisher with the rights and limits of the peer; see :func:`publisher_for`."""
        self.broker.check_thread()
        return Publisher(self, account, settled)

    def publish(
        self, runs: Sequence[Run], own: Sequence[Run] = (), key: str | None = None
    ) -> Deferred[tuple[int, ...]]:
        runs, own = tuple(runs), tuple(own)
        publisher = self.publisher(None, fire)
        try:
            self.check_publish(runs, own, key)
        except PublishError as refusal:
            return fail(refusal)
        return self.broker.until_closed(publish_deferred(publisher, runs, own, key))

    def check_publish(self, runs: Sequence[Run], own: Sequence[Run], key: str | None) -> None:
        """Check runs that code outside this package has made; the kernels make no other runs than valid ones.

        :raises InvalidRun: the journal cannot store them; see :func:`.run_checks.check_publish`
        :raises InvalidName: a name is invalid, or reserved for the server; a policy judges that for peers with rights
        """
        check_publish(runs, own, key)
        if self.rights is None and (reserved := next((run.stream for run in runs if run.stream.startswith(".")), "")):
            raise InvalidName(
                f"invalid stream name {reserved[:80]!r}: names that begin with a dot are the server's own"
            )

    # Subscribing and reading.

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> Cursor:
        """Subscribe if the access policy and the limits of the peer's network allow it; see :class:`.IBroker`."""
        self.broker.check_thread()
        self.check(Action.SUBSCRIBE, stream)
        if self.rights is None:
            return self.broker.subscribe_as(None, stream, after, sink)
        self.broker.subscriptions.take(self.network)
        self._subscribed += 1
        self._end_later()
        try:
            return self.broker.subscribe_as(self, stream, after, sink)
        except BaseException:
            self.unsubscribed()
            raise

    def wait(self, rights: Sequence[tuple[Action, str]], end: Callable[[Exception], None]) -> Callable[[], None]:
        """Let something wait for as long as the peer has *rights*: actions on streams.

        :param end: called with a reason when the peer has not all of them any more
        :return: a function to call when it waits no longer
        """
        if self.rights is None:
            return lambda: None
        waiting = RightsWait(self, tuple(rights), end)
        self.broker.waiting[waiting] = None
        self._subscribed += 1
        self._end_later()

        def over() -> None:
            if waiting in self.broker.waiting:
                del self.broker.waiting[waiting]
                self._released()

        return over

    def unsubscribed(self) -> None:
        """Stop counting one subscription of the peer, because it has ended."""
        self.broker.subscriptions.release(self.network)
        self._released()

    def _released(self) -> None:
        self._subscribed -= 1
        if not self._subscribed and self._end is not None:
            self._end.cancel()
            self._end = None

    def _end_later(self) -> None:
        """Schedule the end of the subscriptions for when the signed token expires."""
        seconds = None if self.rights is None else self.rights.seconds_left()
        if seconds is not None and self._end is None:
            self._end = self.broker.clock.callLater(seconds, self._end_subscriptions)

    def _end_subscriptions(self) -> None:
        self._end = None
        # Some may still be allowed: the clock was set back, or another rule applies.
        self.broker.end_forbidden().addCallback(lambda _: self.rights_changed())

    def rights_changed(self) -> None:
        """Schedule the end of the subscriptions if the rights that they have now end with a signed token."""
        if self._subscribed:
            self._end_later()

    def streams(self) -> Iterator[str]:
        every = (stream for stream in tuple(self.broker.journal.ends()) if not stream.startswith("."))
        return every if self.rights is None else self.rights.readable(every)

    def watch_streams(self, created: Callable[[str], None]) -> Callable[[], None]:
        def permitted(stream: str) -> None:
            if not stream.startswith(".") and self.permits(Action.SUBSCRIBE, stream):
                created(stream)

        return self.broker.stream_watch.watch(permitted)

    def exists(self, stream: str) -> bool:
        self.check(Action.SUBSCRIBE, stream)
        return stream in self.broker.journal.ends()

    def bounds(self, stream: str, seen: int = 0) -> tuple[int, int]:
        """Return the first and the last number of *stream*.

        :param seen: a number that the reader has seen; the log says so if the stream has not reached it
        """
        self.check(Action.SUBSCRIBE, stream)
        bounds: tuple[int, int] = self.broker.journal.bounds(stream)
        self.broker.is_beyond(stream, seen, bounds[1])
        return bounds

    def first_since(self, stream: str, time: int) -> int:
        self.check(Action.SUBSCRIBE, stream)
        found: int = self.broker.journal.first_since(stream, time)
        return found

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        self.broker.check_thread()
        self.check(Action.SUBSCRIBE, stream)
        runs: tuple[Run, ...] = self.broker.journal.read(stream, start, max_bytes)
        return runs

    def latest(self, size: int, source: str) -> Iterator[Run]:
        self.broker.check_thread()
        return (run for run in self.broker.journal.latest(size, source) if self.permits(Action.SUBSCRIBE, run.stream))

    # Consuming.

    @property
    def named(self) -> Consuming:
        """Return the subscriptions, as the peer may use them."""
        self.broker.check_thread()
        return Consuming(self.broker.table, self)

    # Streams.

    def restrict(self, stream: str, max_payload: int) -> None:
        self.broker.restrict(stream, max_payload)

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        self.broker.check_thread()
        for stream in streams:
            if self.rights is not None and not self.rights.permits(Action.ADMINISTER, stream):
                return fail(self.rights.refusal(Action.ADMINISTER, stream))
        return self.broker.retire_as("the server" if self.rights is None else str(self.rights.identity), streams)


@attrs.frozen(eq=False)
class RightsWait:
    """Something that waits with rights of a peer, such as a request for records; see :meth:`Peer.wait`."""

    peer: Peer
    rights: tuple[tuple[Action, str], ...]
    end: Callable[[Exception], None]


def _permit_all(action: Action, stream: str) -> bool:
    return True


def _allow_all(action: Action, stream: str) -> None:
    """Raise nothing."""


def _log_failure(failure: Failure) -> None:
    log.failure("a broker has failed a publish that it had accepted", failure)


@attrs.define(eq=False)
class CheckedPublisher:
    """The publisher of a protocol of another package, whose runs are checked; see :class:`.Publisher`."""

    peer: Peer
    publisher: Publisher

    def publish(self, runs: list[Run], note: Any = None, own: Sequence[Run] = (), key: str | None = None) -> None:
        """Publish *runs*; raise the error if they are invalid, or refused at once."""
        self.peer.check_publish(runs, own, key)
        self.publisher.publish(runs, note, own, key)


def publisher_for(
    broker: IBroker,
    account: Account | None,
    settled: Settled,
    failed: Callable[[Failure], object] = _log_failure,
    checked: bool = False,
) -> Publisher | CheckedPublisher | DeferredPublisher:
    """Return a publisher for one peer, or for one listener on behalf of many peers.

    A broker of another package publishes by Deferreds; this package's own makes no object for each publish.

    :param broker: the broker for that peer; see :meth:`.IBroker.identified`
    :param account: charged for each publish until it is settled; None: nothing is charged
    :param settled: called once for each commit that has publishes of this publisher, with these publishes in their
        order: they are durable, and may be acknowledged; their memory is released already
    :param failed: called with the failure of a publish that a broker of another package had accepted
    :param checked: whether code of another package makes the runs, so that they are checked
    """
    if isinstance(broker, Peer):
        publisher = broker.publisher(account, settled)
        return CheckedPublisher(broker, publisher) if checked else publisher
    return DeferredPublisher(broker, account, settled, failed)
