"""The subscriptions as one peer may use them: the rights of the peer, and creation.

    open -> attach -> acknowledge ... -> detach       exclusive
    create -> lease -> act ...                        shared

Reading and leasing need the rights ``subscribe`` and ``consume`` of the stream, everything else ``consume``.  Dead
letters and results need ``publish`` in their streams.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, fail, inlineCallbacks, maybeDeferred
from twisted.python.failure import Failure

from fyrehose.broker.policy import EVERY
from fyrehose.broker.state_stream import Steps
from fyrehose.errors import (
    Forbidden,
    InvalidPosition,
    NoSuchSubscription,
    SubscriptionConflict,
    SubscriptionGone,
    Unreplicated,
)
from fyrehose.identity import Action
from fyrehose.interfaces import FileLag
from fyrehose.patterns import Pattern
from fyrehose.records import Run
from fyrehose.subscriptions.description import describe, show
from fyrehose.subscriptions.exclusive import Consumer, ExclusiveSubscription
from fyrehose.subscriptions.pool import Item
from fyrehose.subscriptions.progress import Creator, SubscriptionOptions
from fyrehose.subscriptions.shared import LeasedRun, SharedSubscription
from fyrehose.subscriptions.subscription import NamedSubscription
from fyrehose.subscriptions.table import SubscriptionTable

if TYPE_CHECKING:
    from fyrehose.broker.peer import Peer


class NoSubscriptions:
    """The subscriptions of a server that keeps no messages: there are none, and none can be created."""

    def _refuse(self, *_arguments: Any, **_options: Any) -> Any:
        raise Forbidden("this server keeps no messages, so there are no subscriptions")

    def _fail(self, *_arguments: Any, **_options: Any) -> Deferred[Any]:
        return maybeDeferred(self._refuse)

    find = exclusive = shared = forget = _refuse
    open = create = _fail

    def listed(self) -> list[dict[str, object]]:
        return []


@attrs.frozen(eq=False)
class Consuming:
    """The subscriptions as one peer may use them, after each request was checked against the peer's rights.

    Every method raises Forbidden, or its Deferred fails with it, if the peer has no right to ``consume`` the stream.
    Every other error is a SubscriptionError.
    """

    table: SubscriptionTable
    peer: Peer

    def find(self, name: str, stream: str | None = None, pattern: bool = False) -> NamedSubscription:
        """Return the subscription *name*, which must be one of *stream* or of this *pattern* unless *stream* is None.

        :raises NoSuchSubscription: there is none; a peer that may consume nothing does not learn that
        :raises SubscriptionConflict: it is one of another stream
        """
        peer = self.peer
        try:
            found = self.table.find(name)
        except NoSuchSubscription:
            if peer.rights is None or peer.has(Action.CONSUME):
                raise
            raise peer.rights.refusal(Action.CONSUME, "", f"subscription {name[:80]!r}") from None
        options = found.options
        if peer.rights is not None and not peer.permits(Action.CONSUME, options.stream):
            target = "" if peer.permits(Action.SUBSCRIBE, options.stream) else f"subscription {name[:80]!r}"
            raise peer.rights.refusal(Action.CONSUME, options.stream, target)
        if stream is not None and (options.stream, options.pattern) != (stream, pattern):
            raise SubscriptionConflict(
                f"subscription {name!r} is one of {_kind(options.pattern)} {options.stream!r}, not of "
                f"{_kind(pattern)} {stream[:80]!r}"
            )
        return found

    def exclusive(self, name: str, stream: str | None = None, pattern: bool = False) -> ExclusiveSubscription:
        """Return the exclusive subscription *name*, as :meth:`find` does.

        :raises SubscriptionConflict: it is shared
        """
        found = self.find(name, stream, pattern)
        if not isinstance(found, ExclusiveSubscription):
            raise SubscriptionConflict(
                f"subscription {name!r} is shared: lease its records with POST /subscriptions/{name}/lease, and settle "
                "them one by one"
            )
        return found

    def shared(self, name: str, stream: str | None = None) -> SharedSubscription:
        """Return the shared subscription *name*, as :meth:`find` does.

        :raises SubscriptionConflict: it is exclusive
        """
        found = self.find(name, stream)
        if not isinstance(found, SharedSubscription):
            raise SubscriptionConflict(f"subscription {name!r} is exclusive: read it, and acknowledge what was read")
        return found

    # Exclusive subscriptions.

    @inlineCallbacks
    def open(self, name: str, stream: str, after: int | None, pattern: bool = False) -> Steps[ExclusiveSubscription]:
        """Return the exclusive subscription *name* of *stream*; create it behind number *after* if it does not exist.

        :param pattern: whether *stream* is a pattern, so that the subscription has a position in each stream that
            matches
        :param after: as in :meth:`.IBroker.subscribe`
        :return: fires when the state of the subscription is durable
        """
        # Checking the pattern itself suffices, because a rule that covers a pattern covers every stream that the
        # pattern matches.
        self.peer.check(Action.SUBSCRIBE, stream)
        self.peer.check(Action.CONSUME, stream)
        try:
            present = self.exclusive(name, stream, pattern)
            yield present.when_added()
            yield present.when_durable()
        except NoSuchSubscription:
            options = SubscriptionOptions(stream=stream, pattern=pattern, ack="all", creator=self._creator())
            if pattern:
                Pattern.of_peer(stream)
            yield self.table.create(name, options, lambda each: self._begin(each, after, pattern))
        return self.exclusive(name, stream, pattern)

    def _begin(self, stream: str, after: int | None, pattern: bool) -> int:
        """Return the position behind which a new subscription begins in *stream*; None: behind its end.

        A number beyond the end is of another journal, and so the subscription begins at the start, or, since a pattern
        has one number for all of its streams, at the end.
        """
        oldest, last = self.table.journal.bounds(stream)
        if after is None or (pattern and after > last):
            return int(last)
        return int(max(0 if after > last else after, oldest - 1))

    def _before(self, stream: str, since: int) -> int:
        """Return the number before the first record of *stream* from the time *since* on."""
        return int(self.table.journal.first_since(stream, since)) - 1

    def _creator(self) -> Creator:
        return Creator() if self.peer.rights is None else Creator.of(self.peer.rights.identity)

    def attach(self, named: ExclusiveSubscription, consumer: Consumer, owner: str = "", **how: Any) -> int:
        """Make *consumer* the only one; see :meth:`.ExclusiveSubscription.attach`."""
        self.peer.check(Action.CONSUME, named.options.stream)
        return named.attach(consumer, owner, **how)

    def acknowledge(
        self, named: ExclusiveSubscription, seq: int | Mapping[str, int], generation: int | None = None
    ) -> Deferred[Any]:
        """Move the position forward; see :meth:`.ExclusiveSubscription.acknowledge`.  Fires with *named*."""
        return self._do(named, lambda: named.acknowledge(seq, generation)).addCallback(lambda _: named)

    # Shared subscriptions.

    def create(
        self, name: str, options: SubscriptionOptions, first: int, since: int | None = None
    ) -> Deferred[NamedSubscription]:
        """Create the shared subscription *name*, which begins with record *first* of each stream.

        :param since: a time in place of *first*, in microseconds since 1970 UTC
        :return: a Deferred that fires when the subscription is durable; fails with a SubscriptionError, a PublishError
            or Forbidden
        """
        return maybeDeferred(self._create, name, options, first, since)

    def _create(
        self, name: str, options: SubscriptionOptions, first: int, since: int | None
    ) -> Deferred[NamedSubscription]:
        for right in (Action.SUBSCRIBE, Action.CONSUME):
            self.peer.check(right, options.stream)
        dead = options.dead
        if dead is not None:
            if dead.startswith("."):
                raise SubscriptionConflict(f"stream {dead[:80]!r} is one of the server's own: use another")
            self.peer.check(Action.PUBLISH, dead)
        if options.pattern:
            Pattern.of_peer(options.stream)
        options = attrs.evolve(options, creator=self._creator())
        if since is not None:
            return self.table.create(name, options, lambda each: self._before(each, since))
        return self.table.create(name, options, lambda each: self._begin(each, max(0, first - 1), options.pattern))

    def lease(
        self, shared: SharedSubscription, consumer: str, request: int | None, most: int, wait: float
    ) -> Deferred[list[LeasedRun]]:
        """Lease records; see :meth:`.SharedSubscription.lease`.  A request that waits ends with the peer's rights."""
        rights = ((Action.SUBSCRIBE, shared.options.stream), (Action.CONSUME, shared.options.stream))
        self.peer.check(*rights[0])  # the right to consume was checked when the subscription was found
        found = shared.lease(consumer, request, most, wait)
        if not found.called:
            waiting = next(each for each in shared.waiting if each.answer is found)
            over = self.peer.wait(rights, lambda reason: shared.answer(waiting, Failure(reason)))
            found.addBoth(lambda result: (over(), result)[1])
        return found

    def act(
        self, shared: SharedSubscription, items: Sequence[Item], consumer: str, runs: Sequence[Run] = ()
    ) -> Deferred[Any]:
        """Settle, extend or return *items*, and publish *runs* in the same commit."""
        for item in items:
            stream = item.stream or shared.options.stream
            if stream not in shared.tracks and not shared.had(stream):
                if not self.table.journal.standing.leads_alone:
                    return fail(Unreplicated("another server may lead, and know more streams; try again"))
                detail = f"stream {stream[:80]!r} is not one of subscription {shared.name!r}: name the stream of each"
                return fail(InvalidPosition(f'{detail} record, as in ["logs.a", 7, "3.1"]'))
        return shared.act(items, consumer, runs, self.peer.publish if runs else None)

    def redrive(self, shared: SharedSubscription) -> Deferred[tuple[int, int]]:
        """Publish dead letters to their streams again; see :meth:`.SharedSubscription.redrive`."""
        self.peer.check(Action.SUBSCRIBE, shared.options.dead or shared.options.stream)
        return shared.redrive(self.peer.publish)

    # Both kinds.

    @inlineCallbacks
    def rewind(
        self, found: NamedSubscription, seq: int | Mapping[str, int] | None, since: int | None = None
    ) -> Steps[NamedSubscription]:
        """Set the position to *seq*, in either direction, and displace its consumer; fires with *found*.

        :param seq: None: the end of each stream.  For a pattern: 0, None, or numbers by stream
        :param since: a time in place of *seq*, in microseconds since 1970 UTC
        """
        self.peer.check(Action.CONSUME, found.options.stream)
        yield found.when_added()
        if found.gone:
            raise SubscriptionGone(f"subscription {found.name!r} was deleted")
        place = seq if since is None else {each: self._before(each, since) for each in found.tracks}
        yield found.rewind(found.numbers(place))
        return found

    def delete(self, found: NamedSubscription) -> Deferred[None]:
        """Delete *found*; return a Deferred that fires when the deletion is durable."""
        return self._do(found, lambda: self.table.delete(found)).addCallback(lambda _: None)

    def show(self, found: NamedSubscription) -> Generator[None, None, dict[str, object]]:
        """Return, in steps, the durable state of *found*, its leases and last dead letters, as an object for JSON."""
        return show(found)

    def forget(self, name: str) -> bool:
        """Delete the subscription *name* to the journal's files; return whether there was one."""
        self.peer.check(Action.CONSUME, EVERY)
        forgotten: bool = self.table.journal.keeper.delete(name)
        return forgotten

    def listed(self) -> Iterator[dict[str, object]]:
        """Yield the subscriptions that the peer may consume, as objects for JSON; none if another server may lead.

        A peer that may consume all streams also sees the subscriptions of programs that read the journal's files.
        Subscriptions may be created and deleted meanwhile.
        """
        permits = self.peer.permits
        for each in [] if self.table.journal.standing.elsewhere else list(self.table.entries.values()):
            if not each.gone and permits(Action.CONSUME, each.options.stream):
                yield describe(each)
        if permits(Action.CONSUME, EVERY):
            yield from map(described, self.table.journal.keeper.subscriptions())

    def _do(self, found: NamedSubscription, change: Callable[[], Deferred[Any]]) -> Deferred[Any]:
        def checked() -> Deferred[Any]:
            self.peer.check(Action.CONSUME, found.options.stream)
            return change()

        return maybeDeferred(checked)


def _kind(pattern: bool) -> str:
    return "pattern" if pattern else "stream"


def described(lag: FileLag) -> dict[str, object]:
    """Return a subscription to the journal's files as an object for JSON."""
    return {"name": lag.name, "kind": "files", "behind_bytes": lag.behind, "active": lag.time}
