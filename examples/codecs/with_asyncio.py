"""Receive the events of Filebeat and other Beats with asyncio.

python with_asyncio.py [PORT]
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing, suppress

from fyrehose.protocols.lumberjack import LumberjackServerSession
from shipped import answer


async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection."""
    session = LumberjackServerSession()
    with closing(writer), suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            reply, error = answer(session, data)
            writer.write(reply)
            await writer.drain()
            if error:
                print(error, file=sys.stderr)
                break


async def main(port: int) -> None:
    """Serve until the program is interrupted."""
    async with await asyncio.start_server(receive, "127.0.0.1", port) as server:
        print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5044))
