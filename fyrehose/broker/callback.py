"""A broker for programs that only want the messages: it calls a function with them, and keeps nothing.

endpoint.listen(FiggFactory(CallbackBroker(handle)))

publish -> handle(run), one run after the other -> the publisher is acknowledged when each has returned
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, fail, gatherResults, maybeDeferred, succeed
from zope.interface import implementer

from fyrehose.broker.consuming import NoSubscriptions
from fyrehose.broker.policy import LOOPBACK, Policy
from fyrehose.errors import Forbidden, FyrehoseError, TooManyStreams
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import IBroker, ISink, ISubscription
from fyrehose.net.inflight import InFlight
from fyrehose.net.turns import Turns
from fyrehose.observe.counters import Counters
from fyrehose.records import Run
from fyrehose.standing import Standing


@implementer(IBroker)
@attrs.define(eq=False)
class CallbackBroker:
    """A broker that calls a function with the messages that peers publish.

    This broker serves protocols whose peers only publish: Figg, Lumberjack and HTTP.  A peer that wants to read or to
    subscribe is refused.  The numbers of each stream begin at 1 whenever the process starts.

    :param handle: is called with each run of records that a peer published: records of one stream, numbered, with
        their columns and constants.  It may return a Deferred.  The publish is acknowledged when ``handle`` has
        returned for all of its runs, or its Deferreds have fired.  A :class:`~fyrehose.errors.PublishError` that it
        raises refuses the publish; any other exception, and each failure of a Deferred, ends the connection without an
        acknowledgement.
    :param policy: which peers may publish into which streams; by default those on this machine, into all of them
    :param now: returns the time of records, in seconds since 1970 UTC
    :param max_streams: how many different streams peers may publish into; one more is refused
    """

    handle: Callable[[Run], Deferred[Any] | None]
    policy: Policy = attrs.field(default=LOOPBACK, kw_only=True)
    max_streams: int = attrs.field(default=100_000, kw_only=True)
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    identity: Identity = attrs.field(factory=Identity, kw_only=True)
    named: NoSubscriptions = attrs.field(factory=NoSubscriptions, kw_only=True)
    counters: Counters = attrs.field(factory=Counters, kw_only=True)
    budget: InFlight = attrs.field(factory=InFlight, kw_only=True)
    turns: Turns = attrs.field(factory=Turns, kw_only=True)
    standing = Standing()  #: this server is in no cluster
    epoch = ""  #: this server keeps no records
    _ends: dict[str, int] = attrs.field(factory=dict, kw_only=True, alias="ends")

    def record_time(self) -> int:
        """Return the time that a record would get now, in microseconds since 1970 UTC."""
        return int(self.now() * 1_000_000)

    def monotonic(self) -> int:
        """Return the microseconds of a clock that never steps."""
        return time.monotonic_ns() // 1000

    def when_leading(self) -> Deferred[None]:
        """Return a Deferred that has fired, because this broker accepts messages at any time."""
        return succeed(None)

    def when_stuck(self, let_go: Callable[[str], None]) -> None:
        """Do nothing: a Deferred of the function that fails ends its own connection only."""

    def identified(self, identity: Identity) -> CallbackBroker:
        """Return a view of this broker that acts for the peer *identity*; all views share the streams' numbers."""
        return attrs.evolve(self, identity=identity)

    def admit(self, proofs: Collection[str]) -> None:
        """Raise Forbidden if the policy lets the peer publish nothing, even with the *proofs* that may follow."""
        if not self.policy.admits(self.identity, proofs):
            raise Forbidden(f"no rule of the policy lets {self.identity} publish anything")

    def permits(self, action: Action, stream: str) -> bool:
        """Return whether the peer may publish into *stream*; nothing else is permitted."""
        return action is Action.PUBLISH and self.policy.allows(self.identity, action, stream, self.now())

    def has(self, action: Action) -> bool:
        """Return whether the peer may publish into some stream; nothing else is permitted."""
        return action is Action.PUBLISH and any(
            rule.has(action) for rule in self.policy.rules_for(self.identity, self.now())
        )

    def check(self, action: Action, stream: str) -> None:
        """Raise Forbidden unless :meth:`permits` allows it."""
        if not self.permits(action, stream):
            raise Forbidden(f"{self.identity} may not {action.value} {stream!r}")

    def publish(
        self, runs: Sequence[Run], own: Sequence[Run] = (), key: str | None = None
    ) -> Deferred[tuple[int, ...]]:
        """Number *runs*, and call the function with each; see :meth:`fyrehose.interfaces.IBroker.publish`."""
        if key is not None:
            return fail(Forbidden("this server keeps no keys of publishes; leave out the key"))
        try:
            for run in runs:
                self.check(Action.PUBLISH, run.stream)
            if len(self._ends.keys() | {run.stream for run in runs}) > self.max_streams:
                raise TooManyStreams(
                    f"no room for another stream: the limit is {self.max_streams} streams; publish to an existing one"
                )
        except FyrehoseError as refusal:
            return fail(refusal)
        accepted = int(self.now() * 1_000_000)
        firsts, handled = [], []
        for run in (*runs, *own):
            first = self._ends.get(run.stream, 0) + 1
            numbered = run.numbered(first, accepted)
            self._ends[run.stream] = numbered.last_seq
            firsts.append(first)
            handled.append(maybeDeferred(self.handle, numbered))
        done: Deferred[Any] = gatherResults(handled, consumeErrors=True)
        done.addCallbacks(lambda _: tuple(firsts), lambda failure: failure.value.subFailure)
        return done

    def subscribe(self, stream: str, after: int | None, sink: ISink) -> ISubscription:
        """Raise :class:`Forbidden`, because this broker keeps no records."""
        raise Forbidden("this server keeps no messages: there is nothing to subscribe to")

    def streams(self) -> Iterator[str]:
        """Return nothing, because there is nothing to read."""
        return iter(())

    def watch_streams(self, created: Callable[[str], None]) -> Callable[[], None]:
        """Do nothing, because there is nothing to read."""
        return lambda: None

    def exists(self, stream: str) -> bool:
        """Return whether anything was published into *stream*."""
        return stream in self._ends

    def bounds(self, stream: str, seen: int = 0) -> tuple[int, int]:
        """Return an empty range behind the last number of *stream*."""
        last = self._ends.get(stream, 0)
        return last + 1, last

    def first_since(self, stream: str, time: int) -> int:
        """Return the number of the next record, because nothing is kept."""
        return self._ends.get(stream, 0) + 1

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Return nothing, because nothing is kept."""
        return ()

    def latest(self, size: int, source: str) -> Iterator[Run]:
        """Return nothing, because nothing is kept."""
        return iter(())

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        """Refuse to retire *streams*, because this broker keeps no streams."""
        return fail(Forbidden("this server keeps no messages: there is nothing to retire"))

    def restrict(self, stream: str, max_payload: int) -> None:
        """Do nothing, because the limit exists for protocols that deliver the records of the stream."""
