"""What is measured, a line each, and what it should come to.

KIND/WORK[/DETAIL]...   figg/live/1: Figg, one subscriber that hears what is published
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Case:
    """One piece of work for one protocol."""

    name: str
    protocol: str
    #: bytes of each message
    size: int = 128
    #: messages of all publishers together
    messages: int
    publishers: int = 1
    subscribers: int = 0
    #: messages that each publisher may have under way
    window: int = 8_192
    #: whether the messages are there before the clock begins: subscribers catch up
    late: bool = False
    #: messages a second; 0: as fast as the window allows
    rate: float = 0.0
    #: the most that the server may spend, in microseconds of CPU for each message; 0: nobody has said
    target: float = 0.0
    #: settings of the wire
    extra: dict[str, Any] = attrs.field(factory=dict)

    def scaled(self, factor: float) -> Case:
        """The same with fewer messages, and no fewer than a tenth of a second's."""
        least = 10 if self.window == 1 else 20 * self.publishers
        return attrs.evolve(self, messages=max(least, int(self.messages * factor)))


M = 1_000_000
#: Bytes of an event as Filebeat sends it; of messages that are larger than most.
EVENT, PAGE, LARGE = 490, 1_024, 16_384


def _figg() -> Iterable[Case]:
    def case(name: str, messages: int, **more: Any) -> Case:
        return Case(name=f"figg/{name}", protocol="figg", messages=messages, **more)

    yield case("publish", 2 * M)
    yield case("live/1", 2 * M, subscribers=1, target=0.6)
    yield case("live/4", M, subscribers=4)
    yield case("live/16", M // 2, subscribers=16)
    yield case("catch-up", 2 * M, subscribers=1, late=True, target=0.3)
    yield case("publish/1K", M, size=PAGE)
    yield case("live/1/1K", M, size=PAGE, subscribers=1)
    yield case("catch-up/1K", M, size=PAGE, subscribers=1, late=True)
    yield case("live/1/16K", M // 20, size=LARGE, subscribers=1, window=1_024)
    yield case("live/1/window-256", M // 2, subscribers=1, window=256)
    yield case("publish/100-connections", M, publishers=100, window=256)
    yield case("publish/window-1", 3_000, window=1)


def _lumberjack() -> Iterable[Case]:
    def case(name: str, messages: int, **more: Any) -> Case:
        return Case(
            name=f"lumberjack/{name}", protocol="lumberjack", messages=messages,
            **{"size": EVENT, "window": 4_096} | more,
        )  # fmt: skip

    yield case("level-0", M, target=0.8)
    yield case("level-3", M // 2, extra={"level": 3}, target=2.0)
    yield case("level-3/1K", M // 4, size=PAGE, extra={"level": 3})
    yield case("level-0/16K", M // 40, size=LARGE, extra={"batch": 256}, window=512)
    yield case("level-3/16-connections", M // 2, publishers=16, extra={"level": 3})
    yield case("level-0/window-1", 3_000, window=1, extra={"batch": 1})


def _relink() -> Iterable[Case]:
    def case(name: str, messages: int, **more: Any) -> Case:
        return Case(name=f"relink/{name}", protocol="relink", messages=messages, **{"window": 1_024} | more)

    yield case("publish", M // 2, target=1.0)
    yield case("live/1", M // 4, subscribers=1)
    yield case("live/4", M // 8, subscribers=4)
    yield case("catch-up", M // 4, subscribers=1, late=True)
    yield case("publish/1K", M // 4, size=PAGE)
    yield case("publish/16K", M // 40, size=LARGE)
    yield case("publish/16-connections", M // 2, publishers=16)
    yield case("publish/window-1", 3_000, window=1)


def _backbone() -> Iterable[Case]:
    def case(name: str, messages: int, **more: Any) -> Case:
        return Case(
            name=f"backbone/{name}", protocol="backbone", messages=messages,
            **{"window": 4_096, "subscribers": 1} | more,
        )  # fmt: skip

    yield case("live/1", M, target=1.0)
    yield case("live/4", M // 2, subscribers=4)
    yield case("live/16", M // 4, subscribers=16)
    yield case("catch-up", M // 2, late=True)
    yield case("live/1/1K", M // 2, size=PAGE, window=2_048)
    yield case("live/1/16K", M // 40, size=LARGE, window=128)
    yield case("live/1/window-1", 3_000, window=1)


def _eventbus() -> Iterable[Case]:
    def case(name: str, messages: int, **more: Any) -> Case:
        return Case(
            name=f"eventbus/{name}", protocol="eventbus", messages=messages,
            **{"window": 2_048, "subscribers": 1} | more,
        )  # fmt: skip

    yield case("live/1", M // 16, target=25.0)
    yield case("live/4", M // 16, subscribers=4)
    yield case("live/16", M // 32, subscribers=16)
    yield case("catch-up", M // 16, late=True)
    yield case("live/1/1K", M // 16, size=PAGE)
    yield case("live/1/16K", M // 100, size=LARGE)
    yield case("live/1/window-1", 3_000, window=1)


CASES: tuple[Case, ...] = (*_figg(), *_lumberjack(), *_relink(), *_backbone(), *_eventbus())


def selected(patterns: Iterable[str]) -> list[Case]:
    """The cases whose names match one of ``patterns`` (as file names do); a protocol's name means all of its cases."""
    wanted = [pattern if "/" in pattern else f"{pattern}/*" for pattern in patterns]
    return [case for case in CASES if any(fnmatch(case.name, pattern) for pattern in wanted)]
