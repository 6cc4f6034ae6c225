"""Plan that the runner sends to a load maker, and outcome that it reports; both are lines of JSON.

runner                        load maker
Plan                    ->    connects, makes its bytes
                        <-    "ready"
"go" and the time to begin ->
                        <-    LoadOutcome
(closes the pipe)       ->    disconnects
"""

from __future__ import annotations

import json
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Plan:
    """The task of one load maker: its connections, and the messages of each."""

    wire: str
    host: str = "127.0.0.1"
    #: where publishers connect, and where subscribers do
    port: int
    read_port: int
    stream: str
    #: bytes of each message
    size: int
    #: messages of each publisher; none: it publishes nothing
    publishers: list[int] = attrs.field(factory=list)
    subscribers: int = 0
    #: messages that each subscriber is to get
    expected: int = 0
    #: messages that a publisher may have under way
    window: int = 1
    #: whether subscribers begin with the clock
    late: bool = False
    #: messages a second; 0: as fast as the window allows
    rate: float = 0.0
    #: messages a second that each subscriber takes; 0: as many as come
    reads: float = 0.0
    #: settings of the wire
    extra: dict[str, Any] = attrs.field(factory=dict)

    def dumps(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def loads(cls, text: str) -> Plan:
        return cls(**json.loads(text))


@attrs.frozen(kw_only=True)
class LoadOutcome:
    """Result of one load maker; times are of the machine's monotonic clock."""

    began: float
    ended: float
    #: CPU seconds of its own between the two
    cpu: float
    #: messages that were acknowledged, and received by all its subscribers together
    acknowledged: int = 0
    received: int = 0
    #: messages that never came
    lost: int = 0
    #: seconds at PERCENTILES, from when each was due (or sent, one at a time) to its acknowledgement or arrival
    latency: dict[str, list[float]] = attrs.field(factory=dict)
    #: why it stopped before its end; empty: it did not
    trouble: str = ""

    def dumps(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def loads(cls, text: str) -> LoadOutcome:
        return cls(**json.loads(text))
