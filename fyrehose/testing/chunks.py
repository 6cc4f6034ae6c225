"""Chunking: what a session makes of bytes must not depend on how they were cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Receiver(Protocol):
    """The receiving half of every sans-I/O session."""

    def receive_data(self, data: bytes) -> list[Any]: ...


def feed(session: Receiver, chunks: Sequence[bytes]) -> list[Any]:
    """The events that ``session`` makes of ``chunks``, in one list."""
    return [event for chunk in chunks for event in session.receive_data(chunk)]


def every_chunking(data: bytes, sizes: Sequence[int] = (1, 2, 3, 5, 7, 8, 13, 64, 1000)) -> Iterator[list[bytes]]:
    """``data`` whole, cut once at each byte, and in pieces of each of ``sizes``."""
    yield [data]
    for cut in range(1, len(data)):
        yield [data[:cut], data[cut:]]
    for size in sizes:
        yield [data[i : i + size] for i in range(0, len(data), size)]
