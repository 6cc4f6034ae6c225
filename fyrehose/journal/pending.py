"""What was appended and is not durable yet: the reactor's thread appends, the one that writes takes.

    add -> (the reactor asks the thread) -> commit: everything that is there by then, in one sync -> Commit

While the thread writes, the next commit fills.  When it has as much as the last one had, the thread is asked for it
ahead: it goes on without a word from the reactor, and the disk does not wait.  With less, and where commits are large,
it is asked when the reactor hears of the one under way, and more has come: small commits cost more than that wait.
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
#: A larger commit than this, in bytes, is worth the wait until the reactor hears of the one before: it takes longer.
AHEAD = 256 << 10


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

    :ivar size: what it took, in bytes
    :ivar began: when it was taken, by the monotonic clock
    :ivar result: None where it was not tried: there was nothing, or one before it had failed
    """

    appends: list[Append]
    size: int
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
    #: what was added since it was asked last, and what the last commit had, in bytes
    _added: int = attrs.field(default=0, init=False)
    _last: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._appends)

    def add(self, append: Append) -> None:
        """One more; see :meth:`ask`."""
        self._appends.append(append)
        self._added += append.size

    @property
    def enough(self) -> bool:
        """Whether the thread is to be asked ahead."""
        return self._last <= self._added and self._last <= AHEAD

    def ask(self) -> bool:
        """Whether the thread is to be asked for a commit: something waits, and it will not come to it by itself."""
        if self._asked or not self._appends:
            return False
        self._asked = True
        self._added = 0
        return True

    def told(self, commit: Commit) -> None:
        """The reactor has heard of ``commit``."""
        self._last = commit.size

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
            return Commit(taken, size, began, None)
        clock = self.now()
        accepted = max(writer.time, clock)
        try:
            return Commit(taken, size, began, writer.commit(batches(taken, accepted), accepted, clock))
        except Exception:
            self.stopped = True
            return Commit(taken, size, began, Failure())


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
