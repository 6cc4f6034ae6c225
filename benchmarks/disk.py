"""Lower bound of a durable message: write and fdatasync its bytes, again and again, in one file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.latencies import Latencies
from benchmarks.plans import Outcome, Plan

#: Approximate overhead of a record in the journal, in bytes: a batch header and a run header.
AROUND = 200


class Disk:
    """Load without a server."""

    def __init__(self, plan: Plan) -> None:
        self._count = sum(plan.publishers)
        self._record = os.urandom(plan.size + AROUND)
        self._path = Path(plan.extra["directory"]) / plan.stream
        self._fd = -1

    def connect(self) -> None:
        """Create the file with all of its blocks, because a sync that also allocates blocks takes longer."""
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(self._fd, bytes(len(self._record) * self._count))
        os.fsync(self._fd)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def run(self, start: float) -> Outcome:
        """Write and sync once for each message."""
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
        """Delete the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._path.unlink()
