"""Use a codec alone: print the messages in a capture of Figg traffic, without a reactor or a server.

python docs/examples/codec.py < capture.bin
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from fyrehose.errors import Broken
from fyrehose.protocols.figg import FiggServerSession
from fyrehose.protocols.figg.frames import Published


def published(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield topic and message of each PUBLISH in the bytes of a client, wherever they are cut into *chunks*.

    :raises ValueError: the client broke the protocol; the messages before that have been yielded
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
