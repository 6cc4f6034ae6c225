"""Every error that Fyrehose raises or hands to an errback, as one tree::

    FyrehoseError
    ├── ProtocolError              a message or a call violates the protocol
    │   ├── LocalProtocolError       the program misused a session; raised to the program
    │   └── RemoteProtocolError      the peer violated the protocol; never raised, the last event of a session
    ├── PublishError               a publish was refused or failed; no part of it was acknowledged
    │   ├── OutcomeUnknown           the publish may be stored nevertheless, because the server failed or was deposed
    │   ├── InvalidName              the stream's name is not 1 to 255 bytes of UTF-8, or a label is too long
    │   ├── InvalidRun               the columns of a run contradict each other, or the run has numbers already
    │   ├── PayloadTooLarge          the payload exceeds the limit of its stream
    │   ├── TooManyStreams           the server has reached its limit of streams
    │   │   └── TooManyStreamsFromPeer   the peer's address or identity has reached its own limit of streams
    │   ├── NewStreamForbidden       the configuration lets no peer create a stream of this name
    │   ├── StreamFull               the stream has used its last number
    │   ├── KeyReused                the key of the publish belongs to other messages
    │   ├── NoRoomForKey             too many publishes with keys are not durable yet: try later (retriable)
    │   ├── ReadOnly                 the disk is full, or nothing is accepted for a while: try later (retriable)
    │   │   ├── Following                another server of the cluster leads: publish there
    │   │   └── Unreplicated             this server of a cluster may not lead any more: try again, or another one
    │   └── Closed                   the journal or the server is closing, or has failed
    ├── Forbidden                  the access policy does not allow the peer this action on this stream
    │   ├── TokenEnded               the token that the peer showed has expired or is invalid, so its rights have ended
    │   └── TooManySubscriptions     the peer's address, or the memory budget, has no room for another subscription
    ├── StreamError                a stream cannot be administered
    │   ├── NoSuchStream             the stream does not exist
    │   └── StreamInUse              a listener is bound to the stream, or the server uses it itself
    ├── InvalidPattern             a peer's pattern is empty, too long, or has too many stars
    ├── SubscriptionError          a named subscription cannot be used
    │   ├── NoSuchSubscription       the subscription does not exist
    │   │   └── SubscriptionGone         it was deleted while a request waited
    │   ├── SubscriptionInUse        another consumer has the subscription, or has taken it over
    │   ├── SubscriptionConflict     the request does not fit the subscription, which is for example of another stream
    │   ├── LeaseLost                a record's lease has ended, or another worker has settled the record
    │   ├── InvalidPosition          the number is behind the end of the stream, or the consumer was displaced
    │   └── TooManyNamedSubscriptions    the server, or the peer's address, has reached its limit
    │       └── NoRoomForSubscription        the memory budget has no room for another subscription: try later
    ├── JournalError               the journal cannot be opened or read
    │   ├── JournalUnusable          its directory is a file, or this user may not write there
    │   ├── JournalLocked            another process has the journal open
    │   ├── JournalCorrupt           bytes that were durable are damaged or missing
    │   ├── JournalGap               numbers of a stream are missing from the journal for good
    │   ├── JournalUnreachable       the journal or the lake is not available at present: try again later
    │   ├── JournalFull              the disk has no room to open the journal for writing
    │   ├── JournalEndUnknown        nothing vouches for the end of a copied journal: records may be missing behind it
    │   └── JournalFailed            a sync failed, so later data may not be durable
    ├── Weakened                   a cluster stores what it accepts on fewer machines than it should
    ├── WrongThread                a method was called in another thread than the reactor's
    ├── ExpectationFailed          a row of a typed table does not meet a mandatory expectation
    └── ConfigError                an option, an endpoint or a configuration file is invalid
        └── MissingExtra             a package that a protocol needs is not installed

The text of each error is shown to people unchanged: it says what was wrong, where, and what to do.
"""

from __future__ import annotations

from typing import ClassVar

import attrs


def os_reason(error: object) -> object:
    """Return the operating system's text for *error*; if there is none, *error* itself."""
    return (isinstance(error, OSError) and error.strerror) or error


class FyrehoseError(Exception):
    """The base class of every error of Fyrehose."""

    #: The exit status of a command, or of the server, that this error ends.
    exit_status: ClassVar[int] = 1


class ProtocolError(FyrehoseError):
    """A message or a call violates the protocol."""


class LocalProtocolError(ProtocolError):
    """The program misused a session: a bug in the program, not a fault of the peer."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol.

    :ivar cause: the kind of violation, a few words joined by dashes.  It names the counter and starts the log line, so
        it never contains bytes from the peer.
    """

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


@attrs.frozen(slots=True, kw_only=True)
class Broken:
    """The last event of a session whose peer violated the protocol; earlier events remain valid."""

    error: RemoteProtocolError

    def __attrs_post_init__(self) -> None:
        # A traceback forms a reference cycle with its frames, which would keep the buffers of a lost connection alive.
        self.error.__traceback__ = self.error.__context__ = None


class PublishError(FyrehoseError):
    """A publish was refused or failed; no part of it was or will be acknowledged."""

    #: Whether the same publish may succeed later.
    retriable: ClassVar[bool] = False


class InvalidName(PublishError):
    """The stream's name is not 1 to 255 bytes of UTF-8; or the source or a label is too long, or cannot be encoded."""


class InvalidRun(PublishError):
    """The program published a run that the journal cannot store: a bug in the program, which stored nothing.

    The columns of the run contradict each other, it has no records, or its records have numbers already.
    """


class PayloadTooLarge(PublishError):
    """The payload exceeds the limit of its stream, which holds for every listener."""


class TooManyStreams(PublishError):
    """The server has reached its limit of streams (``max-streams``)."""


class TooManyStreamsFromPeer(TooManyStreams):
    """The peer's address or identity has created as many streams since the server started as its limit permits."""


class NewStreamForbidden(PublishError):
    """A ``[[stream]]`` table of the configuration lets no peer create a stream of this name."""


class KeyReused(PublishError):
    """The key of a publish belongs to other messages, which were published before."""


class NoRoomForKey(PublishError):
    """Too many publishes with keys are not durable yet, so there is no room for another key at the moment."""

    retriable = True


class StreamFull(PublishError):
    """The stream has used its last number; numbers never begin again at 1."""


class ReadOnly(PublishError):
    """The disk is full or cannot be written.  Reads continue; writes resume once the disk has room."""

    retriable = True


class Following(ReadOnly):
    """This server follows another one of its cluster, which publishers have to use.

    :ivar leader: the address of that server, as its configuration has it; empty if it is unknown
    """

    def __init__(self, text: str, leader: str = "") -> None:
        super().__init__(text)
        self.leader = leader


class Unreplicated(ReadOnly):
    """This server led its cluster, but cannot replicate: the shared log does not answer, or another server leads."""


class OutcomeUnknown(PublishError):
    """It is unknown whether the publish is stored, because the server failed, or was deposed, after writing it.

    The server must not tell the client that the publish failed.  It closes the connection; a client that retries with
    the same key, or on the same link, finds out.
    """


class Closed(PublishError):
    """The journal is not open: it is closing, has failed, or was never opened."""


class Forbidden(FyrehoseError):
    """The access policy does not allow the peer this action on this stream."""


class TokenEnded(Forbidden):
    """The peer's signed token grants nothing any more: it has expired, or is invalid."""


class TooManySubscriptions(Forbidden):
    """A subscription was refused: the peer's address has reached its limit, or the memory budget is used up."""


class StreamError(FyrehoseError):
    """A request to administer a stream cannot be carried out."""


class NoSuchStream(StreamError):
    """The stream does not exist, or is already retired."""


class StreamInUse(StreamError):
    """A listener is bound to the stream by its settings, or the stream belongs to the server."""


class InvalidPattern(FyrehoseError):
    """The pattern of a peer is empty, longer than 255 bytes, or has more than 8 stars."""


class SubscriptionError(FyrehoseError):
    """A named subscription cannot be used as requested."""


class NoSuchSubscription(SubscriptionError):
    """The named subscription does not exist."""


class SubscriptionGone(NoSuchSubscription):
    """The named subscription was deleted while a request waited."""


class LeaseLost(SubscriptionError):
    """A record cannot be settled or returned: its lease has ended, or another worker has settled it."""


class SubscriptionInUse(SubscriptionError):
    """Another consumer has the named subscription at present, or has taken it over."""


class SubscriptionConflict(SubscriptionError):
    """The request does not fit the named subscription, for example because the subscription is of another stream."""


class InvalidPosition(SubscriptionError):
    """The number lies behind the end of the stream, or the consumer that sent it was displaced."""


class TooManyNamedSubscriptions(SubscriptionError):
    """The server, or the address of the peer, has reached its limit of named subscriptions."""


class NoRoomForSubscription(TooManyNamedSubscriptions):
    """The memory budget has no room for another named subscription until other subscriptions end."""


class JournalError(FyrehoseError):
    """The journal cannot be opened or read."""


class JournalCorrupt(JournalError):
    """Bytes that were durable are damaged or missing; the journal serves no record of that range."""

    exit_status = 3


class JournalGap(JournalError):
    """Numbers of a stream are missing from the journal for good; raised where a reader asks for them."""

    exit_status = 3


class JournalEndUnknown(JournalError):
    """Nothing vouches for the end of a copied journal, so records behind what is there may be missing."""

    exit_status = 7


class JournalFailed(JournalError):
    """A sync failed, so data that was written since the last successful sync may not be durable."""

    exit_status = 4


class JournalUnusable(JournalError):
    """The journal's directory is a file, or this process may not write there."""

    exit_status = 2


class JournalLocked(JournalError):
    """Another process has the journal open."""

    exit_status = 5


class JournalUnreachable(JournalError):
    """The journal's directory, or the server of its files, is not available at present; try again later."""


class JournalFull(JournalError):
    """The disk has no room to open the journal for writing."""

    exit_status = 6


class Weakened(FyrehoseError):
    """A cluster accepts messages, but stores them on fewer machines than it should."""

    exit_status = 8


class WrongThread(FyrehoseError):
    """The program called a method in another thread than the reactor's, where it could damage what others do."""


class ExpectationFailed(FyrehoseError):
    """A row of a typed table does not meet a mandatory expectation; no row of its batch was committed."""

    exit_status = 3


class ConfigError(FyrehoseError):
    """An option, an endpoint or a configuration file is invalid."""

    #: The exit status of every command with invalid arguments.
    exit_status = 2


class MissingExtra(ConfigError):
    """A protocol needs a package that is not installed; raised by its ``make_service``.

    Without ``--listen`` the server logs a warning and starts without that protocol.
    """
