"""Log that the disk does not end a write, while it lasts.

The writer thread waits for the disk, so the reactor continues to serve readers.  Publishers, however, get no answer.
"""

from __future__ import annotations

from pathlib import Path

import attrs
from twisted.logger import Logger

from fyrehose.observe.meters import LONGEST_WRITE, JournalMeters

log = Logger()


@attrs.define(eq=False)
class SlowDisk:
    """The log lines about a disk that does not answer: after LONGEST_WRITE, and each time that has doubled."""

    directory: Path
    meters: JournalMeters
    _next_line: float = attrs.field(default=LONGEST_WRITE, init=False)
    #: For how long the write that was logged had waited when it was looked at last, in seconds; 0: none was logged.
    _waited: float = attrs.field(default=0.0, init=False)

    def look(self) -> None:
        """Log a write that lasts too long, or that it has ended; called about once a second."""
        waited = self.meters.write_age
        if self._waited and waited < self._waited:
            log.warn(
                "the disk of {directory} answers again; it took more than {seconds:.1f} s",
                directory=self.directory,
                seconds=self._waited,
            )
            self._waited, self._next_line = 0.0, LONGEST_WRITE
        if waited >= self._next_line:
            log.error(
                "the disk of {directory} has not ended a write for {seconds:.1f} s; no message is acknowledged until "
                "it does: check the disk, and the log of the kernel",
                directory=self.directory,
                seconds=waited,
            )
            self._next_line = 2 * waited
        if waited >= LONGEST_WRITE:
            self._waited = waited
