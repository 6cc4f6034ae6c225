"""The server of the event bus without a socket: what each message asks for, and what it is refused for.

    PUB         -> drafts of this turn, in their clients' order
    SYNCSTART   -> a snapshot, waiting for its turn
    all else    -> Refused: counted, never answered; the client's other messages and everybody else's go on

Messages come from ROUTER sockets: a routing id first, then maybe an empty delimiter, then what the client sent.

Specification: event-bus.md.  Times are monotonic, in seconds, and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.dedup import Seen
from fyrehose.protocols.eventbus.drafts import Drafts
from fyrehose.protocols.eventbus.encoding import PROTOCOL
from fyrehose.protocols.eventbus.frames import EVENT_FRAMES, Dialect, SyncStart, check_event, without_delimiter
from fyrehose.protocols.eventbus.lent import Pool
from fyrehose.protocols.eventbus.settings import Settings, Syntax
from fyrehose.protocols.eventbus.snapshots import Snapshot, Snapshots
from fyrehose.records import Run

#: What may wait for the clients of snapshots, all together, in bytes.
SNAPSHOT_MEMORY = 256 << 20


@attrs.frozen(slots=True, kw_only=True)
class Refused:
    """A message of ``identity`` was not taken."""

    identity: bytes
    error: RemoteProtocolError


@attrs.frozen(slots=True, kw_only=True)
class Requested:
    """A client waits for a snapshot.

    :ivar again: this takes the place of one that it asked for before
    :ivar deaf: it writes sequences as text, and broadcasts have them in binary: a client of the reference program,
        which reads those as no number at all, and drops every event
    """

    identity: bytes
    again: bool
    deaf: bool


@attrs.frozen(slots=True, kw_only=True)
class Batch:
    """The events of one turn.

    :ivar uuids: theirs, where duplicates are looked for
    """

    runs: list[Run]
    size: int
    count: int
    uuids: tuple[bytes, ...] = ()


class ServerSession:
    """All state of an event bus but its broadcasts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._drafts = Drafts(settings.stream, PROTOCOL)
        self._seen = Seen() if settings.dedup else None
        self._uuids: list[bytes] = []
        self.snapshots = Snapshots(settings.snapshots, settings.snapshots_memory)
        self.pool = Pool(SNAPSHOT_MEMORY)

    def receive_pub(self, message: Sequence[bytes], count: int, now: float) -> Refused | None:
        """A message that came to COLLECTOR; it had ``count`` frames, of which the first 16 at the most are there.

        The sequence in it is not looked at: the server's own is the only one.
        """
        identity = message[0]
        try:
            if count == 1 + EVENT_FRAMES:
                frames = message[1:]
            else:
                frames, _ = without_delimiter(_whole(message, count), counts=(EVENT_FRAMES,))
            if len(frames) == EVENT_FRAMES and len(frames[5]) > self._settings.max_payload:
                raise RemoteProtocolError("data-too-large", f"{len(frames[5])} bytes")
            if self._seen is not None and self._repeated(self._seen, frames, now):
                raise RemoteProtocolError("duplicate")
            self._drafts.add(identity, frames)
        except RemoteProtocolError as error:
            return Refused(identity=identity, error=error)
        return None

    def receive_request(
        self, message: Sequence[bytes], count: int, host: str = "", network: str = "", descriptor: int = -1
    ) -> Refused | Requested:
        """A message that came to SNAPSHOT from *host* in *network*, by the connection with this *descriptor*."""
        identity = message[0]
        lenient = self._settings.subtrees is Syntax.REFERENCE
        try:
            frames, delimiter = without_delimiter(_whole(message, count), counts=(2, 3))
            request = SyncStart.parse(frames, lenient=lenient)
            dialect = request.dialect or self._settings.sequence
            account = self.pool.account(identity, network)
            replaced = self.snapshots.add(Snapshot(identity, request, delimiter, dialect, account, host, descriptor))
        except RemoteProtocolError as error:
            return Refused(identity=identity, error=error)
        except OverflowError:
            many = RemoteProtocolError(
                "too-many-snapshots",
                f"{len(self.snapshots)} are sent or wait, and take {self.snapshots.used} bytes; raise snapshots-memory",
            )
            return Refused(identity=identity, error=many)
        deaf = request.dialect is Dialect.DECIMAL and self._settings.sequence is Dialect.BINARY
        return Requested(identity=identity, again=replaced is not None, deaf=deaf)

    def _repeated(self, seen: Seen, frames: Sequence[bytes], now: float) -> bool:
        check_event(frames)  # what is refused must not be remembered
        uuid = frames[4]
        if not seen.add(uuid, now):
            return True
        self._uuids.append(uuid)
        return False

    def take(self) -> Batch | None:
        """The events that came since the last call, or None."""
        drafts = self._drafts
        if not drafts.count:
            return None
        size, count = drafts.size, drafts.count
        uuids, self._uuids = tuple(self._uuids), []
        return Batch(runs=drafts.build(), size=size, count=count, uuids=uuids)

    def failed(self, batch: Batch) -> None:
        """``batch`` was not published: its UUIDs are not known after all."""
        if self._seen is not None:
            for uuid in batch.uuids:
                self._seen.forget(uuid)


def _whole(message: Sequence[bytes], count: int) -> Sequence[bytes]:
    if count > len(message):
        raise RemoteProtocolError("wrong-frame-count", f"{count - 1}")
    return message[1:]
