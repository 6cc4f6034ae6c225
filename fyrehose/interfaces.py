"""Every contract between the parts of Fyrehose.

Bytes come in through a *plugin* (a protocol's folder), become runs of drafts, and meet the rest of the server in one
place: :class:`IBroker`.  The broker numbers them (:class:`ISequencer`), has them written (:class:`IJournal`), and only
then lets anything out: the Deferred of a publish, and the sinks (:class:`ISink`) of those who subscribed.

Everything here is called in the reactor's thread, and nothing here blocks for longer than a read from the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import Attribute, Interface

from fyrehose.identity import Action, Identity
from fyrehose.records import Run


class JournalState(Enum):
    """What a journal can do."""

    CLOSED = "closed"  #: not open yet, or no longer
    WRITABLE = "writable"
    READ_ONLY = "read-only"  #: no room: reads go on, appends fail with :class:`~fyrehose.errors.ReadOnly`
    FAILED = "failed"  #: a sync failed: nothing can be promised any more, and the process has to end


class ISequencer(Interface):
    """Hands out the numbers of every stream: 1, 2, 3 ... 2^48 - 1, never one twice."""

    def reserve(wanted: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """For each (stream, count) the first of ``count`` consecutive numbers.  All or none; never blocks.

        :raises StreamFull: fewer are left; nothing is reserved
        """

    def last(stream: str) -> int:
        """Return the last number of *stream* that was reserved."""

    def raise_floor(floor: int) -> None:
        """Begin streams that have no number yet above *floor*, because the journal forgot streams up to there."""

    def restore(ends: Mapping[str, int], floor: int = 0) -> None:
        """Forget everything and go on from the last number of each stream.

        Called after recovery, and after appends failed: their numbers never left the server and are used again.

        :param floor: the last number of every stream that ``ends`` does not name
        """


class IJournalObserver(Interface):
    """Is told what a journal did."""

    def durable(ends: Mapping[str, int]) -> None:
        """The streams named grew, up to and including these numbers, which may leave the server from now on.

        Called once for each group commit, before the Deferreds of its appends fire.
        """

    def state_changed(state: JournalState, reason: str) -> None:
        """The journal is in ``state`` now, because of ``reason`` (a sentence for people).

        On the way out of WRITABLE every append that was not durable has failed before this is called.
        """


class IJournal(Interface):
    """The durable log of all streams."""

    state = Attribute("What it can do: a JournalState.")
    floor = Attribute("The last number of every stream that has none of its own; 0 but after a quarantine.")

    def open(observer: IJournalObserver) -> Deferred[Mapping[str, int]]:
        """Recover, and be ready to append.

        :return: fires with the last number of each stream
        :raises JournalError: through the Deferred; the journal stays closed
        """

    def append(runs: Sequence[Run], first_seqs: Sequence[int]) -> Deferred[None]:
        """Write runs of drafts under the numbers that were reserved for them, all of them in one batch or none.

        The numbers of each stream must follow on, from call to call.  What is appended while a commit is under way
        shares the next one.

        :return: fires when all of it is durable, in the order of the calls; fails with :class:`ReadOnly` or
            :class:`Closed`, and then so has everything that was appended after it
        """

    def retire(streams: Sequence[str]) -> Deferred[None]:
        """Retire streams: they are not listed and none of their records is served any more.

        Where a name comes back, its numbers go on after the last one that it had.  What was appended before and is
        not durable yet may bring it back at once.

        :return: fires when that is durable; fails with :class:`ReadOnly` or :class:`Closed`
        """

    def retired() -> Mapping[str, int]:
        """Return the last numbers of retired streams, as far as they are remembered; the floor covers the others."""

    def bounds(stream: str) -> tuple[int, int]:
        """The oldest number that is kept and served, and the last that may leave; ``(1, 0)`` for an unknown stream.

        Of a stream that is retired, where it goes on if its name returns: one more than its last number, and that.
        """

    def expired(stream: str, time: int) -> bool:
        """Return whether records of *stream* and of *time* (microseconds since 1970 UTC) are too old to be served.

        ``bounds`` and ``read`` leave them out already; this is for records that were read before.
        """

    def ends() -> Mapping[str, int]:
        """The last number of each stream that may leave; maybe a view, which changes as streams grow."""

    def read(stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Records of ``stream`` from number ``start`` on, as many as ``max_bytes`` of payload have room for but at
        least one; fewer where finding more would take long.

        Never beyond what may leave; empty at the end.  Where ``start`` is no longer kept, or was lost and set aside,
        the first record that follows comes first: its number says so.

        :raises JournalCorrupt: what should be there is damaged; never skipped in silence
        """

    def close() -> Deferred[None]:
        """Write what was appended, then close; fires when that is done, whatever state it was in."""


class ISubscription(IPushProducer):
    """A reader's place in a stream: one integer, however slow the reader.

    Begins paused.  To be registered as the producer of the transport that it feeds, or to be paused and resumed by the
    owner of that transport.  After ``stopProducing`` the sink hears nothing more.
    """

    position = Attribute("The number of the last record that was delivered or skipped.")


class ISink(Interface):
    """Where a subscription's records go.

    It may have a ``reader``, for the people who look after the server: the plugin's name, and who the peer is.
    """

    def deliver(delivery: Any) -> None:
        """Records that follow on: a :class:`fyrehose.records.Delivery`, never empty, ascending from call to call.

        May pause its subscription from within.  An exception ends this subscription and no other.
        """

    def skipped(first: int, last: int) -> None:
        """The numbers ``first`` to ``last`` are not in the journal any more, or were lost; the next deliver follows."""

    def ended(reason: Exception) -> None:
        """Nothing more will come, because of ``reason``; not called after ``stopProducing``."""


class IBroker(Interface):
    """All that a protocol sees of the server.

    A protocol asks for the broker *as somebody*, once for each peer, and does for the peer what that one lets it do.
    """

    counters = Attribute("Where to count: fyrehose.observe.counters.Counters.")
    budget = Attribute("What connections may hold together: fyrehose.core.budget.Budget.")

    def identified(identity: Identity) -> Any:
        """The same :class:`IBroker` as the peer ``identity`` may use it.  Of equal identities it may be the same one.

        What the peer may not do fails with :class:`~fyrehose.errors.Forbidden`: the Deferred of ``publish``; and
        ``subscribe``, ``bounds``, ``read`` and ``check`` raise it.  A subscription that is not allowed any more ends
        with it.
        """

    def admit(proofs: Collection[str]) -> None:
        """Check that the peer may do anything at all, so that nothing is kept for a peer that may not.

        :param proofs: what it may still prove: ``certificate``, ``key``, ``token``
        :raises Forbidden: no rule allows it anything, whatever of that it proves
        """

    def permits(action: Action, stream: str) -> bool:
        """Whether ``action`` is allowed: for protocols that publish for many peers at once, or have one subscription
        for all of them."""

    def check(action: Action, stream: str) -> None:
        """The same, for those who want to say why.

        :raises Forbidden: it is not allowed
        """

    def publish(runs: Sequence[Run], own: Sequence[Run] = ()) -> Deferred[tuple[int, ...]]:
        """Number, write, and release runs of drafts: all of them in one batch, or none.

        :param own: the protocol's own records, written behind *runs* in the same batch; neither the policy nor the
            limits of the peer apply to them
        :return: fires with the first number of each run when all of it is durable, in the order of the calls.
            Acknowledge there and nowhere else.  Fails with a :class:`~fyrehose.errors.PublishError`, or with
            :class:`~fyrehose.errors.Forbidden`.
        """

    def subscribe(stream: str, after: int | None, sink: ISink) -> ISubscription:
        """Deliver what follows number ``after`` in ``stream`` (0: from the start; None: from now on), for ever.

        Outside the range that is kept ``after`` is moved to its nearest end; ``position`` says to where.  The stream
        need not exist; subscribing does not make it.  Nothing is delivered before the subscription is resumed.

        :raises TooManySubscriptions: the peer's address has as many as it may, or the memory budget is used up
        """

    def exists(stream: str) -> bool:
        """Return whether there is a stream of this name: it has had a record, and is not retired."""

    def bounds(stream: str) -> tuple[int, int]:
        """See :meth:`IJournal.bounds`."""

    def read(stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """See :meth:`IJournal.read`."""

    def retire(streams: Sequence[str]) -> Deferred[None]:
        """Retire *streams*, all of them or none: they are not listed or served any more and count against no limit.

        A publish that is accepted later makes the name anew, and its numbers go on.  Subscriptions stay, and see what
        is published then.

        :return: fires when it is durable; fails with :class:`~fyrehose.errors.StreamError`,
            :class:`~fyrehose.errors.PublishError` or :class:`~fyrehose.errors.Forbidden`
        """

    def restrict(stream: str, max_payload: int) -> None:
        """From now on ``stream`` takes no payload larger than ``max_payload`` bytes, by any listener."""


class IProtocolPlugin(Interface):
    """What the framework finds in a protocol's folder, as the ``plugin`` of its ``plugin`` module.

    One that says ``guards_itself = True`` is opened to others without a policy, too.
    """

    name = Attribute("What --listen and --option call it.")
    description = Attribute("One line for --help.")
    default_endpoint = Attribute("Where it listens when nobody says, on loopback: an endpoint string.")
    settings = Attribute("An attrs class: the plugin's options, their types and defaults.")

    def make_service(reactor: Any, broker: IBroker, endpoint: str, settings: Any) -> Any:
        """A :class:`twisted.application.service.IService` that serves the protocol at ``endpoint``.

        Its ``startService`` returns a Deferred that fires when it listens and fails when it cannot; ``stopService``
        one that fires when no more will come in, what came in is acknowledged, and its peers are gone.  If it has
        ``reload()``, that is called when files are to be read again, and raises ConfigError where it keeps the old.

        :raises ConfigError: the endpoint or the settings cannot be used
        """


class IPublisher(Interface):
    """One end of ``fyrehose publish``: a protocol's client, for one stream of one server."""

    def connect() -> Deferred[Any]:
        """Fires when the server answers.  Fails, or never fires, when there is none; the caller decides how long."""

    def publish(payload: bytes) -> Deferred[Any]:
        """Fires when the server has acknowledged ``payload``, however often it had to be sent."""

    def ready() -> Deferred[Any]:
        """Fires when there is room for another publish."""

    def close() -> Deferred[Any]:
        """Let go of the server; what is not acknowledged fails."""


class ITailer(Interface):
    """One end of ``fyrehose tail``: a protocol's client, reading one stream of one server for as long as it lives."""

    def connect() -> Deferred[Any]:
        """See :meth:`IPublisher.connect`."""

    def pause() -> None:
        """Hand out nothing more, and hold little, until :meth:`resume`."""

    def resume() -> None:
        """Go on behind the last record that was handed out."""

    def shortfall(complete: bool) -> str:
        """Say why records are missing from what was handed out, or "" if none is known to be missing.

        Records that were reported to ``lost`` need not be repeated, except where nobody can tell why they are missing.

        :param complete: everything that was asked for came: records that would have followed do not matter
        """

    def close() -> Deferred[Any]:
        """Let go of the server."""


class IClients(Interface):
    """What ``fyrehose publish`` and ``fyrehose tail`` find in a protocol's folder: its module ``cli``."""

    default_port = Attribute("Where its servers listen when nobody says.")

    def publisher(reactor: Any, host: str, port: int, stream: str | None, window: int) -> Any:
        """An :class:`IPublisher` that has at most ``window`` publishes under way; None if the protocol has none.

        :param stream: where to; None: the only one there is
        :raises ConfigError: the protocol needs a stream, or cannot choose one
        """

    def tailer(reactor: Any, host: str, port: int, stream: str | None, after: int | None, take: Any, lost: Any) -> Any:
        """An :class:`ITailer`; None if the protocol has none.

        :param after: begin with what follows this number (0: with the oldest); None: with what is published from now on
        :param take: is called with each :class:`fyrehose.records.Run`, in order
        :param lost: is called with the first and the last number of a range that nobody has any more
        :raises ConfigError: the protocol needs a stream, or cannot choose one
        """
