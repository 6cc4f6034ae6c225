"""Depth one, the codec alone: what a capture of Figg traffic has in it.  No reactor, no server.

python docs/examples/codec.py < capture.bin
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from fyrehose.errors import Broken
from fyrehose.protocols.figg.frames import Published
from fyrehose.protocols.figg.session import FiggServerSession


def published(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Topic and message of each PUBLISH that a client sent in ``chunks``, however they are cut.

    :raises ValueError: the client broke the protocol; what it sent before has been handed out
    """
    session = FiggServerSession()
    for chunk in chunks:
        for event in session.receive_data(chunk):
            if isinstance(event, Broken):
                raise ValueError(str(event.error))
            if isinstance(event, Published):
                for run in event.runs:
                    begin = 0
                    for size in memoryview(run.lengths).cast("I"):
                        yield run.topic, bytes(run.payload[begin : begin + size])
                        begin += size


if __name__ == "__main__":
    for topic, message in published(iter(lambda: sys.stdin.buffer.read(1 << 16), b"")):
        print(f"{topic}: {message!r}")
