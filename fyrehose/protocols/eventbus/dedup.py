"""Remember recent UUIDs, to drop events that a publisher sends again because no BROADCAST confirmed them.

in: UUIDs as they were sent, and the time      out: whether a UUID was seen before
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

#: Number of UUIDs that are remembered, and for how long, in seconds.
MOST = 100_000
AGE = 600.0


@attrs.define(eq=False)
class Seen:
    """The most recently seen UUIDs.

    :ivar most: number of UUIDs that are remembered
    :ivar age: how long they are remembered, in seconds
    """

    most: int = MOST
    age: float = AGE
    _seen: OrderedDict[bytes, float] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, uuid: bytes, now: float) -> bool:
        """Remember *uuid* from *now* on; return False if it was remembered already."""
        while self._seen and now - next(iter(self._seen.values())) > self.age:
            self._seen.popitem(last=False)
        known = uuid in self._seen
        self._seen[uuid] = now
        self._seen.move_to_end(uuid)
        if len(self._seen) > self.most:
            self._seen.popitem(last=False)
        return not known

    def forget(self, uuid: bytes) -> None:
        """Forget *uuid*, because its event was not published."""
        self._seen.pop(uuid, None)
