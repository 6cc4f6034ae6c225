"""Measure the time from the start of a server with a large journal to its first acknowledged message."""

from __future__ import annotations

import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from fyrehose.bench.cases import Case
from fyrehose.bench.makers import Makers
from fyrehose.bench.plans import Plan
from fyrehose.bench.results import Sample
from fyrehose.bench.servers import Running, start_fyrehose
from fyrehose.bench.wires.base import Job, read_exactly
from fyrehose.bench.wires.figg import FiggPublisherWire

#: Messages that are published between a start and a kill, so that the next start has to recover.
BETWEEN = 1_000
ENDS = {"clean": signal.SIGTERM, "killed": signal.SIGKILL}


def measure(case: Case, directory: Path, rounds: int, durability: str, told: Callable[[str], None]) -> list[Sample]:
    """Fill a journal, and start a server with it again and again.

    :raises CannotStart: a server does not start
    :raises LoadFailed: the journal could not be filled
    """
    place, end = directory / "fyrehose", ENDS[case.ended]
    told(f"{case.messages} messages are written")
    running = start_fyrehose(place, case.protocol, "interval:1000")
    fill(running, case, case.messages)
    running.stop(end)
    samples: list[Sample] = []
    for number in range(rounds):
        told(f"start {number + 1} of {rounds}")
        began = time.monotonic()
        running = start_fyrehose(place, case.protocol, durability)
        try:
            accepted(running.port)
            samples.append({"seconds": time.monotonic() - began})
            fill(running, case, BETWEEN)
        finally:
            running.stop(end)
    return samples


def fill(running: Running, case: Case, messages: int) -> None:
    """Publish ``messages`` to the server."""
    if messages:
        plan = Plan(
            wire=case.protocol, port=running.port, read_port=running.port, stream="filled", size=case.size,
            publishers=[messages], window=8_192,
        )  # fmt: skip
        with Makers([plan]) as makers:
            makers.run()


def accepted(port: int) -> None:
    """Publish one message, and wait for its acknowledgement.

    :raises Wrong: the server closes the connection
    """
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(FiggPublisherWire(Job(stream="first", size=128, messages=1)).block(1))
        kind, _, _, number = struct.unpack(">HHIQ", read_exactly(peer, 16))
        assert (kind, number) == (6, 1)
