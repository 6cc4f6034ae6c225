"""The cases that benchmarks measure, one line each, and the goals for them.

KIND/WORK[/DETAIL]...   figg/live/1: Figg, one live subscriber to the published messages
growth/WHAT/COUNT       growth/streams/1000: Figg, with 1,000 streams, which may make a message more expensive
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from fnmatch import fnmatch
from functools import partial
from typing import Any

import attrs


class CaseWork(Enum):
    """The kind of measurement of a case: messages, a start, or idle connections."""

    LOAD = "load"  #: messages in, messages out
    START = "start"  #: time until a server with an existing journal accepts a message
    IDLE = "idle"  #: memory of idle connections


@attrs.frozen(kw_only=True)
class Case:
    """One measurement of one protocol."""

    name: str
    protocol: str
    work: CaseWork = CaseWork.LOAD
    #: bytes of each message
    size: int = 128
    #: messages of all publishers together; for IDLE, the number of connections
    messages: int
    publishers: int = 1
    subscribers: int = 0
    #: further connections, attached to a stream without messages
    idle: int = 0
    #: messages that each publisher may have sent without an acknowledgement
    window: int = 8_192
    #: whether the messages are published before the measurement begins, so that subscribers catch up
    late: bool = False
    #: messages a second; 0: as fast as the window allows
    rate: float = 0.0
    #: messages a second that each subscriber reads; 0: as fast as messages arrive
    reads: float = 0.0
    #: for START, how the server ended before: ``clean`` or ``killed``
    ended: str = ""
    #: the goal for the server's CPU, in microseconds for each message; 0: no goal
    target: float = 0.0
    #: the contestants that do the same work for comparison
    against: tuple[str, ...] = ()
    #: settings for the module of the protocol in ``wires``
    extra: dict[str, Any] = attrs.field(factory=dict)

    def scaled(self, factor: float) -> Case:
        """Return the case with the number of messages multiplied by *factor*, but at least a few."""
        least = 10 if self.window == 1 else 20 * self.publishers
        return attrs.evolve(self, messages=max(least, int(self.messages * factor)))


M = 1_000_000
#: Contestants: other logs with a network protocol, and Fyrehose with syncs as late as theirs.
LOGS = ("redis-always", "jetstream-always", "fyrehose-later", "redis-everysec", "jetstream", "figg-server")
#: Contestants for subscribers that catch up, where syncs do not matter; and contestants that manage 20,000 messages a
#: second.
READERS = ("fyrehose-later", "redis-everysec", "jetstream", "figg-server")
FAST = ("redis-always", "fyrehose-later", "redis-everysec", "jetstream", "figg-server")
#: Contestants for one message at a time, with a bare disk and a bare Twisted loop, which show the least possible time.
DISK = ("disk", "twisted-loop", *LOGS)
#: Bytes of an event as Filebeat sends it, and of two sizes of large messages.
EVENT, PAGE, LARGE = 490, 1_024, 16_384


def _cases(protocol: str, kind: str = "", **usual: Any) -> Callable[..., Case]:
    """Return a function that builds cases of one protocol with the defaults ``usual``."""

    def case(name: str, messages: int, **more: Any) -> Case:
        return Case(name=f"{kind or protocol}/{name}", protocol=protocol, messages=messages, **{**usual, **more})

    return case


def _figg() -> Iterable[Case]:
    case = _cases("figg")
    yield case("publish", 2 * M, against=LOGS)
    yield case("live/1", 2 * M, subscribers=1, target=0.6, against=LOGS)
    yield case("live/4", M, subscribers=4, against=LOGS)
    yield case("live/16", M // 2, subscribers=16, against=LOGS)
    yield case("catch-up", 2 * M, subscribers=1, late=True, target=0.3, against=READERS)
    yield case("publish/1K", M, size=PAGE)
    yield case("live/1/1K", M, size=PAGE, subscribers=1, against=LOGS)
    yield case("catch-up/1K", M, size=PAGE, subscribers=1, late=True)
    yield case("live/1/16K", M // 20, size=LARGE, subscribers=1, window=1_024, against=LOGS)
    yield case("live/1/window-256", M // 2, subscribers=1, window=256)
    yield case("publish/100-connections", M, publishers=100, window=256)
    yield case("publish/window-256", M, window=256, against=("twisted-loop", "figg-server"))
    yield case("publish/window-1", 3_000, window=1, against=DISK)
    yield case("latency/5k", 25_000, subscribers=1, rate=5_000, against=LOGS)
    yield case("latency/20k", 100_000, subscribers=1, rate=20_000, against=FAST)
    yield case("latency/50k", 250_000, subscribers=1, rate=50_000)
    yield case("flow-control", M, subscribers=1, rate=100_000, reads=50_000)
    yield case("idle", 10_000, work=CaseWork.IDLE)


def _lumberjack() -> Iterable[Case]:
    case = _cases("lumberjack", size=EVENT, window=4_096, against=("beats-server",))
    yield case("level-0", M, target=0.8)
    yield case("level-3", M // 2, extra={"level": 3}, target=2.0)
    yield case("level-3/1K", M // 4, size=PAGE, extra={"level": 3})
    yield case("level-0/16K", M // 40, size=LARGE, extra={"batch": 256}, window=512)
    yield case("level-3/16-connections", M // 2, publishers=16, extra={"level": 3})
    yield case("level-0/window-1", 3_000, window=1, extra={"batch": 1})


def _relink() -> Iterable[Case]:
    case = _cases("relink", window=1_024)
    yield case("publish", M // 2, target=1.0)
    yield case("live/1", M // 4, subscribers=1)
    yield case("live/4", M // 8, subscribers=4)
    yield case("live/16", M // 16, subscribers=16)
    yield case("catch-up", M // 4, subscribers=1, late=True)
    yield case("publish/1K", M // 4, size=PAGE)
    yield case("publish/16K", M // 40, size=LARGE)
    yield case("publish/16-connections", M // 2, publishers=16)
    yield case("publish/window-1", 3_000, window=1)
    yield case("latency/5k", 25_000, subscribers=1, rate=5_000)


def _http() -> Iterable[Case]:
    case = _cases("http")
    yield case("post/window-1", 3_000, window=1)
    yield case("post/16-connections", 16_000, publishers=16, window=1)
    yield case("ndjson", M, window=8_000, extra={"batch": 2_000})
    # Workers lease 100 messages at a time, or one, and settle them.
    work = partial(case, late=True, against=("redis-always", "jetstream-always"))
    batch = {"batch": 2_000}
    yield work("workers/16", M // 2, subscribers=16, window=8_000, extra={**batch, "leases": 100}, target=8.0)
    yield work("workers/1", 3_000, subscribers=1, window=1, extra={**batch, "leases": 1})


def _backbone() -> Iterable[Case]:
    case = _cases("backbone", window=4_096, subscribers=1, against=("udp-loop",))
    yield case("live/1", M, target=1.0)
    yield case("live/4", M // 2, subscribers=4)
    yield case("live/16", M // 4, subscribers=16)
    yield case("catch-up", M // 2, late=True, against=())
    yield case("live/1/1K", M // 2, size=PAGE, window=2_048)
    yield case("live/1/16K", M // 40, size=LARGE, window=128)
    yield case("live/1/window-1", 3_000, window=1)
    yield case("latency/5k", 25_000, rate=5_000)


def _eventbus() -> Iterable[Case]:
    case = _cases("eventbus", window=2_048, subscribers=1, against=("zmq-loop",))
    yield case("live/1", M // 16, target=2.0)
    yield case("live/4", M // 16, subscribers=4)
    yield case("live/16", M // 32, subscribers=16)
    yield case("catch-up", M // 16, late=True, against=())
    yield case("live/1/1K", M // 16, size=PAGE)
    yield case("live/1/16K", M // 100, size=LARGE)
    yield case("live/1/16-connections", M // 16, publishers=16)
    yield case("live/1/window-1", 3_000, window=1)
    yield case("latency/5k", 25_000, rate=5_000)


def _journal() -> Iterable[Case]:
    case = _cases("journal", size=64 << 10, against=("disk",))
    # Batches of 64 KiB, without a server: two at a time, so that one waits while the other is written; or eight at a
    # time, so that seven are written together.
    yield case("append/64K", 2_000, window=2)
    yield case("append/64K/8-at-a-time", 4_000, window=8)


def _start() -> Iterable[Case]:
    case = _cases("figg", kind="start", work=CaseWork.START, size=PAGE)
    # Messages of 1 KiB: ten millions are 10 GB and a little.
    yield case("empty", 0, ended="clean")
    yield case("10G/clean", 9_600_000, ended="clean")
    yield case("10G/killed", 9_600_000, ended="killed")


def _growth() -> Iterable[Case]:
    case = _cases("figg", kind="growth")
    for subscribers, messages in ((1, M), (10, M // 4), (100, M // 20), (1_000, M // 100)):
        yield case(f"subscribers/{subscribers}", messages, subscribers=subscribers)
    # One connection in a hundred publishes.
    for connections in (100, 1_000, 10_000):
        active = connections // 100
        yield case(f"connections/{connections}", M // 2, publishers=active, idle=connections - active, window=256)
    for streams in (1, 10, 100, 1_000, 10_000, 100_000):
        yield case(f"streams/{streams}", M // 2, extra={"streams": streams})
    for size in (16, 128, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 15 << 20):
        window = max(2, min(8_192, (32 << 20) // size))
        yield case(f"size/{size}", max(20, min(M, (1 << 30) // size)), size=size, subscribers=1, window=window)
    # Use messages of 16 KiB, because the size of the journal in bytes matters here.
    for gigabytes in (1, 4, 16):
        more = {"work": CaseWork.START, "size": LARGE, "ended": "killed", "window": 1_024}
        yield case(f"journal/{gigabytes}", gigabytes * 61_000, **more)


CASES: tuple[Case, ...] = (
    *_figg(), *_lumberjack(), *_http(), *_relink(), *_backbone(), *_eventbus(), *_journal(), *_start(), *_growth(),
)  # fmt: skip


def selected(patterns: Iterable[str]) -> list[Case]:
    """Return the cases that match one of the shell ``patterns``; the first word of names selects all of these cases."""
    wanted = [pattern if "/" in pattern else f"{pattern}/*" for pattern in patterns]
    return [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in wanted)]
