"""The server's side of the event bus, without I/O: check each message, collect events and snapshot requests.

    PUB             -> an event of this turn, in the order of each client
    SYNCSTART       -> a snapshot that waits for its turn
    anything else   -> RemoteProtocolError: counted, not answered; has no effect on other messages

Messages come from ROUTER sockets: first the routing id, then possibly an empty delimiter, then the client's frames.

Specification: event-bus.md, "State Synchronization" and "Client-to-Server Updates".  Times are monotonic, in seconds,
and passed as arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.columns import PROTOCOL, EventBatch, RunBuilder
from fyrehose.protocols.eventbus.frames import (
    EVENT_FRAMES,
    Dialect,
    SyncStart,
    check_event,
    parse_sequence,
    without_delimiter,
)
from fyrehose.protocols.eventbus.queued_memory import Pool
from fyrehose.protocols.eventbus.recognition import unclear
from fyrehose.protocols.eventbus.settings import EventBusSettings
from fyrehose.protocols.eventbus.snapshots import SnapshotAnswer, Snapshots

#: Upper bound of the memory of SYNCs that wait for clients, in bytes.
SNAPSHOT_MEMORY = 64 << 20
#: Number of UUIDs that are remembered with the option ``dedup``, and for how long, in seconds.
MOST_SEEN = 100_000
SEEN_AGE = 600.0
#: The option that an operator sets for clients of the reference program that do not show their dialect.
FOR_REFERENCE = "--option eventbus.dialect=decimal"


@attrs.frozen(slots=True, kw_only=True)
class Requested:
    """A client has requested a snapshot.

    :ivar replaced: whether the request replaces an earlier one of the same client
    :ivar wrong_dialect: whether the client sends decimal sequences, while broadcasts have binary ones.  It is the
        reference program, which cannot read binary sequences and drops every broadcast
    """

    replaced: bool
    wrong_dialect: bool


class EventBusServerSession:
    """The state of a server: events of this turn, recent UUIDs, snapshots."""

    def __init__(self, settings: EventBusSettings) -> None:
        self._settings = settings
        self._builder = RunBuilder(settings.stream, PROTOCOL)
        #: recent UUIDs and their time; a publisher sends an event again if no BROADCAST has confirmed it
        self._seen: OrderedDict[bytes, float] = OrderedDict()
        self.snapshots = Snapshots(settings.snapshots, settings.snapshots_memory)
        self.pool = Pool(SNAPSHOT_MEMORY)

    def change(self, settings: EventBusSettings) -> None:
        """Use other settings from now on, with the same stream and dialect."""
        self._settings = settings

    def receive_pub(self, message: Sequence[bytes], count: int, now: float) -> RemoteProtocolError | None:
        """Process a message of COLLECTOR; ignore its sequence, because the server itself assigns sequences.

        :param message: the first frames of the message, at most 16
        :param count: number of frames of the whole message
        :return: why the message was refused; None: it was accepted
        """
        try:
            if count == 1 + EVENT_FRAMES:
                frames = message[1:]
            else:
                frames, _ = without_delimiter(_whole(message, count), counts=(EVENT_FRAMES,))
            if len(frames) == EVENT_FRAMES and len(frames[5]) > self._settings.max_payload:
                raise RemoteProtocolError("data-too-large", f"{len(frames[5])} bytes")
            if self._settings.dedup:
                self._remember(frames, now)
            self._builder.add(message[0], frames)
        except RemoteProtocolError as error:
            return error
        return None

    def receive_request(
        self,
        message: Sequence[bytes],
        count: int,
        host: str,
        network: str,
        close: Callable[[], object] = lambda: None,
    ) -> Requested | RemoteProtocolError:
        """Process a message of SNAPSHOT.

        :param message: the first frames of the message, at most 16
        :param count: number of frames of the whole message
        :param host: the address of the client
        :param network: the network of that address, with whose other clients it shares memory
        :param close: closes the client's connection
        """
        listener, identity = self._settings.dialect, message[0]
        try:
            frames, delimiter = without_delimiter(_whole(message, count), counts=(2, 3))
            request = self._parse(frames)
            account = self.pool.account(identity, network)
            snapshot = SnapshotAnswer(identity, request, delimiter, request.dialect or listener, account, host, close)
            replaced = self.snapshots.add(snapshot)
        except RemoteProtocolError as error:
            return error
        prefixes = map(str.encode, request.subtrees.prefixes)
        wrong_dialect = request.dialect is Dialect.DECIMAL and listener is Dialect.BINARY and unclear(prefixes)
        return Requested(replaced=replaced is not None, wrong_dialect=wrong_dialect)

    def _parse(self, frames: Sequence[bytes]) -> SyncStart:
        """Parse a SYNCSTART; an error about its subtrees names the option that would accept them.

        A decimal sequence, which only the reference program sends, means that the subtrees have its syntax, too.
        """
        dialect = parse_sequence(frames[2])[1] if len(frames) == 3 else None
        lenient = (dialect or self._settings.dialect) is Dialect.DECIMAL
        try:
            return SyncStart.parse(frames, lenient=lenient)
        except RemoteProtocolError as error:
            if error.cause != "bad-subtree" or dialect is not None:
                raise
            detail = str(error).removeprefix(f"{error.cause}: ")
            advice = f"for clients of the reference program (Node) pass {FOR_REFERENCE}"
            raise RemoteProtocolError(error.cause, f"{detail}; {advice}") from None

    def take(self) -> EventBatch | None:
        """Return the events that were received since the last call, or None if there are none."""
        return self._builder.take()

    def failed(self, batch: EventBatch) -> None:
        """Forget the UUIDs of *batch*, which was not published."""
        for uuid in batch.uuids:
            self._seen.pop(uuid, None)

    def _remember(self, frames: Sequence[bytes], now: float) -> None:
        """Remember the UUID of an event.

        :raises RemoteProtocolError: the UUID is remembered already, or the frames are not an event
        """
        check_event(frames)  # the UUID of a refused event must not be remembered
        seen, uuid = self._seen, frames[4]
        while seen and now - next(iter(seen.values())) > SEEN_AGE:
            seen.popitem(last=False)
        repeated = uuid in seen
        seen[uuid] = now
        seen.move_to_end(uuid)
        if len(seen) > MOST_SEEN:
            seen.popitem(last=False)
        if repeated:
            raise RemoteProtocolError("duplicate")
        self._builder.uuids.append(uuid)


def _whole(message: Sequence[bytes], count: int) -> Sequence[bytes]:
    if count > len(message):
        raise RemoteProtocolError("wrong-frame-count", f"{count - 1} frames")
    return message[1:]
