"""Receive the events of Filebeat and other Beats with sockets, in a thread for each connection.

python with_sockets.py [PORT]
"""

from __future__ import annotations

import socketserver
import sys
from contextlib import suppress

from fyrehose.protocols.lumberjack import LumberjackServerSession
from shipped import answer


class Receiver(socketserver.BaseRequestHandler):
    """One connection."""

    def handle(self) -> None:
        session = LumberjackServerSession()
        with suppress(ConnectionError):
            while data := self.request.recv(1 << 16):
                reply, error = answer(session, data)
                self.request.sendall(reply)
                if error:
                    print(error, file=sys.stderr)
                    break


class Server(socketserver.ThreadingTCPServer):
    """May start again at once, and stop while there are connections."""

    allow_reuse_address = daemon_threads = True


if __name__ == "__main__":
    address = ("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 5044)
    with Server(address, Receiver) as server:
        print(f"port {server.server_address[1]}", flush=True)
        server.serve_forever()
