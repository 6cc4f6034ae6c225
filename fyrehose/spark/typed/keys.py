"""Recognize events that were sent again, by a key of the event.

    in: the digests of keys in the order of the journal, and when each was accepted      out: which rows stay

An event is a repetition if an event with the same key was kept, and was accepted at most *within* earlier.  A key is
forgotten when the newest event is later by more than that: this is the watermark.  Which events are kept does not
depend on how they are divided into rounds, and after a restart the keys of a table's last rows are enough to continue.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from fyrehose.errors import ConfigError
from fyrehose.spark.typed.writing import DIGEST

#: Limit of the keys in memory; each key takes about 150 bytes.
MOST = 8_000_000


@attrs.define(eq=False)
class RecentKeys:
    """The keys of the newest rows of a table, by which events that were sent again are recognized.

    :ivar within: how long a key is remembered, in microseconds
    :ivar most: how many keys may be in memory
    """

    table: str
    within: int
    most: int = MOST
    #: for each key, the time at which its last kept row was accepted; the oldest first
    _seen: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _newest: int = attrs.field(default=0, init=False)

    def add(self, keys: bytes, times: Any) -> Any:
        """Add the keys of a file, and return a mask of the rows that stay.

        :raises ConfigError: there are more keys than fit into memory
        """
        stays = np.ones(len(times), bool)
        nothing = bytes(DIGEST)
        for row, time in enumerate(times.tolist()):
            key = keys[row * DIGEST : (row + 1) * DIGEST]
            if key == nothing:
                continue
            before = self._seen.get(key)
            if before is not None and before >= time - self.within:
                stays[row] = False
                continue
            if before is not None:
                del self._seen[key]  # so that the key moves behind older ones
            self._seen[key] = time
            self._newest = max(self._newest, time)
        self._forget()
        return stays

    def _forget(self) -> None:
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest] >= self._newest - self.within:
                break
            del self._seen[oldest]
        if len(self._seen) > self.most:
            raise ConfigError(
                f"the table {self.table!r} has more than {self.most:,} keys within the period of the option "
                "'deduplicate'; make its 'within' shorter"
            )
