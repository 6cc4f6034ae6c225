"""Relink subscriber for Twisted programs: reads one stream with the records' numbers, and reports every gap.

    reader = RelinkReader(reactor, clientFromString(reactor, "tcp:127.0.0.1:7733"))
    reader.subscribe("log", take, after=0)
    reader.connect()

calls ``take(run)`` for each record.  A program that stores the last number can continue from there with ``after=seq``,
even after its own restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.errors import ConfigError, RemoteProtocolError
from fyrehose.interfaces import ITailer
from fyrehose.net.clients import tell_restarted
from fyrehose.protocols.relink.client import RelinkClient
from fyrehose.protocols.relink.link import NUMBERED, LinkLimits
from fyrehose.protocols.relink.messages import CONTENT_TYPE, join
from fyrehose.protocols.relink.names import SEQ_SIZE, subscribe_name
from fyrehose.records import MAX_PAYLOAD, Run


@implementer(ITailer)
@attrs.define(eq=False)
class RelinkReader(RelinkClient):
    """A connector that subscribes to a stream; after its link is lost, it continues behind the last record.

    :ivar position: number of the last record passed to ``take``, or, before the first call, of the record before the
        first; None: not known yet
    """

    absent = False  #: the protocol does not say whether the stream exists

    position: int | None = attrs.field(default=None, init=False)
    #: the epoch of ``position``, as the server said it; a program that has kept it with a number may set it
    epoch: str = attrs.field(default="", kw_only=True)
    _stream: str = attrs.field(default="", init=False)
    _after: int | None = attrs.field(default=None, init=False)
    _name: str | None = attrs.field(default=None, init=False)
    _takeover: bool = attrs.field(default=False, init=False)
    #: how often the named subscription had been rewound when the last link began; None: not known yet
    _rewinds: int | None = attrs.field(default=None, init=False)
    _take: Callable[[Run], Any] = attrs.field(default=lambda run: None, init=False)
    _lost: Callable[[int, int], object] | None = attrs.field(default=None, init=False)
    _restarted: Callable[[int], object] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.limits = LinkLimits(message_size=MAX_PAYLOAD + NUMBERED)
        self.on_message, self.rename = self._on_message, self._next_name
        super().__attrs_post_init__()

    def subscribe(
        self,
        stream: str | None,
        take: Callable[[Run], Any],
        after: int | None = None,
        lost: Callable[[int, int], object] | None = None,
        restarted: Callable[[int], object] | None = None,
        name: str | None = None,
        takeover: bool = False,
    ) -> None:
        """Select the stream, before ``connect()``.

        :param take: called with each record in order, as a run of one record; ``parts.split`` returns the parts of a
            payload of several.  The record is consumed when the call has returned, or the Deferred that it returned has
            fired.  If that fails, the record is delivered again.
        :param after: the number behind which reading begins (0: with the oldest record); None: only new records
        :param lost: called with the first and last number of a range of records that the stream no longer has
        :param restarted: called with the last number of the stream if the server has another journal; the stream is
            then read from its start, or from the position of the named subscription there
        :param name: a named subscription, whose position the server keeps; *after* says where a new one begins.  The
            position moves with each record that is consumed
        :param takeover: whether to displace another consumer of the subscription; otherwise the client waits until
            there is none
        :raises ConfigError: no stream was given
        """
        if stream is None:
            raise ConfigError("no stream was given; use --stream NAME")
        self._stream, self._take = stream, take
        self._lost, self._restarted = lost, restarted
        self._name, self._takeover, self._after = name, takeover, after
        self.position = after if name is None else None
        self.name = self._next_name()

    def close(self) -> Deferred[None]:
        """Disconnect from the server.

        The server keeps the link of a named subscription for a while, and sends unconsumed records again on it.
        """
        if self._name is None:
            return super().close()
        self._closing = True
        if self.connection is not None:
            self.connection.flush()
        return self._stop()

    def shortfall(self, complete: bool) -> str:
        """Return "": records arrive in order over one connection, so none can be missing at the end."""
        return ""

    def _next_name(self) -> str:
        """Return the name of the endpoint that delivers the records after number ``position``."""
        after = self._after if self.position is None else self.position
        epoch = self.epoch if after and self._name is None else ""
        return subscribe_name(self._stream, after, seqs=True, name=self._name, takeover=self._takeover, epoch=epoch)

    def _on_message(self, channel: int, number: int, parts: tuple[bytes, ...]) -> Any:
        if not parts or len(parts[0]) not in (0, SEQ_SIZE) or (not parts[0] and len(parts) < 2):
            raise RemoteProtocolError("seq-missing", f"message {number} does not begin with the number of its record")
        if not parts[0]:
            if len(parts) < 5:
                raise RemoteProtocolError("start-incomplete", f"the first message has {len(parts)} parts, not 5")
            start, rewinds, end = (int.from_bytes(part, "little") for part in parts[1:4])
            self._set_start(start, rewinds, end, parts[4].decode("ascii", "replace"))
            return None
        seq = int.from_bytes(parts[0], "little")
        if self._name is not None and self.position is not None and seq <= self.position:
            return None  # The record was passed on; only its acknowledgement was lost with the link.
        before, self.position = self.position, seq
        if before is not None and seq > before + 1:
            self._report_lost(before + 1, seq - 1)
        payload, content_type = (parts[1], None) if len(parts) == 2 else (join(parts[1:]), CONTENT_TYPE)
        return self._call_take(
            # The channel does not say by which protocol a record was published.
            Run.of(self._stream, [payload], source="", content_type=content_type, first_seq=seq)
        )

    def _set_start(self, seq: int, rewinds: int, end: int, epoch: str) -> None:
        """Record that the channel begins behind record *seq*; report a gap if reading had stopped before that record.

        :param rewinds: how often the named subscription was rewound
        :param end: the last number of the stream
        :param epoch: the epoch of these numbers
        """
        other, self.epoch = self.epoch not in ("", epoch), epoch
        if self.position and (other or (self._name is None and seq < self.position)):
            known, self.position = self.position, None if self._name is not None else 0
            tell_restarted(self._stream, known, end, self._restarted)
        if self._name is not None:
            rewound = rewinds != self._rewinds
            self._rewinds = rewinds
            # A link that begins behind fewer records sends some again; _on_message skips those up to `position`.
            if rewound or self.position is None or seq > self.position:
                self.position = seq
            return
        before, self.position = self.position, seq
        if before is not None and seq > before:
            self._report_lost(before + 1, seq)

    def _report_lost(self, first: int, last: int) -> None:
        if self._lost is not None:
            self._lost(first, last)

    def _call_take(self, run: Run) -> Any:
        """Pass on a record; if ``take`` fails, set the position back, so that the record is requested again."""

        def failed(failure: Failure) -> Failure:
            self.position = run.last_seq - 1
            return failure

        try:
            result = self._take(run)
        except Exception:
            self.position = run.last_seq - 1
            raise
        return result.addErrback(failed) if isinstance(result, Deferred) else result
