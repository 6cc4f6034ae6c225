"""Relink subscriber for Twisted programs: reads one stream with the records' numbers, and reports every gap.

    reader = RelinkReader(reactor, clientFromString(reactor, "tcp:127.0.0.1:7733"), "log", after=0, on_record=take)
    reader.client.connect()

calls ``take(seq, parts)`` for each record.  A program that stores the last number can continue from there with
``after=seq``, even after its own restart.
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
    """A connector that subscribes to a stream; after its link is lost, it continues behind the last record.

    :ivar after: begin behind this number (0: with the oldest record); None: only with new records
    :ivar on_record: called with the number and the parts of each record, in order.  The record is consumed when the
        call has returned, or the Deferred that it returned has fired.  If that fails, the record is delivered again.
    :ivar on_gap: called with the first and last number of a range of records that the stream no longer has
    :ivar position: number of the last record passed to ``on_record``, or the one before the first; None: not known yet
    :ivar client: the client to connect, pause, resume and close
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
            self.clock, self.endpoint, self._name(), rename=self._name, limits=limits, on_message=self._on_message
        )

    def _name(self) -> str:
        """Return the name of the endpoint that continues behind ``position``."""
        return subscribe_name(self.stream, self.position, seqs=True)

    def _on_message(self, channel: int, number: int, parts: tuple[bytes, ...]) -> Any:
        if not parts or len(parts[0]) not in (0, SEQ_SIZE) or (not parts[0] and len(parts) < 2):
            raise RemoteProtocolError("seq-missing", f"message {number} does not begin with the number of its record")
        if not parts[0]:
            self._set_start(int.from_bytes(parts[1], "little"))
            return None
        seq = int.from_bytes(parts[0], "little")
        before, self.position = self.position, seq
        if before is not None and seq > before + 1:
            self.on_gap(before + 1, seq - 1)
        return self._call_on_record(seq, parts[1:])

    def _set_start(self, seq: int) -> None:
        """Record that the channel begins behind number *seq*; report a gap if that is not where reading stopped."""
        before, self.position = self.position, seq
        if before is not None and seq > before:
            self.on_gap(before + 1, seq)
        elif before is not None and seq < before:
            log.warn(
                "stream {stream!r} ends at record {seq}, before record {before} that was read already; "
                "it may have been restored from a backup; continuing at its end",
                stream=self.stream,
                seq=seq,
                before=before,
            )

    def _call_on_record(self, seq: int, parts: tuple[bytes, ...]) -> Any:
        """Call ``on_record``; if that fails, step back so that the record is requested again."""

        def failed(failure: Failure) -> Failure:
            self.position = seq - 1
            return failure

        try:
            result = self.on_record(seq, parts)
        except Exception:
            self.position = seq - 1
            raise
        return result.addErrback(failed) if isinstance(result, Deferred) else result
