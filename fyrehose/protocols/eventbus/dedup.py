"""UUIDs that were seen lately, for publishers that send an event again when they do not know whether it arrived.

in: UUIDs as they were sent, and the time      out: whether one was seen before
"""

from __future__ import annotations

from collections import OrderedDict

import attrs

#: How many are remembered, and for how long, in seconds.
MOST = 100_000
AGE = 600.0


@attrs.define(eq=False)
class Seen:
    """The latest UUIDs; the oldest go first."""

    most: int = MOST
    age: float = AGE
    _seen: OrderedDict[bytes, float] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, uuid: bytes, now: float) -> bool:
        """Remember ``uuid``; False when it was remembered already, and that counts as being seen again."""
        while self._seen and now - next(iter(self._seen.values())) > self.age:
            self._seen.popitem(last=False)
        known = uuid in self._seen
        self._seen[uuid] = now
        self._seen.move_to_end(uuid)
        if len(self._seen) > self.most:
            self._seen.popitem(last=False)
        return not known

    def forget(self, uuid: bytes) -> None:
        """It was not published after all."""
        self._seen.pop(uuid, None)
