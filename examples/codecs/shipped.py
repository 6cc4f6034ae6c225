"""What the three loops beside this file share: the answer to the bytes of one read of a Lumberjack writer."""

from __future__ import annotations

from fyrehose.errors import Broken, RemoteProtocolError
from fyrehose.protocols.lumberjack import LumberjackServerSession
from fyrehose.sessions import events_of


def answer(session: LumberjackServerSession, data: bytes) -> tuple[bytes, RemoteProtocolError | None]:
    """Print the messages in *data*; return the bytes to send, and why to close the connection then, if so."""
    error = None
    for event in events_of(session, data):
        if isinstance(event, Broken):
            error = event.error
        else:
            for message in event.payloads():
                print(bytes(message).decode(), flush=True)  # Store the message here instead:
            session.durable(len(event))  # this acknowledges it, so that the writer forgets it.
    return b"".join(session.data_to_send()), error
