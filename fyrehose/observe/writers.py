"""The writers of a listener by name: what each has sent, when it was acknowledged, and what was refused.

a connection -> its name, from a certificate or its first event -> a row, which outlives the connection
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import attrs

#: How many writers have rows; beyond it, the row is forgotten that was used least recently.
MOST_WRITERS = 1_000
#: The largest event that is decoded to learn a writer's name, in bytes; a larger one tells no name.
MOST_DECODED = 64 << 10
#: The longest name, and the longest agent with its version, in characters.
MOST_TEXT = 100
#: The shortest time over which a rate is measured, in seconds.
RATE_S = 5.0


@attrs.define(eq=False)
class WriterRow:
    """One writer, which may have several connections.

    :ivar name: the name in its certificate, its ``agent.name``, or its address
    :ivar agent: such as ``filebeat 8.19.0``; empty if its events do not say
    :ivar address: the address of its last connection
    :ivar acknowledged_at: when a window was acknowledged last, by the clock of :class:`WriterTable`; None: never
    :ivar refused: its events and connections that were refused; :ivar missed: its events that no route fits
    """

    name: str
    agent: str = ""
    address: str = ""
    connections: int = 0
    events: int = 0
    refused: int = 0
    missed: int = 0
    acknowledged_at: float | None = None
    _rate: float = 0.0
    _since: float = 0.0
    _counted: int = 0  #: events at ``_since``

    def add(self, events: int, now: float) -> None:
        """Count *events* that have arrived."""
        self.events += events
        if now - self._since >= RATE_S:
            self.rate(now)

    def rate(self, now: float) -> float:
        """Return the events per second, measured over the last :data:`RATE_S` seconds or more."""
        if now - self._since >= RATE_S:
            self._rate = (self.events - self._counted) / (now - self._since)
            self._since, self._counted = now, self.events
        return self._rate


@attrs.define(eq=False)
class WriterTable:
    """The table of all writers, at most :data:`MOST_WRITERS` of them.

    :ivar seconds: the monotonic clock, in seconds
    """

    seconds: Callable[[], float] = time.monotonic
    _rows: OrderedDict[str, WriterRow] = attrs.field(factory=OrderedDict, init=False)

    def connected(self, name: str, agent: str, address: str) -> WriterRow:
        """Return the row of the writer *name*, which has connected again; forget the oldest if there are too many."""
        name = name[:MOST_TEXT]
        row = self._rows.pop(name, None) or WriterRow(name, since=self.seconds())
        if len(self._rows) >= MOST_WRITERS:
            idle = next((each.name for each in self._rows.values() if not each.connections), next(iter(self._rows)))
            del self._rows[idle]
        self._rows[name] = row
        row.agent, row.address = agent or row.agent, address
        row.connections += 1
        return row

    def __len__(self) -> int:
        return len(self._rows)

    def listed(self) -> list[dict[str, Any]]:
        """Return the rows for the status of the server, the latest first."""
        now = self.seconds()
        return [
            {
                "name": each.name,
                "agent": each.agent,
                "address": each.address,
                "connections": each.connections,
                "events": each.events,
                "rate": each.rate(now),
                "acknowledged_ago": None if each.acknowledged_at is None else round(now - each.acknowledged_at, 3),
                "refused": each.refused,
                "missed": each.missed,
            }
            for each in reversed(self._rows.values())
        ]


def agent_of(payload: bytes) -> tuple[str, str]:
    """Return the ``agent.name`` of an event of a Beat, and the Beat with its version; empty if the event has none."""
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        event = {}
    fields = event if isinstance(event, dict) else {}
    agent, metadata = (each if isinstance(each := fields.get(key), dict) else {} for key in ("agent", "@metadata"))
    kind, version = agent.get("type", metadata.get("beat")), agent.get("version", metadata.get("version"))
    texts = [each if isinstance(each, str) else "" for each in (agent.get("name"), kind, version)]
    name, *about = (each.encode(errors="replace").decode() for each in texts)  # JSON may have lone surrogates
    return name, " ".join(filter(None, about))[:MOST_TEXT]
