"""Measure the memory of idle connections."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fyrehose.bench import usage
from fyrehose.bench.cases import Case
from fyrehose.bench.results import Sample
from fyrehose.bench.servers import CannotStart, Contestant
from fyrehose.bench.wires.base import Job
from fyrehose.bench.wires.figg import FiggSubscriberWire

#: Descriptors that a process needs besides connections.
SPARE = 200
#: Seconds without CPU use after which a server counts as idle.
SETTLED = 0.5


def measure(
    case: Case, contestant: Contestant, directory: Path, rounds: int, durability: str, told: Callable[[str], None]
) -> list[Sample]:
    """Connect, attach to a topic, and measure the server's memory, with a new server for each round.

    :raises CannotStart: the system allows a process fewer descriptors than it takes
    """
    allow(case.messages)
    samples: list[Sample] = []
    for number in range(rounds):
        told(f"round {number + 1} of {rounds}")
        running = contestant.start(directory / str(number), case.protocol, durability)
        try:
            before = usage.memory(running.pid)[0]
            with attached(running.port, case.messages):
                settle(running.pid)
                now, peak = usage.memory(running.pid)
            samples.append({"each": (now - before) / case.messages, "peak": peak})
        finally:
            running.stop()
    return samples


@contextlib.contextmanager
def attached(port: int, connections: int) -> Iterator[None]:
    """Keep ``connections`` connections to the server at ``port`` open, each attached to a topic without messages.

    :raises CannotStart: the system allows fewer descriptors than they take
    """
    allow(connections)
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            wire = FiggSubscriberWire(Job(stream="idle", size=128, messages=1))
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            peer.sendall(wire.begin())
            wire.begun(peer)
        yield


def allow(connections: int) -> None:
    """Raise the limit of open files of this process, and of the servers that it starts, as far as permitted.

    :raises CannotStart: the limit is too low for ``connections`` connections
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + SPARE:
        raise CannotStart(f"{connections} connections take as many descriptors, and this system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle(pid: int, cpu: Callable[[int], usage.Cpu] = usage.cpu, every: float = SETTLED) -> None:
    """Wait until the process ``pid`` uses almost no CPU.

    :param cpu: returns the CPU time of a process so far
    :param every: the time between two looks, in seconds
    """
    while True:
        before = cpu(pid)
        time.sleep(every)
        if cpu(pid).since(before).total < every / 10:
            return
