"""The way of a publish into the journal, and of its result back to the peer.

    publish -> rights, limits, numbers, memory -> journal.submit -> durable -> settle -> the protocol acknowledges
            -> an error, at once

A :class:`Publisher` belongs to one connection, or to one listener whose datagrams come from many peers.  What a peer
may do is looked up once; after that, a publish costs one look into a table for each of its runs.  The journal settles
all publishes of a publisher in one commit by one call, so a protocol acknowledges them together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from fyrehose.errors import Forbidden, InvalidRun, PayloadTooLarge, PublishError
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker, JournalState
from fyrehose.net.inflight import Account
from fyrehose.observe.meters import SECONDS, Histogram
from fyrehose.records import MAX_PUBLISH, USUAL_NAMES, Publish, Run

if TYPE_CHECKING:
    from fyrehose.broker.peer import Peer

_first_seq: Callable[[Run], int] = attrgetter("first_seq")
#: How many producers of one source are counted, at most.
MOST_PRODUCERS = 10_000
#: The memory that is charged for a run besides its bytes, for its Python objects, in bytes.
RUN_OVERHEAD = 1 << 10

Settled = Callable[[Sequence[Publish]], None]


@attrs.define(eq=False)
class PublishTotals:
    """Totals of one source: publishes that became durable, their messages, and the bytes of payload.

    :ivar seconds: the time from each publish until it was durable, and therefore acknowledged, in seconds
    :ivar producers: producers of these messages, without the ports of addresses, since an observer emptied this set; at
        most :data:`MOST_PRODUCERS`
    """

    publishes: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS))
    producers: set[str] = attrs.field(factory=set)


@lru_cache(4096)
def _without_port(producer: str | None) -> str:
    """Return *producer* without its port, so that a program that connects for each publish counts as one producer."""
    host, _, port = (producer or "").rpartition(":")
    return host if host and port.rstrip(")").isdigit() else producer or ""


class Publisher:
    """The publisher of one peer: it checks, numbers, submits and settles publishes; see :func:`.publisher_for`.

    :param peer: applies the access policy and its limits, unless it is the server itself
    """

    __slots__ = ("_account", "_broker", "_network", "_peer", "_settled", "_verdicts")

    def __init__(self, peer: Peer, account: Account | None, settled: Settled) -> None:
        self._peer, self._broker, self._account, self._settled = peer, peer.broker, account, settled
        self._network = "" if account is None else account.network
        self._verdicts = None if peer.rights is None else peer.rights.verdicts[Action.PUBLISH]

    def publish(
        self, runs: list[Run], note: Any = None, own: Sequence[Run] = (), key: str | None = None, owner: Any = None
    ) -> None:
        """Publish runs of drafts in one batch, all of them or none; the caller must not use the runs any more.

        Unless this raises an error, the publish is settled when it is durable, perhaps before this call returns; it is
        never settled if the server ends before.

        :param note: returned with the publish, as ``Publish.note``, when it is settled
        :param own: the protocol's own records, appended after *runs* in the same batch; neither the policy nor the
            limits of the peer apply to them
        :param key: publish *runs*, which are of one stream, unless they were published with this key before.  The
            publish is settled in either case, and ``first_seq`` of the first run is the number that the first message
            got when it was first published.
        :param owner: the object that settles the publish first, and then passes it on to this publisher
        :raises PublishError: a limit, or the state of the journal, does not allow the publish
        :raises Forbidden: the policy does not allow it
        """
        broker, rights, verdicts = self._broker, self._peer.rights, self._verdicts
        if key is not None:
            self._check_rights(runs)
            broker.once.publish(self, runs, key, note, "" if rights is None else rights.holder)
            return
        if rights is not None and verdicts is not None:
            if rights.ends is not None:
                rights.check_end()
            for run in runs:
                if not verdicts.get(run.stream):
                    self._check_rights((run,))
        if broker.journal.state is not JournalState.WRITABLE:
            broker.journal.standing.check_writable()
        counted = len(runs)
        if own:
            runs = [*runs, *own]
        if not runs:
            raise InvalidRun("a publish has no runs; publish at least one record")
        largest, usual, size = broker.largest, True, 0
        created: Sequence[str] = ()
        for run in runs:
            # Check a run in detail only if it may create its stream, or exceed a limit of payloads or names.
            if len(run.payload) > largest.get(run.stream, -1) or run.room - run.size > USUAL_NAMES or not run.lengths:
                usual = False
            size += run.room
        if not usual:
            created = broker.create_streams(runs[:counted], own, None if rights is None else rights.identity)
        try:
            if size > MAX_PUBLISH:
                raise PayloadTooLarge(
                    f"publish of {size} bytes exceeds the limit of {MAX_PUBLISH} bytes; publish less at a time"
                )
            broker.sequencer.number(runs)
        except PublishError:
            broker.forget_streams(created)
            raise
        if self._account is not None:
            charge = size + RUN_OVERHEAD * len(runs)
            self._account.hold(charge, charge)
        publish = Publish(runs, size, owner or self, note, counted, broker.clock.seconds(), (), self._network)
        broker.journal.submit(publish)

    def repeat(self, runs: list[Run], first: int, note: Any) -> Publish:
        """Return a publish that repeats an earlier one, whose first number is *first*, and store nothing.

        The caller settles the result when the earlier publish is durable.
        """
        runs[0].first_seq = first
        repeated = Publish(runs, sum(run.room for run in runs), self, note)
        if self._account is not None:
            charge = repeated.size + RUN_OVERHEAD * len(runs)
            self._account.hold(charge, charge)
        return repeated

    def settle(self, items: Sequence[Publish]) -> None:
        """Release the memory of *items*, which are durable, count them, and notify the protocol."""
        if self._account is not None:
            charge = 0
            for item in items:
                charge += item.size + RUN_OVERHEAD * len(item.runs)
            self._account.release(charge, charge)
        broker = self._broker
        now, grown = broker.clock.seconds(), None if broker.grown is None else broker.grown_bytes
        for item in items:
            if not item.counted:
                continue
            # The source is looked up for each publish: a publisher of the server itself has several.
            source = item.runs[0].source
            totals = broker.published.get(source)
            if totals is None:
                totals = broker.published[source] = PublishTotals()
            seconds = now - item.began
            histogram = totals.seconds
            histogram.counts[bisect_left(histogram.bounds, seconds)] += 1
            histogram.total += seconds
            totals.publishes += 1
            room = len(totals.producers) < MOST_PRODUCERS
            for run in item.runs[: item.counted]:
                size = len(run.payload)
                totals.messages += len(run.lengths) // 4
                totals.bytes += size
                if room:
                    totals.producers.add(_without_port(run.producer))
                if grown is not None:
                    grown[run.stream] = grown.get(run.stream, 0) + size
        self._settled(items)

    def _check_rights(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._peer.check(Action.PUBLISH, run.stream)


def fire(items: Sequence[Publish]) -> None:
    """Settle publishes whose note is a Deferred: fire the Deferred with the first number of each run."""
    for item in items:
        item.note.callback(tuple(map(_first_seq, item.runs)))


def publish_deferred(
    publisher: Publisher, runs: Sequence[Run], own: Sequence[Run] = (), key: str | None = None
) -> Deferred[tuple[int, ...]]:
    """Publish by *publisher*, which settles by :func:`fire`; see :meth:`fyrehose.interfaces.IBroker.publish`."""
    done: Deferred[tuple[int, ...]] = Deferred()
    try:
        publisher.publish(list(runs), done, own, key)
    except (PublishError, Forbidden) as refusal:
        return fail(refusal)
    # The first publish with a key also has the record of that key, and a repetition does not.
    return done if key is None else done.addCallback(lambda firsts: firsts[: len(runs)])


@attrs.define(eq=False)
class DeferredPublisher:
    """A publisher for brokers of other packages, which answer with Deferreds; see :class:`Publisher`."""

    broker: IBroker
    account: Account | None
    settled: Settled
    failed: Callable[[Failure], object]

    def publish(self, runs: list[Run], note: Any = None, own: Sequence[Run] = (), key: str | None = None) -> None:
        """Publish *runs*; raise the error if the broker refuses them at once."""
        item = Publish(runs, sum(run.room for run in runs), self, note, len(runs))
        done = self.broker.publish(runs, own, key)
        charged, results = False, []

        def ended(result: Any) -> None:
            results.append(result)
            if charged:
                self._ended(item, result)

        done.addBoth(ended)
        if results and isinstance(results[0], Failure):
            results[0].raiseException()
        charged = True
        if self.account is not None:
            self.account.hold(item.size)
        if results:
            self._ended(item, results[0])

    def _ended(self, item: Publish, result: Any) -> None:
        if self.account is not None:
            self.account.release(item.size)
        if isinstance(result, Failure):
            self.failed(result)
            return
        for run, first in zip(item.runs, result, strict=False):
            run.first_seq = first
            run.last_seq = first + len(run) - 1
        self.settled([item])
