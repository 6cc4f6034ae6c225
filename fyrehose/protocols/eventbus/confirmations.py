"""Track published events until a BROADCAST or SYNC with the same UUID confirms them, and resend them after a timeout.

in: published events, UUIDs of received events, the time      out: events to resend; PubConfirmed and PubTimedOut
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from math import inf
from typing import Any

import attrs

from fyrehose.errors import LocalProtocolError
from fyrehose.records import Buffer


@attrs.frozen(slots=True, kw_only=True)
class PubConfirmed:
    """A published event was received, so it is durable on the server, with this ``sequence``."""

    handle: Any
    sequence: int


@attrs.frozen(slots=True, kw_only=True)
class PubTimedOut:
    """A published event was not received in time; it may or may not be published."""

    handle: Any


@attrs.define(slots=True)
class _Pending:
    frames: list[Buffer]
    handle: Any
    sent: float
    tries: int = 1


@attrs.define(eq=False)
class Confirmations:
    """Published events that are not confirmed.

    :ivar timeout: seconds to wait for a confirmation before an event is sent again
    :ivar retries: how often an event is sent again before it fails
    """

    timeout: float
    retries: int
    #: in the order in which they were sent
    _pending: OrderedDict[bytes, _Pending] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, uuid: bytes, frames: list[Buffer], handle: Any, now: float) -> None:
        """Track an event whose *frames* are sent now.

        :raises LocalProtocolError: an event with this UUID is not confirmed yet
        """
        if uuid in self._pending:
            raise LocalProtocolError(f"an event with the UUID {uuid.decode()!r} is not confirmed yet; use another UUID")
        self._pending[uuid] = _Pending(frames, handle, now)

    def received(self, uuid: bytes, sequence: int) -> PubConfirmed | None:
        """Return the confirmation of the event with *uuid*; None if no such event is tracked."""
        pending = self._pending.pop(uuid, None)
        return None if pending is None else PubConfirmed(handle=pending.handle, sequence=sequence)

    def resend(self, now: float) -> tuple[list[list[Buffer]], list[PubTimedOut]]:
        """Return the frames of the events to send again now, and a PubTimedOut for each event without a retry left."""
        late = list(takewhile(lambda uuid: now - self._pending[uuid].sent >= self.timeout, self._pending))
        frames, given_up = [], []
        for uuid in late:
            pending = self._pending[uuid]
            if pending.tries > self.retries:
                del self._pending[uuid]
                given_up.append(PubTimedOut(handle=pending.handle))
                continue
            pending.tries += 1
            pending.sent = now
            self._pending.move_to_end(uuid)
            frames.append(pending.frames)
        return frames, given_up

    def abandon(self) -> list[PubTimedOut]:
        """Stop tracking all events, and return them as PubTimedOut."""
        pending, self._pending = self._pending, OrderedDict()
        return [PubTimedOut(handle=each.handle) for each in pending.values()]

    def next_due(self) -> float:
        """Return the time at which :meth:`resend` has to be called next; infinity if no event is tracked."""
        first = next(iter(self._pending.values()), None)
        return inf if first is None else first.sent + self.timeout
