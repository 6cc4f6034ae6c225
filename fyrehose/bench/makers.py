"""Control the processes of load makers: they prepare, start together, and report their outcomes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Self

from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.errors import FyrehoseError

#: The module of load makers for Fyrehose's own protocols.
MAKER = "fyrehose.bench.maker"
#: Seconds from sending the start time to the start, so that every load maker receives it in time.
BEFORE = 0.05


class LoadFailed(FyrehoseError):
    """A load maker failed."""


class Makers:
    """A context manager that runs a load maker for each plan; when it is entered, all are ready.

    :param maker: the module of the load makers
    :raises LoadFailed: a load maker does not get ready
    """

    def __init__(self, plans: Sequence[Plan], maker: str = MAKER) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", maker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in plans
        ]
        self._plans = plans

    def __enter__(self) -> Self:
        try:
            # The plans of subscribers come first, because subscribers must have subscribed before publishers subscribe,
            # too.
            for process, plan in zip(self._processes, self._plans, strict=True):
                self._tell(process, plan.dumps())
            for process in self._processes:
                if (line := self._line(process)) != "ready":
                    raise LoadFailed(f"a load maker did not get ready: {LoadOutcome.loads(line).trouble}")
        except BaseException:
            self._end()
            raise
        return self

    def run(self) -> list[LoadOutcome]:
        """Start all load makers at the same time, and wait for their outcomes.

        :raises LoadFailed: a load maker failed
        """
        start = time.monotonic() + BEFORE
        for process in self._processes:
            self._tell(process, f"go {start}")
        outcomes = [LoadOutcome.loads(self._line(process)) for process in self._processes]
        for outcome in outcomes:
            if outcome.trouble:
                raise LoadFailed(f"a load maker failed: {outcome.trouble}")
        return outcomes

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().rstrip("\n")
        if not line:
            raise LoadFailed(f"a load maker ended with status {process.wait()}")
        return line
