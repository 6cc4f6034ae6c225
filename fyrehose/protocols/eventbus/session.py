"""The server's side of the event bus, without I/O: check each message, collect events and snapshot requests.

    PUB             -> a draft of this turn, in the order of each client
    SYNCSTART       -> a snapshot that waits for its turn
    anything else   -> Refused: counted, not answered; has no effect on other messages

Messages come from ROUTER sockets: first the routing id, then possibly an empty delimiter, then the client's frames.

Specification: event-bus.md, "State Synchronization" and "Client-to-Server Updates".  Times are monotonic, in seconds,
and passed as arguments.
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

#: Upper bound of the memory of SYNCs that wait for clients, in bytes.
SNAPSHOT_MEMORY = 256 << 20


@attrs.frozen(slots=True, kw_only=True)
class Refused:
    """A message of the client ``identity`` is refused."""

    identity: bytes
    error: RemoteProtocolError


@attrs.frozen(slots=True, kw_only=True)
class Requested:
    """A client has requested a snapshot.

    :ivar replaced: the request replaces an earlier one of the same client
    :ivar wrong_dialect: the client sends decimal sequences and broadcasts have binary ones.  It is the reference
        program, which cannot read binary sequences and drops every broadcast
    """

    identity: bytes
    replaced: bool
    wrong_dialect: bool


@attrs.frozen(slots=True, kw_only=True)
class Batch:
    """The events of one turn.

    :ivar size: their memory, in bytes
    :ivar count: number of events
    :ivar uuids: the UUIDs of the events, if the option ``dedup`` is on
    """

    runs: list[Run]
    size: int
    count: int
    uuids: tuple[bytes, ...] = ()


class ServerSession:
    """The state of a server: events of this turn, recent UUIDs, snapshots."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._drafts = Drafts(settings.stream, PROTOCOL)
        self._seen = Seen() if settings.dedup else None
        self._uuids: list[bytes] = []
        self.snapshots = Snapshots(settings.snapshots, settings.snapshots_memory)
        self.pool = Pool(SNAPSHOT_MEMORY)

    def receive_pub(self, message: Sequence[bytes], count: int, now: float) -> Refused | None:
        """Process a message of COLLECTOR; its sequence is ignored, because the server assigns its own.

        :param message: the first frames of the message, at most 16
        :param count: number of frames of the whole message
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
        """Process a message of SNAPSHOT.

        :param message: the first frames of the message, at most 16
        :param count: number of frames of the whole message
        :param host: the address of the client
        :param network: the network of that address, with whose other clients it shares memory
        :param descriptor: the file descriptor of the client's connection
        """
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
                f"{len(self.snapshots)} requests use {self.snapshots.used} bytes; raise eventbus.snapshots-memory",
            )
            return Refused(identity=identity, error=many)
        wrong_dialect = request.dialect is Dialect.DECIMAL and self._settings.sequence is Dialect.BINARY
        return Requested(identity=identity, replaced=replaced is not None, wrong_dialect=wrong_dialect)

    def _repeated(self, seen: Seen, frames: Sequence[bytes], now: float) -> bool:
        check_event(frames)  # the UUID of a refused event must not be remembered
        uuid = frames[4]
        if not seen.add(uuid, now):
            return True
        self._uuids.append(uuid)
        return False

    def take(self) -> Batch | None:
        """Return the events since the last call, or None if there are none."""
        drafts = self._drafts
        if not drafts.count:
            return None
        size, count = drafts.size, drafts.count
        uuids, self._uuids = tuple(self._uuids), []
        return Batch(runs=drafts.build(), size=size, count=count, uuids=uuids)

    def failed(self, batch: Batch) -> None:
        """Forget the UUIDs of *batch*, which was not published."""
        if self._seen is not None:
            for uuid in batch.uuids:
                self._seen.forget(uuid)


def _whole(message: Sequence[bytes], count: int) -> Sequence[bytes]:
    if count > len(message):
        raise RemoteProtocolError("wrong-frame-count", f"{count - 1} frames")
    return message[1:]
