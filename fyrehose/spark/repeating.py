"""Repeat the steps of a job that follows a journal, even while the journal or an object store cannot be reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fyrehose.errors import JournalUnreachable

log = logging.getLogger(__name__)

#: The first and the longest pause after the journal or the lake could not be reached, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0


def repeated(step: Callable[[], float | None], follow: bool, stop: Callable[[], bool], what: str) -> None:
    """Call ``step`` again and again until it returns None, or until ``stop()`` returns true.

    :param step: returns the pause before the next step in seconds; None: this was the last step
    :param follow: if the journal or a store cannot be reached, log this once, and try again after growing pauses
    :param what: the job, for the log
    :raises JournalUnreachable: the journal or a store cannot be reached, and ``follow`` is not set
    """
    failures = 0
    while not stop():
        try:
            pause = step()
        except JournalUnreachable as error:
            if not follow:
                raise
            failures += 1
            if failures == 1:
                log.warning("%s; trying again until that is over", error)
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
        else:
            if failures:
                log.info("%s continues after %d failed attempts", what, failures)
            failures = 0
        if pause is None:
            break
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0 and not stop():
            time.sleep(min(0.5, left))
