"""Choose ports for servers whose port must be known before they listen, or stay the same over a restart.

If a test asks the kernel for a port (port 0), the kernel may give that port to a connection of another process before
the server listens on it, or while the server restarts.  The ports that this module chooses are outside of the range
from which the kernel gives out ports, and each is chosen once while the process lives: it locks a byte for each in a
file that all processes of the user share.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import BinaryIO

#: The directory of the file with the locks, also of processes whose temporary files are elsewhere.
TEMPORARY = Path("/tmp")
#: The ports from which they are chosen.
PORTS = range(10_000, 32_000)


def free_ports(count: int, row: int = 1, between: Sequence[int] = PORTS) -> list[int]:
    """Return *count* ports of loopback that no program uses now, for TCP or UDP, and that nobody has chosen.

    :param row: how many consecutive ports each of them begins, all of which are free
    :param between: the ports from which they are chosen
    """
    found: list[int] = []
    while len(found) < count:
        first = random.choice(between)
        if _choose(range(first, first + row)):
            found.append(first)
    return found


def free_port() -> int:
    """Return one free port; see :func:`free_ports`."""
    return free_ports(1)[0]


def _choose(ports: range) -> bool:
    """Choose *ports*, if they are free; return whether they are."""
    chosen, file = _chosen()
    if not chosen.isdisjoint(ports):
        return False
    with ExitStack() as stack, suppress(OSError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
        for port, kind in product(ports, (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            stack.enter_context(socket.socket(socket.AF_INET, kind)).bind(("127.0.0.1", port))
        chosen.update(ports)
        return True
    return False


@cache
def _chosen() -> tuple[set[int], BinaryIO]:
    """Return the ports that this process has chosen, and the file in which they are locked until it ends."""
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    path = TEMPORARY / f"fyrehose-ports-{os.getuid()}"
    return set(), until_the_end.enter_context(path.open("ab"))
