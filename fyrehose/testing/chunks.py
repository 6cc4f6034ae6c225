"""Check that the events of a session do not depend on how its input is split into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fyrehose.sessions import ByteSession, events_of


def feed(session: ByteSession, chunks: Sequence[bytes]) -> list[Any]:
    """Pass each chunk to ``session``, and return all its events in one list."""
    return [event for chunk in chunks for event in events_of(session, chunk)]


def every_chunking(data: bytes, sizes: Sequence[int] = (1, 2, 3, 5, 7, 8, 13, 64, 1000)) -> Iterator[list[bytes]]:
    """Yield ``data`` as one chunk, then cut in two at each byte, then cut into chunks of each of ``sizes``."""
    yield [data]
    for cut in range(1, len(data)):
        yield [data[:cut], data[cut:]]
    for size in sizes:
        yield [data[i : i + size] for i in range(0, len(data), size)]
