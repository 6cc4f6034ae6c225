"""Relink's reader for programs: the records of one stream with their numbers, nothing lost and nothing doubled unsaid.

    reader = RelinkReader(reactor, clientFromString(reactor, "tcp:127.0.0.1:7733"), "log", after=0, on_record=take)
    reader.client.connect()

calls ``take(seq, parts)`` for each record.  A program that remembers the last number goes on from there with
``after=seq``, after a restart of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.limits import NUMBERED, Limits
from fyrehose.protocols.relink.names import SEQ_SIZE, subscribe_name
from fyrehose.records import MAX_PAYLOAD

log = Logger()


@attrs.define(eq=False)
class RelinkReader:
    """A connector that reads a stream, and goes on behind its last record when its link is lost.

    :ivar after: begin behind this number (0: with the oldest record); None: with what is published from now on
    :ivar on_record: is called with the number and the parts of each record, in order; the record is consumed when it
        has returned, or when the Deferred that it returned has fired.  If that fails, the record comes again.
    :ivar on_gap: is called with the first and the last number of a range that the stream does not have any more
    :ivar position: the number of the last record that was handed out, or the one before the first; None: not known yet
    :ivar client: connects, pauses, resumes, closes
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    stream: str
    after: int | None = attrs.field(default=None, kw_only=True)
    on_record: Callable[[int, tuple[bytes, ...]], Any] = attrs.field(kw_only=True)
    on_gap: Callable[[int, int], object] = attrs.field(default=lambda first, last: None, kw_only=True)
    position: int | None = attrs.field(init=False)
    client: RelinkClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.position = self.after
        limits = Limits(message_size=MAX_PAYLOAD + NUMBERED)
        self.client = RelinkClient(
            self.clock, self.endpoint, self._name(), rename=self._name, limits=limits, on_message=self._message
        )

    def _name(self) -> str:
        """Return the name of the endpoint that goes on where we are."""
        return subscribe_name(self.stream, self.position, seqs=True)

    def _message(self, channel: int, number: int, parts: tuple[bytes, ...]) -> Any:
        if not parts or len(parts[0]) not in (0, SEQ_SIZE) or (not parts[0] and len(parts) < 2):
            raise RemoteProtocolError("seq-missing", f"message {number} does not say the number of its record")
        if not parts[0]:
            self._begins_behind(int.from_bytes(parts[1], "little"))
            return None
        seq = int.from_bytes(parts[0], "little")
        before, self.position = self.position, seq
        if before is not None and seq > before + 1:
            self.on_gap(before + 1, seq - 1)
        return self._handed_out(seq, parts[1:])

    def _begins_behind(self, seq: int) -> None:
        """The channel begins behind number *seq*."""
        before, self.position = self.position, seq
        if before is not None and seq > before:
            self.on_gap(before + 1, seq)
        elif before is not None and seq < before:
            log.warn(
                "stream {stream!r} ends at {seq}, before {before}: was it restored?  Reading goes on at its end",
                stream=self.stream,
                seq=seq,
                before=before,
            )

    def _handed_out(self, seq: int, parts: tuple[bytes, ...]) -> Any:
        def failed(failure: Failure) -> Failure:
            self.position = seq - 1
            return failure

        try:
            result = self.on_record(seq, parts)
        except Exception:
            self.position = seq - 1
            raise
        return result.addErrback(failed) if isinstance(result, Deferred) else result
