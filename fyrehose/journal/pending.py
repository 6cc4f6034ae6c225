"""What was appended and is not durable yet: the reactor's thread appends, the one that writes takes.

    add -> (the reactor asks the thread) -> commit: everything that is there by then, in one sync -> Commit

The thread takes what it finds when it comes to it.  So what is appended while it writes is the next commit, which needs
no word from the reactor to begin: the disk does not wait for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.journal import format as fmt
from fyrehose.journal.writer import Committed, Writer
from fyrehose.records import Run

#: What one commit takes of what is pending, in bytes: so that a sync never has too much to do.
COMMIT = 16 << 20


@attrs.define(eq=False)
class Append:
    """One call of append, until it is durable."""

    runs: Sequence[Run]
    first_seqs: Sequence[int]
    size: int
    done: Deferred[None] = attrs.field(factory=Deferred)


@attrs.frozen(slots=True)
class Commit:
    """What the thread has to tell of one commit.

    :ivar began: when it was taken, by the monotonic clock
    :ivar result: None where it was not tried: there was nothing, or one before it had failed
    """

    appends: list[Append]
    began: float
    result: Committed | Failure | None


@attrs.define(eq=False)
class Pending:
    """What waits, in its order.

    :ivar now: the wall clock, in microseconds since 1970 UTC
    :ivar stopped: nothing more is written: what follows a commit that failed must not be there without it
    """

    now: Callable[[], int]
    stopped: bool = False
    _appends: deque[Append] = attrs.field(factory=deque, init=False)
    #: whether the thread was asked, and has not begun to take
    _asked: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        return len(self._appends)

    def add(self, append: Append) -> None:
        """One more; see :meth:`ask`."""
        self._appends.append(append)

    def ask(self) -> bool:
        """Whether the thread is to be asked for a commit: something waits, and it will not come to it by itself."""
        if self._asked or not self._appends:
            return False
        self._asked = True
        return True

    def commit(self, writer: Writer) -> Commit:
        """In the thread: write what there is."""
        # In this order: what is added from now on is taken, or the thread is asked again.
        self._asked = False
        taken: list[Append] = []
        size = 0
        while self._appends and size < COMMIT:
            taken.append(self._appends.popleft())
            size += taken[-1].size
        began = time.monotonic()
        if self.stopped or not taken:
            return Commit(taken, began, None)
        clock = self.now()
        accepted = max(writer.time, clock)
        try:
            return Commit(taken, began, writer.commit(batches(taken, accepted), accepted, clock))
        except Exception:
            self.stopped = True
            return Commit(taken, began, Failure())


def batches(appends: Sequence[Append], accepted: int) -> list[list[Run]]:
    """The runs of ``appends`` as records of the time ``accepted``, in batches that are no larger than they may be."""
    found: list[list[Run]] = []
    filled = fmt.BATCH
    for append in appends:
        if filled + append.size > fmt.BATCH:
            found.append([])
            filled = 0
        found[-1] += [run.numbered(first, accepted) for run, first in zip(append.runs, append.first_seqs, strict=True)]
        filled += append.size
    return found
