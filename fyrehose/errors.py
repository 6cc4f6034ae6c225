"""Every error that Fyrehose raises or hands to an errback, as one tree::

    FyrehoseError
    ├── ProtocolError              something was said that the protocol does not allow
    │   ├── LocalProtocolError       by us: our own misuse of a session; raised
    │   └── RemoteProtocolError      by the peer: never raised, the last event of a session
    ├── PublishError               a publish was refused or failed; nothing of it was acknowledged
    │   ├── InvalidName              the stream's name is not 1 to 255 bytes of UTF-8
    │   ├── PayloadTooLarge          the stream takes no payload of that size
    │   ├── TooManyStreams           no further stream can be made
    │   │   └── TooManyStreamsFromPeer   nor can this address or identity make another
    │   ├── NewStreamRateExceeded    a peer makes streams too fast: try again later (retriable)
    │   ├── NewStreamForbidden       the configuration lets no peer make a stream of this name
    │   ├── StreamFull               the stream has used its last number
    │   ├── ReadOnly                 the disk is full or cannot be written: try again later (retriable)
    │   └── Closed                   the journal or the server is closing, or has failed
    ├── Forbidden                  a peer may not do that with that stream: the policy does not say so
    │   └── TooManySubscriptions     its address has as many subscriptions as it may, or the memory budget is used up
    ├── StreamError                a stream cannot be administered
    │   ├── NoSuchStream             there is no stream of this name
    │   └── StreamInUse              a listener is bound to the stream, or the server uses it itself
    ├── JournalError               the journal cannot be opened or read
    │   ├── JournalLocked            another process has it open
    │   ├── JournalCorrupt           bytes that were durable are damaged or missing
    │   ├── JournalGap               numbers of a stream are not in the journal and never will be
    │   ├── JournalUnreachable       it is not there at present: try again later
    │   ├── JournalFull              there is no room to open it
    │   └── JournalFailed            the disk refused a sync: nothing more can be promised
    └── ConfigError                an option, an endpoint or a file of settings is wrong
        └── MissingExtra             what a protocol needs is not installed

The text of each says what was wrong, where, and what to do: it is shown to people as it is.
"""

from __future__ import annotations

from typing import ClassVar

import attrs


class FyrehoseError(Exception):
    """The root of all of them."""

    #: The status that ``twistd fyrehose`` ends with when this stops it.
    exit_status: ClassVar[int] = 1


class ProtocolError(FyrehoseError):
    """Something was said that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """We tried to say it: a bug in the program that uses the session."""


class RemoteProtocolError(ProtocolError):
    """The peer said it.

    ``cause`` names the kind of offence in a few words joined by dashes; it is the name of the counter
    and of the log line, so it never contains anything that the peer sent.
    """

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


@attrs.frozen(slots=True, kw_only=True)
class Broken:
    """The last event of a session whose peer broke the protocol; the events before it count."""

    error: RemoteProtocolError

    def __attrs_post_init__(self) -> None:
        # A traceback keeps its frames, in a circle, and they keep the buffers of a peer that is gone.
        self.error.__traceback__ = self.error.__context__ = None


class PublishError(FyrehoseError):
    """A publish was refused or failed; nothing of it was or will be acknowledged."""

    #: Whether the same publish may succeed later.
    retriable: ClassVar[bool] = False


class InvalidName(PublishError):
    """The stream's name is not 1 to 255 bytes of UTF-8."""


class PayloadTooLarge(PublishError):
    """The stream takes no payload of that size, by any listener."""


class TooManyStreams(PublishError):
    """The server holds as many streams as it was allowed to."""


class TooManyStreamsFromPeer(TooManyStreams):
    """The address or the identity of the peer has made as many streams as it may since the server started."""


class NewStreamRateExceeded(PublishError):
    """The address or the identity of the peer makes streams faster than it may; it may try again later."""

    retriable = True


class NewStreamForbidden(PublishError):
    """A ``[[stream]]`` table of the configuration says that no peer may make a stream of this name."""


class StreamFull(PublishError):
    """The stream has used its last number; numbers never wrap."""


class ReadOnly(PublishError):
    """The disk is full or cannot be written; reading goes on, and so will writing when there is room."""

    retriable = True


class Closed(PublishError):
    """The journal is not open: it is closing, it has failed, or it was never opened."""


class Forbidden(FyrehoseError):
    """A peer may not do that with that stream: no rule of the policy says that it may."""


class TooManySubscriptions(Forbidden):
    """A subscription was refused: the peer's address has as many as it may, or the memory budget is used up."""


class StreamError(FyrehoseError):
    """A stream cannot be administered as was asked."""


class NoSuchStream(StreamError):
    """There is no stream of this name, or it is retired already."""


class StreamInUse(StreamError):
    """A listener is bound to the stream by its settings, or the stream is the server's own."""


class JournalError(FyrehoseError):
    """The journal cannot be opened or read."""


class JournalCorrupt(JournalError):
    """Bytes that were durable are damaged or missing; nothing of that range is served."""

    exit_status = 3


class JournalGap(JournalError):
    """Numbers of a stream are not in the journal and never will be; raised by readers that were to read them."""

    exit_status = 3


class JournalFailed(JournalError):
    """The disk refused a sync, so what was written since cannot be promised to anybody."""

    exit_status = 4


class JournalLocked(JournalError):
    """Another process has the journal open."""

    exit_status = 5


class JournalUnreachable(JournalError):
    """The journal's directory, or the server of its files, is not there at present; it may be later."""


class JournalFull(JournalError):
    """There is no room to open the journal for writing."""

    exit_status = 6


class ConfigError(FyrehoseError):
    """An option, an endpoint or a file of settings is wrong."""


class MissingExtra(ConfigError):
    """A protocol needs a package that is not installed; raised by its ``make_service``.

    Such a protocol is left out, with a line in the log, where nobody asked for it by name.
    """
