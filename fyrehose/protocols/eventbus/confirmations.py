"""Events under way to the server: each until it comes back under its UUID, is sent again, or is given up.

in: what is sent, what comes back, the time      out: what to send again; Confirmed and Unconfirmed
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
class Confirmed:
    """An event has come back, so it is durable, under ``sequence``."""

    handle: Any
    sequence: int


@attrs.frozen(slots=True, kw_only=True)
class Unconfirmed:
    """An event did not come back: it may be published, or not."""

    handle: Any


@attrs.define(slots=True)
class _Pending:
    frames: list[Buffer]
    handle: Any
    sent: float
    tries: int = 1


@attrs.define(eq=False)
class Confirmations:
    """What was sent and has not come back.

    :ivar patience: how long it may take, in seconds
    :ivar retries: how often it is sent again
    """

    patience: float
    retries: int
    #: in the order in which they were sent
    _pending: OrderedDict[bytes, _Pending] = attrs.field(factory=OrderedDict, init=False)
    _given_up: list[Unconfirmed] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, uuid: bytes, frames: list[Buffer], handle: Any, now: float) -> None:
        """``frames`` are sent.

        :raises LocalProtocolError: an event with this UUID is under way
        """
        if uuid in self._pending:
            raise LocalProtocolError("an event with this UUID is under way")
        self._pending[uuid] = _Pending(frames, handle, now)

    def came_back(self, uuid: bytes, sequence: int) -> Confirmed | None:
        """The server has an event with ``uuid``."""
        pending = self._pending.pop(uuid, None)
        return None if pending is None else Confirmed(handle=pending.handle, sequence=sequence)

    def resend(self, now: float) -> list[list[Buffer]]:
        """The frames of those that should have come back, to be sent again; or they are given up."""
        late = list(takewhile(lambda uuid: now - self._pending[uuid].sent >= self.patience, self._pending))
        frames = []
        for uuid in late:
            pending = self._pending[uuid]
            if pending.tries > self.retries:
                del self._pending[uuid]
                self._given_up.append(Unconfirmed(handle=pending.handle))
                continue
            pending.tries += 1
            pending.sent = now
            self._pending.move_to_end(uuid)
            frames.append(pending.frames)
        return frames

    def given_up(self) -> list[Unconfirmed]:
        """Those that were given up since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def abandon(self) -> list[Unconfirmed]:
        """Give everything up."""
        pending, self._pending = self._pending, OrderedDict()
        return [Unconfirmed(handle=each.handle) for each in pending.values()]

    def next_due(self) -> float:
        """When the next one should have come back."""
        first = next(iter(self._pending.values()), None)
        return inf if first is None else first.sent + self.patience
