"""The plan that the runner sends to a load maker, and the outcome that the load maker reports: lines of JSON.

runner                        load maker
Plan                    ->    connects, makes its bytes
                        <-    "ready"
"go" and the time to begin ->
                        <-    LoadOutcome
(closes the pipe)       ->    disconnects
"""

from __future__ import annotations

import json
from typing import Any, Self

import attrs


@attrs.frozen
class _Line:
    """A record that is sent as one line of JSON."""

    def dumps(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        return cls(**json.loads(text))


@attrs.frozen(kw_only=True)
class Plan(_Line):
    """The task of one load maker: its connections, and the messages of each."""

    wire: str
    host: str = "127.0.0.1"
    #: the addresses to which publishers and subscribers connect
    port: int
    read_port: int
    stream: str
    #: bytes of each message
    size: int
    #: number of messages of each publisher; empty: there are no publishers
    publishers: list[int] = attrs.field(factory=list)
    subscribers: int = 0
    #: number of messages after which each subscriber is done
    expected: int = 0
    #: messages that a publisher may have sent without an acknowledgement
    window: int = 1
    #: whether subscribers begin to read when the measurement begins
    late: bool = False
    #: messages a second; 0: as fast as the window allows
    rate: float = 0.0
    #: messages a second that each subscriber reads; 0: as fast as messages arrive
    reads: float = 0.0
    #: settings for the module of the protocol in ``wires``
    extra: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class LoadOutcome(_Line):
    """Result of one load maker; times are of the machine's monotonic clock."""

    began: float
    ended: float
    #: CPU seconds of the load maker from the beginning to the end
    cpu: float
    #: number of acknowledged messages, and of messages received by all its subscribers together
    acknowledged: int = 0
    received: int = 0
    #: number of lost messages
    lost: int = 0
    #: latencies at PERCENTILES, in seconds: from when a message was due (or sent, one at a time) to its acknowledgement
    #: or arrival
    latency: dict[str, list[float]] = attrs.field(factory=dict)
    #: why the load maker stopped early; empty if it ran to its end
    trouble: str = ""
