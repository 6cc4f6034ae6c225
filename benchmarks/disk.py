"""Load without a server: write and sync once for each message, in one file."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from fyrehose.bench.disk import AROUND, allocated, write_and_sync
from fyrehose.bench.latencies import Latencies
from fyrehose.bench.plans import LoadOutcome, Plan


class Disk:
    """A load on a file, without a server."""

    def __init__(self, plan: Plan) -> None:
        self._count = sum(plan.publishers)
        self._record = os.urandom(plan.size + AROUND)
        self._path = Path(plan.extra["directory"]) / plan.stream
        self._open = ExitStack()
        self._descriptor = -1

    def connect(self) -> None:
        """Create the file with all of its blocks."""
        self._descriptor = self._open.enter_context(allocated(self._path, len(self._record) * self._count))

    def run(self, start: float) -> LoadOutcome:
        """Write and sync once for each message."""
        took = Latencies(self._count, 0.0)
        before = time.process_time()
        for number in range(1, self._count + 1):
            began, ended = write_and_sync(self._descriptor, self._record)
            took.sent(number, began)
            took.done(number, ended)
        spent = time.process_time() - before
        return LoadOutcome(
            began=start,
            ended=time.monotonic(),
            cpu=spent,
            acknowledged=self._count,
            latency={"acknowledged": took.percentiles},
        )

    def close(self) -> None:
        """Delete the file."""
        self._open.close()
