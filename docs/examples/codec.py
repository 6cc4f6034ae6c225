"""Use codecs alone: print the messages in a capture of Figg or Lumberjack traffic, without a reactor or a server.

python docs/examples/codec.py figg < capture.bin
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from fyrehose.errors import Broken
from fyrehose.protocols.figg import FiggServerSession
from fyrehose.protocols.figg.frames import Published
from fyrehose.protocols.lumberjack import LumberjackServerSession
from fyrehose.sessions import events_of


def published(chunks: Iterable[bytes]) -> Iterator[tuple[str | None, bytes]]:
    """Yield topic and message of each PUBLISH in the bytes of a Figg client, wherever they are cut into *chunks*.

    :raises ValueError: the client broke the protocol; the messages before that have been yielded
    """
    session = FiggServerSession()
    for chunk in chunks:
        for event in events_of(session, chunk):
            if isinstance(event, Broken):
                raise ValueError(str(event.error))
            if isinstance(event, Published):
                for run in event.runs:
                    yield from ((run.stream, bytes(message)) for message in run.payloads())


def shipped(chunks: Iterable[bytes]) -> Iterator[tuple[str | None, bytes]]:
    """Yield topic and document of each event of a Lumberjack writer, compressed or not.

    :raises ValueError: as for :func:`published`
    """
    session = LumberjackServerSession()
    for chunk in chunks:
        for event in events_of(session, chunk):
            if isinstance(event, Broken):
                raise ValueError(str(event.error))
            yield from ((event.topic, bytes(message)) for message in event.payloads())
            session.durable(len(event))  # Without an acknowledgement the session stops after 1,000 windows.


if __name__ == "__main__":
    decode = {"figg": published, "lumberjack": shipped}[sys.argv[1]]
    for topic, message in decode(iter(lambda: sys.stdin.buffer.read(1 << 16), b"")):
        print(f"{topic}: {message!r}")
