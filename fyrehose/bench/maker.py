"""Load maker: ``python -m fyrehose.bench.maker`` reads its plan, waits for the start time, and prints its outcome.

It sends prepared bytes in large writes, and counts the answers in large reads, all in one thread.  So its own CPU,
which it reports, stays below that of the measured server.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from fyrehose.bench.datagrams import Datagrams
from fyrehose.bench.plans import LoadOutcome, Plan
from fyrehose.bench.streams import StreamLoad
from fyrehose.bench.wires.base import Wrong


class Load(Protocol):
    """The methods of a load that its process calls."""

    def connect(self) -> None: ...

    def run(self, start: float) -> LoadOutcome: ...

    def close(self) -> None: ...


#: The classes that make the load, by protocol; all other protocols use :class:`StreamLoad`.
KINDS: dict[str, Callable[[Plan], Load]] = {"backbone": Datagrams}


def make(plan: Plan) -> Load:
    """Build the load that ``plan`` describes."""
    return KINDS.get(plan.wire, StreamLoad)(plan)


def main() -> None:
    """Run one load maker on standard input and output."""
    load = make(Plan.loads(sys.stdin.readline()))
    try:
        load.connect()
        print("ready", flush=True)
        start = float(sys.stdin.readline().split()[1])
        print(load.run(start).dumps(), flush=True)
        sys.stdin.read()
    except (OSError, Wrong) as error:
        now = time.monotonic()
        print(LoadOutcome(began=now, ended=now, cpu=time.process_time(), trouble=f"{error}").dumps(), flush=True)
    finally:
        load.close()


if __name__ == "__main__":
    main()
