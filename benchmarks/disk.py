"""The least that a durable message can take: write and fdatasync of its bytes, over and over, in one file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.latencies import Latencies
from benchmarks.plans import Outcome, Plan

#: What a record needs in a log besides its payload, about: a header of the batch and one of the run.
AROUND = 200


class Disk:
    """A load without a server."""

    def __init__(self, plan: Plan) -> None:
        self._count = sum(plan.publishers)
        self._record = os.urandom(plan.size + AROUND)
        self._path = Path(plan.extra["directory"]) / plan.stream
        self._fd = -1

    def connect(self) -> None:
        """Make the file, with all of its blocks: a sync that has to write those down too takes longer."""
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(self._fd, bytes(len(self._record) * self._count))
        os.fsync(self._fd)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def run(self, start: float) -> Outcome:
        """Write and sync as often as there are messages."""
        took = Latencies(self._count, 0.0)
        before = time.process_time()
        for number in range(1, self._count + 1):
            took.sent(number, time.monotonic())
            os.write(self._fd, self._record)
            os.fdatasync(self._fd)
            took.done(number, time.monotonic())
        spent = time.process_time() - before
        return Outcome(
            began=start,
            ended=time.monotonic(),
            cpu=spent,
            acknowledged=self._count,
            latency={"acknowledged": took.percentiles},
        )

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._path.unlink()
