"""The interfaces between the parts of Fyrehose.

A protocol turns the bytes of its peers into runs of drafts (messages without a number) and publishes them to the
:class:`IBroker`, the protocol's only way into the server.  The broker numbers the drafts and appends them to the
journal (:class:`IJournal`).  Once the records are durable, the broker fires the Deferred of the publish and delivers
them to the sinks of subscribers (:class:`ISink`).

All methods are called in the reactor's thread, and none blocks for longer than a read from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import Attribute, Interface

from fyrehose.file_content import FileContent
from fyrehose.identity import Action, Identity
from fyrehose.imports import Extra
from fyrehose.observe.meters import JournalStatus
from fyrehose.records import Publish, Run


class JournalState(Enum):
    """The state of a journal."""

    CLOSED = "closed"  #: not open yet, or closed again
    WRITABLE = "writable"
    READ_ONLY = "read-only"  #: the disk is full: reads continue, appends fail with :class:`~fyrehose.errors.ReadOnly`
    FAILED = "failed"  #: a sync failed: later data may not be durable, so the process must end


@attrs.frozen(slots=True)
class Unread:
    """The records that a named subscription has not acknowledged.

    :ivar seq: the number of the last acknowledged record of *stream*
    :ivar time: when the subscription was used last, in microseconds since 1970 UTC
    :ivar pinned: whether the records are kept even beyond the limits of subscriptions
    """

    name: str
    stream: str
    seq: int
    time: int
    pinned: bool = False


@attrs.frozen(slots=True)
class FileLag:
    """The lag of a subscription to the journal's files.

    :ivar behind: how many bytes of the log the subscription has not read
    :ivar time: when this server saw its last update, or started, by :attr:`IJournal.clock`
    """

    name: str
    behind: int
    time: int


class IKeeper(Interface):
    """The interface of a journal's retention."""

    unread = Attribute("Called for the list of Unread of all named subscriptions; the broker sets it.")

    def subscriptions() -> list[FileLag]:
        """Return the subscriptions of programs that read the journal's files, the one that is furthest behind first."""

    def delete(name: str) -> bool:
        """Delete the subscription *name* to the journal's files; return whether it existed."""

    def is_sealed(stream: str, seq: int) -> bool:
        """Return whether record *seq* of *stream* is in a sealed segment, or was deleted."""


class IJournalObserver(Interface):
    """A receiver of the events of a journal."""

    def durable(ends: Mapping[str, int]) -> None:
        """Handle a group commit; called once for each commit, before the Deferreds of its appends fire.

        :param ends: the streams that grew, each with its last durable number, which may now leave the server
        """

    def state_changed(state: JournalState, reason: str) -> None:
        """Handle a change of the journal's state.

        :param reason: why the state changed, for people
        """

    def stuck(reason: str) -> None:
        """Let go those that wait for appends: they have waited for five seconds, or will never be durable.

        Nobody learns the outcome of an append from the journal now, as when the server crashes; what waits for room on
        the disk may still become durable.  This may be called again and again.

        :param reason: why the journal cannot be written, for people
        """


class IJournal(Interface):
    """The durable log of all streams."""

    state = Attribute("The current JournalState.")
    keeper = Attribute("The retention: see IKeeper.")
    floor = Attribute("The last number of every stream that the journal does not list; 0 except after a quarantine.")
    standing = Attribute(
        "What this server is now, whether it may write, and how old its records may be: fyrehose.standing.Standing."
    )
    epoch = Attribute(
        "The identity of the journal as a short text, the same in every copy; a number means the same record only in "
        "the same epoch.  Empty if the journal has none yet."
    )
    clock = Attribute(
        "The clock of all state that outlives a connection.  now() returns the time that a record would get now, in "
        "microseconds since 1970 UTC, and does not follow a wall clock that may be wrong.  monotonic() returns the "
        "microseconds of a clock that never steps, for how long such state is kept."
    )
    meters = Attribute("The measurements: fyrehose.observe.meters.JournalMeters.")
    window = Attribute("How many bytes of submitted publishes the journal writes in a short time.")

    def open(observer: IJournalObserver) -> Deferred[Mapping[str, int]]:
        """Recover the journal, and open it for appends.

        :return: fires with the last number of each stream; fails with :class:`~fyrehose.errors.JournalError` if the
            journal stays closed
        """

    def cancel_open() -> None:
        """Cancel what precedes recovery, such as the download of another server's journal; opening fails with Closed.

        If recovery has begun already, it is completed.
        """

    why_not_ready = Attribute("Called for why this server cannot lead its cluster yet, for people; empty: it can.")

    def expect_close() -> None:
        """Prepare for :meth:`close`, which follows when all listeners are closed.

        The listeners wait until every publish is settled, and :meth:`IJournalObserver.stuck` is called if the other
        servers of the cluster do not confirm one within a few seconds.
        """

    def submit(publish: Publish) -> None:
        """Write *publish*, whose runs are numbered; publishes that are submitted during a commit share the next one.

        The caller has checked that ``state`` is WRITABLE.  For each stream the numbers must continue those of the
        previous call.  After the commit the journal calls :meth:`IJournalObserver.durable`, and then ``settle(items)``
        of each owner in the commit once, in the order of the owners' first items.

        A publish that is submitted is never refused.  It becomes durable, or the journal ends before: it fails, or is
        closed while it cannot be written.
        """

    def retire(streams: Sequence[str]) -> Deferred[None]:
        """Retire streams: the journal stops listing them and serving their records.

        If a retired stream is published to again, its numbers continue; an append under way may bring a stream back at
        once.

        :return: fires when the retirement is durable; fails at once with :class:`ReadOnly` or :class:`Closed`
        """

    def retired() -> Mapping[str, int]:
        """Return the last number of each retired stream that is remembered; forgotten ones are below ``floor``."""

    def bounds(stream: str) -> tuple[int, int]:
        """Return the oldest number that is served and the last durable number; ``(1, 0)`` for an unknown stream.

        For a retired stream with last number n, return ``(n + 1, n)``, because a later record gets the number n + 1.
        """

    def first_since(stream: str, time: int) -> int:
        """Return the number of the first record that is served and was accepted at *time* or later.

        :param time: in microseconds since 1970 UTC, by the journal's clock, which never goes back
        :return: if all records are older, the number of the next one
        """

    def expired(stream: str, time: int) -> bool:
        """Return whether records of *stream* from *time* (microseconds since 1970 UTC) are too old to be served.

        ``bounds`` and ``read`` exclude such records; this method is for records that were read earlier and kept in
        memory.
        """

    def ends() -> Mapping[str, int]:
        """Return the last durable number of each stream, possibly as a view that changes while streams grow."""

    def read(stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Read durable records of *stream* from number *start* on; return nothing at the end of the stream.

        If *start* is no longer kept, or was lost and quarantined, the result begins with the next record that exists,
        as its number shows.

        :param max_bytes: limit of the bytes of payload, except that at least one record is returned; fewer records may
            be returned if finding more would take long
        :raises JournalCorrupt: a record is damaged; damage is never skipped silently
        """

    def latest(size: int, source: str) -> Iterator[Run]:
        """Yield the durable runs in about the last *size* bytes of the log, the newest first.

        Runs that are written or deleted during the iteration may be left out.

        :param source: leave out most runs of other sources, but yield some now and then
        :raises JournalCorrupt: a record is damaged
        """

    def status() -> JournalStatus | None:
        """Return the figures of an open journal; None if this kind of journal has no figures."""

    def close() -> Deferred[None]:
        """Commit all appends for which there is room, then close the journal; the Deferred fires in any state of it."""


class ISubscription(IPushProducer):
    """A subscription to a stream, which keeps one number as the subscriber's position, however slow that is.

    A subscription begins paused.  Register it as the producer of the transport that it feeds, or pause and resume it
    together with that transport.  After ``stopProducing`` its sink is not called any more.
    """

    position = Attribute("The number of the last record that was delivered or skipped.")


class ISink(Interface):
    """The receiver of the records of a subscription.

    A sink that serves one peer is an :class:`IConnectedSink`; a sink that serves many peers is an :class:`IRelay`.
    """

    def deliver(delivery: Any) -> int | None:
        """Handle the next records.

        The sink may pause its subscription during this call.  An exception ends this subscription, but no other.

        :param delivery: a :class:`fyrehose.records.Delivery`, never empty, with ascending numbers from call to call
        :return: the number of the last record that the sink has taken, after which deliveries continue; None: it took
            all
        """

    def skipped(first: int, last: int) -> None:
        """Handle a gap: numbers *first* to *last* are not in the journal; a call of ``deliver`` follows."""

    def ended(reason: Exception) -> None:
        """Handle the end of the subscription, because of *reason*; not called after ``stopProducing``."""


class IConnectedSink(ISink):
    """A sink that serves one peer, for lists that operators see."""

    connection = Attribute(
        "The connection of the peer, a fyrehose.net.tcp.SessionProtocol: it says which protocol and which peer it "
        "serves (subscriber), and when it is closed because the peer does not read (closes_in)."
    )


class IRelay(ISink):
    """A sink that passes records on to its own clients; operators see its figures instead of the subscription's."""

    subscriber = Attribute("The protocol's name, and text about the clients.")
    audience = Attribute("The number of these clients.")
    sent = Attribute("The number of messages that it has sent to them, and their payload in bytes.")


class IBroker(Interface):
    """The broker: the interface of the server to protocols.

    A protocol calls :meth:`identified` once for each peer.  It makes all calls for that peer on the broker that this
    returns, which applies the access policy.
    """

    counters = Attribute("The counters of the server: fyrehose.observe.counters.Counters.")
    budget = Attribute("The memory budget of all connections: fyrehose.net.inflight.InFlight.")
    turns = Attribute("The turns of all work: fyrehose.net.turns.Turns.")

    standing = Attribute("What this server is now: see IJournal.standing.")
    epoch = Attribute("See IJournal.epoch.")
    record_time = Attribute("Called for the time of IJournal.clock.")
    monotonic = Attribute("Called for the microseconds of the clock of IJournal.clock that never steps.")
    named = Attribute("The subscriptions, as the peer may use them: see fyrehose.broker.consuming.Consuming.")

    def when_leading() -> Deferred[None]:
        """Return a Deferred that fires when publishers may use this server.

        On a follower of a cluster, the Deferred fires when this server takes over; on other servers, it has fired
        already.
        """

    def when_stuck(let_go: Callable[[str], None]) -> None:
        """Call *let_go* with the reason whenever publishes wait too long, or are never settled, as by a full disk.

        Those that wait for a publish are to be let go without an answer.

        :param let_go: a method; the calls end with its object
        """

    def identified(identity: Identity) -> Any:
        """Return this :class:`IBroker` restricted to the actions that the peer *identity* may do.

        Peers of equal identity may share the result.  For a forbidden action the Deferred of ``publish`` fails with
        :class:`~fyrehose.errors.Forbidden`, and ``subscribe``, ``bounds``, ``read`` and ``check`` raise it.  A
            subscription that a changed policy does not allow any more ends with Forbidden.
        """

    def admit(proofs: Collection[str]) -> None:
        """Check that some rule allows the peer any action, so that the server keeps no state for other peers.

        :param proofs: the kinds of proof that the peer may still send: ``certificate``, ``key``, ``token``
        :raises Forbidden: no rule allows the peer anything, even with those proofs
        """

    def permits(action: Action, stream: str) -> bool:
        """Return whether the peer may do *action* on *stream*.

        This is for protocols that publish for many peers at once, or have one subscription for all peers.
        """

    def has(action: Action) -> bool:
        """Return whether the peer may do *action* on some stream."""

    def check(action: Action, stream: str) -> None:
        """Check that the peer may do *action* on *stream*.

        :raises Forbidden: the peer may not; the message says why
        """

    def publish(runs: Sequence[Run], own: Sequence[Run] = (), key: str | None = None) -> Deferred[tuple[int, ...]]:
        """Publish runs of drafts in one batch, all of them or none; the caller must not use the runs any more.

        Listeners, which publish often, use :func:`fyrehose.broker.peer.publisher_for`.

        :param own: the protocol's own records, appended after *runs* in the same batch; neither the policy nor the
            limits of the peer apply to them
        :param key: publish *runs*, which are of one stream, unless they were published with this key before.  The
            Deferred fires with the same numbers for each repetition.  The server remembers a limited number of keys:
            the latest.
        :return: fires with the first number of each run when the whole batch is durable, in the order of the calls.
            Acknowledge the publish only then.  A publish that is not durable when the server ends fails with
            :class:`~fyrehose.errors.OutcomeUnknown`.  One that is refused fails at once, with a
            :class:`~fyrehose.errors.PublishError`, or with
            :class:`~fyrehose.errors.Forbidden`; with *key* also with :class:`~fyrehose.errors.KeyReused` if it belongs
            to other messages, and with :class:`~fyrehose.errors.NoRoomForKey` if too many publishes with keys are not
            durable yet.  A run that cannot be stored fails only this publish, with
            :class:`~fyrehose.errors.InvalidRun` or :class:`~fyrehose.errors.InvalidName`.
        :raises WrongThread: the caller is in another thread than the reactor's
        """

    def subscribe(stream: str, after: int | None, sink: ISink) -> ISubscription:
        """Deliver the records of *stream* after number *after* to *sink*, until the subscription is stopped.

        The stream need not exist, and subscribing does not create it.  The subscription begins paused.

        :param after: 0: from the oldest record; None: only records published from now on.  The subscription begins
            with the oldest record that is kept if the next one is not kept any more, and also if *after* is beyond the
            end of the stream, because it is then a number of another journal, such as one that was restored from a
            backup since.  Only in the latter case ``position`` of the result is lower than *after*.  A server of a
            cluster may lag behind another one, so there a number beyond the end stays if the cluster may have it.
        :raises TooManySubscriptions: the peer's address has reached its limit, or the memory budget is used up
        """

    def streams() -> Iterator[str]:
        """Return the names of the streams that the peer may subscribe to, without the server's own streams.

        There may be 100,000, so that they are to be used in steps; streams that begin meanwhile are left out.
        """

    def watch_streams(created: Callable[[str], None]) -> Callable[[], None]:
        """Call *created* with the name of each stream that begins from now on and that the peer may subscribe to.

        The call comes when records of the stream are durable, in turns; :meth:`streams` returns all that began before.
        A subscription that begins at 0 misses no record.

        :return: a function that ends the calls
        """

    def exists(stream: str) -> bool:
        """Return whether *stream* exists, that is, has had a record and is not retired."""

    def bounds(stream: str, seen: int = 0) -> tuple[int, int]:
        """See :meth:`IJournal.bounds`; *seen* is a number that the reader has seen, and is logged if it is beyond."""

    def first_since(stream: str, time: int) -> int:
        """See :meth:`IJournal.first_since`."""

    def read(stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """See :meth:`IJournal.read`."""

    def latest(size: int, source: str) -> Iterator[Run]:
        """See :meth:`IJournal.latest`."""

    def retire(streams: Sequence[str]) -> Deferred[None]:
        """Retire *streams*, all of them or none, so that they are no longer listed, served, or counted against limits.

        A later publish creates the stream again and continues its numbers.  Subscriptions remain, and receive the
        messages of later publishes.

        :return: fires when the retirement is durable; fails with :class:`~fyrehose.errors.StreamError`,
            :class:`~fyrehose.errors.PublishError` or :class:`~fyrehose.errors.Forbidden`
        """

    def restrict(stream: str, max_payload: int) -> None:
        """Limit the payloads of *stream* to *max_payload* bytes from now on, for every protocol."""


@attrs.frozen
class Abilities:
    """The properties of a protocol plugin in which plugins differ.

    :ivar guards: it controls access itself, so that it may listen on public addresses without an access policy
    :ivar only_leading: it is of no use on a follower, so that its listeners stay closed until this server leads
    :ivar own_connections: its clients do not use just one TCP connection, so they connect by *host* and *port* without
        an *endpoint*, and cannot use TLS or the addresses of several servers
    :ivar consumes: its tailer consumes named subscriptions
    :ivar times: its tailer begins at a time, which is then *after*, as text
    :ivar patterns: its tailer follows all streams that match a pattern
    :ivar token: its clients send a bearer token
    :ivar extra: the extra of a package that it needs, or works better with
    """

    guards: bool = False
    only_leading: bool = False
    own_connections: bool = False
    consumes: bool = False
    patterns: bool = False
    times: bool = False
    token: bool = False
    extra: Extra | None = None


class IProtocolPlugin(Interface):
    """A protocol plugin: the object ``plugin`` in the module ``plugin`` of a protocol's folder.

    A plugin with methods that only some plugins have provides the interface of these methods as well.
    """

    name = Attribute("The protocol's name, as used in --listen and --option.")
    description = Attribute("One line for --help.")
    default_endpoint = Attribute("The endpoint string used without --listen, on loopback.")
    settings = Attribute("An attrs class of the protocol's options, with their types and defaults.")
    abilities = Attribute("The properties in which plugins differ: Abilities.")

    def make_service(reactor: Any, broker: IBroker, endpoint: str, settings: Any) -> Any:
        """Return a :class:`twisted.application.service.IService` that serves the protocol at *endpoint*.

        The Deferred of ``startService`` fires when the service listens, and fails if it cannot.  The Deferred of
        ``stopService`` fires when the port is closed, all received messages are acknowledged, and all peers are
        disconnected.  The service may provide :class:`IConnected`
        and :class:`IReloading` as well.

        :raises ConfigError: the endpoint or the settings are invalid
        """


class IConnected(Interface):
    """A listener's service that can report its number of connections."""

    connections = Attribute("The number of open connections.")


@attrs.frozen
class Prepared:
    """Changed settings of a listener, with the contents of the files that they name.

    :ivar apply: puts the settings and the contents into use; reads no file, and cannot fail
    :ivar contents: see :class:`IReloading`
    """

    apply: Callable[[], None]
    contents: Mapping[str, FileContent] = attrs.Factory(dict)


class IReloading(Interface):
    """A listener's service that can change its settings, and read its files again, while it runs."""

    contents = Attribute("The contents of the files in use, by the option that names each: a Mapping of FileContent.")

    def fixed(settings: Any) -> Any:
        """Return the changed options in *settings* that cannot change at run time, such as ``{"links"}``."""

    def prepare(settings: Any) -> Prepared:
        """Read the files that *settings* name, each once; return what applies the settings and contents.

        :param settings: the new settings, with the present values of options that cannot change
        :raises ConfigError: a file or an option cannot be used; nothing was changed
        """


class IPublisher(Interface):
    """A client that publishes to one server.

    In a protocol with only one stream, *stream* is None everywhere, and a name raises ConfigError.
    """

    problem = Attribute("Why the server does not answer at present, as text for people; empty if it is connected.")

    def prepare(stream: str | None) -> None:
        """Prepare the client for publishing to *stream*, before :meth:`connect` or later.

        This call is optional.  It reports an unusable stream before the client connects, and saves the first publish to
        a stream an extra round trip.

        :raises ConfigError: the protocol needs a stream, or has only one, or the name is invalid
        """

    def connect() -> Deferred[Any]:
        """Connect to the server, and reconnect whenever the connection is lost.

        :return: fires when the server answers; if no server answers, it fails or never fires, so the caller needs a
            timeout
        """

    def publish(stream: str | None, payload: bytes) -> Deferred[Any]:
        """Publish *payload* to *stream*; after a reconnection, publish it again unless it was acknowledged.

        :return: fires when the server has acknowledged the publish
        :raises ConfigError: see :meth:`prepare`
        """

    def ready() -> Deferred[Any]:
        """Return a Deferred that fires when the window has room for another publish."""

    def close() -> Deferred[Any]:
        """Disconnect from the server; publishes that are not acknowledged fail."""


class ITailer(Interface):
    """A client that reads a stream of one server until the client is closed."""

    problem = Attribute("See :class:`IPublisher`.")

    absent = Attribute(
        "Whether the server has said that the stream does not exist yet; False if the protocol cannot say."
    )

    def subscribe(
        stream: str | None, take: Any, after: int | None = None, lost: Any = None, restarted: Any = None
    ) -> Any:
        """Subscribe to *stream* (None: the only stream of the protocol), before :meth:`connect` or later.

        :param take: called with each :class:`fyrehose.records.Run`, in order
        :param after: begin after this number (0: with the oldest record); None: with records published from now on
        :param lost: called with the first and the last number of a range that is missing for good and, if *stream* is a
            pattern, with the name of the stream
        :param restarted: called if the numbers of the stream have begun again, because the server has another journal:
            a restored backup, a new disk, another server at the same address.  Its argument is the last number that
            the stream has there; if *stream* is a pattern, the name of the stream follows.  The client then begins at
            the start of the stream, so that numbers come again, of other records or of those that it has received.
            A program that keeps numbers forgets them.
        :raises ConfigError: the protocol needs a stream, or has only one, or the name is invalid
        """

    def connect() -> Deferred[Any]:
        """See :meth:`IPublisher.connect`."""

    def pause() -> None:
        """Stop passing on records, and buffer little, until :meth:`resume`."""

    def resume() -> None:
        """Continue after the last record that was passed on."""

    def shortfall(complete: bool) -> str:
        """Return why requested records are missing, or "" if none is known to be missing.

        Records that were passed to ``lost`` may be left out, unless the reason for their loss is unknown.

        :param complete: whether all requested records were passed on; if so, missing records after the last of these do
            not count
        """

    def close() -> Deferred[Any]:
        """Disconnect from the server."""


class IClientPlugin(IProtocolPlugin):
    """A protocol plugin that also makes clients, for ``fyrehose publish``, ``fyrehose tail`` and other programs.

    The clients connect to a :class:`fyrehose.net.clients.ClientTarget`.  Those that can use only its host and port have
    ``Abilities.own_connections``.
    """

    default_port = Attribute("The port on which servers listen by default.")

    def publisher(target: Any, window: int) -> Any:
        """Return an :class:`IPublisher` that is not connected yet, or None if the protocol cannot publish.

        :param window: limit of the number of publishes that are not acknowledged yet
        """

    def tailer(target: Any) -> Any:
        """Return an :class:`ITailer` that is not connected yet, or None if the protocol cannot subscribe."""


class ITransactionalPlugin(IClientPlugin):
    """A plugin whose protocol has transactions."""

    def transactional_publisher(target: Any, window: int, size: int) -> Any:
        """Return an :class:`IPublisher` that commits *size* messages at a time; see :meth:`IClientPlugin.publisher`."""


class IWorkPlugin(IClientPlugin):
    """A plugin whose client leases the records of shared subscriptions."""

    def worker(target: Any) -> Any:
        """Return a client of the server at *target*; its ``share`` returns the work of one worker."""
