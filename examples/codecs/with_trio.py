"""Receive the events of Filebeat and other Beats with trio.

python with_trio.py [PORT]
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

import trio

from fyrehose.protocols.lumberjack import LumberjackServerSession
from shipped import answer


async def receive(stream: trio.SocketStream) -> None:
    """Serve one connection."""
    session = LumberjackServerSession()
    with suppress(trio.BrokenResourceError):  # A lost connection would end the program.
        async for data in stream:
            reply, error = answer(session, bytes(data))
            await stream.send_all(reply)
            if error:
                print(error, file=sys.stderr)
                break


async def main(port: int) -> None:
    """Serve until the program is interrupted."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, receive, port, host="127.0.0.1")
        listeners = await nursery.start(serve)
        print(f"port {listeners[0].socket.getsockname()[1]}", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 5044)
