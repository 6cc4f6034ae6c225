"""Choose ports for servers whose port must be known before they listen, or stay the same over a restart.

If a test asks the kernel for a port (port 0), the kernel may give that port to a connection of another process before
the server listens on it, or while the server restarts.  The ports that this module chooses are outside of the range
from which the kernel gives out ports.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import ExitStack, suppress


def free_ports(count: int, besides: Collection[int] = ()) -> list[int]:
    """Return *count* ports of loopback that no program uses now, for TCP or UDP, and that are not in *besides*."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 32_000)
        with ExitStack() as stack, suppress(OSError):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(("127.0.0.1", port))
            if port not in found and port not in besides:
                found.append(port)
    return found


def free_port() -> int:
    """Return one free port; see :func:`free_ports`."""
    return free_ports(1)[0]
